"""Which segments go, by time and by size; and that the facts it is judged by are true."""

from __future__ import annotations

import pytest
from unit.core.log_helpers import FOLDER, MemoryStorage, make_batch, open_log

from penstock.core.log import LogConfig
from penstock.core.retention import HeldRecords, SegmentFacts, expired, segment_facts
from penstock.core.segment import list_segments

CONFIG = LogConfig(
    segment_bytes=1024, index_interval_bytes=256, preallocate_bytes=4096, batch_bytes_max=2048
)
HOUR = 3_600_000_000


def log_of(times):
    """A log with one batch of two records and 256 bytes at each time."""
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG)
    for i, at in enumerate(times):
        log.append([make_batch(2 * i, records=2, body=128, timestamp=1)], at)
    return storage, log


def facts_of(storage, log, known=None):
    bases = list_segments(storage, FOLDER)
    return segment_facts(storage, FOLDER, bases, log.log_end, log.valid_bytes, known)


def judge(facts, now, *, bytes_kept=None, age=None, high_watermark=1 << 40):
    return expired(
        facts, now, high_watermark=high_watermark, retention_bytes=bytes_kept, retention_us=age
    )


def fact(base, newest, nbytes=100, *, is_active=False):
    return SegmentFacts(base, base + 10, nbytes, newest, is_active)


ROW = [fact(0, 100), fact(10, 200), fact(20, 300), fact(30, 400, is_active=True)]


def test_the_facts_are_those_of_the_batches():
    storage, log = log_of(range(100, 1000, 100))
    assert facts_of(storage, log) == [
        SegmentFacts(0, 8, 1024, 400),
        SegmentFacts(8, 16, 1024, 800),
        SegmentFacts(16, 18, 256, 900, True),
    ]
    log.roll(2000)
    assert facts_of(storage, log)[2:] == [
        SegmentFacts(16, 18, 256, 900),
        SegmentFacts(18, 18, 0, None, True),
    ]


def test_facts_hold_without_indexes_and_are_read_once():
    storage, log = log_of(range(100, 1000, 100))
    known = {fact.base: fact for fact in facts_of(storage, log)}
    for name in list(storage.names):
        if name.endswith(".index"):
            storage.unlink(name)
    assert {fact.base: fact for fact in facts_of(storage, log)} == known
    del storage.names[f"{FOLDER}/{0:020d}.log"]
    known[16] = SegmentFacts(16, 17, 1, 1, True)
    again = segment_facts(storage, FOLDER, [0, 8, 16], log.log_end, log.valid_bytes, known)
    assert again[0] is known[0]
    assert again[2] != known[16], "the active one is looked at each time"


@pytest.mark.rule(11)
@pytest.mark.parametrize(
    ("now", "age", "start"),
    [
        (150, 50, None),
        (151, 50, 10),
        (249, 50, 10),
        (251, 50, 20),
        (400, 99, 30),
        (1000, 9999, None),
    ],
)
def test_rule_11_time_is_the_newest_append(now, age, start):
    found = judge(ROW, now, age=age)
    assert (found and found.log_start) == start
    if found:
        assert (found.segments, found.by_time, found.by_size) == (start // 10, start // 10, 0)


def test_the_active_segment_expires_by_rolling_and_by_time_only():
    found = judge(ROW, 1000, age=10)
    assert found is not None
    assert (found.log_start, found.segments, found.nbytes) == (40, 4, 400)
    found = judge(ROW, 1000, bytes_kept=0)
    assert found is not None
    assert (found.log_start, found.by_size) == (30, 3)


@pytest.mark.parametrize(
    ("kept", "start"),
    [(401, None), (400, None), (301, None), (300, 10), (299, 10), (200, 20), (1, 30)],
)
def test_by_size_what_is_wanted_is_always_kept(kept, start):
    found = judge(ROW, 0, bytes_kept=kept)
    assert (found and found.log_start) == start


def test_both_together_take_what_either_asks_for():
    found = judge(ROW, 151, age=50, bytes_kept=200)
    assert found is not None
    assert (found.log_start, found.by_time, found.by_size) == (20, 1, 1)


def test_nothing_above_the_hw_goes():
    for high_watermark, start in ((9, None), (10, 10), (19, 10), (40, 40)):
        found = judge(ROW, 10_000, age=1, high_watermark=high_watermark)
        assert (found and found.log_start) == start


def test_an_old_segment_behind_a_young_one_waits():
    assert judge([fact(0, 900), fact(10, 100), fact(20, 950)], 1000, age=200) is None


@pytest.mark.parametrize(
    ("start", "bytes_max", "gone"),
    [(0, 400, 0), (9, 400, 0), (10, 400, 1), (25, 400, 2), (40, 400, 4), (0, 399, 1), (0, 250, 2),
     (10, 200, 2), (0, 1, 4)],
)  # fmt: skip
def test_what_is_held_stays_while_the_log_with_it_is_not_above_the_cap(start, bytes_max, gone):
    verdict = expired(
        ROW, 10_000, high_watermark=1 << 40, retention_bytes=None, retention_us=1,
        held=HeldRecords(start, bytes_max),
    )  # fmt: skip
    assert (0 if verdict is None else verdict.segments) == gone


def test_without_retention_nothing_goes():
    assert judge(ROW, 1 << 60) is None
    assert judge([], 5, age=1) is None
    assert judge([fact(0, None, 0, is_active=True)], 1 << 60, age=1) is None


def test_what_retention_says_the_trim_does():
    storage, log = log_of(i * HOUR for i in range(10))
    found = judge(facts_of(storage, log), 12 * HOUR, age=7 * HOUR)
    assert found is not None
    assert log.trim(found.log_start) == 8
    found = judge(facts_of(storage, log), 30 * HOUR, age=7 * HOUR)
    assert found is not None
    assert log.trim(found.log_start) == log.log_end == 20
    assert list_segments(storage, FOLDER) == [20]
    assert judge(facts_of(storage, log), 99 * HOUR, age=1) is None
