"""One attachment of a remote client: at this end a socket on which it is node and writers, at the
other an endpoint of the gateway.

    waiting ──connected──> attaching ──Attached──> open ──Detach──> (over)
       ^                       │                     │
       └──── connection lost ──┘                     └── connection lost ──> lost: its client hears
                                                         the end, and what is in its lanes waits
                                                         for the attachment that resumes them

A client that gave up while it was attaching leaves the endpoint to the next one that asks for the
same (`orphaned`): over a slow network the answer may take longer than each of its tries.
Used by the carrier's thread only.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

import msgspec

from penstock.cluster.frames import messages as fr
from penstock.core.errors import PenstockError
from penstock.ipc import liveness
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel
from penstock.ipc.doorbell import Doorbell
from penstock.remote.address import Link
from penstock.remote.fetcher import Post, RemoteFetcher
from penstock.remote.lanes import MirroredLane
from penstock.remote.mirror import MirroredPages, MirroredSlot

logger = logging.getLogger("penstock.remote")

REQUESTS_MAX: Final = 256
"""Requests of one attachment that wait for the one before."""
ANSWER_WITHIN: Final = 60.0
"""Seconds that a gateway is given for an answer; how long its client waits is its own affair."""
ORPHAN_FOR: Final = 5.0


class State(Enum):
    WAITING = "waiting"
    ATTACHING = "attaching"
    OPEN = "open"
    LOST = "lost"


class Endpoint:
    """See the module. `number` names it at the gateway, anew for each try of each connection."""

    def __init__(self, link: Link, channel: Channel) -> None:
        self.link: Link | None = link
        self.channel = channel
        self.state = State.WAITING
        self.hello: ms.Hello | None = None
        self.number = -1
        self.attached: fr.Attached | None = None
        self.far: RemoteFetcher | None = None
        self.slot: MirroredSlot | None = None
        self.lanes: dict[int, MirroredLane] = {}
        self.bell: Doorbell | None = None
        """Rung by its producer for what it wrote into a lane."""
        self.pages: MirroredPages | None = None
        self._heir_of: Endpoint | None = None
        self.orphaned_until = 0.0
        self._requests: deque[msgspec.Struct] = deque()
        self._asked = 0
        self._is_asking = False

    @property
    def producer_id(self) -> int:
        return 0 if self.attached is None else self.attached.producer_id

    @property
    def key(self) -> tuple[int, str, int | None] | None:
        """What makes two attachments that were not answered yet the same."""
        hello = self.hello
        return None if hello is None else (hello.kind, hello.client_id, hello.resume)

    # --- attaching ---
    def attach(self, number: int, token: bytes) -> fr.Attach:
        assert self.hello is not None
        self.number, self.state = number, State.ATTACHING
        return fr.Attach(
            number, self.hello.kind, self.hello.client_id[: fr.NAME_BYTES_MAX], self.hello.resume,
            token,
        )  # fmt: skip

    def opened(self, attached: fr.Attached, post: Post) -> None:
        """The gateway took it in. Whoever it is for is told by `greet`."""
        assert self.hello is not None
        self.attached, self.state = attached, State.OPEN
        pid = os.getpid()
        self.slot = MirroredSlot(pid, liveness.start_time(pid) or 0, self.hello.kind)
        self.slot.slot.copy_notice(attached.notice)
        self.bell = Doorbell()
        self.far = RemoteFetcher(attached.endpoint, post)

    def inherit(self, other: Endpoint) -> None:
        """Go on with the lanes of one that was lost."""
        self._heir_of, other._heir_of = other, None
        self.lanes, other.lanes = other.lanes, {}
        for lane in self.lanes.values():
            lane.rewind()

    def greet(self, pages: MirroredPages, boot_id: str) -> None:
        """Tell the client that it is attached, with all that it then shares."""
        assert self.attached is not None
        assert self.slot is not None
        assert self.bell is not None
        attached, bell = self.attached, self.bell.fileno()
        if self.link is not None:
            self.link.far, self.link = self.far, None
        welcome = ms.Welcome(
            ms.PROTOCOL_VERSION, pages.node_uuid, boot_id, "", 0, attached.writers,
            attached.lane_capacity, attached.producer_id,
            [ms.LaneInfo(lane.name, lane.writer) for lane in self.lanes.values()],
        )  # fmt: skip
        fds = [pages.fd, self.slot.fd, self.slot.bell.fileno(), *[bell] * len(self.lanes)]
        self.say(welcome, fds)

    # --- requests ---
    def take(self, message: msgspec.Struct) -> bool:
        """A request of the client; it is answered after those before it. False: too many wait."""
        self._requests.append(message)
        return len(self._requests) <= REQUESTS_MAX

    def ask(self) -> fr.Ask | None:
        """What is to be asked of the gateway now."""
        while self._requests and not self._is_asking:
            message = self._requests.popleft()
            if isinstance(message, ms.OpenLane):
                self._open_lane(message)
                continue
            self._is_asking = True
            self._asked += 1
            return fr.Ask(
                self.number,
                self._asked,
                ANSWER_WITHIN,
                msgspec.Raw(msgspec.msgpack.encode(message)),
            )
        return None

    def answer(self, message: fr.Answer) -> None:
        if self._is_asking and message.request == self._asked:
            self._is_asking = False
            self.say(message.body)

    def _open_lane(self, message: ms.OpenLane) -> None:
        assert self.attached is not None
        assert self.bell is not None
        lane = self.lanes.get(message.writer)
        if lane is None:
            if not 0 <= message.writer < self.attached.writers:
                self.say(ms.Refused(
                    "ConfigError",
                    f"there is no writer {message.writer}: the node has {self.attached.writers}",
                ))  # fmt: skip
                return
            capacity = self.attached.lane_capacity
            try:
                lane = MirroredLane(message.writer, capacity, self.attached.producer_id)
            except PenstockError as error:
                self.say(ms.Refused(type(error).__name__, str(error)))
                return
            self.lanes[message.writer] = lane
            lane.arm()
        self.say(ms.LaneOpened(lane.name, lane.writer), [lane.fd, self.bell.fileno()])

    def say(self, message: Any, fds: Iterable[int] = ()) -> None:
        """Tell the client; one that is gone or does not read its answers will be noticed."""
        if self.channel.closed:
            return
        try:
            self.channel.send_nowait(message, list(fds))
        except (PenstockError, OSError) as error:
            logger.debug("an attachment was not told %s: %s", type(message).__name__, error)

    # --- the end ---
    def lose(self, why: str) -> None:
        """The connection or the endpoint is gone: its client hears of it, and attaches anew."""
        if self.state in (State.WAITING, State.ATTACHING):
            self.state = State.WAITING
            return
        self.state = State.LOST
        self._requests.clear()
        self._is_asking = False
        for lane in self.lanes.values():
            lane.rewind()
        self.say(ms.Refused("NotConnectedError", why))
        self.channel.end()
        if self.slot is not None:
            self.slot.bell.ring()

    def orphan(self) -> None:
        """Its client gave up before it was attached: the next one may have it."""
        self.channel.close()
        self.link = None
        self.orphaned_until = time.monotonic() + ORPHAN_FOR

    def adopt(self, link: Link | None, channel: Channel) -> None:
        self.link, self.channel, self.orphaned_until = link, channel, 0.0

    def ring(self) -> None:
        """Wake its client if it sleeps; after a fence."""
        if self.slot is None:
            return
        self.slot.ring_if_asleep()
        for lane in self.lanes.values():
            if lane.sleeper():
                self.slot.bell.ring()

    def close(self) -> None:
        """Give everything back. Lanes whose producer never heard of this one are its again."""
        self.channel.close()
        if self.slot is not None:
            self.slot.close()
        if self.bell is not None:
            self.bell.close()
        before = self._heir_of
        if before is not None and before.state is State.LOST and not before.channel.closed:
            for lane in self.lanes.values():
                lane.rewind()
            before.lanes, self.lanes = self.lanes, {}
        for lane in self.lanes.values():
            lane.close()
        self.lanes.clear()
