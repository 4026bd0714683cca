"""A broker that is a cluster by itself: what its options say is what the cluster and others see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_helpers import NodeProcess, RawClient
from quorum_fixture import free_port
from wire import mechanism

from penstock.ipc import clustering as cg
from penstock.ipc import paths
from penstock.security.keys import create_cluster_key
from penstock.testing import wait_until

pytestmark = pytest.mark.local("what a broker tells is asked for on its own host")
WITHIN = 45.0
ADVERTISED = "tcp://broker-one.example:4711"
LOCK = "lock"


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return [free_port(), free_port()]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, ports: list[int]) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("one")
    create_cluster_key(folder / "key")
    control, replication = ports
    node = NodeProcess(
        folder / "data",
        *("--listen", "tcp://127.0.0.1:0", "--node-id", "1"),
        *("--cluster-listen", f"tcp://0.0.0.0:{control}"),
        *("--controller-quorum", f"1@127.0.0.1:{control}"),
        *("--replication-port", str(replication), "--cluster-key", str(folder / "key")),
        *("--advertise", ADVERTISED, "--rack", "row-7"),
    )
    with node:
        yield node.start()


@pytest.mark.setting("node.node_id", "node.controller_quorum", "node.advertise", "node.rack")
def test_clients_are_sent_where_the_broker_says_that_it_is(broker: NodeProcess) -> None:
    with RawClient(paths.socket_in(broker.folder)) as client:
        told = client.ask(cg.DescribeCluster(), cg.ClusterDescription)
    assert [(each.broker, each.url, each.rack) for each in told.brokers] == [
        (1, ADVERTISED, "row-7")
    ]


@pytest.mark.setting("node.cluster_listen")
def test_others_are_listened_to_where_the_broker_is_told_to(
    broker: NodeProcess, ports: list[int]
) -> None:
    """At all addresses of its host, though its place in the quorum names one of them."""
    assert [mechanism(port, "127.0.0.2") for port in ports] == ["CURVE", "CURVE"]


@pytest.mark.setting("node.replication_port", "node.cluster_key")
def test_both_ports_between_brokers_want_the_clusters_key(
    broker: NodeProcess, ports: list[int]
) -> None:
    assert [mechanism(port) for port in ports] == ["CURVE", "CURVE"]


@pytest.mark.rule(9)
def test_rule_9_each_process_of_the_node_holds_the_folders_lock(broker: NodeProcess) -> None:
    """So the next node begins when all of them are gone."""
    with RawClient(paths.socket_in(broker.folder)) as client:
        client.create("t")
    lock = str(broker.folder / LOCK)

    def holders() -> set[str]:
        found = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            line = Path("/proc", pid, "cmdline").read_bytes() if _is_there(pid) else b""
            if os.fsencode(broker.folder) in line:
                mains = ("server", "writer.main", "gateway.main", "replicator.main")
                name = next((each for each in mains[1:] if each.encode() in line), mains[0])
                if lock in _files(pid):
                    found.add(name)
        return found

    wanted = {"server", "writer.main", "gateway.main", "replicator.main"}
    wait_until(lambda: holders() >= wanted, WITHIN, lambda: str(holders()))


def _is_there(pid: str) -> bool:
    return os.path.exists(f"/proc/{pid}/cmdline")


def _files(pid: str) -> set[str]:
    found = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    except OSError:
        return found
    return found
