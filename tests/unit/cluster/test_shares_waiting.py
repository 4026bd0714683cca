"""Records that wait: their order, and what they take, in memory and in a log."""

from __future__ import annotations

import itertools
import random

import pytest
from seeds import seed_of

from penstock.cluster.shares import ShareLimits, SharePartition, waiting
from penstock.cluster.shares import records as rec
from penstock.cluster.shares.waiting import WaitingRecords, WaitingRun, entry, record_of, runs_in
from penstock.cluster.shares.window import BLOCK, READY_MAX
from penstock.core.errors import ResourceLimitError
from penstock.core.work import TIME_MAX

OFFSET_MAX = 2**63 - 2
NOW = 1_764_000_000_000_000
HOUR = 3_600_000_000


class StoredRuns:
    """A log's part of it: runs by number, each written once."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}
        self.numbers = itertools.count(1)

    def again(self, records: WaitingRecords) -> WaitingRecords:
        """The same, as a log has it."""
        image = records.image(self.numbers)
        assert not image.fresh.keys() & self.data.keys(), "a run is written once"
        self.data |= image.fresh
        runs: dict[int, WaitingRun] = {}
        for number, data in self.data.items():
            [runs[number]] = runs_in(data)
            runs[number].number = number
        return WaitingRecords(image.loose, [*waiting.named_runs(image.runs, runs)])


def drawn(draw: random.Random, now: int) -> int:
    span = draw.choice((10, HOUR, 10_000 * HOUR))
    offset = draw.choice((1 << 10, 1 << 20, OFFSET_MAX))
    return entry(now + draw.randrange(span), draw.randrange(offset), draw.choice((0, 0, 1, 255)))


@pytest.mark.parametrize("number", range(6))
def test_they_come_in_the_order_of_their_times_however_they_are_kept(monkeypatch, number):
    monkeypatch.setattr(waiting, "LOOSE_MAX", 24)
    draw = random.Random(seed_of(f"waiting {number}"))
    records, stored, model, now, runs = WaitingRecords(), StoredRuns(), list[int](), NOW, 0
    floor = 0
    for _ in range(300):
        match draw.randrange(5):
            case 0 | 1:
                new = [drawn(draw, now) for _ in range(draw.randrange(12))]
                records.add(new)
                model = sorted([*model, *new])
            case 2:
                now += draw.choice((1, HOUR, 10_000 * HOUR))
            case 3:
                due = sum(each >> 72 <= now for each in model)
                most = draw.choice((3, 1000))
                assert records.due(now, most) == min(due, most)
                taken = draw.randint(0, min(due, most))
                assert records.take(taken) == model[:taken]
                model = model[taken:]
            case 4:
                records = stored.again(records)
                runs = len(stored.data)
        assert len(records) == len(model)
        assert records.first_due_us == (model[0] >> 72 if model else None)
        floor = min(record_of(each).offset for each in model) if model else 0
        assert (records.offset_min or 0) <= floor
    assert [*records] == model
    assert [*WaitingRecords(records.data())] == model
    assert runs > 10


def test_who_waits_at_the_ends_of_all_ranges_waits_as_it_is():
    ends = [
        entry(due, offset, deliveries)
        for due in (0, NOW, TIME_MAX)
        for offset in (0, OFFSET_MAX)
        for deliveries in (0, 255)
    ]
    records = WaitingRecords()
    records.add(reversed(ends))
    again = WaitingRecords(records.data())
    assert again.take(len(ends)) == ends
    assert record_of(ends[-1]) == (TIME_MAX, OFFSET_MAX, 255)


def test_the_soonest_come_first_and_of_these_the_oldest():
    records = WaitingRecords()
    records.add([entry(9, 5, 0), entry(9, 4, 1), entry(8, 7, 0)])
    assert records.due(8, 10) == 1
    assert records.due(7, 10) == 0
    assert [record_of(each)[:2] for each in records.take(3)] == [(8, 7), (9, 4), (9, 5)]


def test_a_record_that_waits_takes_eight_bytes(monkeypatch):
    monkeypatch.setattr(waiting, "LOOSE_MAX", 1 << 10)
    draw = random.Random(seed_of("waiting memory"))
    records = WaitingRecords()
    for first in range(0, 50 << 10, 1 << 10):
        records.add(
            entry(NOW + draw.randrange(10 * 365 * 24 * HOUR), offset, 0)
            for offset in range(first, first + (1 << 10))
        )
    image = records.image(itertools.count(1))
    assert len(image.loose) == 0
    assert sum(map(len, image.fresh.values())) <= len(records) * 8 + len(image.runs) * 32
    memory = sum(run._column.itemsize * len(run._column) for run in records._runs)
    assert memory == 8 * len(records)


def test_runs_of_which_little_is_left_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(waiting, "LOOSE_MAX", 64)
    records, now = WaitingRecords(), NOW
    for turn in range(200):  # of each 64 a few wait for years
        records.add(entry(now + HOUR + at, 64 * turn + at, 0) for at in range(60))
        records.add(entry(now + 90_000 * HOUR + at, 64 * turn + 60 + at, 0) for at in range(4))
        now += HOUR + 60
        records.take(records.due(now, 1000))
    assert len(records) == 800
    assert len(records._runs) <= 800 // 8 + 2


@pytest.mark.parametrize("cut", [1, 21, 22, 23, 30, 37])
def test_bytes_that_are_no_runs_are_refused(cut):
    [run] = WaitingRun.made_of([entry(NOW, 1, 0), entry(NOW, 2, 0)])
    assert len(run.data()) == 38
    with pytest.raises(ValueError, match=r"run of|column|bytes"):
        [*runs_in(run.data()[:cut])]


def test_a_run_gives_back_its_memory_and_names_how_far_it_is_read(monkeypatch):
    monkeypatch.setattr(waiting, "LOOSE_MAX", 64)
    [run] = WaitingRun.made_of([entry(NOW, offset, 0) for offset in range(100)])
    for _ in range(60):
        run.take()
    assert (run.taken, len(run), len(run._column)) == (60, 40, 50)
    run.take_up_to(60)
    with pytest.raises(ValueError, match="cannot be gone"):
        run.take_up_to(40)
    with pytest.raises(ValueError, match="run 7 of waiting records is not there"):
        [*waiting.named_runs([(7, 0)], {})]


# --- in a partition ---
def replayed(machine, decision):
    for delta in rec.decode(rec.encode(decision.deltas)):
        machine.replay(delta)
    return decision.answer


def delayed(count: int, due_of, **limits) -> SharePartition:
    """One of whose records so many wait."""
    machine = SharePartition(0, lambda low, high: high, ShareLimits(**limits))
    for first in range(0, count, 1000):
        end = min(first + 1000, count)
        lease = replayed(machine, machine.acquire(NOW, "ann", end - first, end)).lease
        runs = [(offset, offset + 1) for offset in range(first, end)]
        dues = [due_of(offset) for offset in range(first, end)]
        assert replayed(machine, machine.delay(NOW, lease, runs, dues)).settled == end - first
    return machine


def test_those_that_wait_take_no_block_and_no_lease():
    machine = delayed(3 * BLOCK, lambda offset: NOW + HOUR + offset)
    assert machine.counts()["waiting"] == 3 * BLOCK
    assert (machine.floor, machine.frontier) == (0, 3 * BLOCK)
    assert machine.snapshot().blocks == [] == machine.snapshot().singles
    assert machine.members() == {}


def test_due_ones_come_back_a_bounded_number_at_once_and_the_rest_once_those_are_taken():
    machine = delayed(2 * READY_MAX + 5, lambda offset: NOW + HOUR)
    now = NOW + HOUR
    assert replayed(machine, machine.wake(now - 1)) == 0
    assert replayed(machine, machine.wake(now)) == READY_MAX
    assert replayed(machine, machine.wake(now)) == 0
    assert machine.next_wake_us() is None
    granted = replayed(machine, machine.acquire(now, "ann", 10, 0))
    assert granted.runs == ((0, 10),)
    assert granted.deliveries == tuple((1, (at, at + 1)) for at in range(10))
    assert machine.next_wake_us() == now
    assert replayed(machine, machine.wake(now)) == 10
    assert replayed(machine, machine.accept(granted.lease, granted.runs)).settled == 10
    assert machine.counts()["waiting"] == READY_MAX - 5


def test_those_that_are_due_first_are_leased_first_wherever_they_lie():
    """By offset those at the end of the log would wait as long as more become due than are done."""
    machine = delayed(BLOCK, lambda offset: NOW + HOUR - offset)
    waiting_line = list(range(BLOCK))
    for step in range(20):
        replayed(machine, machine.wake(NOW + HOUR - BLOCK + 10 * (step + 1)))
        if step == 9:
            machine = SharePartition(machine.snapshot(), lambda low, high: high)
        granted = replayed(machine, machine.lease(NOW, "ann", 3))
        leased = [offset for first, end in granted.runs for offset in range(first, end)]
        assert leased == sorted(waiting_line.pop() for _ in range(3)), step
        replayed(machine, machine.accept(granted.lease, granted.runs))
    again = replayed(machine, machine.lease(NOW, "ann", 100, 7))
    assert len(again.runs) <= 7
    assert again.runs[-1][1] == waiting_line[-1] + 1


@pytest.mark.parametrize("most", [1, 2, 9])
def test_those_that_waited_and_others_have_turns_where_there_are_too_many_of_both(most):
    machine = delayed(BLOCK, lambda offset: NOW + HOUR)
    replayed(machine, machine.begin(BLOCK + 500))
    replayed(machine, machine.wake(NOW + HOUR))
    back = 0
    for _ in range(4):
        granted = replayed(machine, machine.lease(NOW, "ann", most))
        leased = [offset for first, end in granted.runs for offset in range(first, end)]
        assert len(leased) == most
        back += sum(offset < BLOCK for offset in leased)
    assert back == 2 * most
    machine = delayed(BLOCK, lambda offset: NOW + HOUR + (offset > 1) * HOUR)
    replayed(machine, machine.begin(BLOCK + 500))
    replayed(machine, machine.wake(NOW + HOUR))
    assert replayed(machine, machine.lease(NOW, "ann", 9)).runs == ((0, 2), (BLOCK, BLOCK + 7))


def test_what_is_back_takes_an_entry_and_no_block_where_all_around_it_is_done():
    machine = delayed(BLOCK, lambda offset: NOW + HOUR + offset)
    assert machine.snapshot().blocks == []
    replayed(machine, machine.wake(NOW + HOUR))
    first = replayed(machine, machine.acquire(NOW, "ann", 3, BLOCK + 2))
    assert first.runs == ((0, 1), (BLOCK, BLOCK + 2))
    [(offset, single)] = machine.snapshot().singles
    assert (offset, single.deliveries, single.holder) == (0, 1, first.lease)
    replayed(machine, machine.release(first.lease, [(0, 1)]))
    assert machine.oldest_ready() == 0
    again = replayed(machine, machine.lease(NOW, "bob", 9))
    assert (again.runs, again.deliveries) == (((0, 1),), ((1, (0, 1)),))
    assert replayed(machine, machine.accept(again.lease, again.runs)).settled == 1
    assert replayed(machine, machine.accept(again.lease, again.runs)).stale == ((0, 1),)
    assert machine.snapshot().singles == []


def test_nothing_is_early_where_a_clock_goes_back():
    machine = delayed(10, lambda offset: NOW + offset * HOUR + HOUR)
    assert replayed(machine, machine.wake(NOW + 3 * HOUR)) == 3
    for now in (NOW + HOUR, NOW, 0):
        assert replayed(machine, machine.wake(now)) == 0
    assert machine.next_due_us() == NOW + 4 * HOUR
    again = SharePartition(machine.snapshot(), lambda low, high: high)
    assert replayed(again, again.wake(NOW + 3 * HOUR)) == 0
    assert replayed(again, again.wake(NOW + 10 * HOUR)) == 7


def test_more_than_may_wait_are_not_begun_with_before_some_are_due():
    machine = delayed(50, lambda offset: NOW + HOUR, waiting_max=50)
    assert machine.is_full
    assert replayed(machine, machine.acquire(NOW, "ann", 10, 100)) is None
    with pytest.raises(ResourceLimitError, match="waiting_max: 50 records wait"):
        machine.begin(51)
    replayed(machine, machine.wake(NOW + HOUR))
    granted = replayed(machine, machine.acquire(NOW, "ann", 60, 100))
    assert granted.runs == ((0, 60),)


def test_of_a_delay_only_what_the_lease_holds_waits_and_what_is_due_by_now_does_not():
    machine = SharePartition(0, lambda low, high: high)
    lease = replayed(machine, machine.acquire(NOW, "ann", 10, 10)).lease
    replayed(machine, machine.accept(lease, [(2, 4)]))
    runs, dues = [(0, 3), (3, 6), (8, 10)], [NOW + HOUR, NOW + 2 * HOUR, NOW]
    answer = replayed(machine, machine.delay(NOW, lease, runs, dues))
    assert (answer.settled, answer.stale) == (6, ((2, 4),))
    counts = machine.counts()
    assert (counts["waiting"], counts["ready"], counts["leased"]) == (4, 2, 2)
    assert replayed(machine, machine.wake(NOW + HOUR)) == 2
    assert replayed(machine, machine.wake(NOW + 2 * HOUR)) == 2
    ready = replayed(machine, machine.lease(NOW, "bob", 10))
    assert ready.runs == ((0, 2), (4, 6), (8, 10))
    assert {times for times, _ in ready.deliveries} == {1}
