"""The producer state of a partition: the batches in the log, and the batch that may come next.

Owns the judgement of (producer id, epoch, sequence) and the snapshot file of that state. Never
touches files itself and never reads the log: `admit` is called before the append, `replay` by
recovery.

    the batch is                                                        answer
    one of the last kept ones, same epoch, sequence and span            duplicate, with its offset
    of an epoch below the producer's                                    STALE_PRODUCER_EPOCH
    of an epoch that was poisoned by a final refusal (rule 4)           POISONED
    of an unknown producer: first sequence not 0                        UNKNOWN_PRODUCER
    of a higher epoch:      first sequence not 0                        OUT_OF_ORDER_SEQUENCE
    exactly the next sequence (0 for an unknown producer, new epoch)    accepted
    below the oldest kept one                                           DUPLICATE_TOO_OLD
    anything else                                                       OUT_OF_ORDER_SEQUENCE
    transactional, and no transaction of its very epoch is open         TRANSACTION_NOT_OPEN
    not transactional, while a transaction of its producer is open      TRANSACTION_NOT_OPEN

Control batches (`control`) begin and end transactions. One at a time is open of a producer:

    BEGIN e    none open, producer at e or below        opens; the producer is at e
               e is open                                duplicate
               the producer is above e                  STALE_PRODUCER_EPOCH
               another one is open, below e             OUT_OF_ORDER_SEQUENCE: it has to end first
    COMMIT,    e is open                                closes; the producer is at e + 1
    ABORT      none open, producer at e or below        taken: what is late of e is refused then
    of e       producer at e + 1                        duplicate, also if it is another outcome
               producer above e + 1                     STALE_PRODUCER_EPOCH
               one below e is open                      ABORT closes it; COMMIT:
                                                        TRANSACTION_NOT_OPEN

A repeated one is answered with its offset while it is remembered, before any line above applies.
One of an older coordinator epoch than the producer's last is refused as stale.

Sequences count offsets from 0 in every epoch and never wrap (u64). A batch takes `last_offset_delta
+ 1` of them and not `record_count`, so that compaction changes no sequence. A control batch takes
none. Its type is in the field of the sequence, and is remembered there above all sequences.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from heapq import nsmallest
from typing import Final, NamedTuple

from penstock.core.control import ControlType, control_of
from penstock.core.crc import crc32c
from penstock.core.errors import CorruptBatchError, ErrorCode, UnsupportedVersionError
from penstock.core.header import ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchHeader
from penstock.core.opentransactions import OpenTransaction, OpenTransactions, decode_open

KEPT: Final = struct.Struct("<QQqII")
"""A remembered batch: base sequence, base offset, append timestamp, span in offsets, epoch."""
_KEPT_BYTES: Final = KEPT.size
_CONTROL_KEPT: Final = 1 << 63
"""Plus the type of a control batch: what is remembered as its base sequence."""
_KIND: Final = ATTR_TRANSACTIONAL | ATTR_CONTROL

PRODUCER_TTL_US: Final = 7 * 24 * 3600 * 1_000_000
"""A producer without a lane is forgotten so long after its last append (rule 3)."""
PRODUCER_SILENCE_US: Final = 120 * 1_000_000
"""One that appended within this may be on its way back, with what it has no answer for."""
POISONED_MAX: Final = 1024
"""Poisoned producers remembered of which the log has nothing: it takes none but their first."""

_HARMLESS: Final = frozenset(
    {
        ErrorCode.STALE_PRODUCER_EPOCH,
        ErrorCode.POISONED,
        ErrorCode.DUPLICATE_TOO_OLD,
        ErrorCode.TRANSACTION_NOT_OPEN,
        ErrorCode.UNKNOWN_PRODUCER,
    }
)
"""Refusals that do not poison what follows: the batch is in the log or fenced, or poisoned already;
or what follows is refused alike."""

SNAPSHOT_HEAD: Final = struct.Struct("<4sHHIIQ")
"""Magic, version, reserved, crc32c of all with itself zeroed, producers, offset."""
SNAPSHOT_TRANSACTIONS: Final = struct.Struct("<qII")
"""From version 2 on, behind the head: offset of the log's first ABORT marker (-1: none), open
transactions, reserved. The open ones (`opentransactions.OPEN_ENTRY`) follow behind all producers.
"""
SNAPSHOT_PRODUCER_V1: Final = struct.Struct("<QIIQq")
SNAPSHOT_PRODUCER: Final = struct.Struct("<QIIQqII")
"""Producer id, epoch, remembered batches that follow, next sequence, last append timestamp; from
version 2 on the newest coordinator epoch of its control batches, reserved."""
SNAPSHOT_MAGIC: Final = b"PSPR"
SNAPSHOT_VERSION: Final = 2


class AppendAnswer(NamedTuple):
    """Why a batch is not appended: it is there already (`error` NONE), or it is refused."""

    error: ErrorCode
    base_offset: int
    next_offset: int
    append_timestamp: int
    message: str


class _Producer:
    __slots__ = (
        "coordinator_epoch", "epoch", "last_append", "next_sequence", "recent", "transactional"
    )  # fmt: skip

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = 0
        self.transactional = 0  # ATTR_TRANSACTIONAL while a transaction of `epoch` is open
        self.next_sequence = 0
        self.last_append = 0
        # Remembered batches packed back to back, oldest first: a tenth of the memory of tuples.
        # Those of the epochs before stay among them: a re-drain repeats them as well.
        self.recent = bytearray()


class ProducerTable:
    """All producers of one partition. Changes between `begin` and `commit` can be rolled back."""

    def __init__(self, batches_kept: int) -> None:
        self._kept_bytes = batches_kept * _KEPT_BYTES
        self._producers: dict[int, _Producer] = {}
        # Poison is not persisted: after a restart the sequence gap that the refused batch left
        # refuses what follows anyway, until the producer comes with a higher epoch.
        self._poisoned: dict[int, int] = {}
        self._undo: list[tuple[int, _Producer, bool, int, int, int]] = []
        self._undo_poison: list[tuple[int, int | None]] = []
        self._undo_coordinator: list[tuple[_Producer, int, int]] = []
        self.transactions = OpenTransactions()

    def __len__(self) -> int:
        return len(self._producers)

    def next_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """(epoch, next sequence) of a known producer."""
        producer = self._producers.get(producer_id)
        return None if producer is None else (producer.epoch, producer.next_sequence)

    # ---- appending

    def admit(
        self, head: BatchHeader, base_offset: int, append_timestamp: int
    ) -> AppendAnswer | None:
        """Takes a batch that is about to be appended at `base_offset`, or returns an answer that
        refuses it. A taken batch counts at once, so the next batch of the same call builds on it.
        """
        producer_id = head.producer_id
        epoch = head.producer_epoch
        producer = self._producers.get(producer_id)
        if (
            producer is None
            or producer.epoch != epoch
            or producer.next_sequence != head.base_sequence
            or producer.transactional != head.attributes & _KIND
            or producer_id in self._poisoned
        ):
            if head.attributes & ATTR_CONTROL:
                return self._admit_control(producer, head, base_offset, append_timestamp)
            answer = self._judge(producer, head)
            if answer is not None:
                return answer
        self._take(self._undoable(producer, head), head, base_offset, append_timestamp)
        return None

    def repeat(self, head: BatchHeader) -> AppendAnswer | None:
        """The answer to a batch that is in the log already, None if it is not known to be."""
        answer = self._judge(self._producers.get(head.producer_id), head)
        return answer if answer is not None and answer.error is ErrorCode.NONE else None

    def _undoable(self, producer: _Producer | None, head: BatchHeader) -> _Producer:
        """The producer, made if it is new, with its state noted for a rollback."""
        new = producer is None
        if producer is None:
            producer = self._producers[head.producer_id] = _Producer(head.producer_epoch)
        self._undo.append(
            (
                head.producer_id,
                producer,
                new,
                producer.epoch,
                producer.next_sequence,
                producer.last_append,
            )
        )
        return producer

    def _admit_control(
        self, producer: _Producer | None, head: BatchHeader, base_offset: int, at: int
    ) -> AppendAnswer | None:
        """`admit` for a control batch, which poison and sequences do not concern."""
        try:
            control = control_of(head)
        except (CorruptBatchError, UnsupportedVersionError) as error:
            return _refused(ErrorCode.CORRUPT_BATCH, str(error))
        known = None
        if producer is not None:
            wanted = _CONTROL_KEPT | control.type
            for seq, offset, time, _, epoch in KEPT.iter_unpack(self._kept(producer)):
                if seq == wanted and epoch == head.producer_epoch:
                    return AppendAnswer(ErrorCode.NONE, offset, offset + 1, time, "")
            known = (producer.epoch, producer.coordinator_epoch)
        judged = self.transactions.judge(control, known)
        if judged is None:
            producer = self._undoable(producer, head)
            self._undo_coordinator.append(
                (producer, producer.coordinator_epoch, producer.transactional)
            )
            self._take_control(producer, head, base_offset, at)
            return None
        if judged[0] is not ErrorCode.NONE:
            return _refused(*judged)
        # Its offset is forgotten, but it is all below here: a producer that waits for its
        # durability waits for enough.
        return AppendAnswer(ErrorCode.NONE, max(0, base_offset - 1), max(1, base_offset), at, "")

    def _take_control(self, producer: _Producer, head: BatchHeader, offset: int, at: int) -> None:
        control, transactions = control_of(head), self.transactions
        if control.type is ControlType.BEGIN:
            transactions.begin(OpenTransaction(head.producer_id, control.epoch, offset, at))
        elif control.type is ControlType.ABORT:
            transactions.abort(control, offset)
        else:
            transactions.end(head.producer_id)
        if head.producer_epoch != producer.epoch:
            producer.epoch = head.producer_epoch
            producer.next_sequence = 0
        producer.transactional = ATTR_TRANSACTIONAL * (control.type is ControlType.BEGIN)
        producer.coordinator_epoch = control.coordinator_epoch
        producer.last_append = at
        producer.recent += KEPT.pack(
            _CONTROL_KEPT | control.type, offset, at, 1, head.producer_epoch
        )

    @staticmethod
    def _take(producer: _Producer, head: BatchHeader, base_offset: int, at: int) -> None:
        span = head.last_offset_delta + 1
        producer.epoch = head.producer_epoch
        producer.next_sequence = head.base_sequence + span
        producer.last_append = at
        producer.recent += KEPT.pack(head.base_sequence, base_offset, at, span, head.producer_epoch)

    def _judge(self, producer: _Producer | None, head: BatchHeader) -> AppendAnswer | None:
        """The table of the module docstring, for all that is not plainly the next batch."""
        epoch, sequence = head.producer_epoch, head.base_sequence
        who = f"producer {head.producer_id} epoch {epoch} sequence {sequence}"
        oldest: int | None = None
        if producer is not None:
            span = head.last_offset_delta + 1
            for seq, offset, at, length, of_epoch in KEPT.iter_unpack(self._kept(producer)):
                if of_epoch == epoch and seq < _CONTROL_KEPT:
                    oldest = seq if oldest is None else oldest
                    if seq == sequence and length == span:
                        return AppendAnswer(ErrorCode.NONE, offset, offset + span, at, "")
            if epoch < producer.epoch:
                return _refused(
                    ErrorCode.STALE_PRODUCER_EPOCH,
                    f"{who}: epoch {producer.epoch} has taken over, this sender is fenced",
                )
        if self._poisoned.get(head.producer_id) == epoch:
            return _refused(
                ErrorCode.POISONED,
                f"{who}: an earlier batch of this epoch was refused for good; raise the producer "
                "epoch and resend from the first unacknowledged batch",
            )
        is_open = producer is not None and producer.transactional
        if head.attributes & ATTR_TRANSACTIONAL:
            if producer is None or not is_open or producer.epoch != epoch:
                return _refused(
                    ErrorCode.TRANSACTION_NOT_OPEN,
                    f"{who}: no transaction of that epoch is open in this partition; it has to be "
                    "registered first, and may have ended",
                )
        elif is_open:
            return _refused(
                ErrorCode.TRANSACTION_NOT_OPEN,
                f"{who}: its producer has a transaction open here, and this batch is not part of "
                "it",
            )
        if producer is None:
            if sequence:
                return _refused(
                    ErrorCode.UNKNOWN_PRODUCER,
                    f"{who}: this partition does not know the producer, its first sequence must "
                    "be 0",
                )
            return None
        expected = producer.next_sequence if epoch == producer.epoch else 0
        if sequence == expected:
            return None
        if epoch == producer.epoch and sequence < (expected if oldest is None else oldest):
            return _refused(
                ErrorCode.DUPLICATE_TOO_OLD,
                f"{who}: it is in the log, but older than the batches remembered "
                f"(producer_batches_kept={self._kept_bytes // _KEPT_BYTES})",
            )
        return _refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE, f"{who}: sequence {expected} is next in that epoch"
        )

    def poison(self, producer_id: int, epoch: int) -> None:
        """Refuses the rest of an epoch after a final refusal of one batch. So nothing is appended
        behind a hole that the producer does not know of yet."""
        old = self._poisoned.get(producer_id)
        if old is None or old < epoch:
            self._undo_poison.append((producer_id, old))
            self._poisoned[producer_id] = epoch

    def poison_behind(self, head: BatchHeader, error: int) -> None:
        """Calls `poison` for a batch that was refused with that error, where batches behind it may
        follow."""
        if error not in _HARMLESS and not head.attributes & ATTR_CONTROL:
            self.poison(head.producer_id, head.producer_epoch)

    def commit(self) -> None:
        """Confirms that the admitted batches are in the log."""
        kept = self._kept_bytes
        for undo in self._undo:
            recent = undo[1].recent
            if len(recent) > 2 * kept:
                del recent[:-kept]
        if self._poisoned:
            for producer_id, producer, *_ in self._undo:
                if self._poisoned.get(producer_id, producer.epoch) < producer.epoch:
                    del self._poisoned[producer_id]
            if len(self._poisoned) > len(self._producers) + POISONED_MAX:
                known = self._poisoned.keys() & self._producers.keys()
                self._poisoned = {each: self._poisoned[each] for each in known}
        self._undo.clear()
        self._undo_poison.clear()
        if self._undo_coordinator:
            self._undo_coordinator.clear()
            self.transactions.commit()

    def rollback(self) -> None:
        """The append failed: everything since the last commit did not happen."""
        self.transactions.rollback()
        for producer, coordinator_epoch, transactional in reversed(self._undo_coordinator):
            producer.coordinator_epoch = coordinator_epoch
            producer.transactional = transactional
        self._undo_coordinator.clear()
        for producer_id, producer, new, epoch, sequence, last_append in reversed(self._undo):
            if new:
                del self._producers[producer_id]
                continue
            producer.epoch, producer.next_sequence = epoch, sequence
            producer.last_append = last_append
            del producer.recent[-_KEPT_BYTES:]
        for producer_id, old in reversed(self._undo_poison):
            if old is None:
                del self._poisoned[producer_id]
            else:
                self._poisoned[producer_id] = old
        self._undo.clear()
        self._undo_poison.clear()

    # ---- recovery

    def replay(self, head: BatchHeader) -> None:
        """Takes over a batch of the log. It was judged when it was appended, and compaction may
        have removed batches before it. Transactional data whose BEGIN is gone opens its
        transaction, and a later epoch closes one whose marker is gone. Raises `CorruptBatchError`
        or `UnsupportedVersionError` for a control batch that this build does not know."""
        producer = self._producers.get(head.producer_id)
        if producer is None:
            producer = self._producers[head.producer_id] = _Producer(head.producer_epoch)
        offset, at = head.base_offset, head.append_timestamp
        if producer.transactional or head.attributes & _KIND:
            self._replay_transaction(producer, head)
        if head.attributes & ATTR_CONTROL:
            self._take_control(producer, head, offset, at)
            self.transactions.commit()
        else:
            self._take(producer, head, offset, at)
        if len(producer.recent) > 2 * self._kept_bytes:
            del producer.recent[: -self._kept_bytes]

    def _replay_transaction(self, producer: _Producer, head: BatchHeader) -> None:
        """See to it that what is open fits to a batch of the log."""
        transactions, producer_id, epoch = self.transactions, head.producer_id, head.producer_epoch
        is_open = transactions.get(producer_id)
        if head.attributes & ATTR_CONTROL:
            return  # says itself what is open
        if is_open is not None and is_open.epoch != epoch:
            transactions.end(producer_id)
            is_open = None
        if is_open is None and head.attributes & ATTR_TRANSACTIONAL and head.record_count:
            transactions.begin(
                OpenTransaction(producer_id, epoch, head.base_offset, head.append_timestamp)
            )
        transactions.commit()
        producer.transactional = ATTR_TRANSACTIONAL * (producer_id in transactions)

    def undecided(self) -> list[int]:
        """Where the transactions begin that are open and have data, the oldest first."""
        found = []
        for each in self.transactions.opened:
            recent = self._producers[each.producer_id].recent
            sequence, *_ = KEPT.unpack_from(recent, len(recent) - _KEPT_BYTES)
            if sequence < _CONTROL_KEPT:
                found.append(each.first_offset)
        return found

    def forget(self, producer_id: int) -> None:
        """Drop a producer whose lane is gone and whose retries have ended."""
        self._producers.pop(producer_id, None)
        self._poisoned.pop(producer_id, None)

    def is_older(self, before_us: int) -> bool:
        """Whether any producer appended nothing since `before_us`."""
        return any(
            producer.last_append < before_us and not producer.transactional
            for producer in self._producers.values()
        )

    def expire(self, before_us: int, attached: Container[int]) -> int:
        """Drop producers that appended nothing since `before_us`, are not `attached` (a lane of
        theirs exists) and have no open transaction; how many were dropped."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.last_append < before_us
            and producer_id not in attached
            and not producer.transactional
        ]
        for producer_id in gone:
            self.forget(producer_id)
        return len(gone)

    def expire_oldest(self, keep: int, attached: Container[int], before_us: int) -> int:
        """Drop the longest silent of those that `expire` would, until `keep` are left; how many
        were dropped."""
        silent = [
            (producer.last_append, producer_id)
            for producer_id, producer in self._producers.items()
            if producer.last_append < before_us
            and not producer.transactional
            and producer_id not in attached
        ]
        gone = nsmallest(max(0, len(self) - keep), silent)
        for _, producer_id in gone:
            self.forget(producer_id)
        return len(gone)

    def encode(self, offset: int) -> bytes:
        """The snapshot of this state, which holds all batches below `offset`."""
        transactions = self.transactions
        first = -1 if transactions.aborted_from is None else transactions.aborted_from
        parts = [b"", SNAPSHOT_TRANSACTIONS.pack(first, len(transactions), 0)]
        for producer_id, producer in sorted(self._producers.items()):
            kept = self._kept(producer)
            parts.append(
                SNAPSHOT_PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    len(kept) // _KEPT_BYTES,
                    producer.next_sequence,
                    producer.last_append,
                    producer.coordinator_epoch,
                    0,
                )
            )
            parts.append(kept)
        parts += transactions.encode()
        head = [SNAPSHOT_MAGIC, SNAPSHOT_VERSION, 0, 0, len(self._producers), offset]
        parts[0] = SNAPSHOT_HEAD.pack(*head)
        head[3] = crc32c(b"".join(parts))
        parts[0] = SNAPSHOT_HEAD.pack(*head)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, batches_kept: int) -> tuple[ProducerTable, int]:
        """The state and offset of a snapshot. Raises `CorruptBatchError` if it is none."""
        try:
            magic, version, reserved, crc, count, offset = SNAPSHOT_HEAD.unpack_from(data)
            blank = SNAPSHOT_HEAD.pack(magic, version, reserved, 0, count, offset)
            rest = memoryview(data)[SNAPSHOT_HEAD.size :]
            if magic != SNAPSHOT_MAGIC or not 1 <= version <= SNAPSHOT_VERSION:
                raise CorruptBatchError(f"no producer snapshot: {magic!r} version {version}")
            if crc32c(rest, crc32c(blank)) != crc:
                raise CorruptBatchError("the producer snapshot's checksum is wrong")
            table = cls(batches_kept)
            transactions, at, opened = table.transactions, 0, 0
            if version > 1:
                first, opened, _ = SNAPSHOT_TRANSACTIONS.unpack_from(rest)
                transactions.aborted_from = None if first < 0 else first
                at = SNAPSHOT_TRANSACTIONS.size
            entry = SNAPSHOT_PRODUCER if version > 1 else SNAPSHOT_PRODUCER_V1
            for _ in range(count):
                producer_id, epoch, kept, sequence, last, *more = entry.unpack_from(rest, at)
                at += entry.size
                producer = table._producers[producer_id] = _Producer(epoch)
                producer.next_sequence, producer.last_append = sequence, last
                producer.coordinator_epoch = more[0] if more else 0
                producer.recent += rest[at : at + kept * _KEPT_BYTES]
                at += kept * _KEPT_BYTES
            transactions.restore(decode_open(rest[at:], opened))
            for producer_id, producer in table._producers.items():
                producer.transactional = ATTR_TRANSACTIONAL * (producer_id in transactions)
        except struct.error as error:
            raise CorruptBatchError("the producer snapshot is cut short") from error
        return table, offset

    def _kept(self, producer: _Producer) -> bytes:
        return bytes(producer.recent[-self._kept_bytes :])


def _refused(error: ErrorCode, message: str) -> AppendAnswer:
    return AppendAnswer(error, -1, -1, 0, message)
