"""Batches, and where they go: partitions with their sequences, lanes with what flies in them.

Plain bookkeeping under the producer's lock; nothing here waits or talks to the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from penstock.client.session import Session
from penstock.core import header as hd
from penstock.core.crc import crc32c
from penstock.core.encode import EncodedBatch
from penstock.core.errors import RecordTooLargeError, UnknownTopicError
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell, fence
from penstock.ipc.lane import LaneSender
from penstock.ipc.messages import TopicInfo
from penstock.ipc.state import StatePage

BATCH_OVERHEAD: Final = 512
"""Room kept in a frame for headers and directory, in bytes."""


class Origin(Protocol):
    """The records that a batch was made of, as their batches see them. `done`: all have an outcome.
    `callbacks`: those to call then."""

    deadline: float
    callbacks: list[tuple[Any, Callable[[Any], object]]]

    @property
    def done(self) -> bool: ...


class Batch:
    """One encoded batch on its way: pending (`encoded` holds its bytes), in a lane (`flight` says
    where), or done.

    `epoch`, `sequence`: what its bytes say. `numbered`: a lane has had it under these, so that a
    log may know it by them, and none has refused it since. Else it gets others where it needs them.
    `again`: it went more than once under these.
    """

    __slots__ = ("again", "append_timestamp", "base_offset", "box", "count", "deadline", "done",
                 "durability", "encoded", "epoch", "error", "flew", "flight", "leader_epoch",
                 "length", "looked_at", "numbered", "route", "sequence")  # fmt: skip

    def __init__(
        self, box: Origin, route: PartitionRoute, encoded: EncodedBatch, count: int, sequence: int
    ) -> None:
        self.box = box
        self.route = route
        self.encoded: EncodedBatch | None = encoded
        self.length = encoded.length
        self.count = count
        self.epoch = route.epoch
        self.sequence = sequence
        self.numbered = False
        self.again = False
        self.deadline = box.deadline
        self.flight: tuple[LaneLink, int, int] | None = None
        self.flew = False
        self.done = False
        self.error: Exception | None = None
        self.base_offset: int | None = None
        self.append_timestamp: int | None = None
        self.leader_epoch = 0
        self.durability = ""
        self.looked_at = 0

    @classmethod
    def refused(
        cls, box: Origin, route: PartitionRoute, count: int, error: Exception | None
    ) -> Batch:
        """Returns a failed batch for records of a box that were never encoded."""
        batch = cls(box, route, EncodedBatch(bytearray(), b""), count, -1)
        batch.encoded, batch.done, batch.error = None, True, error
        return batch

    def unseen(self) -> tuple[str, int, Exception, int]:
        """Returns (topic, partition, error, records nobody asked about), for `DeliveryError`."""
        assert self.error is not None
        route = self.route
        return route.topic, route.partition, self.error, self.count - self.looked_at


class LaneLink:
    """A lane, the doorbell of the writer behind it, and the batches in flight in it.

    `flights`: batches without an answer, by lane sequence. `held`: batches whose bytes may be
    needed again, by the start of their frame, oldest first; their room is not reused (rule 1).
    `is_crowded`: a batch found no room, and those after it wait behind it.

    `writing`: the batch that is being put into the lane, or only its route where there is no batch
    yet. It is set from before the first byte until the batch is accounted for. `first`: its lane
    sequence.
    """

    __slots__ = ("doorbell", "first", "flags", "flights", "held", "is_crowded", "rung", "sender",
                 "writing")  # fmt: skip

    def __init__(self, sender: LaneSender, doorbell: Doorbell, flags: int = 0) -> None:
        self.sender = sender
        self.flags = flags
        self.doorbell = doorbell
        self.flights: dict[int, Batch] = {}
        self.held: dict[int, Batch] = {}
        self.is_crowded = False
        self.rung = 0
        self.first = 0
        self.writing: Batch | PartitionRoute | None = None

    def begin(self, what: Batch | PartitionRoute) -> None:
        """Notes the batch or route that is written next."""
        self.first = self.sender.next_sequence
        self.writing = what

    def published(self) -> Batch | PartitionRoute | None:
        """Returns, after an interrupt, what has got into the lane and is not accounted for."""
        self.sender.mend()
        return self.writing if self.sender.next_sequence != self.first else None

    def write(self, page: int, encoded: EncodedBatch, flags: int = 0) -> int | None:
        """Copies a batch into the lane; returns its lane sequence, or None while there is
        no room."""
        sender = self.sender
        sender.floor = next(iter(self.held), None)
        return sender.try_write(page, encoded, sum(map(len, encoded)), self.flags | flags)

    def note(self, batch: Batch, sequence: int) -> None:
        """Notes the batch that was written last: it is in flight and held."""
        start = self.sender.last_start
        self.flights[sequence] = batch
        self.held[start] = batch
        batch.flight = (self, sequence, start)
        batch.flew = True

    def recall(self, batch: Batch) -> None:
        """Gives a held batch a copy of its bytes, to send them again; it is no longer in flight or
        held."""
        assert batch.flight is not None
        image = self.sender.batch_at(batch.flight[2], batch.length)
        head = bytearray(image[: hd.HEADER_BYTES])
        batch.encoded = EncodedBatch(head, bytes(image[hd.HEADER_BYTES :]))
        self.disown(batch)

    def forget(self, batch: Batch) -> None:
        """Forgets a settled batch: its room may be reused."""
        if batch.flight is not None:
            start, batch.flight = batch.flight[2], None
            self.held.pop(start, None)

    def disown(self, batch: Batch) -> None:
        """Forgets a failed batch: an answer that still comes for it is ignored."""
        if batch.flight is not None:
            _, sequence, start = batch.flight
            batch.flight = None  # first, for `mend`
            self.flights.pop(sequence, None)
            self.held.pop(start, None)

    def mend(self) -> None:
        """Removes, after an interrupt, batches from flights and held that do not name this
        place."""
        self.writing = None
        for sequence, batch in list(self.flights.items()):
            if batch.flight is None or batch.flight[:2] != (self, sequence):
                self.flights.pop(sequence, None)
        for start, batch in list(self.held.items()):
            if batch.flight is None or batch.flight[::2] != (self, start):
                self.held.pop(start, None)

    def wake_writer(self) -> bool:
        """Rings the writer if it sleeps (after a fence), once per sleep; returns whether it
        sleeps."""
        fence()
        ticket = self.sender.writer_ticket()
        if ticket and ticket != self.rung:
            self.doorbell.ring()
            self.rung = ticket  # after it, or an interrupt here would leave the writer asleep
        return bool(ticket)

    def detach(self) -> None:
        self.sender.detach()
        self.doorbell.close()


class PartitionRoute:
    """One partition as this producer sees it.

    `pending`: encoded batches that wait for room, in order. `in_flight`: batches in a lane without
    a final outcome, in order; all of one epoch, `flying`.

    `leader_epoch`: of the log that acknowledged last, None before that.

    `ask_at`: after a batch was sent back, when one may go again (monotonic seconds). No second one
    goes before that one has a better answer. None otherwise. `lacks`: why it was sent back.

    A pending batch that was never in a lane may be given up. The batches behind it get their
    sequence when they enter a lane: `next_to_fly`, which is `next_sequence` while nothing is
    pending. Those that have their numbers (see `Batch`) are in front.

    `batches`: all that are not settled, in the order in which they came. They are in it before and
    after they are in the three queues, which can be rebuilt from it (`mend`).

    `has_gap`: a numbered batch has failed, and the log may not have it. Those behind it keep their
    numbers until the log refuses them, for it may have all of them. Where there are none
    (`is_clear`), a new epoch begins at once.
    """

    __slots__ = ("_beginning", "ask_at", "batches", "epoch", "flying", "has_gap", "in_flight",
                 "lacks", "leader_epoch", "link", "next_sequence", "next_to_fly", "page",
                 "partition", "pending", "state", "topic", "topic_id", "waiting_durable",
                 "writer")  # fmt: skip

    def __init__(
        self, topic: str, topic_id: bytes, partition: int, page: int, writer: int, state: StatePage
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.page = page
        self.writer = writer
        self.state = state
        self.epoch = 0
        self.has_gap = False
        self.ask_at: float | None = None
        self.lacks = ""
        self.leader_epoch: int | None = None
        self.next_sequence = 0
        self.next_to_fly = 0
        self._beginning: int | None = None
        self.batches: dict[Batch, None] = {}
        self.pending: deque[Batch] = deque()
        self.in_flight: dict[Batch, None] = {}
        self.flying = 0
        self.waiting_durable: deque[Batch] = deque()
        self.link: LaneLink | None = None

    @property
    def is_idle(self) -> bool:
        return not (self.pending or self.in_flight or self.waiting_durable)

    @property
    def is_clear(self) -> bool:
        """Returns whether no batch on its way has a number that a log may know."""
        return not (self.in_flight or (self.pending and self.pending[0].numbered))

    def may_fly(self, epoch: int) -> bool:
        """Returns whether a batch of that epoch may enter a lane: a log takes none of an older
        epoch behind it."""
        return not self.in_flight or self.flying == epoch

    def begin(self, epoch: int) -> None:
        """Numbers pending and later batches from 0 in this epoch, each when it enters a lane."""
        self._beginning = epoch
        self.epoch = epoch
        self.has_gap = False
        for batch in self.pending:
            batch.numbered = batch.again = False
        self.next_to_fly = 0
        self.count_on()
        self._beginning = None

    def count_on(self) -> None:
        """Sets the next sequence behind the pending batches, and those behind all that were in a
        lane."""
        due = sum(batch.count for batch in self.pending if not batch.numbered)
        self.next_sequence = self.next_to_fly + due

    def close_ranks(self, batch: Batch) -> EncodedBatch:
        """Returns the bytes of the batch that enters a lane next, with the next number where it has
        none."""
        assert batch.encoded is not None
        due = self.next_to_fly
        batch.again = batch.again or batch.numbered
        if not batch.numbered and (batch.sequence != due or batch.epoch != self.epoch):
            batch.encoded = resequence(batch.encoded, self.epoch, due)
            batch.epoch, batch.sequence = self.epoch, due
        return batch.encoded

    def flies(self, batch: Batch) -> None:
        """Notes that the batch is in a lane; the next sequence follows it."""
        if not batch.numbered:
            self.next_to_fly = batch.sequence + batch.count
            batch.numbered = True
        batch.encoded = None
        self.flying = batch.epoch
        self.in_flight[batch] = None

    def recall(self, batches: Iterable[Batch]) -> int:
        """Puts batches that are in a lane back in front of the pending ones, in order; returns how
        many."""
        before = len(self.pending)
        for batch in reversed(list(batches)):
            self.in_flight.pop(batch, None)
            if batch.error is not None:
                self.has_gap = True  # unless the log has it after all
                if batch.flight is not None:
                    batch.flight[0].disown(batch)
                self.batches.pop(batch, None)
                continue
            if batch.flight is not None:
                batch.flight[0].recall(batch)
            if batch.encoded is not None:
                self.pending.appendleft(batch)
        return len(self.pending) - before

    def mend(self) -> None:
        """Puts each batch, after an interrupt, into the queue that its own fields name."""
        waited = dict.fromkeys(self.waiting_durable)
        waiting: list[Batch] = []
        flying: dict[Batch, None] = {}
        pending: list[Batch] = []
        for batch in list(self.batches):
            if batch.flight is not None:
                link, sequence, _ = batch.flight
                if link.flights.get(sequence) is batch:
                    flying[batch] = None
                elif batch.done:
                    link.forget(batch)
                else:
                    waiting.append(batch)  # it was answered, and is not durable yet
            elif batch in waited and not batch.done:
                waiting.append(batch)
            elif batch.encoded is not None:
                pending.append(batch)
            if batch.flight is None and batch.encoded is None and batch.done:
                self.batches.pop(batch, None)
        self.waiting_durable, self.in_flight = deque(waiting), flying
        self.pending = deque(pending)
        if self._beginning is not None:
            self.begin(self._beginning)
        self.count_on()

    def rest(self) -> None:
        """Batches have left `pending`. If none is left, what comes follows what has flown."""
        if not self.pending:
            self.next_sequence = self.next_to_fly

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"


_NOT_SPREAD: Final[Mapping[bytes, int]] = {}


class TopicRoutes:
    """A topic and its partitions' routes; `sticky` moves on with every sealed box. `spread`: the
    partitions that some keys take by turns. `reach`: partitions that the last box went to."""

    __slots__ = ("_turns", "info", "reach", "record_bytes_max", "routes", "spread", "sticky")

    def __init__(
        self,
        info: TopicInfo,
        routes: list[PartitionRoute],
        record_bytes_max: int,
        spread: Mapping[bytes, int] = _NOT_SPREAD,
    ) -> None:
        self.info = info
        self.spread = spread
        self._turns = dict.fromkeys(spread, 0)
        self.routes = routes
        self.record_bytes_max = record_bytes_max
        self.sticky = 0
        self.reach = 1

    def check_partition(self, partition: int | None) -> None:
        if partition is not None and not 0 <= partition < len(self.routes):
            raise UnknownTopicError(
                f"topic {self.info.name!r} has partitions 0 to {len(self.routes) - 1}, not "
                f"{partition}"
            )

    def check_record(self, partition: int | None, size: int) -> None:
        """Checks partition and size of a single record."""
        self.check_partition(partition)
        self.check_size(size)

    def check_size(self, size: int) -> None:
        """Raises `RecordTooLargeError` where `size` bytes in a batch are over the topic's bound."""
        if size > self.record_bytes_max:
            raise RecordTooLargeError(
                f"a record of {size} bytes for {self.info.name!r} is over the topic's bound of "
                f"{self.record_bytes_max} bytes; raise record_bytes_max of the topic and the "
                "node's lane capacity (of which a record may take a quarter), or split the record"
            )

    @property
    def has_pending(self) -> bool:
        """Returns whether batches of this topic wait for room in a lane, and not for a leader."""
        return any(route.pending and route.ask_at is None for route in self.routes)

    def is_behind(self, batches: int) -> bool:
        """Returns whether so many batches of one of its partitions wait, for room or for a
        leader."""
        return any(len(route.pending) >= batches for route in self.routes)

    def spread_on(self, key: bytes, home: int) -> int:
        """The partition of the next record with a key of `spread`, from its own one on."""
        turn = self._turns[key]
        self._turns[key] = (turn + 1) % min(self.spread[key], len(self.routes))
        return (home + turn) % len(self.routes)

    def next_sticky(self) -> int:
        chosen = self.sticky
        self.sticky = (chosen + 1) % len(self.routes)
        return chosen


def learn(session: Session, info: TopicInfo, spread: Mapping[bytes, int]) -> TopicRoutes:
    """Returns the routes of a topic as its node describes it."""
    bound = session.welcome.lane_capacity // lo.FRAME_SHARE
    bound -= lo.FRAME_BYTES + hd.HEADER_BYTES + BATCH_OVERHEAD
    routes = [
        PartitionRoute(
            info.name, info.topic_id, number, page, page % session.writers, session.page(page)
        )
        for number, page in enumerate(info.pages)
    ]
    topic = TopicRoutes(info, routes, min(bound, info.settings.record_bytes_max or bound), spread)
    topic.sticky = session.producer_id % len(routes)  # or short-lived producers share the first
    return topic


def resequence(encoded: EncodedBatch, epoch: int, sequence: int) -> EncodedBatch:
    """Returns the same records under another producer epoch and sequence, with both checksums
    again."""
    head = hd.parse(encoded.header)._replace(producer_epoch=epoch, base_sequence=sequence)
    packed = bytearray(hd.HEADER.pack(*head))
    hd.seal_header(packed, crc32c(encoded.body, crc32c(memoryview(packed)[hd.BODY_CRC_FROM :])))
    return EncodedBatch(packed, encoded.body)
