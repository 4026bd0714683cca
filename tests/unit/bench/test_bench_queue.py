"""The benchmark of work queues: its options, its page, its count of jobs, and the servers that it
starts, which end with it however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.bench import queuepage, queues
from penstock.bench.cli import main
from penstock.bench.errors import BenchError
from penstock.bench.ledger import stamps_of
from penstock.bench.peerserver import serving
from penstock.bench.queuekafka import kafka_peer
from penstock.bench.queuepeers import Score, Setup, WorkTally
from penstock.bench.queues import PEERS, QueueOptions

OWNER = """
import sys
from dataclasses import replace
from pathlib import Path
from penstock.bench.peerserver import serving
with serving("sleeper", ["sleep", "60"], Path(sys.argv[1]), lambda: True) as process:
    print(process.pid, flush=True)
    sys.stdin.read()
"""
MEASURED = {
    "name": "One", "level": "os", "client": "c", "prefetch": 500, "sent": "page cache",
    "answered": "nothing", "by_default": "never", "settings": "as it comes",
    "versions": {"One": "1.2"}, "jobs": 1000, "sent_per_second": 2000, "done_per_second": 3000,
    "done_slowest": 2900, "done_fastest": 3100, "cpu_us": 12.34, "lost": 0, "doubled": 0,
}  # fmt: skip


def result_of(**peers: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": "queue",
        "peers": peers,
        "filesystem": "ext4",
        "machine": {"cpu": "C", "cores": 2, "memory_gb": 8.0, "kernel": "K", "python": "P",
                    "penstock": "0", "date": "2026-11-23"},
        "options": QueueOptions().stated(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"size": 7}, "--size 7"),
        ({"workers": 0}, "--workers 0"),
        ({"jobs": 0}, "--jobs and --turns"),
        ({"tries": -1}, "--tries"),
        ({"wait": 0.0}, "--wait"),
        ({"only": "nosuch"}, "--only nosuch.*penstock-shm, penstock-tcp"),
    ],
)
def test_what_cannot_be_run_is_refused(given, said):
    with pytest.raises(BenchError, match=said):
        QueueOptions(**given).check()


def test_one_peer_is_chosen_by_its_key_and_several_by_a_part_of_it():
    assert [peer.key for peer in QueueOptions(only="redis").chosen()] == ["redis"]
    assert len(QueueOptions(only="fsync").chosen()) > 2
    assert len({peer.key for peer in PEERS}) == len(PEERS) == len(QueueOptions().chosen())


def test_who_is_missing_is_left_out_with_the_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    others = [peer for peer in PEERS if not peer.key.startswith("penstock")]
    for peer in others:
        assert main(["queue", "--only", peer.key, "--format", "json"]) == 0
        [told] = json.loads(capsys.readouterr().out)["peers"].values()
        assert "missing: " in told["skipped"]
    assert len(others) == 6


def test_a_peer_that_fails_is_told_of_and_holds_up_no_other(monkeypatch, capsys):
    def serve(setup: Setup):
        raise BenchError("no start:\nthe port is taken")

    missing = replace(PEERS[0], key="missing", missing=lambda setup: "it is missing")
    failing = replace(PEERS[0], key="failing", serve=serve)
    monkeypatch.setattr(queues, "PEERS", (failing, missing))
    assert main(["queue", "--format", "json"]) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)["peers"]
    assert (told["failing"]["why"], told["missing"]["skipped"]) == (
        "the port is taken", "it is missing",
    )  # fmt: skip
    assert "failing: no start:" in err


def test_kafka_s_jars_have_to_be_where_they_are_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    why = kafka_peer().missing(Setup(tmp_path, "os", tmp_path))
    assert why == f"--kafka {tmp_path}: there is no kafka-clients-*.jar"


def test_each_job_has_its_number_and_its_size():
    found = list(queues.values(300, 5, 100))
    assert stamps_of(found).tolist() == [300, 301, 302, 303, 304]
    assert {len(value) for value in found} == {100}


def test_a_warm_worker_had_a_job_and_a_tally_is_over_once_all_jobs_are_answered():
    score = Score.of(2)
    one, other = WorkTally(score, 0), WorkTally(score, 1)
    one.is_warm_up = other.is_warm_up = True
    for value in queues.values(0, 3, 8):
        one.take(value)
    assert one.is_over()
    assert not other.is_over()
    one.is_warm_up = other.is_warm_up = False
    score.total.value = 4
    assert not one.is_over()
    other.take(*queues.values(3, 1, 8))
    assert other.is_over()
    assert one.is_over()
    assert (one.drain().tolist(), other.drain().tolist()) == ([0, 1, 2], [3])
    assert one.drain().tolist() == []
    assert 0 < one.finished() <= other.finished()


def test_the_page_has_a_row_for_each_and_says_what_was_not_measured():
    page = queuepage.as_page(
        result_of(
            quick={**MEASURED, "redelivery_p50_ms": 7.25, "redelivery_max_ms": 1234.0,
                   "redelivery_tries": 5},
            slow={**MEASURED, "name": "Two", "redelivery_none_within": 12.0, "lost": 3},
            none={"name": "Three", "level": "fsync", "skipped": "its server is missing"},
        )
    )  # fmt: skip
    assert (
        "| One | **3,000** (2,900 to 3,100) | 12.3 µs | 2,000 | 1,000 "
        "| 7.2 ms (worst of 5: 1.2 s) | ok |"
    ) in page
    assert "| 2,000 | 1,000 | not within 12 s: never | 3 lost |" in page
    assert "| Three | not measured: its server is missing | | | | | |" in page
    assert "| One | One 1.2 | c | 500 | page cache | nothing | as it comes |" in page
    assert page.index("## The page cache") < page.index("## The device") < page.index("Three")


def test_the_page_has_a_section_for_delayed_records():
    delayed = {
        "late_p50_ms": 4.21, "late_p99_ms": 21.0, "late_max_ms": 1500.0,
        "lost": 0, "doubled": 0, "early": 0,
        "idle_cpu_percent": {"node": 0.1, "worker-0": 0.7, "worker-1": 0.8, "writer-0": 0.0},
        "busy_cpu_percent": {"node": 20.5, "worker-0": 30.0, "worker-1": 31.0, "writer-0": 0.0},
        "memory_bytes_per_record": {"node": 12.0, "writer-0": 0.0},
        "options": {"records": 1_000_000, "rate": 10_000, "order": "random", "transport": "shm"},
    }  # fmt: skip
    row = (
        "| 1,000,000, 10,000, random, shm | 4.2 ms | **21.0 ms** | 1.5 s | 12 bytes "
        "| 0.1 %, 0.8 % | 20.5 %, 31 % | "
    )
    page = queuepage.as_page(result_of(one=MEASURED), [delayed, {**delayed, "lost": 2}])
    assert row + "ok |" in page
    assert row + "2 lost |" in page
    assert "Delayed records" not in queuepage.as_page(result_of(one=MEASURED))


@pytest.mark.parametrize("text", ["", "[]", '{"benchmark": "groups"}'])
def test_what_is_no_result_makes_no_page(text, tmp_path, capsys):
    file, page = tmp_path / "queue.json", tmp_path / "queue.md"
    file.write_text(text)
    assert main(["queue-page", str(file), "--output", str(page)]) == 1
    assert str(file) in capsys.readouterr().err
    assert not page.exists()


def test_a_server_ends_with_the_block(tmp_path):
    with serving("sleeper", ["sleep", "60"], tmp_path, lambda: True) as process:
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL


def test_a_server_that_does_not_start_says_why(tmp_path):
    command = ["sh", "-c", "echo the port is taken; exit 3"]
    with (
        pytest.raises(BenchError, match="status 3 at its start:\nthe port is taken"),
        serving("failing", command, tmp_path, lambda: False),
    ):
        pass
    with (
        pytest.raises(BenchError, match=r"slow is not ready after 0.1 s"),
        serving("slow", ["sleep", "60"], tmp_path, lambda: False, within=0.1),
    ):
        pass


def test_a_server_ends_when_its_owner_is_killed(tmp_path: Path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        server = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        owner.wait()
        server.wait(30)
