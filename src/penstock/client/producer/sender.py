"""The sender of a producer: batches into lanes, answers out of them, and what follows from those.

Its owner calls it under one lock. It never waits, never sleeps and starts nothing: it is the part
of a producer that decides. Every batch that is launched ends in `finished` exactly once.

    pending ──launch──> in flight ──ack──> (waiting durable) ──> done
       ^                   │                     │
       └──── recalled ─────┴─────────────────────┘   poisoned, lane lost, other leader epoch, no
                                                     leader: the same records again

A producer of another host outlives power cuts of the node's. The log then ends earlier, in another
leader epoch: all that is not settled goes again in order, and what it still has it knows.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from penstock.client.backoff import Retries
from penstock.client.producer import refusals as rf
from penstock.client.producer.pace import Pace
from penstock.client.producer.routes import Batch, LaneLink, PartitionRoute, TopicRoutes
from penstock.client.producer.state import ProducerState
from penstock.client.remote.address import Place, RemoteAddress
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc.lane import SENT_BEFORE, Ack

logger = logging.getLogger("penstock.producer")

ASK_EVERY: Final = 0.5
"""Seconds until a batch that was sent back is sent again (see `penstock.core.errors.SENT_BACK`)."""

OpenLane = Callable[[int], LaneLink | None]
Finished = Callable[[Batch], None]


class SendGate(Protocol):
    """The rules of an open transaction. An sender with one asks before batches leave, and gives up
    all of them once one has failed."""

    def lets(self, route: PartitionRoute) -> bool:
        """Returns whether batches may leave for a partition now."""

    def adopt(self, routes: Iterable[PartitionRoute]) -> None:
        """Begins routes that were just learnt."""

    def fail(self, error: Exception) -> None:
        """Notes that a record failed."""

    def loss(self) -> Exception | None:
        """Returns the error of all that is not acknowledged, once something has failed."""

    def refusal(self, batch: Batch, code: er.ErrorCode) -> er.PenstockError | None:
        """Returns the error of a refused batch, where it is not the usual one."""


class Sender:
    """The batches of a producer on their way to lanes, and the settling of their answers. `level`
    is the durability at which a batch is done. `gate`: of a producer with transactions."""

    def __init__(
        self,
        socket: Place,
        *,
        level: str,
        idempotent: bool,
        delivery_timeout: float,
        open_lane: OpenLane,
        finished: Finished,
        retries: Retries,
        gate: SendGate | None = None,
    ) -> None:
        self._gate = gate
        self._socket = socket
        self.level = level
        self._idempotent = idempotent
        self._delivery_timeout = delivery_timeout
        self._open_lane = open_lane
        self.finished = finished
        self.links: dict[int, LaneLink] = {}
        self.pace = Pace()
        self._is_far = isinstance(socket, RemoteAddress)
        self._timed: Batch | None = None  # its answer tells the pace, while it has a flight
        self._timed_from = 0.0
        self.topics: dict[str, TopicRoutes] = {}
        self.retired: list[PartitionRoute] = []  # of topics that are gone, until they are idle
        self._epochs: dict[tuple[bytes, int], int] = {}  # the newest of each partition sent to
        self.lost: str | None = None
        self.buffered = 0
        self.no_lane = ""
        self._retries = retries
        self._lane_retry_at = 0.0
        taken = ("records", "batches", "bytes")
        self._counts = dict.fromkeys((*taken, "resent", "refused_after_ring"), 0)
        self.finishing: Batch | None = None

    @classmethod
    def of(cls, state: ProducerState, finished: Finished, gate: SendGate | None) -> Sender:
        """Makes the sender of a producer."""
        config, terms = state.config, state.terms
        return cls(
            state.socket,
            level=terms.level,
            idempotent=terms.idempotent,
            delivery_timeout=config.delivery_timeout,
            open_lane=state.open_lane,
            finished=finished,
            retries=Retries(config.retry_backoff, config.retry_backoff_max),
            gate=gate,
        )

    def routes(self) -> Iterator[PartitionRoute]:
        for topic in list(self.topics.values()):
            yield from topic.routes
        yield from self.retired

    def unsettled(self) -> list[Batch]:
        """Batches without an outcome."""
        return [
            batch
            for route in self.routes()
            for batch in (*route.waiting_durable, *route.in_flight, *route.pending)
            if not batch.done
        ]

    @property
    def is_eager(self) -> bool:
        """Returns whether so little is in flight that a single record may leave at once. Else, with
        linger 0, records gather until answers come (Nagle's rule, in batches), or for
        `penstock.client.producer.accumulator.GATHER_MAX`."""
        return sum(len(link.flights) for link in self.links.values()) < self.pace.eager_max

    def counts(self) -> dict[str, int]:
        return {**self._counts, "buffered_bytes": self.buffered}

    def has_answers(self) -> bool:
        return any(link.sender.has_acks() for link in self.links.values())

    # --- out -------------------------------------------------------------------------------------
    def post(self, batches: list[Batch]) -> None:
        """Takes newly encoded batches; those that find no room stay pending."""
        fresh: list[PartitionRoute] = []
        for batch in batches:
            self._take(batch)
            route = batch.route
            route.pending.append(batch)
            if len(route.pending) == 1:
                fresh.append(route)
        self._pump_all(fresh)

    def _take(self, batch: Batch) -> None:
        batch.route.batches[batch] = None
        self.buffered += batch.length
        counts = self._counts
        counts["records"] += batch.count
        counts["batches"] += 1
        counts["bytes"] += batch.length

    def pump(self, route: PartitionRoute) -> None:
        """Copies pending batches into the lane while there is room."""
        self._pump_all([route])

    def _pump_all(self, routes: Iterable[PartitionRoute]) -> None:
        touched: list[LaneLink] = []
        for route in routes:
            self._pump(route, touched)
        for link in touched:
            link.wake_writer()

    def _refill(self, waiting: list[PartitionRoute]) -> None:
        """Gives the free room to the routes that have waited longest. Where they find none, the
        others wait with them: they would take it for ever, with smaller batches."""
        for link in self.links.values():
            link.is_crowded = False
        self._pump_all(sorted(waiting, key=lambda route: route.pending[0].deadline))

    def _pump(self, route: PartitionRoute, touched: list[LaneLink]) -> None:
        if self._gate is not None and not self._gate.lets(route):
            return
        link = route.link
        if link is None:
            link = route.link = self.links.get(route.writer) or self._try_lane(route.writer)
            if link is None:
                return
        pending, flags = route.pending, 0
        while pending and not link.is_crowded:
            if route.ask_at is not None:  # one at a time
                if route.in_flight or time.monotonic() < route.ask_at:
                    return
                flags = lo.FRAME_AGAIN
            batch = pending[0]
            if not route.may_fly(batch.epoch if batch.numbered else route.epoch):
                return
            link.begin(batch)
            sequence = link.write(route.page, route.close_ranks(batch), flags)
            if sequence is None:
                link.writing = None
                link.is_crowded = True
                return
            if link not in touched:
                touched.append(link)
            self.flies(link, batch, sequence)
        route.rest()

    def launched(self, link: LaneLink, batch: Batch, sequence: int) -> None:
        """Takes over a batch that its sender wrote into the lane itself."""
        link.writing = batch
        self._take(batch)
        self.flies(link, batch, sequence)

    def flies(self, link: LaneLink, batch: Batch, sequence: int) -> None:
        """Notes that a batch is in a lane. Done twice, it is as if it was done once."""
        route = batch.route
        link.note(batch, sequence)
        if self._is_far and (self._timed is None or self._timed.flight is None):
            self._timed, self._timed_from = batch, time.monotonic()
        if route.pending and route.pending[0] is batch:
            route.pending.popleft()
        route.flies(batch)
        if self.level == "ring":
            batch.durability = "ring"
            self.finish(batch, None)  # its delivery; the sender minds it until the answer
        link.writing = None

    def open_lane(self, writer: int) -> LaneLink | None:
        """Opens the lane to a writer; returns None while there is no node to ask. Raises what the
        node refuses it with."""
        if self.lost is not None:
            return None
        try:
            link = self._open_lane(writer)
        except er.NotConnectedError as error:
            self.lost = str(error)
            return None
        if link is not None:
            self.links[writer] = link
        return link

    def _try_lane(self, writer: int) -> LaneLink | None:
        """Opens a lane for batches that already wait; a refusal is logged and tried again later."""
        now = time.monotonic()
        if now < self._lane_retry_at:
            return None
        try:
            link = self.open_lane(writer)
            self._retries.reset()
            self.no_lane = ""
            return link
        except er.PenstockError as error:
            self._lane_retry_at = now + self._retries.next()
            self.no_lane = str(error)
            logger.warning("no lane to writer %d: %s", writer, error)
            return None

    # --- in --------------------------------------------------------------------------------------
    def reap(self) -> bool:
        """Reads answers, settles what became durable, refills lanes. True if anything moved."""
        moved = False
        for link in list(self.links.values()):
            acks = link.sender.unread()
            if not acks:
                continue
            moved = True
            for ack in acks:
                batch = link.flights.get(ack.sequence)
                if batch is not None:
                    if batch is self._timed:
                        now, self._timed = time.monotonic(), None
                        self.pace.answered(now - self._timed_from, now)
                    self._settle(batch, ack)
                    link.flights.pop(ack.sequence, None)
            link.sender.read(len(acks))  # only now: an interrupt above has them come again
            if len(acks) == lo.ACKS_MAX:
                link.wake_writer()  # it may sleep until there is room for its answers
        # One expression: at each batch most of a thousand routes have nothing.
        some = [route for topic in self.topics.values() for route in topic.routes
                if route.pending or route.waiting_durable]  # fmt: skip
        for route in (*some, *self.retired):
            if route.waiting_durable:
                moved = self._settle_durable(route) or moved
        self._refill([route for route in (*some, *self.retired) if route.pending])
        if self.retired:
            self.retired = [route for route in self.retired if not route.is_idle]
        return self.sweep() or moved

    def _settle(self, batch: Batch, ack: Ack) -> None:
        route = batch.route
        if ack.error in er.SENT_BACK:
            return self._sent_back(batch, er.ErrorCode(ack.error))
        route.ask_at = None
        if ack.error:
            batch.leader_epoch = ack.leader_epoch
            batch.again = batch.again or ack.base_offset == SENT_BEFORE
            self._refused(batch, er.ErrorCode(ack.error))
            return
        route.in_flight.pop(batch, None)
        batch.base_offset = ack.base_offset
        batch.append_timestamp = ack.append_timestamp
        batch.leader_epoch = route.leader_epoch = ack.leader_epoch
        if self.level == "fsynced" and not batch.done:
            route.waiting_durable.append(batch)
            self._settle_durable(route)
        else:
            # Topics that sync before they answer have published it before the answer.
            durable, epoch = route.state.durable, route.state.leader_epoch  # in this order
            synced = epoch == ack.leader_epoch and durable >= ack.base_offset + batch.count
            committed = batch.flight is not None and batch.flight[0].flags & lo.FRAME_COMMITTED
            reached = "committed" if committed else "fsynced" if synced else "appended"
            batch.durability = batch.durability or reached
            self.finish(batch, None)

    def _settle_durable(self, route: PartitionRoute) -> bool:
        """Finishes batches below `durable` in the epoch that acknowledged them (rule 1)."""
        moved = False
        durable, epoch = route.state.durable, route.state.leader_epoch  # in this order
        waiting = route.waiting_durable
        stale: list[Batch] = []
        while waiting:
            batch = waiting[0]
            assert batch.base_offset is not None
            if batch.leader_epoch != epoch:
                waiting.popleft()
                stale.append(batch)
            elif durable >= batch.base_offset + batch.count or batch.done:
                batch.durability = "fsynced"
                self.finish(batch, None)
                waiting.popleft()
            else:
                break
            moved = True
        if stale:  # another log now: the same bytes go there again
            stale += route.in_flight if self._idempotent else ()  # behind a gap there
            self._counts["resent"] += route.recall(stale)
        return moved

    def _sent_back(self, batch: Batch, code: er.ErrorCode) -> None:
        """Takes a batch out of the lane for a while, with all behind it. Its partition has no
        leader, or too few replicas have the batch."""
        route = batch.route
        route.ask_at, route.lacks = time.monotonic() + ASK_EVERY, rf.LACKS[code]
        if not self._idempotent:
            return self._refused(batch, code)
        behind = itertools.dropwhile(lambda one: one is not batch, route.in_flight)
        self._counts["resent"] += route.recall(behind)
        self._close_gap(route)

    def _refused(self, batch: Batch, code: er.ErrorCode) -> None:
        """Fails a batch that was refused for good; what it poisoned goes again in a new epoch, but
        not in a transaction, which has one."""
        route = batch.route
        if self._gate is not None:
            route.in_flight.pop(batch, None)
            self.finish(batch, self._refusal(batch, code))
            return
        by_cut = route.leader_epoch is not None and batch.leader_epoch > route.leader_epoch
        by_cut = by_cut and code in rf.BY_GAP
        if by_cut or code is er.ErrorCode.POISONED:
            self._settle_durable(route)
            if batch not in route.in_flight:
                return  # it goes again, behind what was acknowledged by the log before
        is_forgotten = code is er.ErrorCode.UNKNOWN_PRODUCER and batch.sequence > 0
        is_forgotten = is_forgotten and not (by_cut or route.has_gap)
        is_old = code is er.ErrorCode.DUPLICATE_TOO_OLD or (is_forgotten and batch.again)
        if is_old and batch.base_offset is not None:
            route.in_flight.pop(batch, None)  # acknowledged before: still there
            route.waiting_durable.append(batch)
            return
        follows = code is er.ErrorCode.POISONED or by_cut or (route.has_gap and code in rf.BY_GAP)
        follows = follows or (is_forgotten and not is_old)
        if not (follows and self._idempotent):
            route.in_flight.pop(batch, None)
            self.finish(batch, self._refusal(batch, code))
        is_late = code is er.ErrorCode.STALE_PRODUCER_EPOCH and batch.epoch < route.epoch
        if is_late or is_old:
            return  # of what follows, it says nothing
        if code in rf.TOPIC_GONE:
            self._drop(route, batch.error)
        elif code in rf.UNSEEN or not self._idempotent:
            # It took a sequence that the log never saw. The batches behind it get the same answer,
            # or that they are out of order if the partition is back meanwhile.
            route.has_gap = True
            self._close_gap(route)
        else:
            # Answers come in lane order, so nothing before these can still be under way.
            self._counts["resent"] += route.recall(route.in_flight)
            self._renew(route)

    def _refusal(self, batch: Batch, code: er.ErrorCode) -> er.PenstockError:
        own = None if self._gate is None else self._gate.refusal(batch, code)
        return own or rf.refusal(batch.route, self._socket, batch.count, code)

    def _renew(self, route: PartitionRoute) -> None:
        """Numbers pending and later batches from 0 in a new epoch."""
        self._next_epoch(route)
        self.pump(route)

    def _close_gap(self, route: PartitionRoute) -> None:
        """Begins a new epoch behind a gap, if no other batch is affected: no log has to refuse
        those behind it first."""
        if route.has_gap and route.is_clear:
            self._renew(route)

    def adopt(self, topic: TopicRoutes) -> None:
        """Routes that were just learnt. Where this producer has sent to before they begin in an
        epoch of their own: the log may remember its sequences."""
        if self._gate is not None:
            self._gate.adopt(topic.routes)
            return
        for route in topic.routes:
            if (route.topic_id, route.partition) in self._epochs:
                self._next_epoch(route)
            else:
                self._epochs[route.topic_id, route.partition] = route.epoch

    def _next_epoch(self, route: PartitionRoute) -> None:
        if self._gate is not None:
            return  # what would need another epoch has failed
        key = (route.topic_id, route.partition)
        self._epochs[key] = self._epochs.get(key, 0) + 1
        route.begin(self._epochs[key])

    def _drop(self, route: PartitionRoute, error: Exception | None) -> None:
        """Fails the batches of a deleted topic; later sends look the topic up again."""
        known = self.topics.get(route.topic)
        if known is not None and route in known.routes:
            self.retired += known.routes
            del self.topics[route.topic]
        self._lose(route, error)

    def _lose(self, route: PartitionRoute, error: Exception | None) -> None:
        """Fails all batches that are not settled."""
        for batch in [*route.waiting_durable, *route.in_flight, *route.pending]:
            if batch.flight is not None:
                batch.flight[0].disown(batch)
            batch.encoded = None
            self.finish(batch, error)
        route.waiting_durable.clear()
        route.in_flight.clear()
        route.pending.clear()

    def finish(self, batch: Batch, error: Exception | None) -> None:
        """Sets the outcome of a batch before `done`, which others read without a lock."""
        if error is not None:
            self.fail(error)
        if not batch.done:
            self.finishing = batch
            batch.error = error
            batch.encoded = batch.encoded if error is None else None
            batch.done = True
            batch.encoded = None
            self.buffered -= batch.length
            self.finished(batch)
            self.finishing = None
        elif error is not None and batch.error is None:  # it was called good at "ring"
            batch.error = error
            self._counts["refused_after_ring"] += batch.count
            logger.error("accepted into the ring, then refused: %s", error)
        route = batch.route
        if batch.flight is not None and batch not in route.in_flight:
            batch.flight[0].forget(batch)
        if batch.flight is None and batch.encoded is None:
            route.batches.pop(batch, None)

    def fail(self, error: Exception) -> None:
        """Notes that records were lost, or never got here. A transaction fails by it."""
        if self._gate is not None:
            self._gate.fail(error)

    def lose_all(self, error: Exception) -> None:
        """Fails all batches that are not settled."""
        for route in self.routes():
            self._lose(route, error)

    def sweep(self) -> bool:
        """Fails all batches of a transaction that has failed. Returns whether there were any.

        Batches in a lane may still be written. They are never shown, since nobody commits the
        transaction.
        """
        loss = None if self._gate is None or not self.buffered else self._gate.loss()
        if loss is None:
            return False
        self.lose_all(loss)
        return True

    def give_up(self, batch: Batch, error: Exception) -> None:
        """Fails a pending batch that was never in a lane, and so took no sequence (rule 4)."""
        assert not batch.flew
        batch.route.pending.remove(batch)
        batch.route.rest()
        self.finish(batch, error)

    # --- time ------------------------------------------------------------------------------------
    def expire(self, now: float) -> None:
        """Fails batches past their delivery timeout. Those in a lane may still be written."""
        for route in self.routes():
            while route.pending and route.pending[0].deadline <= now:
                batch = route.pending.popleft()
                route.has_gap = route.has_gap or batch.numbered
                self.finish(batch, rf.unsent(batch, self._delivery_timeout, self.why(route)))
            route.rest()
            self._close_gap(route)
            for batch in [*route.in_flight, *route.waiting_durable]:
                if batch.deadline <= now and not batch.done:
                    timeout, why = self._delivery_timeout, self.why(route)
                    self.finish(batch, rf.unanswered(batch, timeout, why))
        self.sweep()

    def why(self, route: PartitionRoute | None = None) -> str:
        """Says why nothing moves, as far as is known, for messages."""
        if self.lost is not None:
            return f": no node at {self._socket} ({self.lost})"
        if self.no_lane and (route is None or route.link is None):
            return f": {self.no_lane}"
        return rf.ailment(self.routes() if route is None else [route])

    def leave(self, error: Exception) -> None:
        """Ends the sender: batches without an outcome fail. The node may have the lanes once they
        are drained, so batches in them may still be written."""
        for batch in self.unsettled():
            logger.warning("%d records for %r: %s", batch.count, batch.route, error)
            self.finish(batch, error)
        for writer, link in list(self.links.items()):
            link.sender.mark_closed()
            del self.links[writer]
            link.detach()

    # --- another node ----------------------------------------------------------------------------
    def resume(self, session: Session, *, same: bool) -> None:
        """Goes on at a node that came back. `same`: it serves the same data folder and knows this
        producer id, so lanes it still has are used on."""
        lost: list[LaneLink] = []
        for writer, link in list(self.links.items()):
            doorbell = session.resumed.pop(link.sender.name, None) if same else None
            if doorbell is None:
                lost.append(link)
                del self.links[writer]
                continue
            link.doorbell.close()
            link.doorbell = doorbell
            link.rung = 0
            link.wake_writer()
        self.lost = None
        for route in self.routes():
            if route.link in lost:
                route.link = None
            if same:
                route.state = session.page(route.page)
                route.writer = route.page % session.writers
        if same:
            self._send_again(lost)
            if session.far is not None:
                self._ask_again()
        else:
            error = er.NotConnectedError(
                f"another node (another data folder) answers at {self._socket} now; what was not "
                "acknowledged may or may not have been written"
            )
            for route in list(self.routes()):
                self._drop(route, error)
            self.retired.clear()
            self._epochs.clear()  # the producer has another id there
        for link in lost:
            link.detach()
        self.sweep()

    def _ask_again(self) -> None:
        """Sends one waiting batch of each idle partition again; its answer brings the partition's
        durable offset. The notice of that offset may have gone to this connection's predecessor."""
        for route in self.routes():
            if route.waiting_durable and not (route.in_flight or route.pending):
                self._counts["resent"] += route.recall([route.waiting_durable.pop()])
                self.pump(route)

    def _send_again(self, lost: list[LaneLink]) -> None:
        """Lanes are gone: what flew in them goes again with the same sequences, or fails."""
        for route in self.routes():
            for batch in route.waiting_durable:  # in the log: only its bytes have to be kept
                if batch.flight is not None and batch.flight[0] in lost:
                    batch.flight[0].recall(batch)
            flying = [one for one in route.in_flight if one.flight and one.flight[0] in lost]
            if not flying:
                continue
            if self._idempotent:
                self._counts["resent"] += route.recall(flying)
            else:
                route.has_gap = True
                for batch in flying:
                    route.in_flight.pop(batch, None)
                    self.finish(batch, rf.lost(batch))
            self._close_gap(route)
            self.pump(route)
