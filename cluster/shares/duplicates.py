"""The dedup ids of records that a share group has begun with in a partition, for some time.

**Theory.** A worker that has read a record with a dedup id asks before it hands the record out:
the coordinator never sees records. An id is a digest of 16 bytes of the record's key and id. The
first record of an id that is asked about is delivered, and stays the first whatever becomes of it.
Others of the id are done at once where their timestamps are at most a window away from the first
one's. A record that is asked about again, after a delivery that failed, is still the first.

**Layout.** Columns of digests, offsets and timestamps, 32 bytes a record, in the order of digests:
a large part, and a small one that new ids go to until it is merged. No step per record. An id has
one place, which the record with the newest timestamp has. A node loads this, and numpy, with the
first id.

**Bound.** Where there are too many ids those with the oldest timestamps are forgotten: such as lie
outside of the window, and if that does not suffice a quarter of all. The decision says what is
forgotten, so that the log tells the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.cluster.shares import records as rec
from penstock.cluster.shares.dedup_ids import DIGEST_BYTES, IdsSnapshot
from penstock.cluster.shares.limits import ShareLimits
from penstock.cluster.shares.runs import Run, Runs, packed, unpacked

DIGEST: Final = np.dtype(f"S{DIGEST_BYTES}")
RECENT_MAX: Final = 8192
"""Ids in the small part: what an insertion copies."""

Digests = npt.NDArray[np.bytes_]
Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Judgement(NamedTuple):
    """Of records that were asked about: which are duplicates, which others are to be remembered,
    and the timestamp below which ids are forgotten first (None: none is). `forgotten`: how many of
    these were within the window."""

    duplicates: Flags
    remembered: Flags
    forget_below: int | None
    forgotten: int


class _Part(NamedTuple):
    """Columns in the order of `digests`, each of which is there once."""

    digests: Digests
    offsets: Longs
    stamps: Longs

    def find(self, digests: Digests) -> tuple[Flags, Longs]:
        """Which of these are there, and where (anywhere for those that are not)."""
        if not len(self.digests):
            return np.zeros(len(digests), np.bool_), np.zeros(len(digests), np.int64)
        at = np.minimum(np.searchsorted(self.digests, digests), len(self.digests) - 1)
        return self.digests[at] == digests, at

    def of_rows(self, rows: Flags | Longs) -> _Part:
        return _Part(self.digests[rows], self.offsets[rows], self.stamps[rows])

    def joined(self, other: _Part) -> _Part:
        """The rows of both. Of an id that both have `other` has the place."""
        known, _ = other.find(self.digests)
        kept = self.of_rows(~known)
        at = np.searchsorted(kept.digests, other.digests)
        return _Part(*(np.insert(one, at, more) for one, more in zip(kept, other, strict=True)))


NOTHING: Final = _Part(np.zeros(0, DIGEST), np.zeros(0, np.int64), np.zeros(0, np.int64))


class KnownIds:
    """The ids of one group in one partition. `judge` decides; `remember`, `forget` and
    `forget_from` change what is so."""

    def __init__(self, snapshot: IdsSnapshot | None = None) -> None:
        self._main, self._recent = NOTHING, NOTHING
        self._looked_at = 2 * RECENT_MAX
        """Ids at which those outside of the window are looked for; volatile."""
        if snapshot is not None:
            self._main, self._recent = (_part(*columns) for columns in snapshot.parts)

    def __len__(self) -> int:
        return len(self._main.digests) + len(self._recent.digests)

    def snapshot(self) -> IdsSnapshot | None:
        """All of it; None where there is nothing."""
        if not len(self):
            return None
        return IdsSnapshot(
            [
                (one.digests.tobytes(), one.offsets.tobytes(), one.stamps.tobytes())
                for one in (self._main, self._recent)
            ]
        )

    # --- deciding ---
    def judge(
        self,
        digests: Digests,
        offsets: Longs,
        stamps: Longs,
        now_us: int,
        window_us: int,
        most: int,
    ) -> Judgement:
        """Records in the order of their offsets. At most `most` ids are known after that."""
        duplicates = np.zeros(len(digests), np.bool_)
        remembered = np.ones(len(digests), np.bool_)
        for part in (self._main, self._recent):
            if not len(part.digests):
                continue
            there, at = part.find(digests)
            is_other = part.offsets[at] != offsets
            duplicates |= there & is_other & (_apart(stamps, part.stamps[at]) <= window_us)
            remembered &= ~(there & (part.stamps[at] >= stamps))
        self._judge_among_themselves(digests, stamps, window_us, duplicates)
        remembered &= ~duplicates
        below, forgotten = self._room(
            int(np.count_nonzero(remembered)), stamps, now_us, window_us, most
        )
        return Judgement(duplicates, remembered, below, forgotten)

    def _judge_among_themselves(
        self, digests: Digests, stamps: Longs, window_us: int, duplicates: Flags
    ) -> None:
        """Marks those near the first one of their id, then those near the first of the others, and
        so on."""
        left = np.flatnonzero(~duplicates)
        while len(left):
            _, first, which = np.unique(digests[left], return_index=True, return_inverse=True)
            if len(first) == len(left):
                return
            near_to = left[first][which]
            others = near_to != left
            near = others & (_apart(stamps[left], stamps[near_to]) <= window_us)
            duplicates[left[near]] = True
            left = left[others & ~near]

    def _room(
        self, more: int, stamps: Longs, now_us: int, window_us: int, most: int
    ) -> tuple[int | None, int]:
        """Returns the timestamp below which ids go so that others have room, and how many of those
        are within the window."""
        wanted = len(self) + more
        if wanted <= min(most, self._looked_at) or not more:
            return None, 0
        known = np.concatenate((self._main.stamps, self._recent.stamps))
        newest = min(now_us, int(stamps.max()))  # a time to come is no reason to forget others
        outside = newest - window_us
        kept = int(np.count_nonzero(known >= outside))
        self._looked_at = max(2 * RECENT_MAX, 2 * (kept + more))
        if kept + more <= most:
            return outside, 0
        leave = max(0, min(most - more, most * 3 // 4))
        below = int(np.sort(known)[len(known) - leave - 1]) + 1
        return below, kept - int(np.count_nonzero(known >= below))

    def claimed(
        self,
        now_us: int,
        asked: Runs,
        held: Runs,
        columns: tuple[bytes, bytes],
        limits: ShareLimits,
    ) -> tuple[rec.IdsClaimed | None, Runs, int]:
        """Of records that were asked about, with digests and timestamps, those that are held: the
        delta that remembers the first ones, the duplicates, and how many other ids had to give way
        within the window."""
        offsets, (digests, stamps) = _offsets_of(asked), _columns_of(*columns)
        rows = np.isin(offsets, _offsets_of(held), assume_unique=True)
        offsets, digests, stamps = offsets[rows], digests[rows], stamps[rows]
        found = self.judge(
            digests, offsets, stamps, now_us, int(limits.dedup_window * 1e6), limits.dedup_ids_max
        )
        delta, new = None, found.remembered
        if new.any():
            delta = rec.IdsClaimed(
                packed(_runs_of(offsets[new])), digests[new].tobytes(), stamps[new].tobytes(),
                found.forget_below,
            )  # fmt: skip
        return delta, _runs_of(offsets[found.duplicates]), found.forgotten

    # --- what changes it ---
    def replay(self, delta: rec.IdsClaimed) -> None:
        if delta.forget_below is not None:
            self.forget(delta.forget_below)
        digests, stamps = _columns_of(delta.digests, delta.stamps)
        self.remember(digests, _offsets_of(unpacked(delta.runs)), stamps)

    def remember(self, digests: Digests, offsets: Longs, stamps: Longs) -> None:
        """These are the first ones of their ids. Where an id is named twice the newest counts."""
        order = np.lexsort((stamps, digests))
        last = np.ones(len(order), np.bool_)
        last[:-1] = digests[order][1:] != digests[order][:-1]
        rows = order[last]
        new = _Part(digests[rows], offsets[rows], stamps[rows])
        self._recent = self._recent.joined(new)
        if len(self._recent.digests) > RECENT_MAX:
            self._merge()

    def forget(self, below_us: int) -> None:
        """Forgets ids with older timestamps than that."""
        self._merge()
        self._main = self._main.of_rows(self._main.stamps >= below_us)

    def forget_from(self, offset: int) -> None:
        """Forgets the records from that offset on: they are delivered again."""
        self._main = self._main.of_rows(self._main.offsets < offset)
        self._recent = self._recent.of_rows(self._recent.offsets < offset)

    def _merge(self) -> None:
        self._main, self._recent = self._main.joined(self._recent), NOTHING


def _columns_of(digests: bytes, stamps: bytes) -> tuple[Digests, Longs]:
    """Columns as they travel: 16 bytes and 8 bytes (little-endian) for each record."""
    return np.frombuffer(digests, DIGEST), np.frombuffer(stamps, "<i8").astype(np.int64)


def _offsets_of(runs: Sequence[Run]) -> Longs:
    """All offsets of these runs."""
    parts = [np.arange(first, end, dtype=np.int64) for first, end in runs]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _runs_of(offsets: Longs) -> Runs:
    """Ascending offsets as runs."""
    if not len(offsets):
        return ()
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    firsts = offsets[np.concatenate(([0], breaks + 1))]
    lasts = offsets[np.concatenate((breaks, [len(offsets) - 1]))]
    return tuple(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _part(digests: bytes, offsets: bytes, stamps: bytes) -> _Part:
    return _Part(
        np.frombuffer(digests, DIGEST), np.frombuffer(offsets, np.int64),
        np.frombuffer(stamps, np.int64),
    )  # fmt: skip


def _apart(some: Longs, others: Longs) -> Longs:
    """How far these times lie apart; of those that no number tells, very far."""
    apart: Longs = np.abs(np.clip(some, -_FAR, _FAR) - np.clip(others, -_FAR, _FAR))
    return apart


_FAR: Final = 1 << 61
