"""Sends the batches in lanes and hands their answers back.

Owns the route of each batch: the only one at a node that is alone, in a cluster the one to its
leader. A batch without a leader holds its lane back, because the lane keeps the
order of its partitions. After a while the batch goes back to its producer, with those behind it of
that partition, so that others wait no longer. A batch that its leader rejects, or had when it
ceased to lead, gets no final answer: the attachment is adrift (see `endpoint`). Used by the
carrier's thread only; never blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.client.remote.branches import Branch
from penstock.client.remote.endpoint import Endpoint
from penstock.client.remote.lanes import SEND_PASS_BYTES, AnswerError, Flow, MirroredLane
from penstock.client.remote.view import ClusterView
from penstock.cluster.frames import messages as fr
from penstock.core.errors import SENT_BACK, ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import fence
from penstock.ipc.lane import SENT_BEFORE, LaneCorruptError

logger = logging.getLogger("penstock.remote")

COUNTED: Final = ("batches_sent", "batches_acknowledged", "batches_sent_back")
SEND_BACK_AFTER: Final = 2.0
"""Seconds without a leader after which a lane waits no longer for one."""


class ProduceSender:
    """Sends batches from lanes to writers. `reach` finds an attachment's branch to a broker.
    `broken` is called with a lane that cannot be read, and why."""

    def __init__(
        self,
        view: ClusterView,
        reach: Callable[[Endpoint, int], Branch | None],
        broken: Callable[[Endpoint, MirroredLane, LaneCorruptError], object],
    ) -> None:
        self._view = view
        self._reach = reach
        self._broken = broken
        self._dirty: dict[Endpoint, None] = {}  # whose lanes are to be looked at
        self._held: dict[Endpoint, float] = {}  # whose lanes wait for a leader, since when
        self._answered: dict[Endpoint, None] = {}  # to whom batches were sent back
        self.counts = dict.fromkeys(COUNTED, 0)

    @property
    def has_work(self) -> bool:
        return bool(self._dirty)

    def look_at(self, endpoint: Endpoint) -> None:
        """Notes that its lanes may have batches that can go."""
        self._dirty[endpoint] = None

    @property
    def holds_some(self) -> bool:
        """Returns whether any batch waits for a leader."""
        return bool(self._held)

    def holds(self, endpoint: Endpoint) -> bool:
        """Returns whether a batch of this endpoint waits for a leader."""
        return endpoint in self._held

    def forget(self, endpoint: Endpoint) -> None:
        self._dirty.pop(endpoint, None)
        self._held.pop(endpoint, None)

    # --- out ---
    def pump(self, now: float) -> bool:
        """Sends what can be sent. Returns whether anything was."""
        dirty, self._dirty = self._dirty, {}
        sent = 0
        for endpoint in dirty:
            held = False
            for lane in list(endpoint.lanes.values()):
                if endpoint.home is None:
                    break  # it is not open (any more)
                try:
                    count, is_held = self._drain(endpoint, lane, now)
                except LaneCorruptError as error:
                    self._broken(endpoint, lane, error)
                    held = False
                    break
                sent += count
                held = held or is_held
                if endpoint in self._answered:
                    lane.settle()
            if not held:
                self._held.pop(endpoint, None)
            else:
                self._held.setdefault(endpoint, now)
        self.counts["batches_sent"] += sent
        if self._answered:
            fence()
            for endpoint in self._answered:
                endpoint.ring()
            self._answered.clear()
        return sent > 0

    def _drain(self, endpoint: Endpoint, lane: MirroredLane, now: float) -> tuple[int, bool]:
        """Sends batches of a lane. Returns how many, and whether the next one waits for a
        leader."""
        routes, room, count = endpoint.routes, SEND_PASS_BYTES, 0
        proofs = self._view.proofs
        while room > 0:
            frame = lane.peek()
            if frame is None:
                lane.arm()
                frame = lane.peek()
                if frame is None:
                    return count, False
            page, size, flags = frame.page, len(frame.batch), frame.flags & ~lo.FRAME_AGAIN
            behind = page in lane.sent_back and flags == frame.flags
            flow = None if behind else routes.get(page) or self._route(endpoint, lane, page, now)
            if flow is None:
                if not behind and not self._waits_too_long(endpoint, lane, page, now):
                    return count, True
                lane.send_back()
                self._answered[endpoint] = None
                self.counts["batches_sent_back"] += 1
                room -= size
                continue
            if not flow.takes(size):
                return count, False
            number = flow.sends(lane.sends())
            wire = flow.wire
            if flags & lo.FRAME_SYNC:
                endpoint.synced[page] = wire.broker
            proof = proofs.of(frame.batch) if proofs else msgspec.UNSET
            message = fr.Produce(flow.endpoint, flow.writer, number, page, flags, proof)
            wire.send(message, frame.batch)
            room -= size
            count += 1
        self._dirty[endpoint] = None  # others first
        return count, False

    def strand(self, endpoint: Endpoint) -> None:
        """Sends back the batches of an adrift attachment that begins again, where their partition
        still has no leader."""
        for page in endpoint.adrift:
            lane = endpoint.lanes.get(page % max(endpoint.writers, 1))
            if page >= 0 and lane is not None and self._view.brokers.leader(page) == fr.NOBODY:
                lane.sent_back.setdefault(page, endpoint.adrift_since)

    def _waits_too_long(
        self, endpoint: Endpoint, lane: MirroredLane, page: int, now: float
    ) -> bool:
        """Returns whether the next batch of the lane, which has no leader, is sent back instead."""
        if page in lane.sent_back:
            return True
        since = self._held.get(endpoint, now)
        if page in endpoint.adrift or now - since < SEND_BACK_AFTER:
            return False
        logger.info("page %d has had no leader for %.1f s: others go first", page, now - since)
        lane.sent_back[page] = since
        return True

    def _route(self, endpoint: Endpoint, lane: MirroredLane, page: int, now: float) -> Flow | None:
        """Returns the flow to the leader of that page, None while there is none."""
        branch = endpoint.home
        assert branch is not None
        if self._view.is_cluster:
            if page in endpoint.adrift:
                return None  # behind what has no answer there
            waited = now - lane.sent_back.get(page, self._held.get(endpoint, now))
            broker = self._view.brokers.settled(page, now, waited)
            found = None if broker == fr.NOBODY else self._reach(endpoint, broker)
            if found is None:
                return None
            branch = found
        flow = endpoint.routes[page] = branch.flow(page)
        return flow

    # --- back ---
    def answered(self, endpoint: Endpoint, branch: Branch, message: fr.Acks, now: float) -> None:
        """Hands answers on, in the order of the lanes. Raises `AnswerError`."""
        flow = branch.flows.get(message.writer)
        if flow is None:
            raise AnswerError(f"answers of writer {message.writer}, to which nothing was sent")
        brokers = self._view.brokers
        touched: dict[MirroredLane, None] = {}
        for flight, answer in flow.answer(message.acks):
            page, lane = flight.frame.page, flight.lane
            if answer.error == ErrorCode.NOT_LEADER and self._view.is_cluster:
                brokers.doubt(page, branch.broker, now)
                if brokers.leader(page) != fr.NOBODY:
                    endpoint.drift(page, now)
                    continue
                endpoint.routes.pop(page, None)
            if answer.error in SENT_BACK and self._view.is_cluster:
                lane.sent_back.setdefault(page, now)
                self.counts["batches_sent_back"] += 1
            else:
                lane.sent_back.pop(page, None)
                if not answer.error:
                    brokers.trust(page)
            if answer.error == ErrorCode.UNKNOWN_PRODUCER and lane.was_sent_before(flight.frame):
                answer = answer._replace(base_offset=SENT_BEFORE)
            flight.answer = answer
            touched[lane] = None
        for lane in touched:
            self.counts["batches_acknowledged"] += lane.settle()
        self._dirty[endpoint] = None

    def led_otherwise(self, endpoint: Endpoint, now: float) -> None:
        """Leaders have changed: what is under way to one that another has followed is adrift. One
        that nobody has followed knows itself what became of it."""
        leader = self._view.brokers.leader
        endpoint.routes.clear()
        under_way = [
            (flight.frame.page, branch.broker)
            for branch in endpoint.branches.values()
            for flight in branch.flights()
        ]
        for page, broker in [*under_way, *endpoint.synced.items()]:
            if leader(page) not in (fr.NOBODY, broker):
                endpoint.drift(page, now)

    def left(self, endpoint: Endpoint, branch: Branch, now: float) -> None:
        """Handles the end of a branch: its batches in flight have no answer."""
        endpoint.routes.clear()
        for flight in branch.flights():
            endpoint.drift(flight.frame.page, now)
        for page, broker in endpoint.synced.items():
            if broker == branch.broker:
                endpoint.drift(page, now)
