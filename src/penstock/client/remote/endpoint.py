"""One attachment of a remote client: a socket at this end, and branches at the other.

At this end it acts as node and writers. At the other it has its home branch, an endpoint of the
gateway, and in a cluster others (see `branches`).

    waiting ──connected──> attaching ──Attached──> open ──Detach──> (over)
       ^                       │                     │
       └──── connection lost ──┘                     └── connection lost ──> lost: its client hears
                                                         the end, and what is in its lanes waits
                                                         for the attachment that resumes them

In a cluster an open one may be *adrift*: something that it uses is led by another broker now, or by
none. Requests without an answer there will get none. It is lost once there is a leader.

A client that gave up while it was attaching leaves the endpoint to the next one that asks for the
same (`orphaned`): over a slow network the answer may take longer than each of its tries.
Used by the carrier's thread only.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Any, Final

from penstock.client.remote.branches import Branch
from penstock.client.remote.fetch import FetchCursors
from penstock.client.remote.fetcher import Post, RemoteFetcher
from penstock.client.remote.lanes import Flow, MirroredLane
from penstock.client.remote.leaders import COORDINATOR
from penstock.client.remote.link import Link
from penstock.client.remote.mirror import MirroredPages, MirroredSlot
from penstock.client.remote.requests import RequestRouter
from penstock.client.remote.view import ClusterView
from penstock.cluster.frames import messages as fr
from penstock.core.errors import PenstockError
from penstock.ipc import layout as lo
from penstock.ipc import liveness
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel
from penstock.ipc.doorbell import Doorbell

logger = logging.getLogger("penstock.remote")

ORPHAN_FOR: Final = 5.0


class EndpointState(Enum):
    WAITING = "waiting"
    ATTACHING = "attaching"
    OPEN = "open"
    LOST = "lost"


class Endpoint:
    """One attachment of a remote client. `branches` by broker (`NOBODY` where the node is alone);
    `home` is one of them. `requests` and `cursors` exist from `Attached` on, the latter only in a
    cluster."""

    requests: RequestRouter

    def __init__(self, link: Link, channel: Channel) -> None:
        self.link: Link | None = link
        self.channel = channel
        self.state = EndpointState.WAITING
        self.hello: ms.Hello | None = None
        self.home: Branch | None = None
        self.branches: dict[int, Branch] = {}
        self.shunned: dict[int, float] = {}
        """Until when brokers that took it in no branch are not asked again (monotonic)."""
        self.attached: fr.Attached | None = None
        self.writers = 0
        self.lane_capacity = 0
        self.far: RemoteFetcher | None = None
        self.slot: MirroredSlot | None = None
        self.lanes: dict[int, MirroredLane] = {}
        self.routes: dict[int, Flow] = {}
        """By which way the batches of a page go, as far as that was looked up."""
        self.synced: dict[int, int] = {}
        """Pages of which it may wait for durable records, and where it was told of them last."""
        self.adrift: dict[int, None] = {}
        """Pages, and `COORDINATOR`: for what of it there has to be another leader."""
        self.adrift_since = 0.0
        self.cursors: FetchCursors | None = None
        self.bell: Doorbell | None = None
        """Rung by its producer for what it wrote into a lane."""
        self.pages: MirroredPages | None = None
        self._heir_of: Endpoint | None = None
        self.orphaned_until = 0.0

    @property
    def number(self) -> int:
        """By which its home branch is known; -1 where there is none."""
        return -1 if self.home is None else self.home.number

    @property
    def producer_id(self) -> int:
        return 0 if self.attached is None else self.attached.producer_id

    @property
    def key(self) -> tuple[int, str, int | None] | None:
        """Returns the key by which two attachments that were not answered yet are the same."""
        hello = self.hello
        return None if hello is None else (hello.kind, hello.client_id, hello.resume)

    # --- attaching ---
    def attach(self, branch: Branch, resume: int | None, token: bytes) -> None:
        """Asks the broker for that branch."""
        assert self.hello is not None
        self.branches[branch.broker] = branch
        if branch.is_home:
            self.home, self.state = branch, EndpointState.ATTACHING
        name = self.hello.client_id[: fr.NAME_BYTES_MAX]
        branch.send(fr.Attach(branch.number, self.hello.kind, name, resume, token))

    def opened(
        self, home: Branch, attached: fr.Attached, post: Post, view: ClusterView,
        reach: Callable[[Endpoint, int], Branch | None],
    ) -> None:  # fmt: skip
        """Takes the gateway's acceptance. `greet` tells the client."""
        assert self.hello is not None
        self.attached, self.state, self.pages = attached, EndpointState.OPEN, view.pages
        self.writers, self.lane_capacity = attached.writers, attached.lane_capacity
        pid = os.getpid()
        self.slot = MirroredSlot(pid, liveness.start_time(pid) or 0, self.hello.kind)
        self.slot.slot.copy_notice(attached.notice)
        self.bell = Doorbell()
        self.far = RemoteFetcher(attached.endpoint, post)
        self.requests = RequestRouter(
            view, partial(reach, self), self.far, self.slot, home=home.broker,
            reads=self.hello.kind == lo.KIND_CONSUMER, say=self.say, open_lane=self.open_lane,
        )  # fmt: skip
        if view.is_cluster:
            self.cursors = FetchCursors(self.far, view.brokers, partial(reach, self))
        home.opens(attached)

    def inherit(self, other: Endpoint) -> None:
        """Takes over the lanes of an endpoint that was lost, as many and as large as they are."""
        self._heir_of, other._heir_of = other, None
        self.writers, self.lane_capacity = other.writers, other.lane_capacity
        self.lanes, other.lanes = other.lanes, {}
        for lane in self.lanes.values():
            lane.rewind()

    def greet(self, boot_id: str, remote: str) -> None:
        """Tells the client that it is attached, with all that it then shares. `remote`: its
        cluster, empty for a node that is alone."""
        assert self.attached is not None
        assert self.pages is not None
        assert self.slot is not None
        assert self.bell is not None
        attached, bell, pages = self.attached, self.bell.fileno(), self.pages
        if self.link is not None:
            self.link.far, self.link = self.far, None
        welcome = ms.Welcome(
            ms.PROTOCOL_VERSION, pages.node_uuid, boot_id, "", 0, self.writers, self.lane_capacity,
            attached.producer_id,
            [ms.LaneInfo(lane.name, lane.writer) for lane in self.lanes.values()], remote,
        )  # fmt: skip
        fds = [pages.fd, self.slot.fd, self.slot.bell.fileno(), *[bell] * len(self.lanes)]
        self.say(welcome, fds)

    # --- lanes ---
    def open_lane(self, message: ms.OpenLane) -> None:
        """Opens the lane that the client asks for."""
        assert self.bell is not None
        lane = self.lanes.get(message.writer)
        if lane is None:
            if not 0 <= message.writer < self.writers:
                self.say(ms.Refused(
                    "ConfigError",
                    f"there is no writer {message.writer}: the node has {self.writers}",
                ))  # fmt: skip
                return
            try:
                lane = MirroredLane(message.writer, self.lane_capacity, self.producer_id)
            except PenstockError as error:
                self.say(ms.Refused(type(error).__name__, str(error)))
                return
            self.lanes[message.writer] = lane
            lane.arm()
        self.say(ms.LaneOpened(lane.name, lane.writer), [lane.fd, self.bell.fileno()])

    def say(self, message: Any, fds: Iterable[int] = ()) -> None:
        """Sends the client a message; one that is gone or does not read its answers is noticed
        later."""
        if self.channel.closed:
            return
        try:
            self.channel.send_nowait(message, list(fds))
        except (PenstockError, OSError) as error:
            logger.debug("an attachment was not told %s: %s", type(message).__name__, error)

    # --- the end ---
    def outlives(self, coordinator: int, now: float) -> None:
        """Handles a change of the coordinator. Members join again; for others each request is
        independent."""
        assert self.hello is not None
        members = self.hello.kind == lo.KIND_CONSUMER
        if members and any(
            branch.serves_groups and branch.broker != coordinator
            for branch in self.branches.values()
        ):
            self.drift(COORDINATOR, now)

    def drift(self, what: int, now: float) -> None:
        """Marks that requests to the leader of this get no answer there."""
        if not self.adrift:
            self.adrift_since = now
        self.adrift[what] = None
        self.routes.pop(what, None)

    def lose(self, why: str) -> None:
        """Tells the client that the connection or the endpoint is gone, so that it attaches
        again."""
        self._part()
        if self.state in (EndpointState.WAITING, EndpointState.ATTACHING):
            self.state = EndpointState.WAITING
            return
        self.state = EndpointState.LOST
        self.requests.clear()
        for lane in self.lanes.values():
            lane.rewind()
        self.say(ms.Refused("NotConnectedError", why))
        self.channel.end()
        if self.slot is not None:
            self.slot.bell.ring()

    def _part(self) -> None:
        """Closes all its branches."""
        for branch in self.branches.values():
            branch.close()
        self.branches.clear()
        self.routes.clear()
        self.adrift.clear()
        self.home = None

    def orphan(self) -> None:
        """Keeps the endpoint of a client that gave up before it was attached: the next one may have
        it."""
        self.channel.close()
        self.link = None
        self.orphaned_until = time.monotonic() + ORPHAN_FOR

    def adopt(self, link: Link | None, channel: Channel) -> None:
        self.link, self.channel, self.orphaned_until = link, channel, 0.0

    def ring(self) -> None:
        """Wakes its client if it sleeps; after a fence."""
        if self.slot is None:
            return
        self.slot.ring_if_asleep()
        for lane in self.lanes.values():
            if lane.sleeper():
                self.slot.bell.ring()

    def close(self) -> None:
        """Gives everything back. Lanes that its producer never heard of return to the endpoint
        before."""
        self._part()
        self.channel.close()
        if self.slot is not None:
            self.slot.close()
        if self.bell is not None:
            self.bell.close()
        before = self._heir_of
        if before is not None and before.state is EndpointState.LOST and not before.channel.closed:
            for lane in self.lanes.values():
                lane.rewind()
            before.lanes, self.lanes = self.lanes, {}
        for lane in self.lanes.values():
            lane.close()
        self.lanes.clear()
