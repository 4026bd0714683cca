"""`penstock bench` by TCP: runs against a node of their own, with and without keys, and one that is
there; many connections; one way against another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.bench.cli import main
from penstock.bench.ground import let_in
from penstock.testing.embedded import EmbeddedNode

FAULTS = ("lost", "doubled", "out_of_order", "foreign")


def run(capsys, *arguments: str) -> dict[str, Any]:
    """The result of `penstock bench ARGUMENTS --format json`."""
    code = main([*arguments, "--format", "json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    [line] = out.splitlines()
    result: dict[str, Any] = json.loads(line)
    return result


def throughput(capsys, *arguments: str) -> dict[str, Any]:
    result = run(capsys, "throughput", "--records", "4000", "--timeout", "60", *arguments)
    assert [result[name] for name in FAULTS] == [0] * 4
    assert result["received"] == result["appended"] == 4000
    return result


@pytest.mark.parametrize("transport", ["curve", pytest.param("tcp", marks=pytest.mark.slow)])
def test_throughput_by_tcp_with_a_node_of_its_own(transport, tmp_path, capsys):
    result = throughput(capsys, "--transport", transport, "--data", str(tmp_path))
    assert "gateway" in result["cpu_seconds"]
    assert result["durability"] == "appended"
    assert result["share_of_pwrite"] > 0
    assert result["options"]["transport"] == transport
    assert list(tmp_path.iterdir()) == []


def test_a_url_of_tcp_is_taken_at_its_word_and_a_key_is_shown(tmp_path, capsys):
    data, key = tmp_path / "node", tmp_path / "bench.json"
    data.mkdir(mode=0o700)
    let_in(data, str(key))
    with EmbeddedNode(data, listen=True) as node, node.connect() as client:
        result = throughput(
            capsys, "--api", "batch", "--acks", "0", "--bootstrap", node.tcp_url,
            "--key-file", str(key),
        )  # fmt: skip
        # No ring of shared memory was written to, so it was not taken although it is there.
        assert result["durability"] == "appended"
        assert result["cpu_seconds"]["gateway"] >= 0
        assert client.admin().list_topics() == []
    assert result["started_in"] is None
    assert "transport" not in result["options"]


def test_what_is_on_another_host_is_left_out(tmp_path, capsys, monkeypatch):
    with EmbeddedNode(tmp_path / "node", listen=True) as node:
        monkeypatch.setattr("penstock.bench.ground.folder_here", lambda _: None)
        result = throughput(capsys, "--bootstrap", node.tcp_url)
        assert set(result["cpu_seconds"]) == {"producer-0", "consumer-0"}
        assert "share_of_pwrite" not in result
        assert result["filesystem"] is None
        assert main(["throughput", "--records", "100", "--bootstrap", node.tcp_url, "-q"]) == 0


@pytest.mark.slow
def test_latency_by_tcp(tmp_path, capsys):
    result = run(
        capsys, "latency", "--rate", "1000", "--seconds", "1", "--warmup", "0.1", "--timeout", "60",
        "--transport", "tcp", "--acks-latency", "--data", str(tmp_path),
    )  # fmt: skip
    assert [result[name] for name in FAULTS] == [0] * 4
    assert 0 < result["p50_us"] <= result["p99_us"]
    assert set(result["cpu_seconds"]) == {"producer", "consumer", "gateway", "writer-0", "node"}


@pytest.mark.slow
def test_groups_of_a_node_that_is_there(tmp_path, capsys):
    with EmbeddedNode(tmp_path / "node", listen=True) as node, node.connect() as client:
        result = run(
            capsys, "groups", "--members", "4", "--partitions", "8", "--processes", "2", "--rate",
            "1000", "--rounds", "1", "--seconds", "0.2", "--session-timeout", "1", "--bootstrap",
            node.tcp_url,
        )  # fmt: skip
        assert client.admin().list_topics() == []
    assert result["failover_p50_ms"] > 0
    assert min(result["all_join_seconds"], result["commits_per_second"]) > 0


@pytest.mark.parametrize(
    ("transport", "count"), [("tcp", 7), pytest.param("shm", 3, marks=pytest.mark.slow)]
)
def test_connections(transport, count, tmp_path, capsys):
    result = run(
        capsys, "connections", "--connections", str(count), "--processes", "2", "--seconds", "0.5",
        "--rate", "200", "--transport", transport, "--data", str(tmp_path), "--timeout", "60",
    )  # fmt: skip
    assert (result["lost"], result["doubled"]) == (0, 0)
    assert result["records"] > 0
    assert 99 <= result["requests"] <= 100  # each process rounds its share down
    assert 0 < result["p50_us"] <= result["p99_us"]
    assert ("gateway_kb_per_connection" in result) is (transport == "tcp")
    assert {"clients-0", "clients-1"} < set(result["cpu_seconds"])
    assert list(tmp_path.iterdir()) == []


def test_one_way_against_another(tmp_path, capsys):
    result = run(
        capsys, "compare", "--transport", "tcp", "--against", "shm", "--records", "2000", "--turns",
        "1", "--api", "batch", "--data", str(tmp_path),
    )  # fmt: skip
    assert [result[name] for name in FAULTS] == [0] * 4
    assert len(result["ratios"]) == 1
    assert result["ratio"] > 0
    assert "gateway" in result["cpu_seconds"]
    assert "gateway" not in result["cpu_seconds_against"]
    assert list(tmp_path.iterdir()) == []
