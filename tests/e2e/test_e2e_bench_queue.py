"""`penstock bench queue` with Penstock alone, at a size that takes no time, and the page of it."""

from __future__ import annotations

import json

from penstock.bench.cli import main


def test_jobs_of_a_share_group_and_those_of_a_killed_worker(tmp_path, capsys):
    code = main(
        ["queue", "--only", "penstock-shm", "--jobs", "200", "--workers", "2", "--turns", "1",
         "--tries", "1", "--data", str(tmp_path), "--format", "json"]
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0, err
    result = json.loads(out)
    assert list(result["peers"]) == ["penstock-shm"]
    peer = result["peers"]["penstock-shm"]
    assert (peer["jobs"], peer["lost"], peer["doubled"]) == (600, 0, 0)
    assert min(peer["sent_per_second"], peer["done_per_second"]) > 0
    assert peer["redelivery_tries"] == 1
    assert 0 < peer["redelivery_p50_ms"] == peer["redelivery_max_ms"]
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "queue.json").write_text(out)
    page = tmp_path / "queue.md"
    assert main(["queue-page", str(tmp_path / "queue.json"), "--output", str(page)]) == 0
    assert f"| Penstock, shared memory | **{peer['done_per_second']:,}** " in page.read_text()
