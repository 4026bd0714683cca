"""The line of a node with keys: ZeroMQ's ROUTER, which encrypts, and the connections behind it.

ZeroMQ gives a message of each connection in turn and cannot leave one out, so a flood is read
slowly by reading nobody for a moment (`slow_readers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zmq

from penstock.client.remote.zmqcalls import MORE, NOBLOCK
from penstock.cluster.frames.codec import Piece
from penstock.server.config import NodeConfig
from penstock.server.gateway.events import Events
from penstock.server.gateway.line import CHOSE_IDENTITY, ClientParts, ConnectionGone, PeerSource
from penstock.server.gateway.listener import Listener, descriptor_of, property_of
from penstock.server.gateway.slow_readers import Pacing

ZERO_COPY_FROM: Final = 64 << 10
"""Payloads of at least so many bytes are sent from where they lie; the sender leaves them there."""


class CurveLine:
    """The ROUTER socket as the gateway uses it. Names that clients chose for themselves are
    refused: they might be another's."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: NodeConfig,
        *,
        gone: Callable[[int], None],
        refused: Callable[[str], None],
        secure: Callable[[zmq.Socket[bytes]], None],
        held: Callable[[], None] = lambda: None,
    ) -> None:
        self._refused = refused
        self._listener = listener = Listener(
            context, config, gone=gone, refused=refused, secure=secure, held=held
        )
        self._socket = listener.socket
        self.bind, self.bind_soon, self.renew = listener.bind, listener.bind_soon, listener.renew
        self.look, self.said_hello, self.close = listener.look, listener.said_hello, listener.close
        self.bytes_received, self.shut_down = listener.bytes_received, listener.shut_down
        self.read_in_vain = listener.read_in_vain
        self._pacing = Pacing()
        self._has_rung = True  # or what came may have lost its sign: see `pause`

    @property
    def url(self) -> str:
        return self._listener.url

    @property
    def has_connections(self) -> bool:
        return self._listener.has_connections

    def watch(self, events: Events) -> None:
        events.watch(self._listener.fileno(), self._rang)
        events.watch(self._listener.monitor_fileno(), self._listener.look)

    def pause(self, now: float) -> float | None:
        """The socket is asked only where it was readable or something was sent, which may take that
        sign away: asking costs some system calls."""
        if self._has_rung:
            self._has_rung = self._listener.has_messages
        return self._pacing.pause(now) if self._has_rung else None

    def _rang(self) -> None:
        self._has_rung = True
        # Asked in a flood, so that whose message rang takes part in the turns.
        if self._pacing.is_slow and self._listener.has_messages:
            self._pacing.rang()

    def take(self, now: float) -> ClientParts | None:
        if not self._has_rung or self._pacing.pause(now):
            return None
        frames = self._listener.receive()
        if frames is None:
            self._has_rung = False
            return None
        return ClientParts(frames[0].bytes, [frame.buffer for frame in frames[1:]], frames[0])

    def took(self, identity: bytes, is_over: bool, now: float) -> None:
        self._pacing.took(identity, is_over, now)

    def source(self, arrived: ClientParts) -> PeerSource | None:
        fd = descriptor_of(arrived.origin)
        self.look()  # reports the descriptor's previous connection first
        if not arrived.identity.startswith(b"\0"):
            self._refused(CHOSE_IDENTITY)
            return None
        user_id = property_of(arrived.origin, "User-Id")
        return PeerSource(fd, property_of(arrived.origin, "Peer-Address"), user_id)

    def send(self, identity: bytes, head: bytes, payload: Piece | None) -> bool:
        self._has_rung = True
        try:
            self._socket.send(identity, MORE)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise ConnectionGone from error
        if payload is None:
            self._socket.send(head, NOBLOCK)
        else:
            self._socket.send(head, MORE)
            self._socket.send(payload, NOBLOCK, copy=len(payload) < ZERO_COPY_FROM)
        return True

    def sweep(self, now: float) -> None:
        self._listener.sweep(now)
        self._has_rung = True  # it may listen again, which takes signs away
