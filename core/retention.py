"""Chooses the oldest segments to remove, by time and by size. Only judges.

    by time   the newest append of the segment lies further back than the retention (rule 11: append
              time, never the producers'); the active segment too, which has to be rolled for that
    by size   the log without the segment still holds the wanted bytes; never the active segment

Whatever asks first, wins. Nothing at or above the high watermark goes. Records that a group has not
finished may be held: they go where the log with them is larger than a hard cap, and not before.
Owns these rules. Reads segments, changes nothing: the writer trims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.core.segment import last_batch, open_for_reading
from penstock.core.storage import Storage


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts about a segment that retention needs. `newest_append` is in microseconds since the
    epoch, None for a segment without a batch."""

    base: int
    end: int
    nbytes: int
    newest_append: int | None
    is_active: bool = False


@dataclass(frozen=True, slots=True)
class HeldRecords:
    """From `start` on records are held while their log has at most so many bytes."""

    start: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Expiry:
    """Let the log start at `log_start`; where that is its end, the trim closes the active segment
    first."""

    log_start: int
    segments: int
    nbytes: int
    by_time: int
    by_size: int


def segment_facts(
    storage: Storage,
    folder: str,
    bases: Sequence[int],
    log_end: int,
    valid_bytes: int,
    known: Mapping[int, SegmentFacts] | None = None,
) -> list[SegmentFacts]:
    """Returns the facts of all segments, oldest first. `bases` are their base offsets; the last one
    is active, with `valid_bytes`. Takes over the `known` facts of closed segments: leave out those
    that were compacted since.

    Costs a few reads for each segment that is not known. Raises `StorageError` where one is gone.
    """
    facts = []
    for base, end in pairwise((*bases, log_end)):
        is_active = base == bases[-1]
        fact = None if is_active or known is None else known.get(base)
        if fact is None or fact.end != end:
            fact = _look(storage, folder, base, end, valid_bytes if is_active else None)
        facts.append(fact)
    return facts


def _look(
    storage: Storage, folder: str, base: int, end: int, valid_bytes: int | None
) -> SegmentFacts:
    fd = open_for_reading(storage, folder, base)
    try:
        last = last_batch(storage, folder, base, fd, end, valid_bytes)
    finally:
        storage.close(fd)
    if last is None:
        return SegmentFacts(base, end, 0, None, valid_bytes is not None)
    position, head = last
    return SegmentFacts(
        base, end, position + head.length, head.append_timestamp, valid_bytes is not None
    )


def expired(
    facts: Sequence[SegmentFacts],
    now_us: int,
    *,
    high_watermark: int,
    retention_bytes: int | None,
    retention_us: int | None,
    held: HeldRecords | None = None,
) -> Expiry | None:
    """Returns the segments to remove now; None if there are none. Segments go in order, so the
    first one that stays keeps all behind it."""
    total = sum(fact.nbytes for fact in facts)
    gone: list[SegmentFacts] = []
    by_time = by_size = nbytes = 0
    for fact in facts:
        if fact.end > high_watermark or fact.newest_append is None:
            break
        if held is not None and fact.end > held.start and total - nbytes <= held.bytes_max:
            break
        if retention_us is not None and now_us - fact.newest_append > retention_us:
            by_time += 1
        elif (
            retention_bytes is not None
            and not fact.is_active
            and total - nbytes - fact.nbytes >= retention_bytes
        ):
            by_size += 1
        else:
            break
        nbytes += fact.nbytes
        gone.append(fact)
    if not gone:
        return None
    return Expiry(gone[-1].end, len(gone), nbytes, by_time, by_size)
