"""The socket under a connection to a broker, as `connection` uses it: what it tells and takes.

There are two: `plainsocket` speaks ZeroMQ's protocol by itself, `curvesocket` leaves that to
ZeroMQ, which encrypts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Protocol

from penstock.cluster.frames.codec import Piece


class SocketEvent(Enum):
    """The news of a socket that are no messages."""

    CONNECTED = auto()
    """Something listens there."""
    SHAKEN = auto()
    """The handshake is done: messages may be sent."""
    ABSENT = auto()
    """Nothing listens there."""
    UNLIKE = auto()
    """The handshake failed: one side wants keys and the other shows none, or another one, or it is
    no broker. Which of these is told depends on who hangs up first."""
    UNKNOWN_KEY = auto()
    HUNG_UP = auto()


class WireSocket(Protocol):
    """A socket to one broker, for one attempt. Never blocks but in `close`."""

    tells_once: bool
    """Whether a descriptor tells only once of what came, and sending may take that sign away."""
    servers_tried: tuple[str, ...]
    """Public keys of the host that were tried by now."""

    def filenos(
        self, messages_came: Callable[[], None], events_came: Callable[[], None]
    ) -> dict[int, Callable[[], None]]:
        """Returns descriptors that are readable on news, each with its call."""

    def events(self) -> Iterator[SocketEvent]:
        """Yields the events that have come."""

    @property
    def has_events(self) -> bool: ...

    def send(self, head: bytes, payload: Piece | None) -> bool:
        """Sends a message. A large payload stays in its place until its answer comes. Returns False
        where there is no room for it, or nobody at the other end."""

    def receive(self) -> list[Piece] | None:
        """Returns the frames of the next message; None if there is none now."""

    @property
    def has_messages(self) -> bool: ...

    def close(self, linger: float) -> None:
        """Hangs up, after what was sent last has left or `linger` seconds have passed."""

    def abandon(self, port: int) -> None:
        """Closes, in a forked child, its copy of the connection to that port."""
