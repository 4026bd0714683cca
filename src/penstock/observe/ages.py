"""The append time of the record at an offset: the lag of a consumer in seconds.

There are two sources. For records appended while a tool watched, the samples tell. Between two of
them the high watermark moved, and offsets in between are taken to have come evenly. Older records
are looked up in the log, in bounded time; the result serves until the consumer has passed that
batch.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.core.errors import PenstockError
from penstock.core.lookup import header_at
from penstock.core.storage import Storage
from penstock.observe.sample import Sample

LOOKS_MAX: Final = 600
"""Movements of a high watermark that are remembered for each partition."""
BUDGET: Final = 0.01
"""Seconds of looking up in logs for each refresh. Positions beyond it keep their last answer."""

Log = tuple[str, int]  # topic id, partition


class LogPosition(NamedTuple):
    """A position in a log: `who` tells readers of the same log apart."""

    who: int
    log: Log
    folder: str
    offset: int


class _Seen:
    """One high watermark's movements: it reached `ends[i]` between `since[i]` and `until[i]`."""

    __slots__ = ("ends", "last_look", "since", "until")

    def __init__(self, end: int, now: float) -> None:
        self.ends, self.since, self.until = [end], [now], [now]
        self.last_look = now

    def note(self, end: int, now: float) -> None:
        if end > self.ends[-1]:
            self.ends.append(end)
            self.since.append(self.last_look)
            self.until.append(now)
            if len(self.ends) > LOOKS_MAX:
                for rows in (self.ends, self.since, self.until):
                    del rows[: LOOKS_MAX // 2]
        self.last_look = now

    def time_of(self, offset: int) -> float | None:
        i = bisect_right(self.ends, offset)
        if not 0 < i < len(self.ends):
            return None
        low, high = self.ends[i - 1], self.ends[i]
        part = (offset - low + 1) / (high - low)
        return self.since[i] + part * (self.until[i] - self.since[i])


class _Found(NamedTuple):
    """A batch met in the log, and when it was looked up."""

    base: int
    end: int
    appended: float
    looked: float


class Ages:
    """Times of appends, in seconds since the epoch."""

    def __init__(self, storage: Storage | None = None) -> None:
        self._storage = storage or Storage()
        self._seen: dict[Log, _Seen] = {}
        self._found: dict[tuple[int, Log], _Found] = {}

    def look(self, log: Log, high_watermark: int, now: float) -> None:
        """Notes how far a log is at a refresh."""
        seen = self._seen.get(log)
        if seen is None or high_watermark < seen.ends[-1]:  # cut after a crash of the host
            self._seen[log] = _Seen(high_watermark, now)
        else:
            seen.note(high_watermark, now)

    def follow(self, sample: Sample) -> None:
        """Notes how far every log is, and forgets those that are gone."""
        ends = {
            (part.topic_id, part.partition): part.high_watermark
            for part in sample.partitions.values()
        }
        for log, high_watermark in ends.items():
            self.look(log, high_watermark, sample.time)
        self.keep(set(ends))

    def keep(self, logs: set[Log]) -> None:
        """Forgets all logs but these."""
        for log in self._seen.keys() - logs:
            del self._seen[log]
        for key in [key for key in self._found if key[1] not in logs]:
            del self._found[key]

    def times(
        self, places: Iterable[LogPosition], budget: float = BUDGET
    ) -> dict[LogPosition, float]:
        """Returns the append times of the records at these places, without those that are not
        known."""
        known: dict[LogPosition, float] = {}
        open_: list[LogPosition] = []
        for place in places:
            seen = self._seen.get(place.log)
            at = seen.time_of(place.offset) if seen is not None else None
            if at is None:
                found = self._found.get((place.who, place.log))
                if found is None or not found.base <= place.offset < found.end:
                    open_.append(place)
                if found is None:
                    continue
                at = found.appended
            known[place] = at
        open_.sort(key=self._looked)  # those that have waited longest are first
        deadline = time.monotonic() + budget
        for place in open_:
            if time.monotonic() >= deadline:
                break
            self._look_up(place, known)
        return known

    def _looked(self, place: LogPosition) -> float:
        found = self._found.get((place.who, place.log))
        return 0.0 if found is None else found.looked

    def _look_up(self, place: LogPosition, known: dict[LogPosition, float]) -> None:
        try:
            head = header_at(self._storage, place.folder, place.offset)
        except (PenstockError, OSError):  # the segment went away: retention, a deleted topic
            head = None
        if head is not None:
            known[place] = head.append_timestamp / 1e6
            self._found[place.who, place.log] = _Found(
                head.base_offset, head.next_offset, head.append_timestamp / 1e6, time.monotonic()
            )
