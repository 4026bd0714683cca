"""The gateway's port and the connections behind it, as its loop uses them.

There are two: `plainline` has sockets of its own, for a node without keys; `curveline` leaves them
to ZeroMQ, which encrypts. A node has one of them at a time: with keys nobody comes in without.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final, NamedTuple, Protocol

from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.codec import Piece
from penstock.core.errors import ConfigError
from penstock.server.gateway.events import Events

BACKLOG: Final = 512
STRANGERS_EXTRA: Final = 256
"""Connections beyond `connections_max` of whom each may learn by a refusal that it is one too many;
further ones are shut down at once."""
STRANGER_BYTES_MAX: Final = 4 * fr.CLIENT_HEADER_MAX
"""Bytes that a connection may send before its hello."""
ACCEPT_PAUSE: Final = 1.0
"""Seconds without listening after descriptors ran out."""
NO_FD: Final = -1
CHOSE_IDENTITY: Final = "chose its identity"
NO_DESCRIPTORS: Final = "no descriptors"
NO_ZEROMQ: Final = "no ZeroMQ"
TOO_MANY: Final = "too many"
NO_HELLO: Final = "no hello"
TOO_MUCH: Final = "too much before a hello"


class ConnectionGone(Exception):
    """The connection that something was to be sent to is not there any more."""


class ClientParts(NamedTuple):
    """A message. `origin` is the line's own."""

    identity: bytes
    parts: list[Piece]
    origin: Any


class PeerSource(NamedTuple):
    """Where a connection comes from. `user_id`: ZeroMQ's name of its key."""

    fd: int
    address: str
    user_id: str


class ClientLine(Protocol):
    """Never blocks but in `close`. Its maker is told of each connection's end, by the connection's
    descriptor. `url`: the place that it listens at."""

    @property
    def url(self) -> str: ...

    def bind(self, url: str) -> str:
        """Listens; returns the URL with the real port. Raises `ConfigError`."""

    def watch(self, events: Events) -> None:
        """Has its descriptors watched, until `close`."""

    def pause(self, now: float) -> float | None:
        """Returns in how many seconds there is something to take; None: not before a descriptor
        tells of it. Asked before each sleep."""

    def take(self, now: float) -> ClientParts | None:
        """Returns the next message, None if there is none now. Connections take turns."""

    def took(self, identity: bytes, is_over: bool, now: float) -> None:
        """A message of that connection was handled. `is_over`: it is to be read slowly."""

    def source(self, arrived: ClientParts) -> PeerSource | None:
        """Returns where a message comes from; None: its connection is refused, and that is told."""

    def send(self, identity: bytes, head: bytes, payload: Piece | None) -> bool:
        """Sends a message. A large payload stays in its place. Returns False where there is no room
        now. Raises `ConnectionGone`."""

    def said_hello(self, fd: int) -> None:
        """The connection with that descriptor is a peer from now on."""

    def look(self) -> None:
        """Takes in which connections came and went."""

    def sweep(self, now: float) -> None:
        """Ends connections that never say hello; listens again if that was given up."""

    def bytes_received(self, fd: int) -> int:
        """Returns the bytes that came by a connection, where a message may have no end; else 0."""

    def shut_down(self, fd: int) -> None:
        """Ends a connection."""

    @property
    def has_connections(self) -> bool: ...

    def read_in_vain(self) -> None:
        """Reads what came, for nobody. Where a socket is closed with something unread, the other
        side's kernel throws away what it has not read either: the goodbye."""

    def close(self, linger: float) -> None:
        """Ends all connections, after what was sent last has left or `linger` seconds passed."""


def cannot_listen(url: str, number: int | None) -> ConfigError:
    """Why, by the number of the error, and what to look at."""
    remedy = "see who has that port (`ss -ltnp`), or name another address"
    if number == errno.EADDRNOTAVAIL:
        remedy = (
            "it is no address of this host (`ip -br address` lists them). Is node_id this broker's "
            "own? Where others know this host by another address, listen at one that it has"
        )
    return ConfigError(f"cannot listen at {url}: {os.strerror(number or 0)}; {remedy}")
