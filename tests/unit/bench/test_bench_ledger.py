"""The account of a run counts exactly what went wrong, whatever the pool's length."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.ledger import Account, Ledger, settle, stamps_of
from penstock.bench.payload import cycled, lists_of, make_pool

POOL = 64


def stamp(producer: int, number: int) -> int:
    return producer << 48 | number % POOL


def stamps(producer: int, numbers: list[int]) -> np.ndarray:
    return np.array([stamp(producer, number) for number in numbers], np.uint64)


def account(totals: list[int], arrivals: list[tuple[int, int, list[int]]]) -> Account:
    """Of pieces (partition, producer, numbers) as they came."""
    ledger = Ledger(totals, POOL)
    for partition, producer, numbers in arrivals:
        if numbers:
            ledger.add(partition, stamps(producer, numbers))
    return settle([ledger.close()])


def test_everything_once_and_in_order_is_clean():
    found = account([200], [(0, 0, list(range(150))), (0, 0, list(range(150, 200)))])
    assert found == Account(received=200, lost=0, doubled=0, out_of_order=0, foreign=0)
    assert found.is_clean


def test_lost_records_are_counted_in_the_middle_and_at_the_end():
    found = account([200], [(0, 0, list(range(70))), (0, 0, list(range(80, 195)))])
    assert (found.lost, found.doubled, found.out_of_order) == (15, 0, 0)


def test_a_whole_pool_that_is_lost_is_not_overlooked():
    found = account([200], [(0, 0, list(range(50))), (0, 0, list(range(50 + POOL, 200)))])
    assert found.lost == POOL


def test_a_repeated_run_counts_as_doubled():
    found = account([200], [(0, 0, list(range(100))), (0, 0, list(range(90, 200)))])
    assert (found.lost, found.doubled) == (0, 10)


def test_swapped_runs_count_as_out_of_order():
    runs = [list(range(20)), list(range(30, 40)), list(range(20, 30)), list(range(40, 100))]
    found = account([100], [(0, 0, run) for run in runs])
    assert (found.lost, found.doubled, found.out_of_order) == (0, 0, 10)


def test_a_record_nobody_sent_is_foreign():
    found = account([10], [(0, 0, list(range(10))), (0, 7, [3])])
    assert (found.lost, found.foreign) == (0, 1)
    assert not found.is_clean


def test_consumers_share_partitions_and_producers_share_a_partition():
    first, second = Ledger([100, 100], POOL), Ledger([100, 100], POOL)
    mixed = np.concatenate([stamps(0, list(range(50))), stamps(1, list(range(50)))])
    first.add(0, mixed)
    second.add(1, stamps(1, list(range(50, 100))))
    second.add(1, stamps(0, list(range(50, 100))))
    assert settle([first.close(), second.close()]).is_clean


def test_the_same_record_at_two_consumers_is_doubled():
    first, second = Ledger([10], POOL), Ledger([10], POOL)
    first.add(0, stamps(0, list(range(10))))
    second.add(1, stamps(0, [4]))
    assert settle([first.close(), second.close()]).doubled == 1


@given(
    total=st.integers(1, 400),
    faults=st.lists(
        st.tuples(
            st.sampled_from(["drop", "repeat", "swap"]), st.integers(0, 400), st.integers(1, 10)
        ),
        max_size=3,
    ),
    piece=st.integers(1, 50),
)
def test_counts_are_those_of_a_plain_count(total, faults, piece):
    arrived = list(range(total))
    for fault, at, length in faults:
        start = at % max(1, len(arrived))
        if fault == "drop":
            del arrived[start : start + length]
        elif fault == "repeat":
            arrived[start:start] = arrived[start : start + length]
        else:
            middle = start + length // 2
            arrived[start : start + length] = (
                arrived[middle : start + length] + arrived[start:middle]
            )
    pieces = [(0, 0, arrived[at : at + piece]) for at in range(0, len(arrived), piece)]
    found = account([total], pieces)
    counts = Counter(arrived)
    top, behind = -1, 0
    for number in arrived:
        behind += number < top
        top = max(top, number)
    assert found.received == len(arrived)
    assert found.lost == total - len(counts)
    assert found.doubled == len(arrived) - len(counts)
    assert found.out_of_order == behind
    assert found.foreign == 0


@pytest.mark.parametrize("records", [5, 64, 200])
def test_values_go_round_the_pool_alike_one_by_one_and_in_lists(records):
    pool = make_pool(3, POOL, 40)
    singly = list(cycled(pool, records))
    together = [value for values in lists_of(pool, 16, records) for value in values]
    assert singly == together
    assert len(set(pool)) == POOL
    assert {len(value) for value in pool} == {40}
    assert stamps_of(singly).tolist() == [stamp(3, number) for number in range(records)]
