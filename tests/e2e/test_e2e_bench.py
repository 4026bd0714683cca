"""`penstock bench` from the command line to the last field, at sizes that take no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import suite
from penstock.bench.cli import main
from penstock.bench.options import LatencyOptions, ThroughputOptions
from penstock.bench.suite import Row
from penstock.embedded import EmbeddedNode

THROUGHPUT_FIELDS = {
    "records_per_second",
    "mb_per_second",
    "pwrite_mb_per_second",
    "share_of_pwrite",
    "cpu_seconds",
    "lost",
    "doubled",
    "out_of_order",
    "seconds",
    "started_in",
    "durability",
    "options",
}


def run(capsys, *arguments: str) -> dict[str, Any]:
    """The result of `penstock bench ARGUMENTS --format json`."""
    code = main([*arguments, "--format", "json", "--timeout", "60"])
    out, err = capsys.readouterr()
    assert code == 0, err
    [line] = out.splitlines()
    result: dict[str, Any] = json.loads(line)
    return result


def assert_whole(result: dict[str, Any], records: int) -> None:
    assert (result["lost"], result["doubled"], result["out_of_order"]) == (0, 0, 0)
    assert result["received"] == result["appended"] == records


@pytest.mark.parametrize("api", ["send", "batch"])
def test_throughput_of_one_producer_and_one_consumer(api, tmp_path, capsys):
    result = run(
        capsys, "throughput", "--api", api, "--size", "1024", "--records", "5000",
        "--producers", "1", "--consumers", "1", "--partitions", "1", "--acks", "1",
        "--codec", "none", "--data", str(tmp_path),
    )  # fmt: skip
    assert set(result) >= THROUGHPUT_FIELDS
    assert_whole(result, 5000)
    assert result["durability"] == "appended"
    assert result["log_bytes"] > 5000 * 1024
    assert set(result["cpu_seconds"]) == {"producer-0", "consumer-0", "writer-0", "node"}
    assert result["share_of_pwrite"] > 0
    assert result["records_per_second"] == pytest.approx(5000 / result["seconds"], rel=0.01)
    assert list(tmp_path.iterdir()) == []


def test_throughput_of_many_with_keys_compression_and_no_acknowledgements(tmp_path, capsys):
    result = run(
        capsys, "throughput", "--size", "100", "--records", "9001", "--producers", "2",
        "--consumers", "2", "--partitions", "3", "--keys", "50", "--codec", "lz4", "--acks", "0",
        "--data", str(tmp_path),
    )  # fmt: skip
    assert_whole(result, 9001)
    assert result["durability"] == "ring"
    assert {"producer-1", "consumer-1"} < set(result["cpu_seconds"])
    assert result["log_bytes"] < 9001 * 100


def test_a_node_that_is_there_is_used_and_left_clean(tmp_path, capsys):
    with EmbeddedNode(tmp_path / "node") as node, node.connect() as client:
        result = run(
            capsys, "throughput", "--records", "2000", "--size", "64", "--api", "batch",
            "--durability", "fsync", "--bootstrap", node.url,
        )  # fmt: skip
        assert client.admin().list_topics() == []
    assert_whole(result, 2000)
    assert result["started_in"] is None
    assert result["durability"] == "fsynced"


def test_latency(tmp_path, capsys):
    result = run(
        capsys, "latency", "--rate", "1000", "--seconds", "1", "--warmup", "0.1", "--size", "1024",
        "--acks-latency", "--data", str(tmp_path),
    )  # fmt: skip
    assert (result["lost"], result["doubled"], result["out_of_order"]) == (0, 0, 0)
    assert result["records"] == 1000
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["p999_us"] <= result["max_us"]
    assert 0 < result["from_send"]["p50_us"] <= result["p50_us"]
    assert 0 < result["send_to_ack"]["p50_us"] <= result["send_to_ack"]["p99_us"]
    assert set(result["cpu_seconds"]) == {"producer", "consumer", "writer-0", "node"}
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(tmp_path, capsys):
    code = main(["throughput", "--records", str(10**12), "--data", str(tmp_path)])
    assert code == 1
    assert "GB are free" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_more_consumers_than_partitions_are_refused(capsys):
    assert main(["throughput", "--consumers", "2", "--records", "10"]) == 1
    assert "--partitions" in capsys.readouterr().err


def test_a_run_that_takes_too_long_is_given_up(tmp_path, capsys):
    code = main(["throughput", "--records", "100000", "--timeout", "0.05", "--data", str(tmp_path)])
    assert code == 3
    assert "within" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_suite_writes_a_page_with_commands_that_can_be_typed(tmp_path, monkeypatch, capsys):
    rows = (
        Row("few", ThroughputOptions(records=20_000, api="batch", size=64), "records_per_second"),
        Row("slow", LatencyOptions(rate=500, seconds=2.5, warmup=0.1), "p50_us"),
    )
    monkeypatch.setattr(suite, "ROWS", rows)
    assert main(["suite", "--quick", "--output", str(tmp_path / "docs")]) == 0
    page = Path(tmp_path / "docs" / "README.md").read_text()
    assert "| few | **" in page
    assert "`penstock bench throughput --size 64 --records 2000 --api batch`" in page
    assert "`penstock bench latency --size 1024 --rate 500 --seconds 0.5 --warmup 0.1`" in page
    assert "| CPU |" in page
