"""A partition's batches as they come from a gateway: `penstock.client.consumer.source.Source` over
a cursor.

Owns what was fetched ahead and the reader's place in it. It checks every header as those of mapped
segments are, and bodies where they are decoded. It keeps the batches of the last fetch until the
next one. So a reader that steps back over records it did not hand out asks no gateway; any other
step begins the cursor again. Never waits: it returns only batches that have arrived.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.client.remote.cursors import Arrived, FarCursor, Fetcher
from penstock.cluster.frames import messages as fr
from penstock.core import errors as er
from penstock.core import header as hd
from penstock.core.epochs import EpochCache
from penstock.core.reader import Found, Limit

EPOCH_UNKNOWN: Final = -1
CREDIT_MIN: Final = 64 << 10
"""Bytes that a partition may have fetched ahead, however many there are."""
_NOT_ALONE: Final = hd.ATTR_CONTROL | hd.ATTR_TRANSACTIONAL


class _Piece:
    """Batches that came together. `is_paid`: they were read once."""

    __slots__ = ("aborted", "is_paid", "leader_epoch", "next_offset", "start", "view")

    def __init__(self, arrived: Arrived) -> None:
        self.start, self.next_offset, self.aborted, self.view, self.leader_epoch = arrived
        self.is_paid = False


class FarSource:
    """A remote partition as a source of batches. `offset` is the next offset that it brings,
    `epoch` that of the log up to there. `aborted` counts records that the gateway left out."""

    def __init__(
        self, fetcher: Fetcher, name: str, page: int, topic_id: bytes, partition: int, *,
        committed: bool, credit: int,
    ) -> None:  # fmt: skip
        self._fetcher = fetcher
        self._name = name
        self._page = page
        self._topic_id = topic_id
        self._partition = partition
        self._committed = committed
        self._credit = max(credit, CREDIT_MIN)
        self._wanted: int | None = None  # bytes from `offset` on; None: all that follows
        self._cursor: FarCursor | None = None
        self._pieces: deque[_Piece] = deque()  # from `offset` on
        self._kept: deque[_Piece] = deque()  # those before them, of the last fetch
        self._at = 0  # byte of the first piece
        self.offset = 0
        self.epoch = EPOCH_UNKNOWN
        self.aborted = 0

    # --- the cursor ---
    @property
    def is_open(self) -> bool:
        """Returns whether batches are on their way, or would be if there were any."""
        return self._cursor is not None

    def open(self) -> None:
        """Requests the records from `offset` on."""
        self._cursor = self._fetcher.open(
            self._page, self._topic_id, self._partition, self.offset, self.epoch, self._committed,
            self._ahead,
        )  # fmt: skip

    @property
    def has_more(self) -> bool:
        """Returns whether `fetch` has something to bring, or to raise, or moves."""
        if self._pieces:
            return True
        cursor = self._cursor
        if cursor is None:
            return False
        if cursor.has_more:
            return True
        cursor.rest()
        return False

    def let_go(self) -> None:
        """Drops all it holds, and wants nothing until it is opened again."""
        self._pieces.clear()
        self._kept.clear()
        self._at = 0
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def allow(self, credit: int) -> None:
        """Sets how many bytes it fetches ahead."""
        self._credit = max(credit, CREDIT_MIN)
        if self._cursor is not None:
            self._cursor.allow(self._ahead)

    @property
    def _ahead(self) -> int:
        """How many bytes the gateway may send ahead: no more than are wanted here."""
        wanted = self._credit if self._wanted is None else self._wanted
        return min(self._credit, max(wanted, CREDIT_MIN))

    def moved(self, fetcher: Fetcher, page: int) -> None:
        """Starts again at a node that came back, without the records fetched ahead.

        They may be of a log that was cut meanwhile.
        """
        self.let_go()
        self._fetcher, self._page = fetcher, page

    # --- as a source ---
    def fetch(self, limit: Limit, bytes_max: int) -> list[Found]:
        """Fetches as `core.reader.LogReader.fetch`, up to the end that the gateway allowed."""
        found: list[Found] = []
        size = 0
        self._kept.clear()
        while size < bytes_max:
            if not self._pieces and not self._take(fails=not found):
                break
            try:
                size += self._walk(self._pieces[0], found, bytes_max - size)
            except er.PenstockError:
                if not found:
                    raise
                break  # the next call raises it: it begins where this one could not go on
        return found

    def _take(self, *, fails: bool) -> bool:
        """Adds the last arrival as the last piece."""
        cursor = self._cursor
        if cursor is None:
            return False
        arrived = cursor.peek()
        if arrived is not None:
            self._pieces.append(_Piece(arrived))
            cursor.next()  # an interrupt above has it twice, and it is read once
            return True
        if fails and cursor.failed is not None:
            error = _error(cursor.failed)
            if not isinstance(error, er.UnknownTopicError):  # else it is final
                self.let_go()  # the next call asks again, and gets its error again
            raise error
        return False

    def _walk(self, piece: _Piece, found: list[Found], bytes_max: int) -> int:
        """Batches of the first piece, until it ends or `bytes_max` are gathered."""
        view, size = piece.view, 0
        while self._at < len(view) and size < bytes_max:
            head = self._checked(piece)
            at = self._at
            self._at += head.length
            if head.next_offset <= self.offset:
                continue  # a step back within what is here
            self.offset = head.next_offset
            self.epoch = head.leader_epoch
            if head.record_count and not head.attributes & hd.ATTR_CONTROL:
                found.append(Found(head, view, at))
                size += head.length
        if self._at >= len(view):
            self.offset = max(self.offset, piece.next_offset)
            self.epoch = max(self.epoch, piece.leader_epoch)
            self._at = 0
            self._kept.append(self._pieces.popleft())
            self._paid(piece)
        return size

    def _checked(self, piece: _Piece) -> hd.BatchHeader:
        """Returns the header of the batch at the reader's place. Raises `CorruptBatchError`."""
        view, at = piece.view, self._at
        head = hd.checked(view, at)
        if (
            at + head.length > len(view)
            or head.topic_id != self._topic_id
            or head.partition != self._partition
            or head.next_offset > piece.next_offset
        ):
            raise er.CorruptBatchError(
                f"{self._name}: what the gateway sent for offsets {piece.start} to "
                f"{piece.next_offset} has a batch of {head.length} bytes at byte {at} of "
                f"{len(view)} with offsets {head.base_offset} to {head.next_offset} of partition "
                f"{head.partition} of topic {head.topic_id.hex()}"
            )
        return head

    def _paid(self, piece: _Piece) -> None:
        """Marks a piece as read: the gateway may send as much again."""
        if not piece.is_paid:
            piece.is_paid = True
            self.aborted += piece.aborted
            if self._cursor is not None:
                self._cursor.took(len(piece.view))

    def alone(self, offset: int, base: int, valid_bytes: int) -> Found | None:
        """Reads as `core.reader.LogReader.alone`."""
        if self.offset != offset or (not self._pieces and not self._take(fails=False)):
            return None
        piece = self._pieces[0]
        at, view = self._at, piece.view
        if at + hd.HEADER_BYTES > len(view) or piece.next_offset != offset + 1:
            return None
        head = self._checked(piece)
        if (
            head.base_offset != offset
            or head.last_offset_delta
            or not head.record_count
            or head.attributes & _NOT_ALONE
            or at + head.length < len(view)
        ):
            return None
        self._kept.clear()
        self._kept.append(self._pieces.popleft())
        self._at = 0
        self._paid(piece)
        self.offset = offset + 1
        self.epoch = head.leader_epoch
        return Found(head, view, at)

    def seek(self, offset: int) -> None:
        """Goes on at `offset`: within what is here at once, else from the gateway."""
        self.look(offset, None)

    def _go(self, offset: int) -> None:
        if offset == self.offset:
            return
        while self._take(fails=False):
            pass
        pieces = self._kept + self._pieces
        if pieces and pieces[0].start <= offset <= pieces[-1].next_offset:
            while pieces and pieces[0].next_offset <= offset:
                self._paid(pieces.popleft())
            self._pieces = pieces
            self._kept.clear()
            self._at = 0
            self.offset = offset
            self.epoch = EPOCH_UNKNOWN
            return
        self.let_go()
        self.offset = offset
        self.epoch = EPOCH_UNKNOWN

    def look(self, offset: int, bytes_max: int | None) -> None:
        """Goes on at `offset`, for about so many bytes: the gateway sends a batch or two more."""
        self._wanted = bytes_max
        self._go(offset)
        if self._cursor is not None:
            self._cursor.allow(self._ahead)

    def let_go_below(self, start: int) -> None:
        """Nothing of it is open on this host."""

    def knows(self, epoch: int) -> bool:
        """Returns whether the gateway told where the epochs up to this one begin."""
        return EpochCache(self._fetcher.epochs(self._page)).latest == epoch

    def parted(self, offset: int, epoch: int, log_end: int) -> int | None:
        """Computes as `core.reader.divergence`, by what the gateway told of the epochs."""
        cache = EpochCache(self._fetcher.epochs(self._page))
        end = cache.end_offset(epoch, log_end)
        return end[1] if end is not None and end[1] < offset else None

    def leaves_out(self, head: hd.BatchHeader, last_stable: int) -> bool:
        """Returns False: the gateway has left them out."""
        return False

    def forget_aborted(self) -> None:
        pass

    def close(self) -> None:
        self.let_go()


def _error(failed: fr.CursorFailed) -> er.PenstockError:
    """Returns the error that the local reader would have raised."""
    if failed.error == er.LogTruncatedError.__name__:
        return er.LogTruncatedError(failed.message, divergence=failed.divergence)
    return er.named(failed.error, failed.message)
