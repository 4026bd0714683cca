"""A lane: the single-producer, single-consumer ring between one producer and one writer process.

The producer end (`LaneSender`) publishes whole frames by moving `tail`; the writer end
(`LaneReceiver`) answers each frame in the acknowledgement ring and then moves `head`. Both ends may
die at any step. The writer's successor drains the frames between head and tail. Producer id, epoch
and sequence inside the batches make a second drain exact (rules 1 and 2).

Invariants: head <= tail <= head + capacity; a frame is visible only whole; cursors only grow.

Neither end blocks, waits or knows doorbells; `fence` and sleeping tickets are their caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.core.crc import crc32c
from penstock.core.errors import PenstockError, UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc.shm import Region

Piece = bytes | bytearray | memoryview

LANE_KIND: Final = "lane"
"""Lanes are named `<kind>-<producer id>-<writer>-<number>`."""


_HEAD_BYTES: Final = lo.FRAME.size + lo.FRAME_CRC.size
_REPLICATORS: Final = (lo.KIND_REPLICA, lo.KIND_ROLE)


class LaneCorruptError(PenstockError):
    """A frame header cannot be right: the lane is dropped with this reason."""


class LaneIdentity(NamedTuple):
    """The maker of a lane, and the writer that it feeds."""

    capacity: int
    producer_id: int
    epoch: int
    writer: int
    pid: int
    start_time: int
    boot_hash: int


SENT_BEFORE: Final = -2
"""The base offset of a refusal where a carrier sent the frame before, and heard nothing of it."""


class Ack(NamedTuple):
    """One acknowledgement: error 0 means appended at `base_offset` in `leader_epoch`."""

    sequence: int
    base_offset: int
    append_timestamp: int
    error: int
    leader_epoch: int


class Frame(NamedTuple):
    """One frame as the writer sees it; `batch` views the lane's memory until head passes."""

    page: int
    sequence: int
    fetch_epoch: int
    batch: memoryview
    end: int
    flags: int = 0
    kind: int = lo.KIND_DATA


def format_lane(region: Region, identity: LaneIdentity) -> None:
    """Makes zeroed memory a lane; the magic is written last, so a half-made lane is none."""
    view = region.bytes
    view[lo.LANE_VERSION_AT : lo.LANE_VERSION_AT + 8] = lo.LANE_VERSION_WRITER.pack(
        lo.LAYOUT_VERSION, identity.writer
    )
    q = region.q
    q[lo.Q_LANE_CAPACITY] = identity.capacity
    q[lo.Q_LANE_PRODUCER_ID] = identity.producer_id
    q[lo.Q_LANE_EPOCH] = identity.epoch
    q[lo.Q_LANE_PID] = identity.pid
    q[lo.Q_LANE_START_TIME] = identity.start_time
    q[lo.Q_LANE_BOOT_HASH] = identity.boot_hash
    q[lo.Q_LANE_STATE] = lo.LANE_OPEN
    q[lo.Q_LANE_MAGIC] = lo.LANE_MAGIC


def read_identity(region: Region) -> LaneIdentity | None:
    """The identity of a lane, None where it was never finished. Raises on an unknown version."""
    q = region.q
    if len(q) < lo.LANE_FRAMES_AT // 8 or q[lo.Q_LANE_MAGIC] != lo.LANE_MAGIC:
        return None
    version, writer = lo.LANE_VERSION_WRITER.unpack_from(region.bytes, lo.LANE_VERSION_AT)
    if version != lo.LAYOUT_VERSION:
        raise UnsupportedVersionError(
            f"a lane has layout version {version}, this build drains {lo.LAYOUT_VERSION}: start "
            "the Penstock version that wrote it once, stop it cleanly, then start this one"
        )
    capacity = q[lo.Q_LANE_CAPACITY]
    if not capacity or capacity % lo.FRAME_ALIGN or lo.lane_bytes(capacity) > len(region.bytes):
        raise LaneCorruptError(
            f"a lane claims {capacity} bytes of frames but its memory has {len(region.bytes)}"
        )
    return LaneIdentity(
        capacity,
        q[lo.Q_LANE_PRODUCER_ID],
        q[lo.Q_LANE_EPOCH],
        writer,
        q[lo.Q_LANE_PID],
        q[lo.Q_LANE_START_TIME],
        q[lo.Q_LANE_BOOT_HASH],
    )


def undrained(region: Region) -> int:
    """Bytes between head and tail."""
    q = region.q
    return int(q[lo.Q_LANE_TAIL]) - int(q[lo.Q_LANE_HEAD])


class LaneSender:
    """The producer's end. Single-threaded use (its owner holds the lock). `floor`: everything from
    that position on is kept for a resend; None keeps nothing (rule 1)."""

    __slots__ = ("_ack_head", "_bytes", "_capacity", "_q", "_region", "_tail", "floor",
                 "frame_max", "last_start", "name", "next_sequence", "writer")  # fmt: skip

    def __init__(self, region: Region, name: str) -> None:
        identity = read_identity(region)
        if identity is None:
            raise LaneCorruptError(f"lane {name} was never finished")
        self._region = region
        self._q = region.q
        self._bytes = region.bytes
        self.name = name
        self.writer = identity.writer
        self._capacity = identity.capacity
        self.frame_max = identity.capacity // lo.FRAME_SHARE
        self._tail: int = self._q[lo.Q_LANE_TAIL]
        self.next_sequence: int = self._q[lo.Q_LANE_TAIL_SEQUENCE]
        self._ack_head: int = self._q[lo.Q_LANE_ACK_HEAD]
        self.floor: int | None = None
        self.last_start = 0

    @property
    def tail(self) -> int:
        return self._tail

    @property
    def head(self) -> int:
        return int(self._q[lo.Q_LANE_HEAD])

    @property
    def free(self) -> int:
        """Bytes that can be written now."""
        head = int(self._q[lo.Q_LANE_HEAD])
        floor = self.floor
        return self._capacity - (self._tail - (head if floor is None else min(head, floor)))

    @property
    def is_idle(self) -> bool:
        return bool(self._q[lo.Q_LANE_HEAD] == self._tail)

    def try_write(
        self,
        page: int,
        pieces: Sequence[Piece],
        length: int,
        flags: int = 0,
        kind: int = lo.KIND_DATA,
        fetch_epoch: int = 0,
    ) -> int | None:
        """Publishes one batch of `length` bytes; its lane sequence, or None while there is no room.

        `pieces` are copied one after the other. The caller has checked `length` against
        `frame_max - FRAME_BYTES`. Other kinds than data are the replicator's. `fetch_epoch` counts
        for those, and with `FRAME_IN_EPOCH`.
        """
        size = (lo.FRAME_BYTES + length + lo.FRAME_ALIGN - 1) & -lo.FRAME_ALIGN
        capacity = self._capacity
        tail = self._tail
        at = tail % capacity
        pad = capacity - at if capacity - at < size else 0
        q = self._q
        head = q[lo.Q_LANE_HEAD]
        floor = self.floor
        if floor is not None and floor < head:
            head = floor
        if capacity - tail + head < size + pad:
            return None
        if pad:
            self._pad(at, pad)
            tail += pad
            at = 0
        sequence = self.next_sequence
        view = self._bytes
        start = lo.LANE_FRAMES_AT + at
        packed = lo.FRAME.pack(size, page, sequence, fetch_epoch, kind, flags, length)
        view[start : start + _HEAD_BYTES] = packed + lo.FRAME_CRC.pack(crc32c(packed))
        start += lo.FRAME_BYTES
        for piece in pieces:
            end = start + len(piece)
            view[start:end] = piece
            start = end
        self.last_start = tail
        q[lo.Q_LANE_TAIL_SEQUENCE] = sequence + 1
        q[lo.Q_LANE_TAIL] = tail + size  # published: all else follows from it, see `mend`
        self.next_sequence = sequence + 1
        self._tail = tail + size
        return sequence

    def mend(self) -> None:
        """A write may have been interrupted: what counts is whether the tail has moved."""
        q = self._q
        tail: int = q[lo.Q_LANE_TAIL]
        if tail != self._tail:
            self.next_sequence = q[lo.Q_LANE_TAIL_SEQUENCE]
            self._tail = tail
        q[lo.Q_LANE_TAIL_SEQUENCE] = self.next_sequence

    def _pad(self, at: int, size: int) -> None:
        """A frame that holds nothing, up to where the memory begins again."""
        packed = lo.FRAME.pack(size, 0, self.next_sequence, 0, lo.KIND_PAD, 0, 0)
        start = lo.LANE_FRAMES_AT + at
        self._bytes[start : start + _HEAD_BYTES] = packed + lo.FRAME_CRC.pack(crc32c(packed))

    def batch_at(self, start: int, length: int) -> memoryview:
        """The bytes of a held batch whose frame begins at `start` (`last_start` after a write)."""
        at = lo.LANE_FRAMES_AT + start % self._capacity + lo.FRAME_BYTES
        return self._bytes[at : at + length]

    def acks(self) -> list[Ack]:
        """The acknowledgements that came since the last call; frees their places."""
        found = self.unread()
        if found:
            self.read(len(found))
        return found

    def unread(self) -> list[Ack]:
        """The acknowledgements that have come; they keep their places until `read`."""
        tail = self._q[lo.Q_LANE_ACK_TAIL]
        head = self._ack_head
        if tail == head:
            return []
        if not 0 < tail - head <= lo.ACKS_MAX:
            raise LaneCorruptError(
                f"lane {self.name}: acknowledgement tail {tail} is not within "
                f"{lo.ACKS_MAX} after head {head}"
            )
        found = []
        for position in range(head, tail):
            at = lo.LANE_ACKS_AT + position % lo.ACKS_MAX * lo.ACK.size
            found.append(Ack._make(lo.ACK.unpack_from(self._bytes, at)))
        return found

    def read(self, count: int) -> None:
        """So many of the unread ones have been taken in; frees their places."""
        self._ack_head = head = self._ack_head + count
        self._q[lo.Q_LANE_ACK_HEAD] = head

    def has_acks(self) -> bool:
        return bool(self._q[lo.Q_LANE_ACK_TAIL] != self._ack_head)

    def writer_ticket(self) -> int:
        """Non-zero while the writer sleeps; read it only after a fence."""
        return int(self._q[lo.Q_LANE_WRITER_SLEEPING])

    def publish_sleeping(self, ticket: int) -> None:
        self._q[lo.Q_LANE_PRODUCER_SLEEPING] = ticket

    def mark_closed(self) -> None:
        self._q[lo.Q_LANE_STATE] = lo.LANE_CLOSED

    def detach(self) -> None:
        """Unmap; the named memory stays until the node unlinks it."""
        self._region.close()


class LaneReceiver:
    """The writer's end. `generation` is published so that others can tell who drains.
    `replicates`: its frames may be of a replicator's kinds."""

    __slots__ = ("_ack_tail", "_bytes", "_capacity", "_head", "_head_sequence", "_kinds", "_q",
                 "_region", "identity", "name", "replicates", "rung")  # fmt: skip

    def __init__(
        self, region: Region, name: str, generation: int, *, replicates: bool = False
    ) -> None:
        identity = read_identity(region)
        if identity is None:
            raise LaneCorruptError(f"lane {name} was never finished")
        self._region = region
        self._q = region.q
        self._bytes = region.bytes.toreadonly()
        self.name = name
        self.identity = identity
        self._capacity = identity.capacity
        self._head: int = self._q[lo.Q_LANE_HEAD]
        self._ack_tail: int = self._q[lo.Q_LANE_ACK_TAIL]
        if self._head % lo.FRAME_ALIGN:
            raise LaneCorruptError(f"head {self._head} of lane {name} is at no frame")
        self._head_sequence: int | None = None
        self.replicates = replicates
        self._kinds = _REPLICATORS if replicates else ()
        self.rung = 0
        self._q[lo.Q_LANE_GENERATION] = generation

    @property
    def has_frames(self) -> bool:
        return bool(self._q[lo.Q_LANE_TAIL] != self._head)

    @property
    def head(self) -> int:
        return self._head

    @property
    def tail(self) -> int:
        return int(self._q[lo.Q_LANE_TAIL])

    @property
    def next_sequence(self) -> int:
        """Of the first frame that is not finished."""
        return int(self._q[lo.Q_LANE_HEAD_SEQUENCE])

    @property
    def is_closed(self) -> bool:
        return bool(self._q[lo.Q_LANE_STATE] == lo.LANE_CLOSED)

    @property
    def has_room(self) -> bool:
        """Whether the answer to one more frame finds a place. A producer that reads none of its
        answers holds up its own lane, and its writer need not look at that again and again."""
        return bool(self._ack_tail - self._q[lo.Q_LANE_ACK_HEAD] < lo.ACKS_MAX)

    def frames(self, frames_max: int, bytes_max: int, *, discard_acks: bool = False) -> list[Frame]:
        """The next whole frames, at most as many as there are free acknowledgement places.

        `discard_acks`: the producer is dead, so its unread acknowledgements hold no place.
        Raises `LaneCorruptError` for a header that cannot be right, once nothing good is before it.
        """
        q = self._q
        tail = q[lo.Q_LANE_TAIL]
        position = self._head
        if tail == position:
            return []
        if not discard_acks:
            frames_max = min(frames_max, self._places(0))
        found = self._whole(position, tail, self._head_sequence, frames_max, bytes_max)
        if found and self._head_sequence is None:
            self._head_sequence = found[0].sequence
        return found

    def frames_behind(
        self, last: Frame, unanswered: int, frames_max: int, bytes_max: int
    ) -> list[Frame]:
        """Returns the next whole frames behind `last`, for a receiver that answers later.
        `unanswered` frames up to `last` are not finished yet, and keep the places of their
        acknowledgements."""
        tail = self._q[lo.Q_LANE_TAIL]
        if tail == last.end:
            return []
        frames_max = min(frames_max, self._places(unanswered))
        return self._whole(last.end, tail, last.sequence + 1, frames_max, bytes_max)

    def _places(self, kept: int) -> int:
        """Free acknowledgement places, but for those that are kept."""
        unread = self._ack_tail - self._q[lo.Q_LANE_ACK_HEAD]
        if not 0 <= unread <= lo.ACKS_MAX:
            raise LaneCorruptError(f"acknowledgement head is {unread} behind its tail")
        return int(lo.ACKS_MAX - unread - kept)

    def _whole(
        self, position: int, tail: int, due: int | None, frames_max: int, bytes_max: int
    ) -> list[Frame]:
        """The frames from `position` on, of which the first has the sequence `due`, if known."""
        if not 0 < tail - position <= self._capacity or tail % lo.FRAME_ALIGN:
            raise LaneCorruptError(
                f"tail {tail} is not within {self._capacity} bytes after head {position}"
            )
        found: list[Frame] = []
        view = self._bytes
        capacity = self._capacity
        limit = position + bytes_max
        try:
            while position < tail and len(found) < frames_max and position < limit:
                at = lo.LANE_FRAMES_AT + position % capacity
                packed = view[at : at + lo.FRAME.size]
                size, page, sequence, epoch, kind, flags, length = lo.FRAME.unpack(packed)
                (crc,) = lo.FRAME_CRC.unpack_from(view, at + lo.FRAME_CRC_AT)
                if crc != crc32c(packed):
                    raise LaneCorruptError(f"frame header at {position} fails its checksum")
                if due is None:
                    due = sequence
                if (
                    size < lo.FRAME_BYTES
                    or size % lo.FRAME_ALIGN
                    or position % capacity + size > capacity
                    or position + size > tail
                    or length > size - lo.FRAME_BYTES
                    or sequence != due + len(found)
                ):
                    raise LaneCorruptError(
                        f"frame at {position} cannot be: {size} bytes, batch of {length}, sequence "
                        f"{sequence} where {due + len(found)} is due"
                    )
                position += size
                if kind == lo.KIND_PAD:
                    limit += size  # or one longer than `bytes_max` would hide the frame behind it
                    continue
                if kind != lo.KIND_DATA and kind not in self._kinds:
                    raise LaneCorruptError(f"frame at {position - size} has unknown kind {kind}")
                start = at + lo.FRAME_BYTES
                batch = view[start : start + length]
                frame = (page, sequence, epoch, batch, position, flags, kind)
                found.append(tuple.__new__(Frame, frame))  # `Frame()` is one more call
        except LaneCorruptError:
            if not found:
                raise  # else the next call does: what was published whole is drained first
        return found

    def finish(self, frames: Sequence[Frame], acks: Sequence[Ack]) -> None:
        """Answer `frames` (a prefix of what `frames()` gave), then give their room back."""
        tail = self._ack_tail
        whole = self._region.bytes
        for ack in acks:
            lo.ACK.pack_into(whole, lo.LANE_ACKS_AT + tail % lo.ACKS_MAX * lo.ACK.size, *ack)
            tail += 1
        self._ack_tail = tail
        q = self._q
        q[lo.Q_LANE_ACK_TAIL] = tail
        last = frames[-1]
        self._head_sequence = last.sequence + 1
        self._head = last.end
        q[lo.Q_LANE_HEAD_SEQUENCE] = last.sequence + 1
        q[lo.Q_LANE_HEAD] = last.end

    def publish_sleeping(self, ticket: int) -> None:
        self._q[lo.Q_LANE_WRITER_SLEEPING] = ticket

    def producer_ticket(self) -> int:
        """Non-zero while the producer sleeps; read it only after a fence."""
        return int(self._q[lo.Q_LANE_PRODUCER_SLEEPING])

    def detach(self) -> None:
        self._bytes.release()
        self._region.close()
