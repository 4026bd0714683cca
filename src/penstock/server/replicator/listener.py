"""Accepts followers: a ROUTER, and the connections behind it.

    a connection --Hello--> peer --silent, gone, against the rules, a newer Hello--> forgotten
         +--anything else--> told to say hello, or cut off as any stranger is (`gateway.listener`)

Owns connections and the socket's sending half. `leader_fetch` owns requests and answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import zmq

from penstock.client.remote.zmqcalls import MORE, NOBLOCK
from penstock.server.config import NodeConfig
from penstock.server.gateway.line import NO_FD
from penstock.server.gateway.listener import Frames, Listener, descriptor_of
from penstock.server.replicator import protocol
from penstock.server.replicator.counts import ReplicatorCounts
from penstock.server.replicator.leader_fetch import FetchPeer, Serving

logger = logging.getLogger("penstock.replicator")

MESSAGES_PER_TURN: Final = 64
SNDHWM: Final = 8
"""Messages that ZeroMQ queues for a follower."""
ZERO_COPY_FROM: Final = 64 << 10
"""Runs of at least so many bytes are sent from where they are mapped."""
PEER_SILENCE: Final = 3.0
"""Seconds after which a follower that says nothing is forgotten."""
# As plain numbers: flags of enums are slow to combine.


class Port:
    """The port of a leader for its followers. `admits` gives the reason why a hello is refused,
    empty where it is not."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: NodeConfig,
        url: str,
        serving: Serving,
        counts: ReplicatorCounts,
        *,
        secure: Callable[[zmq.Socket[bytes]], None],
        admits: Callable[[protocol.Hello], str],
        welcome: Callable[[], protocol.Welcome],
    ) -> None:
        self._serving = serving
        self._counts = counts
        self._admits = admits
        self._welcome = welcome
        self._line = Listener(
            context, replace(config, listen=url), gone=self._gone, refused=self._turned_away,
            secure=secure,
        )  # fmt: skip
        self._line.socket.setsockopt(zmq.SNDHWM, SNDHWM)
        self._url = url
        self._peers: dict[bytes, FetchPeer] = {}
        self._by_fd: dict[int, FetchPeer] = {}
        self._by_broker: dict[int, FetchPeer] = {}
        self.is_blocked = False
        """Whether a follower's queue was full at the last `flush`."""
        self._has_rung = True
        self.is_pending = False
        """Whether there is more to send already."""

    def bind(self) -> str:
        """Listen; the URL with the real port. Raises `ConfigError`."""
        return self._line.bind(self._url)

    def fileno(self) -> int:
        return self._line.fileno()

    def monitor_fileno(self) -> int:
        """`look` is due when it is readable."""
        return self._line.monitor_fileno()

    # --- in ---
    @property
    def has_messages(self) -> bool:
        """Asked before each sleep: from then on its descriptor tells of what comes (`rang`). The
        socket is asked only where that sign may have been taken away: by sending, or at its making.
        """
        if self._has_rung:
            self._has_rung = self._line.has_messages
        return self._has_rung

    def rang(self) -> None:
        self._has_rung = True

    def receive(self, now: float) -> None:
        """Take in what followers say."""
        if not self._has_rung:
            return
        for _ in range(MESSAGES_PER_TURN):
            frames = self._line.receive()
            if frames is None:
                self._has_rung = False
                return
            self._take(frames, now)

    def look(self) -> None:
        """Connections may have ended."""
        self._line.look()

    def _take(self, frames: Frames, now: float) -> None:
        identity = frames[0].bytes
        peer = self._peers.get(identity)
        try:
            message = protocol.from_follower([frame.buffer for frame in frames[1:]])
            if isinstance(message, protocol.Hello):
                self._meet(identity, frames, message, now)
            elif peer is None:
                self._say(identity, protocol.Refused("say hello"))
            else:
                peer.heard_at = now
                self._serving.take(peer, message, now)
        except protocol.WireError as error:
            self._counts.garbage += 1
            logger.warning("%s is dropped: %s", peer or "somebody", error)
            self._say(identity, protocol.Refused(str(error)[:1000]))
            if peer is not None:
                self._drop(peer)

    def _meet(self, identity: bytes, frames: Frames, hello: protocol.Hello, now: float) -> None:
        fd = descriptor_of(frames[0])
        self._line.look()  # who had that descriptor before is told of first
        why = self._admits(hello)
        if why:
            logger.warning("broker %d is not served: %s", hello.broker, why)
            self._say(identity, protocol.Refused(why))
            return
        for older in (self._peers.get(identity), self._by_broker.get(hello.broker)):
            if older is not None:
                self._drop(older)
        peer = FetchPeer(identity, hello.broker, hello.broker_epoch, now)
        peer.fd = fd
        self._peers[identity] = self._by_broker[hello.broker] = peer
        if fd != NO_FD:
            self._line.said_hello(fd)
            self._by_fd[fd] = peer
        logger.info("broker %d fetches from here", hello.broker)
        self._say(identity, self._welcome())

    # --- out ---
    def flush(self, now: float) -> None:
        """Send what is ready, one message to each, and signs of life."""
        self.is_blocked = self.is_pending = False
        for peer in list(self._peers.values()):
            if peer.has_news or now - peer.said_at >= protocol.BEAT:
                self._answer(peer, now)
                self.is_pending = self.is_pending or peer.has_news
        if self.is_blocked:
            self.is_pending = False  # it is tried again soon

    def _answer(self, peer: FetchPeer, now: float) -> None:
        socket = self._line.socket
        self._has_rung = True
        try:
            socket.send(peer.identity, MORE)
        except zmq.Again:
            self.is_blocked = True
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._drop(peer)
            return
        # From here on the whole message has a place.
        answers, pieces = self._serving.compose(peer, now)
        peer.said_at = now
        parts: list[bytes | memoryview] = [protocol.encode(answers), *pieces]
        last = len(parts) - 1
        for at, part in enumerate(parts):
            copy = len(part) < ZERO_COPY_FROM
            socket.send(part, MORE if at < last else NOBLOCK, copy=copy)

    def _say(self, identity: bytes, message: protocol.FromLeader) -> None:
        self._has_rung = True
        try:
            self._line.socket.send_multipart([identity, protocol.encode(message)], NOBLOCK)
        except zmq.ZMQError:  # it has gone, or reads nothing
            logger.debug("somebody was not told %r", message)

    # --- connections ---
    def check(self, now: float) -> None:
        """Forgets silent followers, and cuts off those that never say hello."""
        self._line.sweep(now)
        self._has_rung = True  # it may listen again, which takes signs away
        for peer in list(self._peers.values()):
            if now - peer.heard_at > PEER_SILENCE:
                logger.info("%s has said nothing for %g s", peer, PEER_SILENCE)
                self._drop(peer)

    def listened(self, now: float) -> None:
        """It was this process that did not listen: nobody's silence counts."""
        for peer in self._peers.values():
            peer.heard_at = now

    def _gone(self, fd: int) -> None:
        peer = self._by_fd.get(fd)
        if peer is not None:
            self._drop(peer)

    def _turned_away(self, reason: str) -> None:
        logger.info("a connection ended before its hello: %s", reason)

    def _drop(self, peer: FetchPeer) -> None:
        self._peers.pop(peer.identity, None)
        if self._by_broker.get(peer.broker) is peer:
            del self._by_broker[peer.broker]
        if self._by_fd.get(peer.fd) is peer:
            del self._by_fd[peer.fd]
        self._serving.forget(peer)

    def close(self) -> None:
        self._line.close(0.0)
