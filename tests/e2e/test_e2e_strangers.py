"""A stranger who speaks as a broker to one that has client keys and no key of the cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from node_helpers import NodeProcess, RawClient, owner_of, uuid_of
from quorum_fixture import free_port

from penstock.ipc import clustering as cg
from penstock.ipc import paths, shm
from penstock.security import keys
from penstock.server.quorum import messages as qm
from penstock.server.replicator import protocol

pytestmark = pytest.mark.local("the ports between brokers are looked at, and no client's")
WITHIN = 30_000


def broker(folder: Path, ports: list[int], *more: str) -> NodeProcess:
    control, replication = ports
    return NodeProcess(
        folder,
        *("--listen", "tcp://127.0.0.1:0", "--node-id", "1"),
        *("--cluster-listen", f"tcp://127.0.0.1:{control}"),
        *("--controller-quorum", f"1@127.0.0.1:{control}"),
        *("--replication-port", str(replication), *more),
    )


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return [free_port(), free_port()]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, ports: list[int]) -> Iterator[NodeProcess]:
    """It was started without any key, and has one for a client since."""
    folder = tmp_path_factory.mktemp("strangers")
    with broker(folder / "data", ports) as node:
        node.start()
        keys.create_key(folder / "data", "ann", folder / "ann.key")
        yield node


def cluster_id(node: NodeProcess) -> str:
    with RawClient(paths.socket_in(node.folder)) as client:
        return client.ask(cg.DescribeCluster(), cg.ClusterDescription).cluster_id.hex()


def answer(port: int, frames: list[bytes]) -> bytes:
    """What the first message of a connection without keys is answered, as bytes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    try:
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart(frames)
        assert dealer.poll(WITHIN), "no answer"
        return b"".join(dealer.recv_multipart())
    finally:
        dealer.close(0)
        context.term()


@pytest.mark.parametrize("cluster", [b"", b"c" * 16])
def test_a_stranger_is_no_broker_and_is_not_told_the_cluster(
    running: NodeProcess, ports: list[int], cluster: bytes
) -> None:
    hello = qm.Hello(
        qm.LINK_VERSION, 2, cluster, b"f" * 16, "tcp://127.0.0.1:9", os.urandom(16), 1, "stranger"
    )
    said = answer(ports[0], [qm.encode(hello)])
    told = qm.decode(said)
    assert isinstance(told, qm.Refused), told
    own = cluster_id(running)
    assert own
    assert bytes.fromhex(own) not in said
    assert own not in told.message


def test_the_replication_port_does_not_tell_the_cluster(
    running: NodeProcess, ports: list[int]
) -> None:
    own = cluster_id(running)
    said = answer(ports[1], [protocol.encode(protocol.Hello(protocol.VERSION, b"c" * 16, 2, 1, 1))])
    assert own.encode() not in said
    assert bytes.fromhex(own) not in said


def test_a_broker_with_client_keys_does_not_start_without_the_clusters(tmp_path: Path) -> None:
    keys.create_key(tmp_path / "data", "ann", tmp_path / "ann.key")
    with broker(tmp_path / "data", [free_port(), free_port()]) as node:
        with pytest.raises(AssertionError):
            node.start()
        assert "cluster_key" in node.log


def test_names_in_shared_memory_that_somebody_took_keep_no_node_from_starting(
    tmp_path: Path,
) -> None:
    """Nobody knows those of the next start."""
    with NodeProcess(tmp_path / "data") as node:
        node.start()
        first, names = owner_of(node.folder), shm.listing(f"/penstock-{uuid_of(node.folder)}-")
        assert names
        assert node.stop() == 0
        taken = [Path(f"/dev/shm{name}") for name in names]
        try:
            for number, place in enumerate(taken):
                if number % 2:
                    place.symlink_to(place)
                else:
                    place.touch()
                    if os.getuid() == 0:
                        os.chown(place, 65534, 65534)
            node.start()
            with node.attach():
                assert owner_of(node.folder) != first
        finally:
            for place in taken:
                place.unlink(missing_ok=True)
