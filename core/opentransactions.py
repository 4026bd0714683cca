"""The transactions that are open in one partition's log, and what ended lately.

Owns the judgement of control batches (the second table of `producers`) and the entries that aborts
leave to note (`aborted`). Owns the order in which open transactions began, which gives the last
stable offset. `ProducerTable` drives it: nothing here knows of sequences or files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.core.aborted import Aborted
from penstock.core.control import Control, ControlType
from penstock.core.errors import ErrorCode

OPEN_ENTRY: Final = struct.Struct("<QIIQq")
"""In a producer snapshot: producer id, epoch, reserved, first offset, time of the beginning."""


class OpenTransaction(NamedTuple):
    """A transaction whose outcome the log does not hold yet. `first_offset` is that of its BEGIN;
    `began_us` when that was appended, microseconds since the epoch."""

    producer_id: int
    epoch: int
    first_offset: int
    began_us: int


class OpenTransactions:
    """At most one a producer, in the order of their first offsets. Changes since the last `commit`
    can be rolled back."""

    def __init__(self) -> None:
        self._open: dict[int, OpenTransaction] = {}
        self._undo: list[tuple[int, OpenTransaction | None]] = []
        self._ended: list[Aborted] = []
        self.aborted: list[Aborted] = []
        """ABORT markers that are in the log and were not taken by `take_aborted` yet."""
        self.aborted_from: int | None = None
        """Offset of the first ABORT marker that this log is known to have had."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def get(self, producer_id: int) -> OpenTransaction | None:
        return self._open.get(producer_id)

    @property
    def oldest(self) -> OpenTransaction | None:
        """The one that holds the last stable offset back."""
        return next(iter(self._open.values())) if self._open else None

    @property
    def opened(self) -> Iterable[OpenTransaction]:
        """All that are open, the oldest first."""
        return self._open.values()

    def begin(self, transaction: OpenTransaction) -> None:
        producer_id = transaction.producer_id
        self._undo.append((producer_id, self._open.pop(producer_id, None)))
        self._open[producer_id] = transaction

    def end(self, producer_id: int) -> OpenTransaction | None:
        """Close what is open of a producer."""
        was = self._open.pop(producer_id, None)
        if was is not None:
            self._undo.append((producer_id, was))
        return was

    def abort(self, control: Control, offset: int) -> None:
        """An ABORT marker at `offset`."""
        was = self.end(control.producer_id)
        oldest = self.oldest
        self._ended.append(
            Aborted(
                control.producer_id,
                # One of a later epoch closes what is open, too: that is what readers have to know.
                control.epoch if was is None else was.epoch,
                offset if was is None else was.first_offset,
                offset,
                offset + 1 if oldest is None else oldest.first_offset,
            )
        )

    def commit(self) -> None:
        """Confirms that all changes since the last call are in the log."""
        self._undo.clear()
        if self._ended:
            if self.aborted_from is None:
                self.aborted_from = self._ended[0].last_offset
            self.aborted += self._ended
            self._ended = []

    def rollback(self) -> None:
        for producer_id, was in reversed(self._undo):
            if was is None:
                del self._open[producer_id]
            else:
                self._open[producer_id] = was
        if self._undo:
            self._open = dict(sorted(self._open.items(), key=lambda item: item[1].first_offset))
        self._undo.clear()
        self._ended.clear()

    def take_aborted(self) -> list[Aborted]:
        taken, self.aborted = self.aborted, []
        return taken

    def judge(
        self, control: Control, known: tuple[int, int] | None
    ) -> tuple[ErrorCode, str] | None:
        """Whether a control batch, which is not one that is remembered, may be appended: None if it
        may; `NONE` if it says what is so already; else why it is refused. `known`: the producer's
        epoch and the newest coordinator epoch of its control batches."""
        kind, producer_id, epoch, coordinator = control
        if known is None:
            return None
        at, newest = known
        who = f"{kind.name} of producer {producer_id} epoch {epoch}"
        after = epoch if kind is ControlType.BEGIN else epoch + 1
        if coordinator < newest:
            return (
                ErrorCode.STALE_PRODUCER_EPOCH,
                f"{who}: coordinator epoch {newest} has taken over from {coordinator}",
            )
        if after < at:
            return (
                ErrorCode.STALE_PRODUCER_EPOCH,
                f"{who}: the producer is at epoch {at} here, that transaction has ended",
            )
        is_open = self._open.get(producer_id)
        if kind is not ControlType.BEGIN:
            if after == at:
                return ErrorCode.NONE, ""
            if kind is ControlType.COMMIT and is_open is not None and is_open.epoch != epoch:
                return (
                    ErrorCode.TRANSACTION_NOT_OPEN,
                    f"{who}: the transaction of epoch {is_open.epoch} is open here; abort it first",
                )
            return None
        if is_open is None:
            return None
        if is_open.epoch == epoch:
            return ErrorCode.NONE, ""
        return (
            ErrorCode.OUT_OF_ORDER_SEQUENCE,
            f"{who}: the transaction of epoch {is_open.epoch} is open here; it has to end first",
        )

    # ---- in snapshots

    def encode(self) -> list[bytes]:
        return [
            OPEN_ENTRY.pack(each.producer_id, each.epoch, 0, each.first_offset, each.began_us)
            for each in self._open.values()
        ]

    def restore(self, entries: list[OpenTransaction]) -> None:
        self._open = {each.producer_id: each for each in entries}


def decode_open(data: memoryview, count: int) -> list[OpenTransaction]:
    """Decodes `count` open transactions. Raises `struct.error` where the data has fewer."""
    found = []
    for i in range(count):
        producer_id, epoch, _, first, began = OPEN_ENTRY.unpack_from(data, i * OPEN_ENTRY.size)
        found.append(OpenTransaction(producer_id, epoch, first, began))
    return found
