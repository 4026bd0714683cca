"""The writer process: drains lanes, appends, publishes, acknowledges, rings.

One pass takes frames from every lane, and appends them partition by partition with as few system
calls as the batches allow. Only then it answers: append, publish, acknowledge, move head (rule 1).
A crash anywhere in between repeats frames, which the log recognises by producer, epoch and
sequence.

Owns the order of a pass and the sleeping protocol. Leaves logs to `PartitionRole`s. The node
decides which lanes, partitions and clients there are; its orders arrive on the control channel.
When that channel ends, the node is dead: the pass is finished and the process leaves (rule 9).
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable
from typing import Final

from penstock.core.errors import (
    ErrorCode,
    NotConnectedError,
    PenstockError,
    StorageError,
    UnsupportedVersionError,
)
from penstock.core.log import AppendResult
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.absent import Absent
from penstock.ipc.channel import Channel
from penstock.ipc.cleaning import Cleaning
from penstock.ipc.doorbell import Backoff, Doorbell, fence, spin
from penstock.ipc.drained import RETRY_MIN, DrainedLane, wake_producers
from penstock.ipc.flusher import Flusher
from penstock.ipc.lane import Ack, Frame, LaneCorruptError, LaneReceiver
from penstock.ipc.partitionrole import RESTORE_EVERY, PartitionRole, errno_of
from penstock.ipc.replicating import replicate
from penstock.ipc.shm import Region, open_existing
from penstock.ipc.state import StatePage, WriterSlot
from penstock.ipc.watchers import Watchers

logger = logging.getLogger("penstock.writer")

LANE_PASS_BYTES: Final = 2 << 20
"""The bytes that one lane may add to one pass, at most. This bounds the wait of other lanes."""
BUSY_PASSES: Final = 32
"""Orders and timers are looked at at least every so many busy passes."""
ORDERS_MAX: Final = 32
"""Orders taken between two passes: opening a thousand partitions must not hold lanes up."""
SLOW_ORDERS: Final = (ms.OpenPartition, ms.ClosePartition)
"""Between two of these, frames that wait have their turn: each makes or deletes files."""
RETRY_MAX: Final = 1.0
_LEADER_EPOCH_NONE: Final = 0

OpenRole = Callable[[ms.OpenPartition], tuple[PartitionRole, str]]


class Writer:
    """The main loop of one writer process; `run` returns when told to stop or the node died."""

    def __init__(
        self,
        index: int,
        generation: int,
        *,
        channel: Channel,
        doorbell: Doorbell,
        state: Region,
        clients: Region,
        open_role: OpenRole,
        restarts: int = 0,
        spin: float = 0.0,
    ) -> None:
        self._generation = generation
        self._restarts = restarts
        self._spin = spin
        self._channel = channel
        self._doorbell = doorbell
        self._state = state
        self._open_role = open_role
        self._roles: dict[int, PartitionRole] = {}
        self._absent = Absent()
        self._offline: set[int] = set()
        """Those whose log is told to be offline."""
        self._leaving: dict[int, tuple[PartitionRole, ms.ClosePartition]] = {}
        self._lanes: dict[str, DrainedLane] = {}
        self._drained: tuple[DrainedLane, ...] = ()  # the same, for the loops of a pass
        self._watchers = Watchers(clients)
        self._changed: set[int] = set()
        self._uncounted: list[tuple[PartitionRole, list[memoryview], list[AppendResult]]] = []
        self._flusher = Flusher(doorbell)
        self._cleaning = Cleaning(self._roles, self._tell)
        self._ticket = time.monotonic_ns()  # never one that a predecessor used
        self._asleep = False
        self._stopping = False
        self._orphaned = False
        self._has_orders = False
        """There may be more, which wait for a pass."""
        self._slot = WriterSlot(state, index)
        self._idle = Backoff()
        self._next_tick = self._next_restore = 0.0
        self._poll = select.poll()
        self._poll.register(doorbell.fileno(), select.POLLIN)
        self._poll.register(channel.fileno(), select.POLLIN)

    def run(self, pid: int) -> None:
        self._slot.claim(pid, self._generation, self._restarts)
        busy = 0
        while not self._orphaned:
            worked = self._pass()
            if self._asleep:
                self._wake_up()
            self._slot.beat()
            busy = busy + 1 if worked else 0
            if not worked or busy % BUSY_PASSES == 0 or self._has_orders:
                worked = self._read_orders() or worked
                now = time.monotonic()
                if now >= self._next_tick:
                    self._tick(now)
            self._finish_syncs()
            self._retire()
            if self._stopping and all(lane.is_drained for lane in self._drained):
                self._stop()
                return
            if worked:
                self._idle.reset()
            elif not self._orphaned:
                self._sleep()
        logger.warning("the node is gone: leaving with %d lanes to its successor", len(self._lanes))
        self._end_syncs()
        for role in self._roles.values():
            role.close(clean=False)

    # --- one pass ---
    def _pass(self) -> bool:
        """Drains the present frames of the lanes once. Returns whether there were any."""
        taken: list[tuple[DrainedLane, list[Frame]]] = []
        now = 0.0
        for lane in self._drained:
            receiver = lane.receiver
            if not receiver.has_frames:
                continue
            if lane.blocked_until:
                now = now or time.monotonic()
                if now < lane.blocked_until:
                    continue
            try:
                frames = receiver.frames(lo.ACKS_MAX, LANE_PASS_BYTES, discard_acks=lane.retiring)
            except LaneCorruptError as error:
                self._drop(lane, str(error))
                continue
            if frames:
                taken.append((lane, frames))
        if not taken:
            return False
        answers: dict[int, AppendResult] = {}
        by_page: dict[int, list[tuple[DrainedLane, Frame]]] = {}
        for lane, frames in taken:
            if lane.replicates:
                self._changed |= replicate(
                    lane, frames, answers,
                    find=self._find, not_here=self._absent.answer, begin=self._flusher.begin,
                )  # fmt: skip
                continue
            for frame in frames:
                by_page.setdefault(frame.page, []).append((lane, frame))
        for page, sent in by_page.items():
            self._append(page, sent, answers)
        self._wake_consumers()  # they wait longest, and what they read is published
        if self._spin:
            os.sched_yield()  # who looks for records may wait for this very processor to do so
        self._answer(taken, answers)
        for role, batches, results in self._uncounted:
            role.count(batches, results)
            if (writeback := role.writeback()) is not None:
                self._flusher.begin(writeback)
        self._uncounted.clear()
        return True

    def _append(
        self, page: int, sent: list[tuple[DrainedLane, Frame]], answers: dict[int, AppendResult]
    ) -> None:
        """Appends one partition's frames; no answer for a frame means: not consumed, try later."""
        role = self._roles.get(page) or self._find(page)
        if role is None:
            away = self._absent.answer(page)
            answers.update((id(frame), away) for _, frame in sent)
            return
        good: list[Frame] = []
        batches: list[memoryview] = []
        epoch = role.leader_epoch
        for lane, frame in sent:
            plain = not frame.flags & lo.FRAME_IN_EPOCH and lane.owns(frame.batch)
            refusal = None if plain else lane.refusal(frame, epoch)
            if refusal is None:
                good.append(frame)
                batches.append(frame.batch)
            else:
                answers[id(frame)] = refusal
                logger.log(
                    logging.DEBUG if refusal.error == ErrorCode.NOT_LEADER else logging.WARNING,
                    "%s", refusal.message, extra={"lane": lane.receiver.name},
                )  # fmt: skip
        if not good:
            return
        try:
            results = role.append(batches, time.time_ns() // 1000)
        except StorageError as error:
            now = time.monotonic()
            for lane, frame in sent:
                if id(frame) not in answers and now >= lane.blocked_until:
                    lane.retry = min(lane.retry * 2, RETRY_MAX)
                    lane.blocked_until = now + lane.retry
            logger.warning("%s: not written, will be tried again: %s", role.name, error)
            return
        self._changed.add(page)
        sync = False
        for frame, result in zip(good, results, strict=True):
            answers[id(frame)] = result
            sync = sync or frame.flags & lo.FRAME_SYNC != 0
        if sync:
            role.request_sync()
        if sync or (role.offline and page not in self._offline):
            self._next_tick = 0.0
        self._uncounted.append((role, batches, results))

    def _find(self, page: int) -> PartitionRole | None:
        """A role that is here, or is by orders that were not read yet."""
        while page not in self._roles and self._read_orders() and self._has_orders:
            pass
        return self._roles.get(page)

    def _answer(
        self, taken: list[tuple[DrainedLane, list[Frame]]], answers: dict[int, AppendResult]
    ) -> None:
        """Acknowledge in lane order up to the first frame without an answer; wake producers."""
        ring: list[DrainedLane] = []
        for lane, frames in taken:
            done = 0
            acks = []
            for frame in frames:
                result = answers.get(id(frame))
                if result is None:
                    break
                done += 1
                acks.append(
                    Ack(
                        frame.sequence,
                        result.base_offset,
                        result.append_timestamp,
                        result.error,
                        self._epoch(frame.page),
                    )
                )
            if done:
                if done == len(frames):
                    lane.blocked_until = 0.0
                    lane.retry = RETRY_MIN
                lane.receiver.finish(frames[:done], [] if lane.retiring else acks)
                ring.append(lane)
        wake_producers(ring)

    def _epoch(self, page: int) -> int:
        role = self._roles.get(page)
        return role.leader_epoch if role is not None else _LEADER_EPOCH_NONE

    # --- waking ---
    def _wake_consumers(self) -> None:
        """Ring those that sleep and watch a page that changed."""
        if not self._changed:
            return
        fence()
        self._watchers.ring(self._changed)
        self._changed.clear()

    def _sleep(self) -> None:
        """Publish sleeping, fence, look again, wait boundedly (rule 13).

        After waking, the pass comes first. The tickets are taken back after it, and the doorbell is
        cleared before the next look that it covers.
        """
        lanes = self._drained
        if self._spin and spin(self._spin, self._is_ready):
            return
        self._doorbell.clear()
        self._ticket += 1
        for lane in lanes:
            lane.receiver.publish_sleeping(self._ticket)
        fence()
        if not self._is_ready():
            wait = self._idle.bound()
            now = time.monotonic()
            for lane in lanes:
                if lane.blocked_until:
                    wait = min(wait, max(0.0, lane.blocked_until - now))
            if self._roles:
                wait = min(wait, max(0.0, self._next_tick - now))
            self._poll.poll(wait * 1000)
        self._asleep = True

    def _is_ready(self) -> bool:
        for lane in self._drained:  # noqa: SIM110 - a generator costs what two of these do
            if lane.receiver.has_frames and lane.may_go_on:
                return True
        return False

    def _wake_up(self) -> None:
        self._asleep = False
        for lane in self._drained:
            lane.receiver.publish_sleeping(0)

    # --- time ---
    def _tick(self, now: float) -> None:
        now_us = time.time_ns() // 1000
        for page, role in self._roles.items():
            job = role.tick(now, now_us)
            if job is not None:
                self._flusher.submit(page, job)
            if role.offline and page not in self._offline:
                self._offline.add(page)
                self._tell(ms.PartitionOffline(page, role.offline[:1000]))
        every = min((role.tick_every for role in self._roles.values()), default=1.0)
        bare = next((role for role in self._roles.values() if role.lacks_indexes(now)), None)
        if bare is not None:
            every = min(every, RESTORE_EVERY)
            if now >= self._next_restore:
                bare.restore_indexes(now)
                self._next_restore = time.monotonic() + RESTORE_EVERY
        self._next_tick = 0.0 if self._cleaning.work(now) else now + every

    def _finish_syncs(self) -> None:
        if not self._flusher.pending:
            return
        moved = False
        for page, job in self._flusher.finished():
            self._next_tick = 0.0  # more may have been asked for meanwhile
            if page in self._leaving:
                role, order = self._leaving.pop(page)
                role.finish_sync(job)
                self._finish_close(role, order)
            elif self._roles[page].finish_sync(job):
                moved = True
        if moved:
            self._wake_consumers()
            wake_producers(self._drained)

    # --- orders of the node, reports to it ---
    def _tell(self, report: ms.WriterReport) -> None:
        try:
            self._channel.send(report)
        except NotConnectedError:
            self._orphaned = True  # as reading would have said next

    def _read_orders(self) -> bool:
        """Reads the node's orders and returns whether there were any. An order that makes or
        deletes files takes milliseconds: between two of these, waiting frames have their turn."""
        worked = self._has_orders = False
        for _ in range(ORDERS_MAX):
            try:
                received = self._channel.recv_nowait()
            except BlockingIOError:
                break
            if received is None:
                self._orphaned = True
                return True
            worked = True
            order, fds = received
            self._obey(order, [Doorbell.from_fd(fd) for fd in fds])
            self._slot.beat()
            if isinstance(order, SLOW_ORDERS) and any(
                lane.receiver.has_frames for lane in self._drained
            ):
                self._has_orders = True
                break
        return worked

    def _obey(self, order: ms.WriterOrder, bells: list[Doorbell]) -> None:
        if isinstance(order, ms.OpenPartition):
            self._open(order)
        elif isinstance(order, ms.ClosePartition):
            self._close(order)
        elif isinstance(order, ms.AddLane):
            self._add_lane(order, bells[0] if bells and not order.dead else None)
        elif isinstance(order, ms.RetireLane):
            if order.name in self._lanes:
                self._lanes[order.name].retiring = True
            else:
                self._tell(ms.LaneDrained(order.name))
        elif isinstance(order, ms.AddClient):
            self._watchers.add(order.slot, bells[0])
        elif isinstance(order, ms.RemoveClient):
            self._watchers.forget(order.slot)
        elif isinstance(order, (ms.TrimLog, ms.SwapLog)):
            self._cleaning.take(order)
            self._next_tick = 0.0
        else:
            self._stopping = True
            for lane in self._lanes.values():
                lane.stop_at = lane.receiver.tail

    def _open(self, order: ms.OpenPartition) -> None:
        known = self._roles.get(order.page)
        if known is not None:
            known.configure(order.settings)
            self._tell(ms.PartitionOpened(order.page, known.log_end, "", known.offline[:1000]))
            return
        state = StatePage(self._state, order.page)
        try:
            role, report = self._open_role(order)
        except (PenstockError, OSError) as error:
            logger.error("%s cannot be opened: %s", order.name, error)
            state.claim(order.topic_id, order.partition, self._generation)
            state.publish_status(lo.STATUS_OFFLINE, errno_of(error))
            self._absent.failed(order.page, str(error), replicated=order.replicated)
            self._tell(ms.PartitionFailed(order.page, str(error)[:1000]))
            return
        self._roles[order.page] = role
        self._offline.discard(order.page)
        self._absent.opened(order.page)
        self._changed.add(order.page)
        self._wake_consumers()  # what a predecessor published may not have been rung for
        if report:
            logger.info("%s: %s", role.name, report)
        self._tell(ms.PartitionOpened(order.page, role.log_end, report[:1000]))

    def _close(self, order: ms.ClosePartition) -> None:
        if order.page in self._leaving:
            return
        role = self._roles.pop(order.page, None)
        if role is not None and self._flusher.holds(order.page):
            self._leaving[order.page] = role, order
        else:
            self._finish_close(role, order)

    def _finish_close(self, role: PartitionRole | None, order: ms.ClosePartition) -> None:
        """Lets go of a partition, of which no sync is under way."""
        if role is not None:
            role.close(clean=not order.delete)
        self._absent.closed(order.page, deleted=order.delete)
        StatePage(self._state, order.page).let_go(deleted=order.delete)
        self._changed.add(order.page)
        self._wake_consumers()
        self._tell(ms.PartitionClosed(order.page))

    # --- lanes ---
    def _add_lane(self, order: ms.AddLane, doorbell: Doorbell | None) -> None:
        known = self._lanes.get(order.name)
        if known is not None:
            if known.doorbell is not None:
                known.doorbell.close()
            known.doorbell, known.retiring = doorbell, doorbell is None
            known.receiver.rung = 0
            return
        try:
            region = Region.of_fd(open_existing(order.name, writable=True))
            receiver = LaneReceiver(
                region, order.name, self._generation, replicates=order.replicates
            )
        except (LaneCorruptError, UnsupportedVersionError, FileNotFoundError) as error:
            # Only these are final. Anything else (no descriptors, no memory) ends this process, and
            # its successor tries again: the lane may hold what was accepted.
            logger.error("%s cannot be opened: %s", order.name, error, extra={"lane": order.name})
            self._tell(ms.LaneDropped(order.name, str(error)[:1000]))
            return
        self._lanes[order.name] = DrainedLane(receiver, doorbell)
        self._drained = tuple(self._lanes.values())

    def _drop(self, lane: DrainedLane, reason: str) -> None:
        name = lane.receiver.name
        logger.error("lane %s dropped: %s", name, reason, extra={"lane": name, "reason": reason})
        self._forget_lane(name)
        self._tell(ms.LaneDropped(name, reason[:1000]))

    def _forget_lane(self, name: str) -> None:
        lane = self._lanes.pop(name)
        self._drained = tuple(self._lanes.values())
        lane.receiver.detach()
        if lane.doorbell is not None:
            lane.doorbell.close()

    def _retire(self) -> None:
        for lane in self._drained:
            if lane.retiring and not lane.receiver.has_frames:
                self._forget_lane(lane.receiver.name)
                self._tell(ms.LaneDrained(lane.receiver.name))

    # --- the end ---
    def _end_syncs(self) -> bool:
        """Wait for the syncs under way; False if the device does not end one in time: the recovery
        of the next start looks at that log."""
        self._flusher.stop(timeout=30.0)
        self._finish_syncs()
        stuck = [page for page in self._roles if self._flusher.holds(page)]
        for page in stuck:
            logger.error("%s: its sync does not end", self._roles.pop(page).name)
        return not stuck

    def _stop(self) -> None:
        all_clean = self._end_syncs()
        for role in self._roles.values():
            try:
                role.close(clean=True)
            except StorageError as error:
                logger.error("%s: not closed clean: %s", role.name, error)
                all_clean = False
        if all_clean:
            self._tell(ms.Stopped())
