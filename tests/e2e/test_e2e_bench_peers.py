"""`penstock bench peers` with Penstock alone, at a size that takes no time, and the page of it."""

from __future__ import annotations

import json

from penstock.bench.cli import main


def test_records_are_counted_checked_and_timed(tmp_path, capsys):
    found = []
    for work in ("throughput", "latency"):
        code = main(
            ["peers", "--work", work, "--only", "penstock-shm", "--records", "3000", "--turns", "1",
             "--rate", "500", "--seconds", "0.2",
             "--warmup", "0.1", "--data", str(tmp_path), "--format", "json"]
        )  # fmt: skip
        out, err = capsys.readouterr()
        assert code == 0, err
        found.append(tmp_path / f"{work}.json")
        assert list(tmp_path.glob("penstock-bench-*")) == []
        found[-1].write_text(out)
        [peer] = json.loads(out)["peers"].values()
        assert [peer[name] for name in ("lost", "doubled", "out_of_order", "foreign")] == [0] * 4
        figures = ("records_per_second_100", "p50_us")[work == "latency"]
        assert peer[figures] > 0
    page = tmp_path / "peers.md"
    assert main(["peers-page", *map(str, found), "--output", str(page)]) == 0
    assert f"| Penstock, shared memory | **{peer_rate(found[0]):,}** |" in page.read_text()
    assert page.with_name("peers.png").read_bytes().startswith(b"\x89PNG")


def peer_rate(file) -> int:
    rate: int = json.loads(file.read_text())["peers"]["penstock-shm"]["records_per_second_100"]
    return rate
