"""Dedup ids of a share group: columns against a model with one entry for each id; claims in the
machine, and what its log tells."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from seeds import seed_of

from penstock.cluster.shares import (
    ClaimedRecords,
    KnownEnds,
    ShareGroups,
    ShareLimits,
    SharePartition,
    SharePolicy,
    ShareSnapshot,
    claim,
    columns_of_ids,
    judged,
)
from penstock.cluster.shares import duplicates as dup
from penstock.cluster.shares import records as rec
from penstock.cluster.shares.dedup_ids import IdsSnapshot
from penstock.core.errors import ConfigError

WINDOW_US = 1000
MINUTE = 60_000_000
PLACE = (b"t" * 16, 0)


def longest(low: float, high: float) -> float:
    return high


class IdsModel:
    """For each id the offset and timestamp that stand for it: those with the newest timestamp."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, int]] = {}

    def judge(self, records: list[tuple[bytes, int, int]]) -> list[bool]:
        before, found = dict(self.known), []
        here: dict[bytes, list[int]] = {}
        for digest, offset, stamp in records:
            first, at = before.get(digest, (offset, stamp))
            firsts = here.setdefault(digest, [])
            is_double = first != offset and abs(at - stamp) <= WINDOW_US
            is_double = is_double or any(abs(one - stamp) <= WINDOW_US for one in firsts)
            found.append(is_double)
            if not is_double:
                firsts.append(stamp)
                if digest not in self.known or self.known[digest][1] < stamp:
                    self.known[digest] = offset, stamp
        return found


def columns(
    records: list[tuple[bytes, int, int]],
) -> tuple[dup.Digests, dup.Longs, dup.Longs]:
    digests, offsets, stamps = zip(*records, strict=True)
    return (
        np.frombuffer(b"".join(digests), dup.DIGEST),
        np.array(offsets, np.int64),
        np.array(stamps, np.int64),
    )


def _rows(
    some: tuple[dup.Digests, dup.Longs, dup.Longs], which: dup.Flags
) -> tuple[dup.Digests, dup.Longs, dup.Longs]:
    return some[0][which], some[1][which], some[2][which]


def entries(ids: dup.KnownIds) -> dict[bytes, tuple[int, int]]:
    """The newest place of each id."""
    found: dict[bytes, tuple[int, int]] = {}
    for digests, offsets, stamps in (ids.snapshot() or IdsSnapshot([])).parts:
        rows = zip(
            (digests[at : at + 16] for at in range(0, len(digests), 16)),
            np.frombuffer(offsets, np.int64).tolist(),
            np.frombuffer(stamps, np.int64).tolist(),
            strict=True,
        )
        for digest, offset, stamp in rows:
            if digest not in found or found[digest][1] < stamp:
                found[digest] = offset, stamp
    return found


def test_columns_know_what_a_model_of_single_ids_knows(monkeypatch):
    monkeypatch.setattr(dup, "RECENT_MAX", 16)
    draw = random.Random(seed_of("dedup ids"))
    seen: Counter[str] = Counter()
    for _ in range(15):
        # Also digests that end with zeros, or are one but for that.
        names = [draw.randbytes(draw.choice([1, 16])).ljust(16, b"\0") for _ in range(60)]
        ids, model, now = dup.KnownIds(), IdsModel(), 0
        log: list[tuple[bytes, int, int]] = []
        for _ in range(60):
            fresh = [
                (draw.choice(names), len(log) + at, now + draw.randint(-900, 900))
                for at in range(draw.randint(1, 9))
            ]
            log += fresh
            asked = sorted({*draw.sample(log, min(len(log), 2)), *fresh}, key=lambda it: it[1])
            found = ids.judge(*columns(asked), now, WINDOW_US, 1 << 20)
            doubles, expected = found.duplicates.tolist(), model.judge(asked)
            assert all(double or not told for double, told in zip(doubles, expected, strict=True))
            seen["duplicates"] += sum(doubles)
            seen["first"] += len(asked) - sum(doubles)
            if doubles != expected:
                break  # the place that another time has by now was still known
            ids.remember(*_rows(columns(asked), found.remembered))
            ids = dup.KnownIds(ids.snapshot())
            assert entries(ids) == model.known
            now += draw.randint(0, 400)
            seen["rounds"] += 1
    assert min(seen.values()) > 150, seen


def told(
    count: int, *, first: int = 0, stamp: int = 0, step: int = 1
) -> tuple[dup.Digests, dup.Longs, dup.Longs]:
    """So many ids, each once, in the order of time."""
    return columns(
        [((first + at).to_bytes(16, "big"), first + at, stamp + at * step) for at in range(count)]
    )


def remembered(
    ids: dup.KnownIds, new: tuple[dup.Digests, dup.Longs, dup.Longs], now_us: int, most: int
) -> dup.Judgement:
    found = ids.judge(*new, now_us, WINDOW_US, most)
    if found.forget_below is not None:
        ids.forget(found.forget_below)
    ids.remember(*_rows(new, found.remembered))
    return found


def test_too_many_ids_give_way_the_oldest_first_and_those_within_the_window_are_counted():
    ids = dup.KnownIds()
    assert remembered(ids, told(100), 10_000, 100).forget_below is None
    found = remembered(ids, told(10, first=100, stamp=5_000), 10_000, 100)
    assert (len(ids), found.forgotten) == (10, 0), "the others were outside of the window"
    remembered(ids, told(90, first=110, stamp=5_010), 10_000, 100)
    found = remembered(ids, told(5, first=200, stamp=5_100), 10_000, 100)
    assert (len(ids), found.forgotten) == (80, 25)
    again = ids.judge(*told(100, first=100, stamp=5_000), 10_000, WINDOW_US, 1000)
    assert not again.duplicates.any(), "of the same offset"
    assert again.remembered.tolist() == [True] * 25 + [False] * 75


def test_a_time_to_come_makes_nobody_else_forgotten():
    ids = dup.KnownIds()
    remembered(ids, told(100, stamp=5_000), 5_100, 150)
    remembered(ids, told(40, first=100, stamp=1 << 60), 5_100, 150)
    found = remembered(ids, told(10, first=150, stamp=5_100), 5_100, 150)
    assert (found.forget_below, len(ids)) == (None, 150)
    far = columns([(bytes(15) + b"\x01", 900, -(1 << 62)), (bytes(15) + b"\x02", 901, 1 << 62)])
    assert not ids.judge(*far, 5_100, WINDOW_US, 200).duplicates.any()


# --- in the machine -----------------------------------------------------------------------------
class Worked:
    """A machine and its log; claims of (id, minute) for offsets from the lease's first on."""

    def __init__(self, records: int, **limits: Any) -> None:
        self.machine = SharePartition(0, longest, ShareLimits(**limits))
        self.log: list[bytes] = []
        self.decided(self.machine.begin(records))

    def decided(self, decision: Any) -> Any:
        data = rec.encode(decision.deltas)
        for delta in rec.decode(data):
            self.machine.replay(delta)
        self.log.append(data)
        return decision.answer

    def lease(self, count: int) -> int:
        return int(self.decided(self.machine.lease(0, "ann", count)).lease)

    def claim(self, lease: int, first: int, *records: tuple[str, float]):
        columns = columns_of_ids(
            [(b"key", ident.encode()) for ident, _ in records],
            [int(minute * MINUTE) for _, minute in records],
        )
        runs = [(first, first + len(records))]
        return self.decided(judged(self.machine, 60 * MINUTE, lease, runs, *columns))

    def the_log_tells_the_state(self) -> None:
        again = SharePartition(0, longest, self.machine.limits)
        for data in self.log:
            for delta in rec.decode(data):
                again.replay(delta)
        assert again.snapshot() == self.machine.snapshot()
        data = msgspec.msgpack.encode(self.machine.snapshot())
        snapshot = msgspec.msgpack.decode(data, type=ShareSnapshot)
        assert SharePartition(snapshot, longest).snapshot() == self.machine.snapshot()


def test_of_one_id_the_first_is_handed_out_and_the_others_are_done():
    work = Worked(7)
    lease = work.lease(7)
    answer = work.claim(
        lease, 0, ("a", 0), ("b", 0), ("a", 9.99), ("a", 10.01), ("b", 1), ("a", 20.1), ("c", -9)
    )
    assert (answer.withheld, answer.duplicates) == (((2, 3), (4, 5)), 2)
    assert work.machine.counts()["leased"] == 5
    assert len(work.machine._state.ids) == 3
    work.the_log_tells_the_state()
    work.decided(work.machine.accept(lease, [(0, 2), (3, 4), (5, 7)]))
    assert work.machine.floor == 7


def test_the_first_of_an_id_stays_the_first_whatever_became_of_it():
    work = Worked(4, max_deliveries=2)
    lease = work.lease(1)
    work.claim(lease, 0, ("a", 0))
    work.decided(work.machine.fail(0, lease, [(0, 1)], "no", 0.0))
    again = work.lease(1)
    assert work.claim(again, 0, ("a", 0)).withheld == ()
    work.decided(work.machine.fail(0, again, [(0, 1)], "no"))
    assert work.machine.counts()["condemned"] == 1
    other = work.lease(2)
    assert work.claim(other, 1, ("a", 1), ("b", 1)).withheld == ((1, 2),)
    assert work.claim(lease, 3, ("c", 1)).withheld == ((3, 4),), "it has no such record"
    assert len(work.machine._state.ids) == 2
    work.the_log_tells_the_state()


def test_a_seek_forgets_what_comes_again_and_knows_what_stands_before():
    work = Worked(4)
    lease = work.lease(4)
    work.claim(lease, 0, ("a", 0))
    work.claim(lease, 2, ("b", 0))  # by another worker, before this one
    assert work.claim(lease, 1, ("b", 0)).withheld == ((1, 2),)
    work.decided(work.machine.seek(1))
    work.decided(work.machine.begin(4))
    lease = work.lease(3)
    assert work.claim(lease, 1, ("b", 0), ("b", 0), ("a", 0)).withheld == ((2, 4),)
    work.the_log_tells_the_state()


def test_no_window_delivers_all_and_bytes_that_do_not_fit_are_refused():
    work = Worked(3, dedup_window=0.0)
    lease = work.lease(3)
    assert work.claim(lease, 0, ("a", 0), ("a", 0)).withheld == ()
    assert len(work.machine._state.ids) == 0
    with pytest.raises(ConfigError, match=r"16 bytes of digests and 8 of timestamps for 2 records"):
        judged(work.machine, 0, lease, [(0, 2)], bytes(16), bytes(8))


def test_a_group_counts_duplicates_and_takes_no_claim_for_anothers_lease():
    groups = ShareGroups(longest)

    def decided(decision):
        for record in decision.records:
            groups.replay(record)
        return decision.answer

    decided(groups.configure("g", SharePolicy(dedup_window=60.0)))
    ends = [KnownEnds(PLACE, 0, 3)]
    got = decided(groups.acquire(1.0, "g", "ann", 3, ends, {PLACE[0]}))
    lease = got.granted[0].granted.lease
    columns = columns_of_ids([(None, b"a"), (b"", b"a"), (None, b"a")], [0, 0, MINUTE])
    claimed = ClaimedRecords(PLACE, lease, ((0, 3),), *columns)
    assert decided(claim(groups, 1.0, "g", "bob", claimed)).withheld == ((0, 3),)
    assert decided(claim(groups, 1.0, "g", "ann", claimed)).withheld == ((2, 3),)
    assert groups.counts("g")["duplicates"] == 1
    [(_, machine)] = groups.partitions("g")
    assert machine.counts()["leased"] == 2
    assert decided(claim(groups, 1.0, "none", "ann", claimed)).withheld == ((0, 3),)
