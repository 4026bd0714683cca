"""Producers that are long silent are forgotten with a snapshot, unless they have a lane."""

from __future__ import annotations

import pytest
from unit.core.log_helpers import MemoryStorage, errors, make_batch, open_log, opened

from penstock.core.errors import ErrorCode

DAYS = 24 * 3600 * 1_000_000


@pytest.mark.rule(3)
def test_rule_3_producers_without_a_lane_are_forgotten_after_7_days():
    storage = MemoryStorage()
    lanes = {2}
    log, _ = open_log(storage, attached=lambda: lanes)
    for producer in (1, 2, 3):
        log.append([make_batch(0, producer=producer)], 5 + producer)
    log.append([make_batch(1, producer=3)], 7 * DAYS)
    log.snapshot()
    assert [log.producers.next_sequence(p) for p in (1, 2, 3)] == [(0, 1), (0, 1), (0, 2)]
    log.append([make_batch(2, producer=3)], 7 * DAYS + 100)
    log.snapshot()
    assert [log.producers.next_sequence(p) for p in (1, 2, 3)] == [None, (0, 1), (0, 3)]
    assert errors(log.append([make_batch(1, producer=1)], 9 * DAYS)) == [ErrorCode.UNKNOWN_PRODUCER]
    log.close(clean=True)
    again, _ = open_log(storage, node_clean=True, published=log.log_end)
    assert again.producers.next_sequence(1) is None


@pytest.mark.rule(3)
def test_rule_3_nobody_is_forgotten_where_lanes_are_not_known():
    _, log = opened()
    log.append([make_batch(0, producer=1)], 5)
    log.append([make_batch(0, producer=2)], 70 * DAYS)
    log.snapshot()
    assert log.producers.next_sequence(1) == (0, 1)


@pytest.mark.rule(3)
def test_rule_3_producers_are_not_forgotten_for_a_clock_that_jumps():
    """Append times follow the wall clock; what is believed does not."""
    believed = [5]
    log, _ = open_log(MemoryStorage(), attached=set, believed_us=lambda: believed[0])
    for producer in (1, 2):
        log.append([make_batch(0, producer=producer)], 5 + producer)
    log.append([make_batch(1, producer=2)], 3650 * DAYS)
    log.snapshot()
    assert log.producers.next_sequence(1) == (0, 1)
    believed[0] = 7 * DAYS + 7
    log.snapshot()
    assert log.producers.next_sequence(1) is None
    assert log.producers.next_sequence(2) == (0, 2)
