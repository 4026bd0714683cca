"""Connections that are sent to, by real sockets: what they have no room for, and those that go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from node_helpers import eventually

from penstock.server.config import NodeConfig
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.curveline import CurveLine
from penstock.server.gateway.events import Events
from penstock.server.gateway.line import ClientParts
from penstock.server.gateway.peers import Peer, Peers
from penstock.server.gateway.plainline import PlainLine
from penstock.testing.waiting import wait_until

BYTES_MAX = 1 << 20


class World:
    """A line that clients come to."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        config = NodeConfig(data_folder=str(folder))
        self.line: PlainLine | CurveLine
        if kind == "plain":
            self.line = PlainLine(config, gone=self.gone, broke=self.broke, refused=self.refused)
        else:
            self.line = CurveLine(
                self.context, config, gone=self.gone, refused=self.refused,
                secure=lambda router: router.setsockopt(zmq.SNDBUF, 4096),
            )  # fmt: skip
        self.url = self.line.bind("tcp://127.0.0.1:0")
        self.counts = GatewayCounts()
        self.events = Events()
        self.line.watch(self.events)
        self.peers = Peers(self.line, self.counts, BYTES_MAX)
        self.ended: list[tuple[int, str]] = []
        self.reasons: list[str] = []

    def gone(self, fd: int) -> None:
        self.ended.append((fd, ""))

    def broke(self, fd: int, why: str) -> None:
        self.ended.append((fd, why))

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)

    def take(self) -> ClientParts | None:
        """Looks as the loop does; returns what has come."""
        self.line.pause(0.0)
        self.events.poll(0)
        return self.line.take(time.monotonic())

    def client(self) -> tuple[zmq.Socket[bytes], Peer]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, 1)
        dealer.setsockopt(zmq.RCVBUF, 4096)
        dealer.connect(self.url)
        dealer.send(b"hello")
        arrived = wait_until(self.take, timeout=30)
        assert arrived is not None
        assert arrived.parts == [b"hello"]
        peer = Peer(self.peers, arrived.identity, "alice", "here", bytes(16))
        self.peers.by_identity[arrived.identity] = peer
        return dealer, peer


@pytest.fixture(params=["plain", "curve"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param)
    yield world
    world.line.close(0.0)
    world.events.close()
    world.context.destroy(0)


def test_a_peer_that_has_gone_is_noted_once_and_sent_nothing(world: World) -> None:
    dealer, peer = world.client()
    dealer.close(0)
    eventually(lambda: bool(world.take()) or not peer.send(b"x"), "that it has gone")
    assert not peer.send(b"y", b"payload")
    assert world.peers.by_identity == {peer.identity: peer}, "whoever sends ends nobody"
    assert world.peers.take_lost() == [(peer, "", "it has gone")]
    assert world.peers.take_lost() == []


def test_a_peer_that_does_not_read_is_noted_once_and_no_more_is_kept_for_it(world: World) -> None:
    _, peer = world.client()
    sent = 0
    while peer.send(b"x" * 10_000):
        sent += 1
        assert sent < 10_000
    assert peer.outbox_bytes < BYTES_MAX + 20_000
    kept = peer.outbox_bytes
    assert not peer.send(b"x")
    world.peers.flush()
    assert peer.outbox_bytes == kept, "it is given up"
    [(lost, kind, why)] = world.peers.take_lost()
    assert (lost, kind) == (peer, "does not read")
    assert "over client_bytes_max" in why
    world.peers.forget(peer)
    assert world.counts.outbox_bytes == 0


def test_one_that_was_noted_may_be_told_why_and_is_not_noted_again(world: World) -> None:
    dealer, peer = world.client()
    dealer.close(0)
    eventually(lambda: bool(world.take()) or not peer.send(b"x"), "that it has gone")
    world.peers.take_lost()
    world.peers.say_last(peer, b"farewell")
    assert world.peers.take_lost() == []


def test_what_waits_is_sent_in_order_as_soon_as_there_is_room(world: World) -> None:
    dealer, peer = world.client()
    sent = 0
    while len(peer.outbox) < 50:
        assert peer.send(b"%d" % sent, bytes(10_000))
        sent += 1
    assert peer.identity in world.peers.waiting
    heard = []

    def all_came() -> bool:
        world.take()
        world.peers.flush()
        while dealer.poll(0):
            heard.append(int(dealer.recv_multipart()[0]))
        return len(heard) == sent

    eventually(all_came, "all of it")
    assert heard == list(range(sent))
    assert not world.peers.waiting
    assert world.counts.outbox_bytes == 0
