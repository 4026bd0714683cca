"""Penstock beside others: options, the check of what a reader got, the page, and Kafka's jars."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import kafkajars, kafkatools, payload, peers, peerspage
from penstock.bench.cli import main
from penstock.bench.errors import BenchError
from penstock.bench.peers import POOL, STREAMS, CheckedStream, PeersOptions
from penstock.bench.streampeers import Address

MEASURED = {
    "client": "c", "kept": "page cache", "settings": "as it comes", "versions": {"One": "1"},
    "records_per_second_100": 500, "records_per_second_100_turns": [400, 500, 600],
    "records_per_second_1024": 100, "records_per_second_1024_turns": [100],
    "lost": 0, "doubled": 0, "out_of_order": 0, "foreign": 0,
}  # fmt: skip


def result_of(**told: Any) -> dict[str, Any]:
    return {
        "benchmark": "peers",
        "peers": told,
        "filesystem": "ext4",
        "machine": {"cpu": "C", "cores": 2, "memory_gb": 8.0, "kernel": "K", "python": "P",
                    "penstock": "0", "date": "2026-11-23"},
        "options": PeersOptions().stated(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"work": "play"}, "--work play: one of throughput, latency, jobs, tools"),
        ({"records": 0}, "--records, --jobs and --turns"),
        ({"rate": 0.0}, "--rate 0.0"),
        ({"timeout": 0.0}, "--timeout"),
        ({"only": "nosuch"}, "--only nosuch.*penstock-shm, penstock-tcp, kafka"),
        ({"kafka": "here"}, "--kafka here: not HOST:PORT"),
        ({"redis": "h:99999"}, "--redis h:99999: not HOST:PORT"),
        ({"nats": ":4222"}, "--nats :4222: not HOST:PORT"),
    ],
)
def test_what_cannot_be_run_is_refused(given, said):
    with pytest.raises(BenchError, match=said):
        PeersOptions(**given).check()


def test_an_address_may_be_of_version_six():
    found = Address.parse("kafka", "[::1]:9092")
    assert (found.host, found.port, str(found)) == ("::1", 9092, "[::1]:9092")
    assert PeersOptions(redis="h:1").address("redis") == Address("h", 1)
    assert PeersOptions(redis="h:1").address("penstock-tcp") is None


def test_who_is_missing_is_left_out_with_the_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    others = [peer for peer in STREAMS if not peer.key.startswith("penstock")]
    for peer in others:
        words = ["--only", peer.key, "--work", "throughput", "--format", "json"]
        assert main(["peers", *words, "--data", str(tmp_path)]) == 0
        [told] = json.loads(capsys.readouterr().out)["peers"].values()
        assert "missing: " in told["skipped"]
    assert len(others) == 4


def checked(values: list[bytes], total: int) -> dict[str, int]:
    account = CheckedStream(total)
    for value in values:
        account.take(value)
    account.settle()
    return account.account(payload.make_pool(0, POOL, 16), total)


def test_each_fault_of_a_reader_is_found():
    sent = list(payload.cycled(payload.make_pool(0, POOL, 16), 20_000))
    good = {"lost": 0, "doubled": 0, "out_of_order": 0, "foreign": 0}
    assert checked(sent, 20_000) == good
    assert checked(sent[:-1], 20_000)["lost"] == 1
    assert checked([*sent[:5], sent[4], *sent[5:]], 20_000)["doubled"] == 1
    assert checked([*sent[:5], sent[6], sent[5], *sent[7:]], 20_000)["out_of_order"] == 1
    other = sent[7][:8] + b"changed!"
    assert checked([*sent[:7], other, *sent[8:]], 20_000) == {**good, "foreign": 1}


def test_the_page_says_first_where_others_are_better():
    one: dict[str, dict[str, Any]] = {
        "penstock-tcp": {"name": "Ours", **MEASURED},
        "redis": {"name": "Theirs", **MEASURED, "records_per_second_100": 1000},
    }
    other: dict[str, dict[str, Any]] = {
        "penstock-tcp": {"name": "Ours", "p50_us": 900, "p50_us_turns": [900]},
        "redis": {"name": "Theirs", "p50_us": 300, "p50_us_turns": [300], "lost": 2},
        "nats": {"name": "Others", "skipped": "its server is missing"},
    }
    page = peerspage.as_page(peerspage.merged([result_of(**one), result_of(**other)]))
    better = page[page.index("## Where others") : page.index("## Figures")]
    assert better.splitlines()[1:3] == [
        "- **Theirs**, records/s of 100 B: 1,000, Ours 500",
        "- **Theirs**, latency, p50: 300 µs, Ours 900 µs",
    ]
    assert "records/s of 1 KB" not in better
    assert "| Ours | **500** (400 to 600) | **100** | **900 µs** |  | page cache | ok |" in page
    assert "| page cache | 2 lost |" in page
    assert "| Others | not measured: its server is missing |" in page
    assert "| Theirs | 0.50 | 1.00 | 0.33 |  |" in page


def test_results_of_two_machines_make_no_page():
    one, other = result_of(), result_of()
    other["machine"] = {**other["machine"], "cores": 64}
    with pytest.raises(BenchError, match="different machines"):
        peerspage.merged([one, other])


def test_jars_that_are_not_as_they_should_be_do_not_run(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert "apt-get install maven" in (kafkajars.missing(None) or "")
    folder = tmp_path / "penstock" / f"kafka-{kafkajars.VERSION}"
    folder.mkdir(parents=True)
    (folder / "kafka-clients-0.jar").write_bytes(b"not a jar")
    assert f"{folder} has not what Kafka" in (kafkajars.missing(None) or "")
    assert kafkajars.fetched(folder) == folder
    assert "there is no kafka-clients" in (kafkajars.missing(tmp_path) or "")


def test_maven_that_fails_or_brings_something_else_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    maven = tmp_path / "mvn"
    monkeypatch.setattr("shutil.which", lambda name: str(maven))
    for script, said in (("echo no network; exit 1", "no network"), ("true", "has SHA-256")):
        maven.write_text(f"#!/bin/sh\n{script}\n")
        maven.chmod(0o755)
        assert said in (kafkajars.missing(None) or "")
        assert list((tmp_path / "penstock").iterdir()) == []


def test_what_kafka_s_tools_print_is_read():
    sent = "5 records sent, 10.0 records/sec (1 MB/sec)\n20 records sent, 12.6 records/sec (1\n"
    assert kafkatools.sent_per_second(sent, 20) == 13
    head = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    read = (
        f"{head}\n2026-11-23 21:00:00:0, 2026-11-23 21:00:01:0, 1.0, 2.0, 20, 5.0, 3, 4, 1.0, 7.6"
    )
    assert kafkatools.read_per_second(read, 20) == 8
    for judge, told in ((kafkatools.sent_per_second, sent), (kafkatools.read_per_second, read)):
        with pytest.raises(BenchError, match=r"not \w+ all"):
            judge(told, 21)


def test_a_peer_that_fails_in_a_turn_holds_up_no_other(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peers, "STREAMS", STREAMS[:1])

    def broken(options: PeersOptions, one: peers.Running, size: int) -> Any:
        raise BenchError("refused:\nthe disk is full")

    monkeypatch.setattr(peers, "_throughput", broken)
    words = ["--work", "throughput", "--turns", "2", "--data", str(tmp_path), "--format", "json"]
    assert main(["peers", *words]) == 1
    out, err = capsys.readouterr()
    [told] = json.loads(out)["peers"].values()
    assert (told["failed"], told["why"]) == (1, "the disk is full")
    assert "penstock-shm: refused:" in err
    assert list(Path(tmp_path).iterdir()) == []
