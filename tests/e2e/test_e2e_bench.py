"""`penstock bench` from the command line to the last field, at images that take no time. Each
starts a node and its clients: one of each kind runs by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import curves, plots, suite
from penstock.bench.cli import main
from penstock.bench.curves import Curve
from penstock.bench.options import LatencyOptions, ThroughputOptions
from penstock.bench.suite import Row, SuitePage
from penstock.testing.embedded import EmbeddedNode

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


def slow(case: str) -> Any:
    return pytest.param(case, marks=pytest.mark.slow)


def run(capsys, *arguments: str) -> dict[str, Any]:
    """The result of `penstock bench ARGUMENTS --format json`."""
    bound = ["--timeout", "60"] if arguments[0] in ("throughput", "latency", "backlog") else []
    code = main([*arguments, "--format", "json", *bound])
    out, err = capsys.readouterr()
    assert code == 0, err
    [line] = out.splitlines()
    result: dict[str, Any] = json.loads(line)
    return result


def assert_whole(result: dict[str, Any], records: int) -> None:
    assert (result["lost"], result["doubled"], result["out_of_order"]) == (0, 0, 0)
    assert result["received"] == result["appended"] == records


@pytest.mark.parametrize("api", ["send", slow("batch"), slow("arrow")])
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


def test_many_partitions(tmp_path, capsys):
    result = run(
        capsys, "partitions", "--partitions", "20", "--writers", "2", "--idle", "0.1",
        "--data", str(tmp_path),
    )  # fmt: skip
    assert result["lost"] == 0
    assert set(result["descriptors"]) == {"writer-0", "writer-1", "node"}
    assert result["descriptors"]["writer-0"] >= 10
    assert min(result["start_clean_seconds"], result["start_killed_seconds"]) > 0
    assert list(tmp_path.iterdir()) == []


def test_recovery_of_a_log_with_a_tail_that_no_sync_reached(tmp_path, capsys):
    result = run(
        capsys, "recovery", "--gb", "0.02", "--tail-mb", "5", "--starts", "1",
        "--data", str(tmp_path),
    )  # fmt: skip
    assert result["lost"] == 0
    assert result["records"] == -(-20_000_000 // 16384) + -(-5_000_000 // 16384)
    assert 5_000_000 <= result["tail_bytes"] < 6_000_000
    assert 0 < result["open_killed_seconds"] < result["start_killed_seconds"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("api", ["send", slow("batch")])
def test_a_backlog_keeps_its_size_and_every_record_of_it_is_accounted_for(api, tmp_path, capsys):
    result = run(
        capsys, "backlog", "--gb", "0.005", "--records", "2000", "--turns", "1", "--api", api,
        "--data", str(tmp_path),
    )  # fmt: skip
    assert [result[name] for name in ("lost", "doubled", "out_of_order", "foreign")] == [0] * 4
    assert result["backlog_records"] == 3 * (200 + 1 + 2000 + 1)
    assert len(result["turns"]) == 1
    assert result["ratio"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at-least-once", "manual", "at-most-once"])
def test_throughput_of_a_group(guarantee, tmp_path, capsys):
    result = run(
        capsys, "throughput", "--size", "256", "--records", "5000", "--partitions", "2",
        "--guarantee", guarantee, "--data", str(tmp_path),
    )  # fmt: skip
    assert_whole(result, 5000)


def test_throughput_of_transactions(tmp_path, capsys):
    result = run(
        capsys, "throughput", "--size", "256", "--records", "5000", "--transaction-records", "700",
        "--data", str(tmp_path),
    )  # fmt: skip
    assert result["received"] == 5000
    assert (result["lost"], result["doubled"], result["out_of_order"]) == (0, 0, 0)


def test_groups(tmp_path, capsys):
    result = run(
        capsys, "groups", "--members", "6", "--partitions", "20", "--processes", "2", "--rate",
        "2000", "--rounds", "1", "--seconds", "0.2", "--data", str(tmp_path),
    )  # fmt: skip
    assert 0 < result["failover_p50_ms"] <= result["failover_max_ms"]
    assert result["delivered_meanwhile"] >= 0  # it may be over within a millisecond
    assert min(result["all_join_seconds"], result["one_joins_ms"], result["one_leaves_ms"]) > 0
    assert min(result["commits_per_second"], result["commits_per_second_all_partitions"]) > 0
    assert list(tmp_path.iterdir()) == []


def test_redelivery(tmp_path, capsys):
    result = run(capsys, "redelivery", "--kills", "1", "--data", str(tmp_path))
    assert 0 < result["redelivery_p50_ms"] <= result["redelivery_max_ms"]
    assert list(tmp_path.iterdir()) == []


def test_delayed(tmp_path, capsys):
    result = run(
        capsys, "delayed", "--records", "200", "--rate", "1000", "--lead", "4", "--idle", "0.1",
        "--workers", "1", "--order", "sent", "--data", str(tmp_path),
    )  # fmt: skip
    assert 0 <= result["late_p50_ms"] <= result["late_p99_ms"] <= result["late_max_ms"]
    assert result["lost"] == result["doubled"] == result["early"] == 0
    assert {"node", "worker-0"} <= result["idle_cpu_percent"].keys()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_throughput_of_a_cluster(tmp_path, capsys):
    result = run(
        capsys, "throughput", "--size", "256", "--records", "3000", "--partitions", "3",
        "--brokers", "3", "--replicas", "2", "--acks", "all", "--data", str(tmp_path),
    )  # fmt: skip
    assert_whole(result, 3000)
    assert result["durability"] == "committed"
    assert {"1-node", "2-gateway", "3-replicator"} <= set(result["cpu_seconds"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cluster_s_failover_and_a_follower_s_return(tmp_path, capsys):
    result = run(
        capsys, "cluster", "--rounds", "1", "--mb", "2", "--rate", "200", "--seconds", "0.3",
        "--data", str(tmp_path),
    )  # fmt: skip
    assert [told["was_controller"] for told in result["rounds"]] == [False, True]
    for told, kind in zip(result["rounds"], ("", "controller_"), strict=True):
        assert told["led_again"] <= told["in_sync"]
        assert 0 < told["outage"] == result[f"{kind}outage_max_seconds"]
    assert result["decided_p50_seconds"] is None
    assert result["controller_decided_p50_seconds"] > 0
    assert result["catch_up_mb_per_second"] > 0
    assert 0 < result["live_before"]["p50_ms"] <= result["live_before"]["p99_ms"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_many_partitions_on_several_brokers(tmp_path, capsys):
    result = run(
        capsys, "cluster-partitions", "--partitions", "12", "--idle", "0.1", "--data",
        str(tmp_path),
    )  # fmt: skip
    assert result["lost"] == 0
    assert result["controller_failover_seconds"] > 0
    assert result["led_by_the_killed"] >= 1
    assert {"1-node", "2-gateway", "3-replicator"} <= set(result["resident_mb"])
    assert list(tmp_path.iterdir()) == []


THROUGHPUT_POINTS: list[dict[str, Any]] = [
    {"series": api, "x": x, "records_per_second": 1e6 * (1 + x), "mb_per_second": 900.0 + x,
     "pwrite_mb_per_second": 5000.0}
    for api in ("send", "batch") for x in (64, 1024)
]  # fmt: skip
POINTS: dict[str, list[dict[str, Any]]] = {
    "throughput-by-record-size": THROUGHPUT_POINTS,
    "throughput-by-batch-size": THROUGHPUT_POINTS,
    "scaling": THROUGHPUT_POINTS,
    "latency": [
        {"series": way, "p50_us": 40.0, "p99_us": 90.0, "p999_us": 200.0,
         "us": [20.0, 40.0, 5000.0], "share": [0.0, 0.5, 1.0]}
        for way in ("waiting", "spinning")
    ],
    "throughput-by-backlog": [
        {"series": "behind", "x": 1.0, "records_per_second": 1e6, "ratio": 0.98},
        {"series": "at the end", "x": 1.0, "records_per_second": 1e6},
    ],
    "transactions": [
        {"series": "send", "x": x, "records_per_second": 1e5 * (1 + x)} for x in (0, 10, 1000)
    ],
    "connections": [
        {"series": way, "x": x, "records_per_second": 1e5, "p50_us": 100.0 * x, "p99_us": 300.0 * x}
        for way in ("tcp", "curve") for x in (1, 10)
    ],
    "failover": [
        {"series": series, "x": 0.5 + turn, "was_controller": turn > 2}
        for series in ("fenced", "led_again", "acknowledged", "in_sync") for turn in range(5)
    ] + [
        {"series": "decided", "x": 0.4, "was_controller": True}
    ],
    "recovery": [
        {"series": series, "kind": kind, "x": x, "seconds": 0.1 * x}
        for series in ("start", "open") for kind in ("clean", "killed") for x in (1.0, 10.0)
    ],
}  # fmt: skip


def test_every_plot_is_drawn_from_the_points_that_were_kept(tmp_path, capsys):
    kept = {name: {"machine": "a machine", "points": points} for name, points in POINTS.items()}
    assert set(kept) == set(curves.CURVES)
    (tmp_path / "points.json").write_text(json.dumps(kept))
    assert main(["plots", "--redraw", "--output", str(tmp_path)]) == 0
    images = {path.stem: path.read_bytes() for path in tmp_path.glob("*.png")}
    assert set(images) == set(curves.CURVES)
    assert all(it.startswith(b"\x89PNG") and len(it) > 10_000 for it in images.values())
    assert main(["plots", "--redraw", "--only", "latency", "--output", str(tmp_path)]) == 0
    again = (tmp_path / "latency.png").read_bytes()
    assert again == images["latency"], "nothing in it tells when it was drawn"
    assert main(["plots", "--only", "no such plot"]) == 2
    (tmp_path / "points.json").unlink()
    assert main(["plots", "--redraw", "--only", "latency", "--output", str(tmp_path)]) == 1
    assert "has no latency: measure it" in capsys.readouterr().err


def test_a_plot_is_measured_and_its_points_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "RUN_BYTES", 1_000_000)
    monkeypatch.setattr(curves.CurveSweep, "some", lambda self, values, few: few[:1])
    assert main(["plots", "--quick", "--only", "scaling", "--output", str(tmp_path), "-q"]) == 0
    [point] = json.loads((tmp_path / "points.json").read_text())["scaling"]["points"]
    assert (point["series"], point["x"]) == ("1 producer", 1)
    assert point["records_per_second"] > 0
    assert (tmp_path / "scaling.png").exists()


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
    pages = {
        "README.md": SuitePage("Figures", rows, ("scaling",)),
        "more.md": SuitePage("More", rows[:1], ()),
    }
    monkeypatch.setattr(suite, "PAGES", pages)
    drawn = Curve(lambda sweep: iter(THROUGHPUT_POINTS), plots.scaling)
    monkeypatch.setattr(curves, "CURVES", {"scaling": drawn})
    assert main(["suite", "--quick", "--output", str(tmp_path / "docs")]) == 0
    page = Path(tmp_path / "docs" / "README.md").read_text()
    assert "| few | **" in page
    assert "`penstock bench throughput --size 64 --records 2000 --api batch`" in page
    assert "`penstock bench latency --size 1024 --rate 500 --seconds 0.5 --warmup 0.1`" in page
    assert "| CPU |" in page
    assert "![scaling](scaling.png)" in page
    assert (tmp_path / "docs" / "scaling.png").exists()
    more = tmp_path / "docs" / "more.md"
    assert more.read_text().startswith("# More\n")
    more.unlink()
    assert main(["suite", "--quick", "--page", "more.md", "--output", str(tmp_path / "docs")]) == 0
    assert more.exists()
    assert main(["suite", "--page", "none.md"]) == main(["suite", "--only", "nothing"]) == 2
