"""The control link: who is let in, what is refused, what comes back after a cut."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import golden_quorum
import msgspec
import pytest
import zmq
import zmq.asyncio
from event_loops import eventually, run
from hypothesis import given
from hypothesis import strategies as st
from quorum_fixture import World, free_port

from penstock.cluster.raft import LogEntry
from penstock.cluster.raft.messages import DATA, MEMBERS, Append, Install
from penstock.core.errors import (
    AttachRefusedError,
    ConfigError,
    NotConnectedError,
    PenstockTimeout,
    StorageError,
)
from penstock.security.keys import create_cluster_key, load_cluster_key, trust_cluster_key
from penstock.server.quorum import listener
from penstock.server.quorum import messages as qm
from penstock.server.quorum.links import Links

CLUSTER = bytes(range(16))
DOUBLE = b"another folder.."


# --- bytes ---
def test_the_bytes_are_what_they_always_were():
    """Frozen: brokers of two versions speak to each other."""
    assert golden_quorum.load() == golden_quorum.cases()
    for name, message in golden_quorum.MESSAGES.items():
        assert qm.decode(golden_quorum.load()[name]) == message


@given(st.sampled_from(sorted(golden_quorum.MESSAGES)), st.data())
def test_whatever_bytes_come_are_a_message_or_an_error(name, data):
    image = bytearray(golden_quorum.load()[name])
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = qm.decode(bytes(image))
    except qm.LinkError:
        return
    assert qm.decode(qm.encode(message)) == message


@pytest.mark.parametrize("name", golden_quorum.MESSAGES)
def test_a_message_that_is_cut_off_is_none(name):
    data = golden_quorum.load()[name]
    for end in range(len(data)):
        with pytest.raises(qm.LinkError):
            qm.decode(data[:end])


@pytest.mark.parametrize(
    "message",
    [
        Append(3, 5, 2, (LogEntry(7, 3, DATA, b""),), 5),
        Append(3, 5, 2, (LogEntry(6, 1, DATA, b""),), 5),
        Append(3, 5, 2, (LogEntry(6, 4, DATA, b""),), 5),
        Append(3, 5, 2, (LogEntry(6, 3, MEMBERS, b"none"),), 5),
        Install(1, golden_quorum.SNAPSHOT),
    ],
)
def test_what_raft_takes_for_granted_is_looked_at(message):
    with pytest.raises(qm.LinkError):
        qm.decode(qm.encode(qm.Consensus(message)))


# --- two ends ---
class End:
    """One broker's links, and what it received."""

    def __init__(
        self,
        node: int,
        key: Path | None = None,
        cluster: bytes = b"",
        url: str = "",
        folder: bytes = b"",
    ) -> None:
        self.node = node
        self.url = url or f"tcp://127.0.0.1:{free_port()}"
        self.got: list[tuple[int, qm.LinkMessage]] = []
        self.distrusts: set[int] = set()
        self.links = Links(
            node, self.url, folder or bytes([node]) * 16, os.urandom(16),
            load_cluster_key(key) if key is not None else None,
            cluster=lambda: cluster, is_trusted=self._trust,
            received=lambda node, message: self.got.append((node, message)),
        )  # fmt: skip
        self.links.listen(self.url)

    def _trust(self, node: int, folder: bytes) -> None:
        assert folder in (bytes([node]) * 16, DOUBLE)
        if node in self.distrusts:
            raise AttachRefusedError(f"broker {node} has another folder")

    def count(self, name: str) -> int:
        return self.links.counts[name]


def linked(scene: Callable[..., object], *ends: Callable[[], End]) -> None:
    """Run a scene with these ends, and close them."""

    async def main() -> None:
        made = [end() for end in ends]
        try:
            await scene(*made)  # type: ignore[misc]
        finally:
            for end in made:
                await end.links.close()

    run(main())


def test_a_message_goes_by_whichever_connection_is_up():
    async def scene(one: End, two: End) -> None:
        one.links.know({2: two.url})
        await eventually(lambda: one.links.nodes() == {2} == two.links.nodes() ^ {1, 2}, "linked")
        assert two.links.send(1, qm.Response(5, b"back"))  # two has not connected by itself
        assert one.links.send(2, qm.Response(4, b"there"))
        await eventually(lambda: one.got and two.got, "both are there")
        assert one.got == [(2, qm.Response(5, b"back"))]
        assert two.got == [(1, qm.Response(4, b"there"))]
        assert not one.links.send(3, qm.Response(6))
        assert one.count("dropped") == 1

    linked(scene, lambda: End(1), lambda: End(2))


def test_a_broker_that_comes_back_is_connected_again():
    async def scene(one: End) -> None:
        two = End(2)
        one.links.know({2: two.url})
        for _ in range(3):
            await eventually(lambda: 2 in one.links.nodes(), "up")
            await two.links.close()
            await eventually(lambda: 2 not in one.links.nodes(), "gone")
            assert one.links.trouble(2)
            two = End(2, url=two.url)
        await two.links.close()

    linked(scene, lambda: End(1))


@pytest.mark.parametrize("url", ["tcp://no.such.host.invalid:9650", "tcp://127.0.0.1:99999", "x"])
def test_an_address_that_leads_nowhere_is_told(url):
    async def scene(one: End) -> None:
        one.links.know({2: url})
        await eventually(lambda: one.links.trouble(2), "it is told")
        assert not one.links.gone()

    linked(scene, lambda: End(1))


def test_who_is_gone_is_told_when_two_attempts_were_refused():
    async def scene(one: End, two: End) -> None:
        one.links.know({2: two.url})
        two.links.know({1: one.url})
        await eventually(lambda: one.links.nodes() == {2}, "linked")
        assert not one.links.gone()
        await two.links.close()
        await eventually(lambda: one.links.gone() == [2], "it is gone")
        again = End(2, url=two.url)
        await eventually(lambda: not one.links.gone(), "it is back")
        await again.links.close()

    linked(scene, lambda: End(1), lambda: End(2))


def test_of_two_brokers_with_one_number_the_one_that_is_here_stays():
    async def scene(one: End, two: End) -> None:
        two.links.know({1: one.url})
        await eventually(lambda: one.links.nodes() == {2}, "linked")
        double = End(2, folder=DOUBLE)
        try:
            double.links.know({1: one.url})
            await eventually(lambda: "another node_id" in double.links.trouble(1), "it is told")
            assert two.url in double.links.trouble(1)
            assert double.url in double.links.trouble(1)
            assert one.links.send(2, qm.Response(4, b"to whom it was"))
            await eventually(lambda: two.got, "it came")
            assert two.count("links_lost") == 0
            await two.links.close()
            await eventually(lambda: double.links.nodes() == {1}, "its place is free")
        finally:
            await double.links.close()

    linked(scene, lambda: End(1), lambda: End(2))


def test_a_broker_that_stands_still_is_not_suspected_of_another_key():
    async def scene(one: End) -> None:
        with socket.create_server(("127.0.0.1", 0)) as still:
            one.links.know({2: f"tcp://127.0.0.1:{still.getsockname()[1]}"})
            await eventually(lambda: one.links.trouble(2), "it is told")
            assert "is it stopped?" in one.links.trouble(2)

    linked(scene, lambda: End(1))


def test_another_cluster_is_refused_on_both_sides():
    async def scene(one: End, two: End) -> None:
        one.links.know({2: two.url})
        await eventually(lambda: "cluster" in one.links.trouble(2), "one is told")
        assert two.count("refused: not admitted") > 0
        assert one.links.nodes() == two.links.nodes() == set()

    linked(scene, lambda: End(1, cluster=CLUSTER), lambda: End(2, cluster=CLUSTER[::-1]))


def test_a_cluster_that_is_not_known_yet_fits():
    async def scene(one: End, two: End) -> None:
        one.links.know({2: two.url})
        await eventually(lambda: 2 in one.links.nodes(), "linked")

    linked(scene, lambda: End(1), lambda: End(2, cluster=CLUSTER))


@pytest.mark.parametrize("who", [1, 2])
def test_a_broker_that_lost_its_folder_is_refused_on_both_sides(who):
    async def scene(one: End, two: End) -> None:
        (one if who == 2 else two).distrusts.add(who)
        one.links.know({2: two.url})
        await eventually(lambda: "folder" in one.links.trouble(2), "one is told")
        assert one.links.nodes() == two.links.nodes() - {1} == set()

    linked(scene, lambda: End(1), lambda: End(2))


def test_another_number_than_the_configuration_says_is_refused():
    async def scene(one: End, two: End) -> None:
        one.links.know({3: two.url})
        await eventually(lambda: "node_id" in one.links.trouble(3), "it is told")
        assert 3 not in one.links.nodes()

    linked(scene, lambda: End(1), lambda: End(2))


def test_the_cluster_key_lets_in_and_nothing_else_does(tmp_path):
    keys = [tmp_path / name for name in ("ours", "theirs")]
    for key in keys:
        create_cluster_key(key)

    async def scene(one: End, two: End, other: End, none: End) -> None:
        one.links.know({2: two.url, 3: other.url, 4: none.url})
        other.links.know({1: one.url})
        none.links.know({1: one.url})
        await eventually(lambda: one.links.nodes() == {2}, "the same key")
        assert one.links.send(2, qm.Response(1, b"secret"))
        await eventually(lambda: two.got, "it is heard")
        await eventually(
            lambda: all([one.links.trouble(3), one.links.trouble(4),
                         other.links.trouble(1), none.links.trouble(1)]), "the others are not",
        )  # fmt: skip
        assert one.links.nodes() == {2}
        assert not other.links.nodes() | none.links.nodes()

    linked(
        scene, lambda: End(1, keys[0]), lambda: End(2, keys[0]), lambda: End(3, keys[1]),
        lambda: End(4),
    )  # fmt: skip


def test_brokers_whose_keys_trust_each_other_are_linked_both_ways(tmp_path):
    """While the key of a cluster is changed; who has another key still is not let in."""
    old, new, other = keys = [tmp_path / name for name in ("old", "new", "other")]
    for key in keys:
        create_cluster_key(key)
    for key, trusted in ((old, new), (new, old), (other, old)):
        trust_cluster_key(key, trusted)

    async def scene(one: End, two: End, stranger: End) -> None:
        one.links.know({2: two.url})
        two.links.know({1: one.url})
        stranger.links.know({1: one.url})
        await eventually(lambda: (one.links.nodes(), two.links.nodes()) == ({2}, {1}), "linked")
        await eventually(lambda: stranger.links.trouble(1), "a stranger is not")
        assert not stranger.links.nodes()

    linked(scene, lambda: End(1, old), lambda: End(2, new), lambda: End(3, other))


def test_a_key_that_others_may_read_is_refused(tmp_path):
    create_cluster_key(tmp_path / "key")
    with pytest.raises(ConfigError, match="it exists"):
        create_cluster_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="others may read"):
        load_cluster_key(tmp_path / "key")


def test_a_place_that_is_another_hosts_is_told_from_one_that_is_taken():
    async def scene(one: End) -> None:
        with pytest.raises(ConfigError, match=r"Address already in use; see who"):
            one.links.listen(one.url)
        with pytest.raises(ConfigError, match=r"no address of this host .* node_id"):
            one.links.listen("tcp://192.0.2.1:9650")  # RFC 5737: nobody's

    linked(scene, lambda: End(1))


# --- strangers ---
def test_garbage_on_the_port_harms_nobody():
    """Bytes that are no ZeroMQ, messages that are none, and messages before a hello."""

    async def scene(one: End, two: End) -> None:
        one.links.know({2: two.url})
        await eventually(lambda: 2 in one.links.nodes(), "linked")
        port = int(two.url.rpartition(":")[2])
        for data in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), b"\xff" + bytes(8) + b"\x7f"):
            await asyncio.to_thread(_throw, port, data)
        context = zmq.asyncio.Context()
        for frames in ([b"garbage"], [b"", b""], [qm.encode(qm.Pong(1))], [b"x" * 10_000] * 3):
            with context.socket(zmq.DEALER) as sock:
                sock.setsockopt(zmq.LINGER, 0)
                sock.connect(two.url)
                await sock.send_multipart(frames)
                await sock.send_multipart(frames)  # it is not told twice
                answer = qm.decode((await asyncio.wait_for(sock.recv_multipart(), 45))[0])
                assert isinstance(answer, qm.Refused)
        context.term()
        await eventually(lambda: two.count("refused: garbage") > 0, "it is counted")
        assert two.count("refused: no hello") > 0
        assert one.links.send(2, qm.Response(9))
        await eventually(lambda: (1, qm.Response(9)) in two.got, "the others are heard as before")
        assert two.links.nodes() == {1}

    linked(scene, lambda: End(1), lambda: End(2))


def _throw(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(data)


def test_a_connection_that_says_nothing_is_ended(monkeypatch):
    monkeypatch.setattr(listener, "HELLO_WITHIN", 0.3)

    async def scene(two: End) -> None:
        port = int(two.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.settimeout(15)
            loop = asyncio.get_running_loop()

            def ends() -> bool:
                while sock.recv(4096):
                    pass
                return True

            assert await loop.run_in_executor(None, ends)

    linked(scene, lambda: End(2))


# --- requests ---
def test_requests_from_node_to_node(tmp_path):
    async def main() -> None:
        async with World(tmp_path) as world:
            await world.agreed()
            await world.unfenced()
            asked: list[tuple[int, bytes]] = []

            async def handler(node: int, body: bytes) -> bytes:
                asked.append((node, body))
                if body == b"refuse":
                    raise StorageError("no room")
                if body == b"sleep":
                    await asyncio.sleep(30)
                return body * 2

            world.quorums[2].serve("double", handler)
            one = world.quorums[1]
            await eventually(lambda: one._links.nodes() == {2, 3}, "it is linked, not only led")
            assert await one.request(2, "double", b"ab", 45) == b"abab"
            with pytest.raises(StorageError, match="no room"):
                await one.request(2, "double", b"refuse", 45)
            with pytest.raises(PenstockTimeout):
                await one.request(2, "double", b"sleep", 0.05)
            with pytest.raises(ConfigError, match="nobody serves"):
                await one.request(3, "double", b"", 45)
            with pytest.raises(NotConnectedError):
                await one.request(9, "double", b"", 5)
            await eventually(lambda: len(asked) >= 3, "what nobody waited for came, too")
            assert asked == [(1, b"ab"), (1, b"refuse"), (1, b"sleep")]

    run(main())


def test_a_message_of_a_later_version_with_more_fields_is_read():
    raw = msgspec.msgpack.decode(qm.encode(qm.Ping(5)))
    assert qm.decode(msgspec.msgpack.encode([*raw, "new"])) == qm.Ping(5)
