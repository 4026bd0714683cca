"""Fetches the partitions that this broker follows from their leaders, into its writers' lanes.

    idle --request--> asked --Fetched--> writing --its writer's answers--> idle, and so on at once
                        |----Diverged--> cutting --its writer's answer---> idle
                        |----refused, the connection lost----------------> idle, after a pause

One request of a partition is under way at a time; all that are due to a leader go in one message.
The headers of received batches are checked here (the bodies its writer checks). The machine takes a
batch for stored only when its writer has it. Never blocks: a full lane delays the next request.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import zmq

from penstock.cluster.replica import Diverged, Fetched, FetchRefused, ReplicaFollower
from penstock.core import header as hd
from penstock.core.errors import PenstockError
from penstock.ipc import layout as lo
from penstock.ipc import roles as ro
from penstock.ipc.lane import Ack
from penstock.server.replicator import protocol
from penstock.server.replicator.counts import ReplicatorCounts
from penstock.server.replicator.lanes import Lanes
from penstock.server.replicator.leader_connection import LeaderLink
from penstock.server.replicator.partition import ReplicatedPartition, name_of

logger = logging.getLogger("penstock.replicator")

REFUSED_PAUSE: Final = 0.02
"""Seconds until a leader that refused is asked again: it may not have heard of its election yet."""
FAILED_PAUSE: Final = 1.0
"""The same where what came could not be written."""
ANSWER_MAX: Final = 4.0
"""Seconds within which a leader answers each request, with nothing too."""
SYNC_WAIT: Final = 0.5
"""Seconds for which a request waits until what came before is synced, where that counts."""
MESSAGES_PER_TURN: Final = 8


class Copy:
    """The state of a partition that follows. `asked`: the link that was asked, and when. `answer`:
    the answer that is in the lane; `left` of its frames are not answered yet."""

    __slots__ = ("answer", "asked", "asked_at", "ends", "error", "good", "is_busy", "left",
                 "partition", "paused_until", "role", "sync_until")  # fmt: skip

    def __init__(self, partition: ReplicatedPartition) -> None:
        self.partition = partition
        self.asked: LeaderLink | None = None
        self.asked_at = 0.0
        self.role: ReplicaFollower | None = None
        self.is_busy = False
        """Its writer has something to answer."""
        self.paused_until = 0.0
        self.answer: Fetched | None = None
        self.ends: list[tuple[int, int]] = []
        self.left = self.good = self.error = 0
        self.sync_until = 0.0


class Copying:
    """The fetches of all partitions that follow. `link_to` gives the link to a living broker, None
    where there is none; `epoch` this broker's own; `later` calls after some seconds."""

    def __init__(
        self,
        lanes: Lanes,
        counts: ReplicatorCounts,
        link_to: Callable[[int], LeaderLink | None],
        epoch: Callable[[], int],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._lanes = lanes
        self._counts = counts
        self._link_to = link_to
        self._epoch = epoch
        self._later = later
        self._copies: dict[int, Copy] = {}
        self._asked: OrderedDict[Copy, None] = OrderedDict()
        """Those with a request under way, the oldest request first."""
        self._silent: dict[Copy, None] = {}
        """All others."""
        self._number = time.time_ns()  # above that of every request of an earlier life
        self._unsynced: dict[int, Copy] = {}

    # --- turns ---
    def turned(self, partition: ReplicatedPartition) -> None:
        """It follows, or does not any more; or its writer has it again."""
        copy = self._copies.get(partition.page)
        if partition.follower is None or partition.is_gone:
            if copy is not None:
                self._forget(copy)
            return
        if copy is None or copy.partition is not partition:
            if copy is not None:
                self._forget(copy)
            copy = self._copies[partition.page] = Copy(partition)
            self._silent[copy] = None
        if copy.role is not partition.follower:
            copy.role = partition.follower
            copy.paused_until = 0.0
            self._unask(copy)
        copy.is_busy = False  # what was in the lane is answered
        self.want(copy)

    def _forget(self, copy: Copy) -> None:
        if self._copies.get(copy.partition.page) is copy:
            del self._copies[copy.partition.page]
        self._unsynced.pop(copy.partition.page, None)
        self._asked.pop(copy, None)
        self._silent.pop(copy, None)

    def want(self, copy: Copy) -> None:
        """Ask the leader for what comes next, if it can be asked."""
        partition = copy.partition
        role = partition.follower
        if copy.is_busy or copy.asked is not None or role is None or not partition.has_turned:
            return
        now = time.monotonic()
        link = self._link_to(role.leader) if role.leader is not None else None
        if link is None or now < copy.paused_until:
            return  # `links_changed` asks, or who paused it
        partition.refresh()
        log = partition.log
        if log.synced is not None and log.synced < log.log_end and self._waits(copy, now):
            return
        self._number += 1
        request = role.request(self._number, self._epoch())
        if request is None:
            return  # the controller has to say something first
        link.ask(partition.page, partition.topic_id, request)
        copy.asked = link
        copy.asked_at = now
        del self._silent[copy]
        self._asked[copy] = None

    def _unask(self, copy: Copy) -> None:
        """Its request is answered, or is not going to be."""
        if copy.asked is not None:
            copy.asked = None
            del self._asked[copy]
            self._silent[copy] = None

    def _waits(self, copy: Copy, now: float) -> bool:
        """Whether what came is to be synced first: the request then says that it is."""
        if not copy.sync_until:
            copy.sync_until = now + SYNC_WAIT
        if now < copy.sync_until:
            self._unsynced[copy.partition.page] = copy
            return True
        copy.sync_until = 0.0
        return False

    def look(self) -> None:
        """Syncs may have ended."""
        if self._unsynced:
            waiting, self._unsynced = self._unsynced, {}
            for copy in waiting.values():
                if copy.partition.state.durable >= copy.partition.log.log_end:
                    copy.sync_until = 0.0
                self.want(copy)

    def lost(self, link: LeaderLink) -> None:
        """A link is down: what was asked by it is asked again."""
        self._counts.connections_lost += 1
        for copy in [each for each in self._asked if each.asked is link]:
            self._unask(copy)
            self.want(copy)

    def links_changed(self) -> None:
        """Brokers came or went."""
        for copy in list(self._silent):
            self.want(copy)

    def check(self, now: float) -> None:
        """The belt: requests that nobody answered, and partitions that could ask and do not."""
        while self._asked and now - (copy := next(iter(self._asked))).asked_at > ANSWER_MAX:
            self._counts.timeouts += 1
            self._unask(copy)
        for copy in list(self._silent):
            self.want(copy)

    def _pause(self, copy: Copy, seconds: float) -> None:
        """Ask again then."""
        copy.paused_until = time.monotonic() + seconds

        def again() -> None:
            if self._copies.get(copy.partition.page) is copy:
                copy.paused_until = 0.0
                self.want(copy)

        self._later(seconds, again)

    # --- what comes ---
    def receive(self, link: LeaderLink, now: float) -> None:
        """Take in what a leader said, as long as there is room for it."""
        for _ in range(MESSAGES_PER_TURN):
            if self._lanes.are_full:
                return
            came = link.receive(now)
            if came is None:
                return
            try:
                self._take(link, *came)
            except PenstockError as error:
                self._counts.garbage += 1
                link.fail(now, str(error))
                return

    def _take(self, link: LeaderLink, message: protocol.Answers, frames: list[zmq.Frame]) -> None:
        self._counts.answers_in += 1
        at = 0
        for page, count, fetched in message.fetched:
            runs = frames[at : at + count]
            at += count
            copy = self._due(link, page, fetched.number)
            if copy is not None:
                self._fetched(copy, fetched, runs)
        for page, diverged in message.diverged:
            copy = self._due(link, page, diverged.number)
            if copy is not None:
                self._diverged(copy, diverged)
        for page, refused in message.refused:
            copy = self._due(link, page, refused.number)
            if copy is not None:
                self._refused(copy, refused)

    def _due(self, link: LeaderLink, page: int, number: int) -> Copy | None:
        """Returns the request that this answers; None if the answer is out of date."""
        copy = self._copies.get(page)
        role = None if copy is None else copy.partition.follower
        if copy is None or role is None or copy.asked is not link or role.number != number:
            return None
        self._unask(copy)
        return copy

    def _fetched(self, copy: Copy, fetched: Fetched, runs: list[zmq.Frame]) -> None:
        partition = copy.partition
        role, log = partition.follower, partition.log
        assert role is not None
        begins = fetched.offset != log.log_end
        if begins and fetched.offset != fetched.log_start:
            raise protocol.WireError(
                f"{partition}: batches from offset {fetched.offset} came where {log.log_end} was "
                "asked for"
            )
        if fetched.leader_epoch != role.epoch:
            raise protocol.WireError(f"{partition}: an answer of epoch {fetched.leader_epoch} came")
        batches, copy.ends = checked(partition, fetched, runs, begins=begins)
        lane = self._lanes.of_page(partition.page)
        copy.answer, copy.good, copy.error, copy.left = fetched, 0, 0, len(batches) + begins
        for batch in batches:
            if len(batch) > lane.batch_bytes_max:
                copy.answer = None
                self._unwritten(copy, f"a batch of {len(batch)} bytes does not fit a lane: give "
                                "all brokers the same lane_capacity")  # fmt: skip
                return
        copy.is_busy = True
        if begins:
            self._counts.restarted += 1
            start = hd.parse(batches[0]).base_offset if batches else fetched.offset
            logger.warning(
                "%s: what it has (%d to %d) is not in its leader's log, which starts at %d: it "
                "begins again there", partition, log.log_start, log.log_end, fetched.log_start,
            )  # fmt: skip
            order = ro.BeginAnew(role.epoch, min(start, fetched.offset))
            self._lanes.order(partition, order, lambda ack: self._written(copy, role, ack))
        if batches:
            self._counts.batches_in += len(batches)
            self._counts.bytes_in += sum(map(len, batches))
            epoch, page = role.epoch, partition.page

            def written(ack: Ack) -> None:
                self._written(copy, role, ack)

            for batch in batches:
                lane.put(page, batch, lo.KIND_REPLICA, epoch, written)
        if not copy.left:
            self._settle(copy, role)

    def _written(self, copy: Copy, role: ReplicaFollower, ack: Ack) -> None:
        """Its writer has answered for a frame. Those behind one that was refused do not count."""
        copy.left -= 1
        if ack.error:
            copy.error = copy.error or ack.error
        elif not copy.error:
            copy.good += 1
        if not copy.left:
            self._settle(copy, role)

    def _settle(self, copy: Copy, role: ReplicaFollower) -> None:
        """All of an answer is in the log, or as much as there is going to be."""
        partition, answer, ends = copy.partition, copy.answer, copy.ends
        copy.answer, copy.ends = None, []
        if partition.is_gone or partition.follower is not role or answer is None:
            return
        log = partition.log
        begins = answer.offset != log.log_end
        good = copy.good - begins
        copy.is_busy = False
        if good >= 0 and (good or not copy.error):
            role.fetched(answer, ends[:good])
            partition.noted()
        if copy.error:
            self._unwritten(copy, name_of(copy.error))
        else:
            self.want(copy)

    def _unwritten(self, copy: Copy, why: str) -> None:
        partition = copy.partition
        self._counts.unwritten += 1
        logger.warning("%s: what its leader sent is not written: %s", partition, why)
        partition.again()
        self._pause(copy, FAILED_PAUSE)

    def _diverged(self, copy: Copy, diverged: Diverged) -> None:
        partition = copy.partition
        role, log = partition.follower, partition.log
        assert role is not None
        before, start, end_before = log.truncated_below, log.log_start, log.log_end
        end = role.diverged(diverged)
        if end is None:
            self.want(copy)
            return
        self._counts.truncations += 1
        self._counts.truncated_below += log.truncated_below - before
        logger.info(
            "%s: its log ends at %d from now on, and not at %d: its leader has epoch %d end at %d",
            partition, end, end_before, diverged.epoch, diverged.end,
        )  # fmt: skip
        copy.is_busy = True
        begins = end < start
        self._counts.restarted += begins
        order = ro.BeginAnew(role.epoch, end) if begins else ro.Truncate(role.epoch, end)
        self._lanes.order(partition, order, lambda ack: self._cut(copy, role, ack))

    def _cut(self, copy: Copy, role: ReplicaFollower, ack: Ack) -> None:
        partition = copy.partition
        if partition.is_gone or partition.follower is not role:
            return
        copy.is_busy = False
        if ack.error:
            self._unwritten(copy, f"its log is not cut: {name_of(ack.error)}")
            return
        partition.agree(ack.base_offset)
        partition.noted()
        self.want(copy)

    def _refused(self, copy: Copy, refused: FetchRefused) -> None:
        self._counts.refused_out += 1
        role = copy.partition.follower
        assert role is not None
        role.refused(refused)
        self._pause(copy, REFUSED_PAUSE)


def checked(
    partition: ReplicatedPartition, fetched: Fetched, runs: list[zmq.Frame], *, begins: bool
) -> tuple[list[memoryview], list[tuple[int, int]]]:
    """Returns the batches of an answer, and (offset behind it, leader epoch) of each. `begins`:
    nothing precedes them. Raises `WireError` or `CorruptBatchError` for batches that cannot follow
    this log."""
    batches: list[memoryview] = []
    ends: list[tuple[int, int]] = []
    at, epoch = fetched.offset, 0 if begins else partition.log.epochs.latest
    for run in runs:
        view = memoryview(run.buffer)
        position, size = 0, len(view)
        while position < size:
            head = hd.checked(view, position)
            base, following = head.base_offset, head.next_offset
            is_first = begins and not batches  # the log may begin within it
            if (
                (base < at and not is_first)
                or (base > at and not head.flags & hd.FLAG_COMPACTED)
                or following <= at
                or not epoch <= head.leader_epoch <= fetched.leader_epoch
                or position + head.length > size
                or head.topic_id != partition.topic_id
                or head.partition != partition.partition
            ):
                raise protocol.WireError(
                    f"{partition}: offsets {base} to {following - 1} of epoch {head.leader_epoch} "
                    f"came where {at} of epoch {epoch} to {fetched.leader_epoch} is due"
                )
            epoch, at = head.leader_epoch, following
            batches.append(view[position : position + head.length])
            ends.append((at, epoch))
            position += head.length
    return batches, ends
