"""Batches of remote producers: checked, put into lanes, and answered in the order they came in.

    came ──checked──> held ──room in the lane──> in the lane ──answer──> acknowledged
                │                                     └──answer, committed──>  ▲
                └──refused: an answer with an error, in its turn ──────────────┘

Rule 27: a batch and its header are checked before the lane. Nothing is decoded. The window that the
client was told bounds the bytes under way to a writer; a client that sends more is dropped. Answers
come by the doorbell of the endpoint's session, for which each lane with frames in it is armed (see
`endpoints`). `commit_wait` decides which of them wait until their batch is committed.

At a broker of a cluster an endpoint sends to each partition in one leader epoch only. In another
one, or once a batch was sent away as led elsewhere, the log may lack earlier batches. So every
later batch is answered NOT_LEADER: here, and by the writer if it is in a lane (frames name their
epoch). Its client begins again, from the first batch without a good answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from penstock.cluster.frames import messages as fr
from penstock.core.errors import (
    CorruptBatchError,
    ErrorCode,
    NotLeaderError,
    PenstockError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from penstock.core.header import (
    ATTR_CONTROL,
    ATTR_TRANSACTIONAL,
    BatchHeader,
    body_is_good,
    checked,
)
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell, fence
from penstock.ipc.lane import Ack, LaneCorruptError, LaneSender
from penstock.ipc.state import StatePage
from penstock.server.gateway.commit_wait import NOTHING, CommitWait, verdict
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.endpoints import GatewayEndpoint, fresh_ticket
from penstock.server.gateway.events import Events
from penstock.server.gateway.membership import Membership
from penstock.server.gateway.produce_window import ProducedBatch, ProduceLane, ProduceWindow
from penstock.server.gateway.tokens import Tokens

logger = logging.getLogger("penstock.gateway")

SENT_AWAY: Final = -1
"""In the place of a leader epoch: nothing more is taken for that page."""
LANE_TIMEOUT: Final = 10.0
LANE_RETRY: Final = 0.2
UNDER_WAY_MAX: Final = lo.ACKS_MAX
"""Batches under way to one writer: as many answers as the lanes on both sides have room for."""
IN_THE_LOG: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_TOO_OLD)
"""Answers that say so of a batch."""
CHARGE_BYTES: Final = 64 << 10
"""A batch that is refused costs as much of its connection's budget as messages for each of them."""

MayWrite = Callable[[GatewayEndpoint, bytes], None]
"""Raises what refuses an endpoint to write to the topic with that id."""
Allow = Callable[[str, str, int, float], float]
"""(principal, client id, bytes, now) -> seconds to hold the endpoint back, 0 for none."""
WatchDurable = Callable[[GatewayEndpoint, int, int], None]


class BatchRefused(Exception):
    """A batch is not let into a lane."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class ProduceHandler:
    """All that remote producers send. `failed` ends an endpoint whose lane cannot be gone on
    with."""

    def __init__(
        self,
        events: Events,
        counts: GatewayCounts,
        membership: Membership,
        socket: Path,
        tokens: Tokens,
        *,
        may_write: MayWrite,
        allow: Allow,
        watch_durable: WatchDurable,
        failed: Callable[[GatewayEndpoint, str], None],
    ) -> None:
        self._events = events
        self._counts = counts
        self._may_write = may_write
        self._allow = allow
        self._watch_durable = watch_durable
        self._failed = failed
        self._membership = membership
        self._tokens = tokens
        self._commits = CommitWait[ProduceLane](events, socket, self._touch)
        self._outgoing: dict[
            GatewayEndpoint, ProduceWindow
        ] = {}  # of those that have sent something
        self._touched: dict[ProduceLane, None] = {}

    # --- in ---
    def produce(
        self, endpoint: GatewayEndpoint, message: fr.Produce, payload: memoryview | None, now: float
    ) -> str:
        """Take a batch. Returns why the connection is to be dropped, empty if it is not."""
        outgoing = self._outgoing.get(endpoint)
        if outgoing is None:
            if not endpoint.is_producer:
                return f"{endpoint} is no producer and sent a batch"
            outgoing = self._outgoing[endpoint] = ProduceWindow()
        if payload is None:
            return f"{endpoint} sent a batch without its bytes"
        if message.writer >= endpoint.session.writers:
            return f"{endpoint} names writer {message.writer} of {endpoint.session.writers}"
        lane = outgoing.lanes.get(message.writer)
        if lane is None:
            lane = ProduceLane(endpoint, message.writer, message.sequence)
            outgoing.lanes[message.writer] = lane
        if message.sequence != lane.expected:
            return f"{endpoint} sent batch {message.sequence} where {lane.expected} was due"
        batch = ProducedBatch(message, payload, now)
        if lane.under_way and lane.bytes_under_way + batch.size > endpoint.window:
            return (
                f"{endpoint} has {lane.bytes_under_way + batch.size} bytes under way to writer "
                f"{lane.writer}, over its window of {endpoint.window}"
            )
        if len(lane.under_way) >= UNDER_WAY_MAX:
            return f"{endpoint} has {UNDER_WAY_MAX} batches under way to writer {lane.writer}"
        lane.expected += 1
        lane.under_way.append(batch)
        lane.bytes_under_way += batch.size
        self._touched[lane] = None
        try:
            self._check(lane, batch, payload)
        except BatchRefused as refusal:
            batch.error, batch.payload = refusal.code, None
            if refusal.code is ErrorCode.NOT_LEADER:
                lane.epochs[batch.page] = SENT_AWAY  # also if it is led here in a moment
            endpoint.peer.charge(1 + batch.size // CHARGE_BYTES)
            name = refusal.code.name.lower()
            self._counts.refusals[name] += 1
            logger.log(
                # After a failover all come: the writers say once who leads, the counter how many.
                logging.DEBUG if refusal.code is ErrorCode.NOT_LEADER else logging.WARNING,
                "a batch of %s is refused: %s", endpoint, refusal,
                extra={"principal": endpoint.principal, "reason": name},
            )  # fmt: skip
            return ""
        lane.held.append(batch)
        return ""

    def _check(self, lane: ProduceLane, batch: ProducedBatch, payload: memoryview) -> None:
        """Rule 27: raise what refuses it."""
        endpoint = lane.endpoint
        session = endpoint.session
        bound = session.welcome.lane_capacity // lo.FRAME_SHARE - lo.FRAME_BYTES
        if batch.size > bound:
            raise BatchRefused(
                ErrorCode.BATCH_TOO_LARGE, f"it has {batch.size} bytes, a lane takes {bound}"
            )
        try:
            head = checked(payload)
        except CorruptBatchError as error:
            raise BatchRefused(ErrorCode.CORRUPT_BATCH, str(error)) from error
        except UnsupportedVersionError as error:
            raise BatchRefused(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        if head.length != batch.size:
            raise BatchRefused(
                ErrorCode.CORRUPT_BATCH, f"it says {head.length} bytes, {batch.size} came"
            )
        if not body_is_good(payload, 0, head):
            raise BatchRefused(ErrorCode.CORRUPT_BATCH, "the checksum of its body is wrong")
        self._check_owner(endpoint, head, batch.proof)
        if batch.page >= lo.PAGES_MAX or batch.page % session.writers != lane.writer:
            raise BatchRefused(
                ErrorCode.UNKNOWN_PARTITION, f"page {batch.page} is not of writer {lane.writer}"
            )
        page = endpoint.states.page(batch.page)
        if self._membership.is_broker:
            self._check_leader(lane, batch, page, head)
        # Nobody's: its writer has still to open it in this boot. That one answers after it did.
        identity = page.identity
        if identity is not None and identity != (head.topic_id, head.partition):
            raise BatchRefused(
                ErrorCode.WRONG_TOPIC_ID, f"page {batch.page} is of another partition"
            )
        try:
            self._may_write(endpoint, head.topic_id)
        except UnknownTopicError as error:
            raise BatchRefused(ErrorCode.WRONG_TOPIC_ID, str(error)) from error
        except PenstockError as error:
            raise BatchRefused(ErrorCode.ACCESS_DENIED, str(error)) from error
        batch.records = head.last_offset_delta + 1

    def _check_leader(
        self, lane: ProduceLane, batch: ProducedBatch, page: StatePage, head: BatchHeader
    ) -> None:
        """At a broker: the partition has to be led here, and in the epoch in which this endpoint
        began to send to it."""
        try:
            self._membership.check(page, head.topic_id, head.partition)
        except NotLeaderError as error:
            raise BatchRefused(ErrorCode.NOT_LEADER, str(error)) from error
        if page.identity is None:
            raise BatchRefused(
                ErrorCode.NOT_LEADER, f"page {batch.page} is led here, and not open yet: ask again"
            )
        batch.epoch, batch.flags = page.leader_epoch, batch.flags | lo.FRAME_IN_EPOCH
        began = lane.epochs.setdefault(batch.page, batch.epoch)
        if began == SENT_AWAY:
            raise BatchRefused(
                ErrorCode.NOT_LEADER,
                f"what {lane.endpoint} sent to page {batch.page} before was sent away: attach "
                "again, and send again",
            )
        if began != batch.epoch:
            raise BatchRefused(
                ErrorCode.NOT_LEADER,
                f"page {batch.page} was led in epoch {began} when {lane.endpoint} began to send "
                f"there, and is in epoch {batch.epoch} now: attach again, and send again",
            )

    def _check_owner(self, endpoint: GatewayEndpoint, head: BatchHeader, proof: bytes) -> None:
        """Control batches are the coordinator's. Others are of the endpoint's own producer, or of
        one that has a transaction, for which they show a proof. Every batch of somebody else is
        refused alike, before anything is looked up: nobody learns which producers there are."""
        if head.attributes & ATTR_CONTROL:
            raise BatchRefused(ErrorCode.CORRUPT_BATCH, "only the coordinator writes such a batch")
        if head.attributes & ATTR_TRANSACTIONAL:
            is_owner = self._is_proved(endpoint, head, proof)
        else:
            is_owner = head.producer_id == endpoint.session.producer_id
        if not is_owner:
            raise BatchRefused(
                ErrorCode.UNKNOWN_PRODUCER,
                f"nothing shows that producer {head.producer_id} epoch {head.producer_epoch} is "
                f"of {endpoint.principal!r}",
            )

    def _is_proved(self, endpoint: GatewayEndpoint, head: BatchHeader, proof: bytes) -> bool:
        """Whether the principal registered partitions with the transaction of this batch. Whether
        it is still open, and in this partition, is known to the log."""
        outgoing = self._outgoing[endpoint]
        shown = head.producer_id, head.producer_epoch, proof
        if shown == outgoing.proved:
            return True
        producer_id, epoch, _ = shown
        if not self._tokens.is_proof(proof, producer_id, epoch, endpoint.principal):
            return False
        outgoing.proved = shown
        return True

    # --- quotas ---
    def _charge(
        self, endpoint: GatewayEndpoint, outgoing: ProduceWindow, nbytes: int, now: float
    ) -> bool:
        """Count what has gone into a lane. False: its quota is used up, and what else it has sent
        is held for a while."""
        self._counts.use(endpoint.principal, "produce", nbytes)
        wait = self._allow(endpoint.principal, endpoint.client_id, nbytes, now)
        if wait <= 0:
            return True
        if outgoing.held_until <= now:
            self._events.later(wait, lambda: self._let_go(endpoint, outgoing))
        more = now + wait - max(outgoing.held_until, now)
        outgoing.held_until = max(outgoing.held_until, now + wait)
        if more > 0:
            self._counts.throttles["produce"] += 1
            self._counts.throttled_seconds["produce"] += more
            endpoint.post(fr.Throttled(endpoint.number, "produce", more))
        return False

    def unhold(self, endpoint: GatewayEndpoint) -> None:
        """There are other quotas now: let it try by those."""
        outgoing = self._outgoing.get(endpoint)
        if outgoing is not None and outgoing.held_until:
            outgoing.held_until = 0.0
            self.rung(endpoint)

    def _let_go(self, endpoint: GatewayEndpoint, outgoing: ProduceWindow) -> None:
        left = outgoing.held_until - time.monotonic()
        if left > 0:
            self._events.later(left, lambda: self._let_go(endpoint, outgoing))
        elif endpoint.is_open:
            self._touch(outgoing.lanes.values())

    # --- lanes ---
    def _touch(self, lanes: Iterable[ProduceLane]) -> None:
        self._touched.update(dict.fromkeys(lanes))

    def rung(self, endpoint: GatewayEndpoint) -> None:
        """Its doorbell rang, or it is time to look anyway."""
        outgoing = self._outgoing.get(endpoint)
        if outgoing is not None:
            self._touch(outgoing.lanes.values())

    def belt(self, endpoint: GatewayEndpoint) -> None:
        """Look at what waits for a writer, rung or not (rule 13)."""
        outgoing = self._outgoing.get(endpoint)
        if outgoing is not None:
            for lane in outgoing.lanes.values():
                if lane.under_way:
                    self._touched[lane] = None

    def gone(self, endpoint: GatewayEndpoint) -> None:
        """The endpoint ended, and its session is about to be closed."""
        outgoing = self._outgoing.pop(endpoint, None)
        if outgoing is not None:
            for lane in outgoing.lanes.values():
                self._commits.forget(lane)
            outgoing.close()

    @property
    def is_pending(self) -> bool:
        """Whether `turn` has something to do."""
        return bool(self._touched)

    def turn(self, now: float) -> None:
        """Write what is held, take what is answered: all lanes that something happened to."""
        while self._touched or self._commits.has_new:
            touched, self._touched = self._touched, {}
            for lane in touched:
                self._carry_out(self._move, lane, now)
            for lane in self._commits.take_new():
                self._carry_out(self._answer, lane, now)

    def _carry_out(
        self, step: Callable[[ProduceLane, float], None], lane: ProduceLane, now: float
    ) -> None:
        if not lane.endpoint.is_open:
            return
        try:
            step(lane, now)
        except PenstockError as error:
            self._failed(lane.endpoint, str(error))
        except Exception as error:
            logger.exception("the lane of %s failed", lane.endpoint)
            self._counts.refusals["failure"] += 1
            self._failed(lane.endpoint, f"the gateway failed at its lane: {error!r}")

    def _move(self, lane: ProduceLane, now: float) -> None:
        sender = lane.sender
        if sender is None:
            if lane.held and not lane.is_opening:
                self._open(lane)
            self._answer(lane, now)
            return
        outgoing = self._outgoing[lane.endpoint]
        while True:
            wrote = outgoing.held_until <= now and self._write(lane, sender, outgoing, now)
            sender.publish_sleeping(fresh_ticket())
            fence()
            if wrote:
                self._wake(lane, sender)
            acks = sender.acks()
            if len(acks) == lo.ACKS_MAX:
                self._wake(lane, sender)  # it may sleep until there is room for its answers
            if acks:
                self._match(lane, acks, now)
            self._answer(lane, now)
            if not acks:
                return

    def _write(
        self, lane: ProduceLane, sender: LaneSender, outgoing: ProduceWindow, now: float
    ) -> bool:
        """Put what is held into the lane, as far as there is room and its quota goes. True if
        anything was."""
        held = lane.held
        wrote = False
        while held:
            batch = held[0]
            assert batch.payload is not None
            sequence = sender.try_write(
                batch.page, (batch.payload,), batch.size, batch.flags, fetch_epoch=batch.epoch
            )
            if sequence is None:
                break
            batch.lane_sequence, batch.payload = sequence, None
            lane.in_lane.append(held.popleft())
            wrote = True
            if not self._charge(lane.endpoint, outgoing, batch.size, now):
                break
        return wrote

    @staticmethod
    def _wake(lane: ProduceLane, sender: LaneSender) -> None:
        """Ring the writer if it sleeps; after a fence."""
        ticket = sender.writer_ticket()
        if ticket and ticket != lane.rung and lane.doorbell is not None:
            lane.rung = ticket
            lane.doorbell.ring()

    def _open(self, lane: ProduceLane) -> None:
        endpoint = lane.endpoint
        lane.is_opening = True

        def opened(found: tuple[LaneSender, Doorbell]) -> None:
            lane.is_opening = False
            lane.sender, lane.doorbell = found
            self._touched[lane] = None

        def failed(error: Exception) -> None:
            logger.warning("no lane to writer %d for %s: %s", lane.writer, endpoint, error)
            self._events.later(LANE_RETRY, again)

        def again() -> None:
            lane.is_opening = False
            if endpoint.is_open:
                self._touched[lane] = None

        assert endpoint.requests is not None
        endpoint.requests.add(
            lambda: endpoint.session.opening_lane(lane.writer, LANE_TIMEOUT), opened, failed
        )

    # --- answers ---
    @staticmethod
    def _match(lane: ProduceLane, acks: list[Ack], now: float) -> None:
        """Give each answer of the writer to its batch; both are in the order of the lane."""
        for ack in acks:
            batch = lane.in_lane.popleft() if lane.in_lane else None
            if batch is None or batch.lane_sequence != ack.sequence:
                raise LaneCorruptError(
                    f"writer {lane.writer} answered frame {ack.sequence} of its lane, where "
                    f"{'none' if batch is None else batch.lane_sequence} was due"
                )
            batch.answer = ack
            if batch.flags & lo.FRAME_COMMITTED:
                page = lane.endpoint.states.page(batch.page)
                batch.appended = now, page.high_watermark

    def _answer(self, lane: ProduceLane, now: float) -> None:
        """Tell the client what is answered, up to the first batch that is not."""
        under_way = lane.under_way
        endpoint = lane.endpoint
        acks: list[fr.Ack] = []
        pages: dict[int, int] = {}
        counts = self._counts
        latencies = counts.latencies["produce"]
        waits = False
        while under_way:
            batch = under_way[0]
            answer = batch.answer
            if answer is not None and batch.flags & lo.FRAME_COMMITTED:
                answer = self._committed(lane, batch, answer, now)
                waits = answer is None
            if answer is not None:
                acks.append(fr.Ack(batch.sequence, *answer[1:]))
                if not answer.error:
                    synced = batch.flags & lo.FRAME_SYNC
                    end = answer.base_offset + batch.records if synced else 0
                    pages[batch.page] = max(pages.get(batch.page, 0), end)
                    counts.produced_batches += 1
                    counts.produced_records += batch.records
                    counts.produced_bytes += batch.size
                elif batch.page < lo.PAGES_MAX:
                    pages.setdefault(batch.page, 0)
                    if answer.error == ErrorCode.NOT_LEADER:
                        lane.epochs[batch.page] = SENT_AWAY
            elif batch.error:
                acks.append(fr.Ack(batch.sequence, 0, 0, batch.error, 0))
            else:
                break
            under_way.popleft()
            lane.bytes_under_way -= batch.size
            latencies.observe(now - batch.came)
            if answer is not None and not answer.error:
                identity = endpoint.states.page(batch.page).identity
                if identity is not None:
                    counts.acknowledged.of(identity[0]).observe(now - batch.came)
        if lane.waits_on != NOTHING and not waits:
            self._commits.forget(lane)
        if not acks:
            return
        states = [state for page in pages for state in endpoint.states.shown(page)]
        if not endpoint.post(fr.Acks(endpoint.number, lane.writer, acks, states)):
            return
        for state in states:
            if state.durable < pages[state.page]:
                self._watch_durable(endpoint, state.page, pages[state.page])

    def _committed(
        self, lane: ProduceLane, batch: ProducedBatch, answer: Ack, now: float
    ) -> Ack | None:
        """The answer to a batch that is to be committed before; None while it waits for that."""
        if answer.error not in IN_THE_LOG:
            return answer
        page = lane.endpoint.states.page(batch.page)
        if not batch.end:  # a forgotten batch's place is not known: below the end
            batch.end = page.log_end if answer.error else answer.base_offset + batch.records
        error = verdict(page, batch.end, answer.leader_epoch)
        if error is not None:
            lane.patience.restore(batch.page)
        elif lane.patience.is_over(batch.page, page.high_watermark, now, batch.appended):
            error = ErrorCode.NOT_COMMITTED
        else:
            self._commits.wait(lane, batch.page, batch.end)
            return None
        return Ack(answer.sequence, 0, 0, error, page.leader_epoch) if error else answer

    def close(self) -> None:
        self._commits.close()
