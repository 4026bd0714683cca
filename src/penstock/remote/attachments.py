"""All attachments of a carrier: who they are, what they ask, what is said to them, their lanes.

Owns which endpoint a message is for, and the order in which what came is published, handed on and
rung. Leaves the connection to the carrier, which tells when there is one (`connected`) and when
there is none any more (`lost`). Used by the carrier's thread only; never blocks.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.codec import Piece
from penstock.core.errors import PenstockError
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel
from penstock.ipc.doorbell import fence
from penstock.ipc.lane import LaneCorruptError
from penstock.remote.address import Link
from penstock.remote.endpoint import ORPHAN_FOR, Endpoint, State
from penstock.remote.lanes import AnswerError, MirroredLane
from penstock.remote.mirror import MirroredPages
from penstock.remote.onlookers import Onlookers
from penstock.remote.wire import Wire

logger = logging.getLogger("penstock.remote")

COUNTED: Final = ("batches_sent", "batches_acknowledged", "throttles", "attachments_lost")


class Loop(Protocol):
    """What a carrier does for its attachments."""

    def watch(self, fd: int, call: Callable[[], object]) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def post(self, order: Callable[[], None]) -> None:
        """Have this done soon; from any thread."""


class Attachments:
    """See the module. `name`: of what they are attached to, for messages."""

    def __init__(self, loop: Loop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._wire: Wire | None = None
        self._boot_id = ""
        self.pages: MirroredPages | None = None
        self._endpoints: dict[int, Endpoint] = {}  # by the descriptor of its channel
        self._orphans: list[Endpoint] = []
        self._numbered: dict[int, Endpoint] = {}  # by its number at the gateway
        self._numbers = 0
        self._dirty: dict[Endpoint, None] = {}  # whose lanes are to be looked at
        self._awake: dict[Endpoint, None] = {}  # whose clients have something new
        self._onlookers = Onlookers()
        self.counts = dict.fromkeys(COUNTED, 0)
        self.throttled = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._endpoints

    @property
    def are_waiting(self) -> bool:
        """Whether a connection is wanted."""
        return any(one.hello is not None for one in self._endpoints.values())

    @property
    def have_work(self) -> bool:
        return bool(self._dirty)

    @property
    def open_now(self) -> int:
        return len(self._numbered)

    @property
    def in_flight(self) -> int:
        """Bytes of batches without an answer; from any thread."""
        found = list(self._numbered.values())
        return sum(lane.in_flight for one in found for lane in list(one.lanes.values()))

    def due(self) -> float | None:
        """When `forget_orphans` or `tell` has something to do (monotonic)."""
        times = [one.orphaned_until for one in self._orphans]
        if self._onlookers.due is not None and self._wire is not None:
            times.append(self._onlookers.due)
        return min(times, default=None)

    def tell(self, now: float) -> None:
        """Say where clients stand, now and then."""
        if self._wire is not None:
            self._onlookers.tell(now, self._numbered.values(), self._wire.send)

    # --- the connection ---
    def connected(self, wire: Wire, welcome: fr.Welcome) -> None:
        """There is one: attach all that wait."""
        if self.pages is not None and self.pages.node_uuid != welcome.node_uuid:
            self.pages.close()
            self.pages = None
        if self.pages is None:
            self.pages = MirroredPages(welcome.node_uuid)
        self._wire, self._boot_id = wire, welcome.boot_id
        for endpoint in list(self._endpoints.values()):
            if endpoint.hello is not None:
                self._attach(endpoint)

    def lost(self, why: str) -> None:
        """It is gone: those that were open hear the end, the others wait for the next one."""
        self._wire = None
        self._numbered.clear()
        self._dirty.clear()
        orphans, self._orphans = self._orphans, []
        for orphan in orphans:
            self._forget(orphan)
        for endpoint in list(self._endpoints.values()):
            self._lose(endpoint, why)

    def hopeless(self, error: str, said: str) -> None:
        """There will be none for now: refuse those that wait."""
        for endpoint in list(self._endpoints.values()):
            if endpoint.state is State.WAITING and endpoint.hello is not None:
                endpoint.say(ms.Refused(error, said))
                self._forget(endpoint)

    def close(self) -> None:
        for endpoint in [*self._endpoints.values(), *self._orphans]:
            self._forget(endpoint)
        if self.pages is not None:
            self.pages.close()

    def abandon(self) -> None:
        """In a forked child: give up copies of descriptors, touch nothing else."""
        for endpoint in [*self._endpoints.values(), *self._orphans]:
            endpoint.close()
        if self.pages is not None:
            self.pages.close()

    # --- attachments ---
    def admit(self, link: Link, end: socket.socket) -> None:
        """A new attachment, which speaks at the other end of that socket."""
        endpoint = Endpoint(link, Channel(end, inbound=ms.ClientMessage))
        fd = endpoint.channel.fileno()
        self._endpoints[fd] = endpoint
        self._loop.watch(fd, lambda: self._read(self._endpoints[fd]))

    def _read(self, endpoint: Endpoint) -> None:
        """Take in what an attachment's client says."""
        while not endpoint.channel.closed:
            try:
                received = endpoint.channel.recv_nowait()
            except BlockingIOError:
                break
            except (PenstockError, OSError) as error:
                logger.warning("an attachment said what it may not: %s", error)
                received = None
            if received is None:
                self._gone(endpoint, polite=False)
                return
            message, fds = received
            for fd in fds:
                os.close(fd)
            if isinstance(message, ms.Bye):
                self._gone(endpoint, polite=True)
                return
            if isinstance(message, ms.Hello):
                endpoint.hello = message
                endpoint = self._orphan_of(endpoint)
                self._attach(endpoint)
            elif endpoint.state is State.OPEN and not endpoint.take(message):
                logger.warning("an attachment asks faster than it is answered: it is dropped")
                self._gone(endpoint, polite=True)
                return
        self._ask(endpoint)

    def _orphan_of(self, endpoint: Endpoint) -> Endpoint:
        """The one itself, or what an earlier try of it has left, in its place."""
        for orphan in self._orphans:
            if orphan.key == endpoint.key:
                self._orphans.remove(orphan)
                orphan.adopt(endpoint.link, endpoint.channel)
                self._endpoints[orphan.channel.fileno()] = orphan
                if orphan.state is State.OPEN:
                    self._greet(orphan)
                return orphan
        return endpoint

    def _attach(self, endpoint: Endpoint) -> None:
        wire = self._wire
        if wire is None or endpoint.state is not State.WAITING:
            return
        assert endpoint.hello is not None
        token = b""
        if endpoint.hello.resume is not None:
            before = self._lost_one(endpoint.hello.resume)
            token = b"" if before is None or before.attached is None else before.attached.token
        self._numbers += 1
        self._numbered[self._numbers] = endpoint
        wire.send(endpoint.attach(self._numbers, token))

    def _lost_one(self, producer_id: int) -> Endpoint | None:
        """Whose connection was lost, and whose client is still there; the one with the lanes."""
        found = (
            one
            for one in self._endpoints.values()
            if one.state is State.LOST and one.producer_id == producer_id
        )
        return max(found, key=lambda one: len(one.lanes), default=None)

    def _opened(self, endpoint: Endpoint, attached: fr.Attached) -> None:
        assert self.pages is not None
        assert endpoint.hello is not None
        if endpoint.state is not State.ATTACHING:
            return
        number = endpoint.number
        try:
            endpoint.opened(
                attached, lambda message: self._loop.post(lambda: self._send_for(number, message))
            )
        except PenstockError as error:  # out of descriptors, mostly
            endpoint.say(ms.Refused(type(error).__name__, str(error)))
            self._forget(endpoint)
            return
        assert endpoint.bell is not None
        self._loop.watch(endpoint.bell.fileno(), lambda: self._rang(endpoint))
        before = self._lost_one(attached.producer_id) if endpoint.hello.resume else None
        if (
            before is not None
            and before.attached is not None
            and before.attached.writers == attached.writers
            and before.pages is self.pages
        ):
            endpoint.inherit(before)
        endpoint.pages = self.pages
        if not endpoint.orphaned_until:
            self._greet(endpoint)

    def _greet(self, endpoint: Endpoint) -> None:
        assert endpoint.pages is not None
        endpoint.greet(endpoint.pages, self._boot_id)
        self._dirty[endpoint] = None

    def _refused(self, endpoint: Endpoint, refused: fr.Refused) -> None:
        if endpoint.state is State.ATTACHING:
            endpoint.say(ms.Refused(refused.error, refused.message))
            self._forget(endpoint)

    def _rang(self, endpoint: Endpoint) -> None:
        assert endpoint.bell is not None
        endpoint.bell.clear()
        self._dirty[endpoint] = None

    def _ask(self, endpoint: Endpoint) -> None:
        if endpoint.state is State.OPEN and self._wire is not None:
            ask = endpoint.ask()
            if ask is not None:
                self._wire.send(ask)

    def _send_for(self, number: int, message: fr.Fetch | fr.More | fr.Drop) -> None:
        if number in self._numbered and self._wire is not None:
            self._wire.send(message)

    def _gone(self, endpoint: Endpoint, *, polite: bool) -> None:
        """Its client has closed."""
        fd = endpoint.channel.fileno()
        self._loop.unwatch(fd)
        self._endpoints.pop(fd, None)
        unseen = endpoint.state is State.ATTACHING or (
            endpoint.state is State.OPEN and self._is_awaited(endpoint)
        )
        if unseen and not polite:
            endpoint.orphan()
            self._orphans.append(endpoint)
        else:
            self._forget(endpoint)

    def _is_awaited(self, endpoint: Endpoint) -> bool:
        """Whether the client that it goes on for still tries to attach."""
        resume = None if endpoint.hello is None else endpoint.hello.resume
        return resume is not None and self._lost_one(resume) is not None

    def forget_orphans(self, now: float) -> None:
        for orphan in [one for one in self._orphans if one.orphaned_until <= now]:
            if self._is_awaited(orphan):
                orphan.orphaned_until = now + ORPHAN_FOR
            else:
                self._orphans.remove(orphan)
                self._forget(orphan)

    def _forget(self, endpoint: Endpoint) -> None:
        """It is over, here and at the gateway."""
        fd = endpoint.channel.fileno()
        if fd >= 0:
            self._loop.unwatch(fd)
            self._endpoints.pop(fd, None)
        if self._numbered.pop(endpoint.number, None) is not None and self._wire is not None:
            self._wire.send(fr.Detach(endpoint.number))
        if endpoint.bell is not None:
            self._loop.unwatch(endpoint.bell.fileno())
        self._dirty.pop(endpoint, None)
        self._awake.pop(endpoint, None)
        endpoint.close()

    # --- what the gateway says ---
    def hear(self, message: fr.GatewayMessage, payload: Piece | None) -> None:
        """A message of the gateway for one of them."""
        assert not isinstance(message, (fr.Welcome, fr.Pong))
        if isinstance(message, fr.Leaders):
            return  # of no endpoint
        endpoint = self._numbered.get(message.endpoint)
        if endpoint is None:
            return  # it is over at this end already
        match message:
            case fr.Acks():
                self._publish(endpoint, message.pages)
                self._acknowledged(endpoint, message)
            case fr.Fetched():
                self._publish(endpoint, message.pages)
                if endpoint.far is not None:
                    endpoint.far.put(message, payload)
                    self._awake[endpoint] = None
                    self._onlookers.stirred(time.monotonic())
            case fr.Pages():
                self._publish(endpoint, message.pages)
            case fr.Answer():
                self._publish(endpoint, message.pages)
                endpoint.answer(message)
                self._ask(endpoint)
            case fr.CursorFailed():
                if endpoint.far is not None:
                    endpoint.far.fail(message)
                    self._awake[endpoint] = None
            case fr.Attached():
                self._opened(endpoint, message)
            case fr.Refused():
                self._refused(endpoint, message)
            case fr.Notice():
                if endpoint.slot is not None:
                    endpoint.slot.give_notice(message.notice)
            case fr.Throttled():
                self.counts["throttles"] += 1
                self.throttled += message.seconds
            case fr.Ended():
                self._ended(endpoint, message.reason)

    def _publish(self, endpoint: Endpoint, states: Sequence[fr.PageState]) -> None:
        if states and self.pages is not None:
            self.pages.publish(states)
            if endpoint.far is not None:
                endpoint.far.heard(states)
            self._awake[endpoint] = None

    def _acknowledged(self, endpoint: Endpoint, message: fr.Acks) -> None:
        lane = endpoint.lanes.get(message.writer)
        try:
            if lane is None:
                raise AnswerError(f"answers of writer {message.writer}, to which nothing was sent")
            self.counts["batches_acknowledged"] += lane.answer(message.acks)
        except AnswerError as error:
            assert self._wire is not None
            self._wire.failed = str(error)
            return
        self._dirty[endpoint] = self._awake[endpoint] = None

    def _ended(self, endpoint: Endpoint, reason: str) -> None:
        self._numbered.pop(endpoint.number, None)
        if endpoint.state is State.ATTACHING:
            endpoint.say(ms.Refused("NotConnectedError", f"{self._name}: {reason}"))
            self._forget(endpoint)
        else:
            self._lose(endpoint, f"{self._name}: {reason}")

    def _lose(self, endpoint: Endpoint, why: str) -> None:
        self.counts["attachments_lost"] += endpoint.state is State.OPEN
        endpoint.lose(why)

    # --- lanes ---
    def pump(self) -> None:
        """Send what stands in lanes."""
        dirty, self._dirty = self._dirty, {}
        for endpoint in dirty:
            if endpoint.state is State.OPEN:
                for lane in list(endpoint.lanes.values()):
                    self._drain(endpoint, lane)

    def _drain(self, endpoint: Endpoint, lane: MirroredLane) -> None:
        assert endpoint.attached is not None
        assert self._wire is not None
        window = endpoint.attached.window
        try:
            frames = lane.next_frames(window)
            if not frames:
                lane.arm()
                frames = lane.next_frames(window)
        except LaneCorruptError as error:
            logger.error("lane %s is dropped: %s", lane.name, error)
            self._numbered.pop(endpoint.number, None)
            self._wire.send(fr.Detach(endpoint.number))
            endpoint.lanes.pop(lane.writer).close()
            self._lose(endpoint, f"its lane {lane.name} is broken: {error}")
            return
        number, writer, send = endpoint.number, lane.writer, self._wire.send
        for frame in frames:
            lane.sends(frame)
            send(fr.Produce(number, writer, frame.sequence, frame.page, frame.flags), frame.batch)
        if frames:
            self._onlookers.stirred(time.monotonic())
            self.counts["batches_sent"] += len(frames)
            self._dirty[endpoint] = None

    def wake(self) -> None:
        """Ring those that sleep and for whom something has come."""
        if self._awake:
            fence()
            for endpoint in self._awake:
                endpoint.ring()
            self._awake = {}
