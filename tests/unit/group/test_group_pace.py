"""How long runs are: a tenth of a second of work, without anything done for each record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consumer.group.run_length import GROWTH, RECORDS_MAX, RUN_SECONDS, RunPace


def work(pace, seconds_per_record, runs):
    for _ in range(runs):
        pace.note(pace.records, pace.records * seconds_per_record)


def test_the_first_run_is_one_record_and_a_fast_loop_gets_whole_batches_soon():
    pace = RunPace()
    assert pace.records == 1
    work(pace, 1e-6, 9)
    assert pace.records > 50_000


@given(st.floats(1e-9, 10.0))
def test_runs_settle_at_a_tenth_of_a_second_or_one_record(seconds_per_record):
    pace = RunPace()
    work(pace, seconds_per_record, 20)
    taken = pace.records * seconds_per_record
    assert pace.records == 1 or taken <= RUN_SECONDS * 1.001
    assert taken * GROWTH > RUN_SECONDS * 0.5 or pace.records == RECORDS_MAX


def test_a_loop_that_turns_slow_gets_short_runs_at_once():
    pace = RunPace()
    work(pace, 1e-6, 9)
    work(pace, 0.05, 1)
    assert pace.records == 2


def test_a_clock_that_stands_still_is_no_division_by_zero():
    pace = RunPace()
    work(pace, 0.0, 30)
    assert pace.records == RECORDS_MAX
