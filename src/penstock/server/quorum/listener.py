"""Accepts other brokers: the ROUTER at `cluster_listen`, and the connections behind it.

    a connection --Hello--> admitted --silence, an end, a newer Hello of that broker--> gone
          +--anything else, nothing for HELLO_WITHIN, too many, too much--> shut down

Nobody is heard before a Hello that `admits` lets pass. All others are counted, and get the reason
if they speak this protocol. Of two brokers with one number and two data folders the connected one
stays. Otherwise each would end the other's connection, and nobody would learn the reason. ZeroMQ
bounds the size of messages. Connections that never say hello, or send without end, are shut down by
their descriptors.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.core.errors import AttachRefusedError, PenstockError
from penstock.security.keys import ServerKey
from penstock.server.gateway.line import NO_FD, cannot_listen
from penstock.server.gateway.listener import Listener, descriptor_of, property_of
from penstock.server.quorum import messages as qm
from penstock.server.quorum.sockets import Context, Doorman, Watched, close_monitored, router

logger = logging.getLogger("penstock.quorum")

HELLO_WITHIN: Final = 5.0
STRANGERS_MAX: Final = 64
"""Connections without a Hello at a time."""
CALLERS_MAX: Final = 1_000
STRANGER_BYTES_MAX: Final = 64 << 10
ENDED_MAX: Final = 1_000
"""Connections that are remembered after their end, because of what is still to be read of them."""
SWEEP: Final = 0.5
WARN_EVERY: Final = 10.0
"""Seconds between two warnings of the same kind about strangers."""
MONITORED: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(slots=True)
class _Caller:
    hello: qm.Hello
    fd: int
    heard_at: float

    @property
    def node(self) -> int:
        return self.hello.node


class QuorumListener:
    """`admits(hello)` raises why not. `received(node, message)`: anything but greetings."""

    def __init__(
        self,
        context: Context,
        url: str,
        key: ServerKey | None,
        silence: float,
        counts: Counter[str],
        *,
        admits: Callable[[qm.Hello], qm.Welcome],
        received: Callable[[int, qm.LinkMessage], None],
    ) -> None:
        self._silence = silence
        self._counts = counts
        self._admits = admits
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._callers: dict[bytes, _Caller] = {}
        self._by_node: dict[int, bytes] = {}
        self._strangers: dict[int, float] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._warned: dict[str, float] = {}
        self._doorman = Doorman(context, key, self._no_key) if key is not None else None
        socket = router(context, url, key)
        monitor = socket.get_monitor_socket(MONITORED)
        try:
            socket.bind(url)
        except zmq.ZMQError as error:
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)
            if self._doorman is not None:
                self._doorman.close()
            raise cannot_listen(url, error.errno) from error
        self._router = Watched(socket, self._take)
        self._monitor = Watched(monitor, self._told)
        self._timer = self._loop.call_later(SWEEP, self._sweep)

    def nodes(self) -> set[int]:
        """Returns the brokers that are admitted now."""
        return set(self._by_node)

    def send(self, node: int, data: bytes) -> bool:
        """By the connection that this broker made."""
        identity = self._by_node.get(node)
        return identity is not None and self._router.send([identity, data])

    def close(self) -> None:
        self._timer.cancel()
        self._strangers.clear()
        close_monitored(self._router, self._monitor)
        if self._doorman is not None:
            self._doorman.close()

    # --- messages ---
    def _take(self, frames: list[zmq.Frame]) -> None:
        identity = frames[0].bytes
        if identity in self._ended:
            self._counts["late"] += 1  # what was still to be read of it
            return
        caller = self._callers.get(identity)
        try:
            if len(frames) != 2:
                raise qm.LinkError(f"{len(frames) - 1} frames where one is due")
            message = qm.decode(frames[1].buffer)
        except qm.LinkError as error:
            self._refuse(identity, frames[-1], "garbage", error)
            return
        if isinstance(message, qm.Hello) and caller is None:
            self._greet(identity, frames[1], message)
        elif isinstance(message, qm.Hello):
            self._refuse(identity, frames[1], "garbage", qm.LinkError("a second Hello"))
        elif caller is None:
            early = qm.LinkError(f"{type(message).__name__} before a Hello")
            self._refuse(identity, frames[1], "no hello", early)
        else:
            caller.heard_at = self._loop.time()
            if isinstance(message, qm.Ping):
                self._router.send([identity, qm.encode(qm.Pong(message.stamp))])
            else:
                self._received(caller.node, message)

    def _greet(self, identity: bytes, frame: zmq.Frame, hello: qm.Hello) -> None:
        try:
            if len(self._callers) >= CALLERS_MAX and hello.node not in self._by_node:
                raise qm.LinkError(f"{CALLERS_MAX} brokers are connected already")
            welcome = self._admits(hello)
            self._check_double(hello)
        except PenstockError as error:
            self._refuse(identity, frame, "not admitted", error)
            return
        older = self._by_node.get(hello.node)
        if older is not None:
            self._end(older)
        fd = descriptor_of(frame)
        self._strangers.pop(fd, None)
        self._callers[identity] = _Caller(hello, fd, self._loop.time())
        self._by_node[hello.node] = identity
        self._router.send([identity, qm.encode(welcome)])

    def _check_double(self, hello: qm.Hello) -> None:
        older = self._by_node.get(hello.node)
        if older is None or (here := self._callers[older].hello).folder == hello.folder:
            return
        raise AttachRefusedError(
            f"broker {hello.node} is here already, at {here.url} and with another data folder than "
            f"the one at {hello.url}: give one of the two another node_id"
        )

    def _refuse(self, identity: bytes, frame: zmq.Frame, kind: str, error: PenstockError) -> None:
        """Say why, and shut it down: at once where it does not speak this protocol."""
        self._counts[f"refused: {kind}"] += 1
        self._warn(kind, property_of(frame, "Peer-Address"), str(error))
        text = str(error)[: qm.TEXT_MAX]
        self._router.send([identity, qm.encode(qm.Refused(type(error).__name__, text))])
        caller = self._callers.get(identity)
        fd = caller.fd if caller is not None else descriptor_of(frame)
        self._forget(identity)
        # The last message has to leave before the connection is shut down.
        if fd != NO_FD:
            self._strangers.setdefault(fd, self._loop.time())
            self._loop.call_later(SWEEP / 2, self._shut_down_if_stranger, fd)

    def _warn(self, kind: str, address: str, why: str) -> None:
        now = self._loop.time()
        if now - self._warned.get(kind, float("-inf")) >= WARN_EVERY:
            self._warned[kind] = now
            logger.warning("control link: %s is refused: %.300s", address or "somebody", why)

    def _no_key(self) -> None:
        self._counts["refused: key"] += 1
        self._warn("key", "", "it does not show the cluster's key")

    # --- connections ---
    def _told(self, frames: list[zmq.Frame]) -> None:
        event = parse_monitor_message([frame.bytes for frame in frames])
        what, fd = int(event["event"]), int(event["value"])
        if what == zmq.EVENT_ACCEPTED:
            if any(caller.fd == fd for caller in self._callers.values()):
                return  # its Hello was read before this
            if len(self._strangers) >= STRANGERS_MAX:
                self._counts["refused: too many"] += 1
                Listener.shut_down(fd)
            else:
                self._strangers[fd] = self._loop.time()
        elif what == zmq.EVENT_DISCONNECTED:
            self._strangers.pop(fd, None)
            for identity, caller in list(self._callers.items()):
                if caller.fd == fd:
                    self._forget(identity)
        else:
            self._counts["refused: handshake"] += 1

    def _sweep(self) -> None:
        now = self._loop.time()
        is_late = now - self._timer.when() > SWEEP
        self._timer = self._loop.call_later(SWEEP, self._sweep)
        if is_late:  # this process was not there: that says nothing of the others
            for caller in self._callers.values():
                caller.heard_at = now
        for fd, since in list(self._strangers.items()):
            if now - since > HELLO_WITHIN or Listener.bytes_received(fd) > STRANGER_BYTES_MAX:
                self._counts["refused: no hello"] += 1
                self._shut_down_if_stranger(fd)
        for identity, caller in list(self._callers.items()):
            if now - caller.heard_at > self._silence:
                self._counts["silent"] += 1
                self._end(identity)

    def _shut_down_if_stranger(self, fd: int) -> None:
        if self._strangers.pop(fd, None) is not None:
            Listener.shut_down(fd)

    def _end(self, identity: bytes) -> None:
        caller = self._callers.get(identity)
        self._forget(identity)
        if caller is not None:
            Listener.shut_down(caller.fd)

    def _forget(self, identity: bytes) -> None:
        caller = self._callers.pop(identity, None)
        self._ended[identity] = None
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        if caller is not None and self._by_node.get(caller.node) == identity:
            del self._by_node[caller.node]
