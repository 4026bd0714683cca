"""The results of `send`: deliveries, receipts, and the boxes behind them.

A `Box` collects the records of one topic until it is sealed, which makes a `Batch` per partition. A
`Delivery` knows its box and its ordinal there and finds its batch only when somebody asks.

Owns the path from an ordinal to an outcome. Never sends and never waits by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.client.producer.routes import Batch
from penstock.core.errors import PenstockError, PenstockTimeout

NARROW: Final = 3
WIDE: Final = 7
"""A box is a flat list: ordinal, value and key of each record, and `RecordFields` in a wide box.
One `extend` of a tuple is a single atomic step, so `send` takes no lock."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The place of a record and its durability.

    `durability`: "ring", "appended", "committed" or "fsynced". "committed" is on all replicas that
    count, at a cluster with acks="all". `offset` is None at "ring" (acks=0). `timestamp`: when the
    writer appended it, in microseconds since the epoch; None at "ring".
    """

    topic: str
    partition: int
    offset: int | None
    durability: str
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """A run of records in one partition: offsets `base_offset` .. `base_offset + count - 1`."""

    topic: str
    partition: int
    base_offset: int | None
    count: int
    durability: str
    timestamp: int | None

    @classmethod
    def of(cls, batch: Batch) -> BatchReceipt:
        """Returns the receipt of a batch that was delivered."""
        route, known = batch.route, batch.durability != "ring"
        return cls(
            route.topic, route.partition, batch.base_offset if known else None, batch.count,
            batch.durability, batch.append_timestamp if known else None,
        )  # fmt: skip


class Awaited(Protocol):
    """The calls that a delivery makes to its producer."""

    def await_box(self, box: Box, ordinal: int | None, timeout: float | None) -> None:
        """Waits until a box (or the record's batch in it) is done."""

    def call_when_done(self, delivery: AnyDelivery, box: Box, callback: DoneCallback) -> None:
        """Calls back once the outcome of a box is known; at once, where it is."""


class Box:
    """An open collection of records for one topic, and after `sealed` the key to their fate.
    `is_long`: it has room for more than one batch."""

    __slots__ = (
        "batches",
        "callbacks",
        "count",
        "deadline",
        "error",
        "is_long",
        "items",
        "linger_until",
        "looked_at",
        "opened",
        "order",
        "ordinals",
        "owner",
        "placement",
        "room",
        "sealed",
        "slow_room",
        "topic",
        "width",
    )  # fmt: skip

    def __init__(
        self, owner: Awaited, topic: str, room: int, opened: int, linger_until: float,
        deadline: float,
    ) -> None:  # fmt: skip
        self.owner = owner
        self.topic = topic
        self.room = room
        self.width = NARROW
        self.slow_room = -1
        self.opened = opened
        self.linger_until = linger_until
        self.deadline = deadline
        self.items: list[Any] = []
        self.ordinals = count()
        self.sealed = False
        self.is_long = False
        self.count = 0
        self.looked_at = 0
        self.order: dict[int, int] | None = None
        self.batches: list[Batch] = []
        self.placement: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None
        self.error: Exception | None = None
        self.callbacks: list[tuple[AnyDelivery, DoneCallback]] = []

    def slow(self, *, wide: bool) -> None:
        """Sends every record by the slow path, which may carry more fields and decides when to
        seal."""
        self.width = WIDE if wide else NARROW
        self.slow_room, self.room = self.room, -1

    def takes(self, size: int, *, wide: bool) -> bool:
        """Returns whether a record of that size, with or without the wide columns, fits in here."""
        return max(self.room, self.slow_room) >= size and (self.width == WIDE or not wide)

    def fail(self, error: Exception) -> Box:
        """Fails all records of the box."""
        self.error = error
        return self

    def unseen(self) -> tuple[str, int, Exception, int]:
        """Returns (topic, partition -1, error, records nobody asked about), for `DeliveryError`."""
        assert self.error is not None
        return self.topic, -1, self.error, self.count - self.looked_at

    def holds(self, ordinal: int) -> bool:
        """Returns, after sealing, whether the record got in before the box was closed."""
        return ordinal in self.order if self.order is not None else ordinal < self.count

    def locate(self, ordinal: int) -> tuple[Batch, int]:
        """Returns, after sealing, the batch of a record and its index there."""
        index = self.order[ordinal] if self.order is not None else ordinal
        if self.placement is None:
            return self.batches[0], index
        which, where = self.placement
        return self.batches[which[index]], int(where[index])

    def is_done(self, ordinal: int) -> bool:
        """Returns whether a record's outcome is known. Called without a lock: between closing and
        encoding a box has no batches yet, and no outcome is known."""
        if self.error is not None:
            return True
        return self.sealed and bool(self.batches) and self.locate(ordinal)[0].done

    @property
    def done(self) -> bool:
        if not self.sealed:
            return False
        return self.error is not None or all(batch.done for batch in self.batches)


class Delivery(msgspec.Struct, eq=False, gc=False):
    """The future of one record. Thread-safe; does not have to be kept or looked at.

    A msgspec struct, because `send` makes one of each record: 59 ns, and 88 without `__init__`.
    Without the garbage collector it takes 30 less. It may be in one cycle, of its box's callbacks,
    and that ends with the outcome.
    """

    _box: Box
    _ordinal: int

    def done(self) -> bool:
        """Returns whether the outcome is known. Never blocks."""
        return self._box.is_done(self._ordinal)

    def result(self, timeout: float | None = None) -> Receipt:
        """Returns the receipt, waiting up to `timeout` seconds (None: until the delivery timeout).

        Raises `PenstockTimeout` when the wait ran out (the record stays on its way), or the error
        with which the delivery failed.
        """
        batch, index = self._await(timeout)
        if batch.error is not None:
            raise batch.error
        run = BatchReceipt.of(batch)
        offset = None if run.base_offset is None else run.base_offset + index
        return Receipt(run.topic, run.partition, offset, run.durability, run.timestamp)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Returns the error with which the delivery failed, or None. Waits like `result`."""
        try:
            batch, _ = self._await(timeout)
        except PenstockTimeout:
            raise
        except Exception as error:
            if error is not self._box.error and not isinstance(error, PenstockError):
                raise  # of a signal's handler, say
            return error
        return batch.error

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Calls `callback(self)` once the outcome is known: from the producer's own thread, or at
        once if it is known. An exception from it is logged, never passed on."""
        self._box.owner.call_when_done(self, self._box, callback)

    def _await(self, timeout: float | None) -> tuple[Batch, int]:
        box = self._box
        box.owner.await_box(box, self._ordinal, timeout)
        if box.error is not None:
            box.looked_at += 1
            raise box.error
        batch, index = box.locate(self._ordinal)
        batch.looked_at += 1
        return batch, index

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<Delivery to {self._box.topic!r}: {state}>"


class BatchDelivery:
    """The future of one `send_batch` call."""

    __slots__ = ("_box",)

    def __init__(self, box: Box) -> None:
        self._box = box

    def done(self) -> bool:
        """Returns whether every record's outcome is known. Never blocks."""
        return self._box.done

    def result(self, timeout: float | None = None) -> list[BatchReceipt]:
        """Returns one receipt per run of records, in the order of the runs. Raises like
        `Delivery.result` with the first error among them."""
        box = self._box
        box.owner.await_box(box, None, timeout)
        if box.error is not None:
            box.looked_at = box.count
            raise box.error
        for batch in box.batches:
            batch.looked_at = batch.count
        for batch in box.batches:
            if batch.error is not None:
                raise batch.error
        return [BatchReceipt.of(batch) for batch in box.batches]

    def add_done_callback(self, callback: Callable[[BatchDelivery], object]) -> None:
        """Calls back like `Delivery.add_done_callback`."""
        self._box.owner.call_when_done(self, self._box, callback)

    def __repr__(self) -> str:
        return f"<BatchDelivery to {self._box.topic!r}: {'done' if self.done() else 'pending'}>"


class Failure(Protocol):
    """Records that were not delivered. `looked_at`: of how many of them somebody knows."""

    count: int
    looked_at: int

    def unseen(self) -> tuple[str, int, Exception, int]:
        """Returns (topic, partition or -1, error, records nobody asked about), for
        `DeliveryError`."""


AnyDelivery = Delivery | BatchDelivery
DoneCallback = Callable[[Any], object]
