"""The line without keys, by real sockets: strangers, floods, and what breaks the protocol."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.frames import messages as fr
from penstock.core.errors import ConfigError
from penstock.server.config import NodeConfig
from penstock.server.gateway import line as ln
from penstock.server.gateway import slow_readers
from penstock.server.gateway.line import ClientParts, ConnectionGone
from penstock.server.gateway.plainline import COMMANDS_MAX, PlainLine
from penstock.testing.waiting import wait_until

WITHIN = 20.0
GREETING = b"\xff" + bytes(7) + b"\1\x7f" + b"\3\1" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\4\x1c\5READY\x0bSocket-Type\0\0\0\6DEALER"
NAMED = b"\4\x2b\5READY\x0bSocket-Type\0\0\0\6DEALER\x08identity\0\0\0\2me"
PING = b"\4\7\4PING\0\0"


class World:
    """A line, and what it tells."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.ended: list[int] = []
        self.broken: list[tuple[int, str]] = []
        self.reasons: list[str] = []
        self.floods = 0
        self.line = PlainLine(
            NodeConfig(data_folder=str(folder), **options),
            gone=self.ended.append,
            broke=lambda fd, why: self.broken.append((fd, why)),
            refused=self.reasons.append,
            flooded=self.flooded,
        )
        self.port = int(self.line.bind("tcp://127.0.0.1:0").rpartition(":")[2])

    def flooded(self) -> None:
        self.floods += 1

    def turn(self) -> ClientParts | None:
        self.line.look()
        return self.line.take(time.monotonic())

    def says(self, *words: bytes) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), WITHIN)
        made.sendall(b"".join(words))
        return made

    def message(self) -> ClientParts:
        found = wait_until(self.turn, timeout=WITHIN)
        assert found is not None
        return found

    def known(self, *words: bytes) -> tuple[socket.socket, ClientParts]:
        """A connection that has said hello, and said these words behind it."""
        made = self.says(GREETING, READY, b"\0\5hello", *words)
        hello = self.message()
        assert hello.parts == [b"hello"]
        self.line.said_hello(hello.origin.fd)
        return made, hello

    def until(self, told: list[Any]) -> None:
        wait_until(lambda: [self.turn()] and bool(told), timeout=WITHIN)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.line.close(0.0)


def is_cut_off(made: socket.socket) -> bool:
    """Waited for."""
    made.settimeout(WITHIN)
    try:
        while made.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((b"GET / HTTP/1.1\r\n\r\n",), ln.NO_ZEROMQ),
        ((GREETING.replace(b"NULL\0", b"CURVE"),), ln.NO_ZEROMQ),
        ((GREETING.replace(b"\3\1", b"\1\0"),), ln.NO_ZEROMQ),
        ((GREETING, b"\0\5early"), ln.NO_ZEROMQ),
        ((GREETING, b"\4\6\5ERROR"), ln.NO_ZEROMQ),
        ((GREETING, b"\4\x0b\5READY\x08abcd"), ln.NO_ZEROMQ),
        ((GREETING, b"\6", struct.pack(">Q", 1 << 20)), ln.NO_ZEROMQ),
        ((GREETING, NAMED), ln.CHOSE_IDENTITY),
        ((GREETING, READY, b"\2", struct.pack(">Q", fr.CLIENT_HEADER_MAX + 1)), ln.NO_ZEROMQ),
        ((GREETING, READY, PING * (COMMANDS_MAX + 1)), ln.NO_ZEROMQ),
    ],
    ids=["http", "keys", "old", "early", "error", "torn", "command", "named", "frame", "pings"],
)
def test_a_stranger_who_breaks_the_protocol_is_cut_off(
    world: World, words: tuple[bytes, ...], reason: str
) -> None:
    with world.says(*words) as made:
        world.until(world.reasons)
        assert world.reasons == [reason]
        assert not world.line.has_connections
        assert is_cut_off(made)
    assert not world.broken


def test_a_stranger_has_its_time_and_its_bytes(world: World) -> None:
    begun = time.monotonic()
    big = b"\2" + struct.pack(">Q", fr.CLIENT_HEADER_MAX) + bytes(fr.CLIENT_HEADER_MAX)
    with world.says(GREETING, READY) as silent, world.says(GREETING, READY, *[big] * 5) as loud:
        world.until(world.reasons)
        assert world.reasons == [ln.TOO_MUCH]
        assert is_cut_off(loud)
        world.line.sweep(begun + 4.9)
        assert world.reasons == [ln.TOO_MUCH]
        world.line.sweep(time.monotonic() + 6.0)
        assert world.reasons == [ln.TOO_MUCH, ln.NO_HELLO]
        assert is_cut_off(silent)


def test_one_that_is_known_and_breaks_the_protocol_can_be_told_why(world: World) -> None:
    made, hello = world.known(b"\1\1a\1\1b\0\1c")
    with made:
        world.until(world.broken)
        assert world.broken == [
            (hello.origin.fd, "a message of too many frames, or before the handshake")
        ]
        assert world.line.send(hello.identity, b"because", None)
        made.sendall(b"\0\4more")
        assert world.turn() is None, "nothing more is read of it"
        world.line.shut_down(hello.origin.fd)
        assert world.ended == [hello.origin.fd]
        with pytest.raises(ConnectionGone):
            world.line.send(hello.identity, b"x", None)
        made.settimeout(WITHIN)
        said = b""
        while b"because" not in said:
            said += made.recv(1000)


def test_connections_take_turns(world: World) -> None:
    (one, _), (two, second) = world.known(), world.known()
    with one, two:
        one.sendall(b"\0\1a" * 1000)
        two.sendall(b"\0\1b" * 3)
        order = [world.message().identity for _ in range(9)]
        assert order.count(second.identity) == 3


def test_who_floods_is_paused_alone_and_served_on(world: World) -> None:
    (two, second), (one, first) = world.known(), world.known(b"\0\1a\0\1a")
    with one, two:
        now = time.monotonic() + 1000
        world.line.took(first.identity, True, now)
        assert world.line.take(now) is None, "though it was read before"
        assert world.line.pause(now) == pytest.approx(0.001)
        one.sendall(b"\0\1a")
        two.sendall(b"\0\1b")
        assert world.message().identity == second.identity
        assert world.turn() is None
        later = world.line.take(now + 0.01)
        assert later is not None
        assert later.identity == first.identity


@pytest.mark.parametrize(
    ("first", "again"),
    [(b"", PING + b"\0\1a"), (b"\2" + struct.pack(">Q", fr.CLIENT_HEADER_MAX), b"x")],
    ids=["commands", "pieces"],
)
def test_commands_and_tiny_pieces_use_a_budget_up(
    world: World, first: bytes, again: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = world.known(first)
    monkeypatch.setattr(slow_readers, "BURST", 5)
    monkeypatch.setattr(slow_readers, "RATE", 0)
    with made:
        wait_until(
            lambda: made.send(again) and [world.turn()] and world.floods == 1, timeout=WITHIN
        )


def test_one_that_was_reset_while_it_is_paused_ends_and_wakes_nobody(world: World) -> None:
    made, hello = world.known()
    world.line.took(hello.identity, True, time.monotonic() + 1000)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
    wait_until(lambda: world.line.look() or world.ended, timeout=WITHIN)  # type: ignore[func-returns-value]
    assert world.ended == [hello.origin.fd]


def test_one_that_ended_while_it_was_paused_leaves_nothing_and_delays_nobody(world: World) -> None:
    now = time.monotonic() + 1000
    for _ in range(20):
        made, hello = world.known()
        with made:
            world.line.took(hello.identity, True, now)
            world.line.shut_down(hello.origin.fd)
    assert world.line.take(now) is None
    assert world.line.pause(now) is None
    made, hello = world.known()
    with made:
        world.line.took(hello.identity, True, now)
        assert world.line.take(now) is None
        assert world.line.pause(now) == pytest.approx(slow_readers.PAUSE)


def test_too_many_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.gateway.plainline.STRANGERS_EXTRA", 1)
    world = World(tmp_path, connections_max=1)
    made = [world.says(GREETING) for _ in range(3)]
    world.until(world.reasons)
    assert world.reasons == [ln.TOO_MANY]
    assert is_cut_off(made[2])
    world.line.close(0.0)
    for each in made:
        each.close()


def test_a_port_that_is_taken_and_an_address_of_nobody_are_told(
    world: World, tmp_path: Path
) -> None:
    other = World(tmp_path / "other")
    with pytest.raises(ConfigError, match="see who has that port"):
        other.line.bind(world.line.url)
    with pytest.raises(ConfigError, match="no address of this host"):
        other.line.bind("tcp://192.0.2.1:0")
    with pytest.raises(ConfigError, match="no address of this host"):
        other.line.bind("tcp://::1:0")  # as with keys: IPv6 is in brackets, and names are IPv4
    other.line.close(0.0)


def test_one_that_cannot_be_sent_to_ends_even_if_it_says_nothing(world: World) -> None:
    made, hello = world.known()
    with made:
        hello.origin._socket.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionGone):
            world.line.send(hello.identity, b"x", None)
        world.line.sweep(time.monotonic())
        assert world.ended == [hello.origin.fd]


def test_a_long_hello_is_within_the_bytes_of_a_stranger(world: World) -> None:
    body = bytes(fr.CLIENT_HEADER_MAX)
    with world.says(GREETING, READY, b"\2", struct.pack(">Q", len(body)), body):
        assert world.message().parts == [body]
    assert not world.reasons
