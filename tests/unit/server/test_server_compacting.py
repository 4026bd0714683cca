"""What the cleaner asks to be compacted: no more than is stable, durable, and old enough."""

from __future__ import annotations

import errno
import time
from typing import Any

import pytest
from partition_fixture import Partition
from unit.core.log_helpers import FOLDER, TOPIC, Call, MemoryStorage, refuse

from penstock.core.header import ATTR_CONTROL, ATTR_TRANSACTIONAL
from penstock.core.segment import list_segments
from penstock.ipc import messages as ms
from penstock.ipc.cleaning import prepared
from penstock.server.cleaner.compaction import compact
from penstock.server.cleaner.retention import CleanedPartition as Cleaned


class Cleaner:
    """One partition, and the cleaner that looks at it."""

    def __init__(self, **settings: Any) -> None:
        self.at = Partition(700)
        self.at.clock = time.time_ns() // 1000
        topic = ms.TopicInfo("t", TOPIC, [2], ms.TopicSettings(cleanup="compact", **settings))
        self.partition = Cleaned(topic, 0, self.at.page, FOLDER)
        self.swaps: list[int] = []

    def swap(self, order: ms.SwapSegments) -> ms.Cleaned:
        segment = order.segment
        freed = self.at.role.swap(prepared(segment), order.records, self.at.clock)
        if segment.sources:
            self.swaps.append(segment.base)
        return ms.Cleaned(freed.log_start, freed.segments, freed.nbytes, freed.done)

    def look(self) -> None:
        compact(self.partition, self.at.storage, self.swap, lambda _: None, time.time_ns() // 1000)

    def overwrite(self, times: int = 12) -> None:
        """The same keys again and again."""
        for _ in range(times):
            self.at.count = 0
            self.at.write(9, 5)


def test_what_is_due_is_compacted() -> None:
    made = Cleaner(min_dirty_ratio=0.0)
    made.overwrite()
    made.at.sync()
    before = len(list_segments(made.at.storage, FOLDER))
    made.look()
    assert made.swaps
    assert len(list_segments(made.at.storage, FOLDER)) < before
    offsets = [offset for offset, _ in made.at.read("read_uncommitted")]
    assert len(offsets) < 60
    assert offsets[-5:] == [55, 56, 57, 58, 59]


def test_min_compaction_lag_is_kept() -> None:
    made = Cleaner(min_dirty_ratio=0.0, min_compaction_lag=3600.0)
    made.overwrite()
    made.at.sync()
    for _ in range(2):
        made.look()
        assert made.swaps == []
    older = Cleaner(min_dirty_ratio=0.0, min_compaction_lag=3600.0)
    older.at.clock -= 3_700_000_000
    older.overwrite()
    older.at.sync()
    older.look()
    assert older.swaps


def test_what_is_little_waits_for_more() -> None:
    made = Cleaner(min_dirty_ratio=0.9)
    made.overwrite()
    made.at.sync()
    made.look()
    swaps = len(made.swaps)
    assert swaps
    made.overwrite(3)
    made.at.sync()
    made.look()
    assert len(made.swaps) == swaps


@pytest.mark.rule(21)
def test_rule_21_nothing_that_is_not_durable_is_asked_for() -> None:
    made = Cleaner(min_dirty_ratio=0.0)
    made.overwrite()
    assert made.at.page.durable < made.at.page.log_end
    made.look()
    assert made.swaps == []
    made.at.sync()
    made.look()
    assert made.swaps


def no_notes(call: Call) -> None:
    if call.path.endswith(".txn"):
        refuse(call, errno.EMFILE)


@pytest.mark.rule(21)
def test_rule_21_an_abort_that_is_not_noted_yet_is_not_taken_for_a_commit() -> None:
    """The last stable offset is held back until readers can tell: so is compaction, which would
    take the aborted records for good ones."""
    made = Cleaner(min_dirty_ratio=0.0)
    at = made.at
    assert isinstance(at.storage, MemoryStorage)
    at.begin(1)
    at.write(1, 5)
    at.storage.fault = no_notes
    at.end(1, committed=False)
    made.overwrite(3)
    at.sync()
    assert at.page.last_stable == 0 < at.page.durable
    made.look()
    assert made.swaps == []
    at.storage.fault = None
    at.role.tick(99.0, at.clock)
    assert at.page.last_stable == at.page.log_end
    at.sync()
    made.look()
    assert made.swaps
    heads = [head for head, _ in at.role._log.read(0, 1 << 20)]
    open_data = ATTR_TRANSACTIONAL | ATTR_CONTROL
    assert all(head.attributes & open_data != ATTR_TRANSACTIONAL for head in heads)
    left = at.read("read_uncommitted")
    assert heads
    assert left
    assert all(offset > 5 for offset, _ in left)
