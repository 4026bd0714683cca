"""Connections that are sent to, by real sockets: what they have no room for, and those that go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
from node_helpers import eventually

from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.peers import Peer, Peers

BYTES_MAX = 1 << 20


class World:
    """A socket that clients come to."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.setsockopt(zmq.SNDHWM, 2)
        self.router.setsockopt(zmq.SNDBUF, 4096)
        self.port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.counts = GatewayCounts()
        self.peers = Peers(self.router, self.counts, BYTES_MAX)

    def client(self) -> tuple[zmq.Socket[bytes], Peer]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, 1)
        dealer.setsockopt(zmq.RCVBUF, 4096)
        dealer.connect(f"tcp://127.0.0.1:{self.port}")
        dealer.send(b"hello")
        identity, _ = self.router.recv_multipart()
        peer = Peer(self.peers, identity, "alice", "here", bytes(16))
        self.peers.by_identity[identity] = peer
        return dealer, peer


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.context.destroy(0)


def test_a_peer_that_has_gone_is_noted_once_and_sent_nothing(world: World) -> None:
    dealer, peer = world.client()
    dealer.close(0)
    eventually(lambda: not peer.send(b"x"), "that it has gone")
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
    eventually(lambda: not peer.send(b"x"), "that it has gone")
    world.peers.take_lost()
    world.peers.say_last(peer, b"farewell")
    assert world.peers.take_lost() == []


def test_what_waits_is_sent_in_order_as_soon_as_there_is_room(world: World) -> None:
    dealer, peer = world.client()
    for number in range(60):
        assert peer.send(b"%d" % number, bytes(10_000))
    assert peer.identity in world.peers.waiting
    heard = []

    def all_came() -> bool:
        world.peers.flush()
        while dealer.poll(0):
            heard.append(int(dealer.recv_multipart()[0]))
        return len(heard) == 60

    eventually(all_came, "all of it")
    assert heard == list(range(60))
    assert not world.peers.waiting
    assert world.counts.outbox_bytes == 0
