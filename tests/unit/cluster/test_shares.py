"""One share group in one partition: bounds, refusals, and what little a long job costs."""

from __future__ import annotations

import pytest

from penstock.cluster.shares import ShareLimits, SharePartition
from penstock.cluster.shares import machine as machine_module
from penstock.cluster.shares import records as rec
from penstock.cluster.shares import state as state_module
from penstock.cluster.shares.runs import OFFSET_MAX, checked, packed, unpacked, without
from penstock.cluster.shares.window import BLOCK
from penstock.core.errors import ConfigError, ResourceLimitError
from penstock.core.work import TIME_MAX


def decided(machine: SharePartition, decision):
    for delta in rec.decode(rec.encode(decision.deltas)):
        machine.replay(delta)
    return decision.answer


def begun(end: int, **limits) -> SharePartition:
    machine = SharePartition(0, lambda low, high: high, ShareLimits(**limits))
    decided(machine, machine.begin(end))
    return machine


def test_a_job_that_takes_long_costs_one_block_whatever_is_done_behind_it():
    machine = begun(1, blocks_max=3)
    decided(machine, machine.lease(0, "slow", 1))
    for number in range(200):
        decided(machine, machine.begin(1 + (number + 1) * BLOCK))
        quick = decided(machine, machine.lease(0, "quick", BLOCK))
        assert decided(machine, machine.accept(quick.lease, quick.runs)).settled == BLOCK
    assert machine.floor == 0
    assert machine.frontier == 1 + 200 * BLOCK
    assert machine.members() == {"slow": 1}
    assert decided(machine, machine.accept(1, [(0, 1)])).settled == 1
    assert machine.floor == machine.frontier


def test_more_blocks_than_may_be_open_are_refused_by_name():
    machine = begun(2 * BLOCK, blocks_max=2)
    with pytest.raises(ResourceLimitError, match=r"blocks_max: 2 blocks .* is at offset 0"):
        machine.begin(2 * BLOCK + 1)
    assert machine.begin(2 * BLOCK).answer == 0
    lease = decided(machine, machine.lease(0, "ann", BLOCK))
    decided(machine, machine.accept(lease.lease, lease.runs))
    assert machine.begin(2 * BLOCK + 1).answer == 1


@pytest.mark.timeout(60)
def test_an_answer_for_all_offsets_there_are_costs_no_more_than_what_is_held():
    """Any worker may send it, and the coordinator of all groups has one thread."""
    machine = begun(3 * BLOCK)
    lease = decided(machine, machine.lease(0, "ann", 3 * BLOCK))
    decided(machine, machine.delay(0, lease.lease, [(BLOCK, 2 * BLOCK)], 1))
    decided(machine, machine.wake(1))
    again = decided(machine, machine.lease(2, "bob", 1))
    assert again.runs == ((BLOCK, BLOCK + 1),)
    for number in (lease.lease, again.lease):
        assert machine.extend(3, number, [(0, OFFSET_MAX)], 1.0).answer.settled > 0
    answer = decided(machine, machine.accept(lease.lease, [(1, OFFSET_MAX)]))
    assert (answer.settled, answer.stale) == (
        2 * BLOCK - 1, ((BLOCK, 2 * BLOCK), (3 * BLOCK, OFFSET_MAX))
    )  # fmt: skip
    answer = decided(machine, machine.accept(again.lease, [(0, OFFSET_MAX)]))
    assert (answer.settled, machine.bury([(0, OFFSET_MAX)]).answer) == (1, 0)


def test_what_a_member_that_was_taken_for_gone_says_later_changes_nothing():
    machine = begun(3)
    late = decided(machine, machine.lease(0, "ann", 3))
    decided(machine, machine.leave(1, "ann", "its process is gone"))
    other = decided(machine, machine.lease(2, "bob", 2))
    for answer in (
        machine.accept(late.lease, late.runs),
        machine.release(late.lease, late.runs),
        machine.reject(3, late.lease, late.runs, "no"),
        machine.fail(3, late.lease, late.runs, "no"),
    ):
        assert answer.deltas == ()
        assert (answer.answer.settled, answer.answer.stale) == (0, ((0, 3),))
    assert decided(machine, machine.accept(other.lease, [(0, 3)])).stale == ((1, 3),)


def test_a_record_that_ends_each_worker_is_condemned_and_tells_why():
    machine = begun(2, max_deliveries=3)
    for number in range(3):
        lease = decided(machine, machine.lease(number, f"worker-{number}", 1))
        assert lease.deliveries == ((number + 1, (0, 1)),)
        gone = decided(machine, machine.leave(number, f"worker-{number}", "SIGKILL"))
        assert gone.condemned == (number == 2)
    assert machine.condemned(10) == ((0, 1),)
    assert [told.member for told in machine.failures(0)] == ["worker-0", "worker-1", "worker-2"]
    assert decided(machine, machine.lease(9, "next", 10)).runs == ((1, 2),)
    assert decided(machine, machine.bury([(0, 2)])) == 1
    assert machine.failures(0) == ()
    assert machine.floor == 1


def test_without_max_lease_a_lease_has_no_end_and_an_extension_says_nothing():
    machine = begun(2)
    lease = decided(machine, machine.lease(0, "ann", 1))
    assert machine.first_end_us() is None
    assert machine.extend(0, lease.lease, lease.runs, 9.0).deltas == ()
    assert machine.expire(2**60).deltas == ()


def test_many_extensions_of_a_lease_take_a_bounded_place_and_none_ends_sooner():
    machine = begun(300, max_lease=10.0)
    lease = decided(machine, machine.lease(0, "ann", 300))
    for offset in range(300):
        decided(machine, machine.extend(0, lease.lease, [(offset, offset + 1)], 20.0 + offset))
    [held] = machine.snapshot().leases.values()
    assert len(held.extended) == state_module.EXTENSIONS_MAX
    for offset in range(0, 300, 50):
        now_us = (20 + offset) * 1_000_000
        decided(machine, machine.expire(now_us - 1))
        still = machine.counts()["leased"]
        assert still >= 300 - offset, "each as long as it was extended, at least"
    assert decided(machine, machine.expire(320_000_000)).settled > 0
    assert machine.counts()["leased"] == 0


def test_a_decision_about_old_leases_is_bounded():
    machine = begun(200, max_lease=1.0)
    for number in range(200):
        decided(machine, machine.lease(0, f"worker-{number}", 1))
    rounds = []
    while taken := decided(machine, machine.expire(1_000_000)).settled:
        rounds.append(taken)
    assert sum(rounds) == 200
    assert max(rounds) <= machine_module.EXPIRED_MAX


def test_without_a_most_a_record_comes_for_ever():
    machine = begun(1, max_deliveries=0)
    for _ in range(300):
        lease = decided(machine, machine.lease(0, "ann", 1))
        assert not decided(machine, machine.fail(0, lease.lease, [(0, 1)], "no", 0.0)).condemned
    assert lease.deliveries == ((255, (0, 1)),)


def test_waits_double_up_to_the_longest():
    machine = begun(1, max_deliveries=0, backoff_min=1.0, backoff_max=6.0)
    waits, now_us = [], 0
    for _ in range(5):
        lease = decided(machine, machine.lease(now_us, "ann", 1))
        decided(machine, machine.fail(now_us, lease.lease, [(0, 1)], "no"))
        assert decided(machine, machine.lease(now_us, "bob", 1)) is None
        due_us = machine.next_due_us()
        assert due_us is not None
        waits.append((due_us - now_us) / 1e6)
        now_us = due_us
        assert decided(machine, machine.wake(now_us - 1)) == 0
        assert decided(machine, machine.wake(now_us)) == 1
    assert waits == [1.0, 2.0, 4.0, 6.0, 6.0]


def test_reasons_are_cut_and_few_are_kept(monkeypatch):
    monkeypatch.setattr(state_module, "FAILURES_MAX", 3)
    machine = begun(5, max_deliveries=0, reason_bytes_max=5)
    for number in range(7):
        lease = decided(machine, machine.lease(number, "ann", 5))
        decided(machine, machine.fail(number, lease.lease, lease.runs, f"é{number}é long", 0.0))
    assert [told.reason for told in machine.failures(4)] == [f"é{it}é" for it in range(2, 7)]
    assert [bool(machine.failures(it)) for it in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda it: it.begin(1), "offsets 4 to 1"),
        (lambda it: it.begin(9, [(3, 5)]), "left out"),
        (lambda it: it.begin(9, [(8, 10)]), "left out"),
        (lambda it: it.lease(0, "", 1), "member ''"),
        (lambda it: it.lease(0, "m" * 201, 1), "neither may be empty"),
        (lambda it: it.lease(0, "ann", 0), "0 records"),
        (lambda it: it.accept(1, [(2, 2)]), r"\[2, 2\] after 0"),
        (lambda it: it.accept(1, [(2, 4), (3, 5)]), r"\[3, 5\] after 4"),
        (lambda it: it.accept(1, [(-1, 4)]), "ascending pairs"),
        (lambda it: it.accept(1, [(1,)]), "ascending pairs"),
        (lambda it: it.accept(1, [(1, 2**64)]), "ascending pairs"),
        (lambda it: it.accept(1, [(n, n + 1) for n in range(0, 9, 2)]), "at most 4"),
        (lambda it: it.fail(0, 1, [(0, 1)], "", -1.0), "delay: -1.0"),
        (lambda it: it.fail(0, 1, [(0, 1)], "", float("nan")), "delay: nan"),
        (lambda it: it.fail(0, 1, [(0, 1)], "", 4e7), "delay_max"),
        (lambda it: it.extend(0, 1, [(0, 1)], 0.0), "seconds: 0.0"),
        (lambda it: it.extend(0, 1, [(0, 1)], float("nan")), "seconds: nan"),
        (lambda it: it.extend(0, 1, [(0, 1)], 4e7), "up to 3"),
        (lambda it: it.delay(0, 1, [(0, 1)], TIME_MAX + 1), "due_us"),
        (lambda it: it.delay(0, 1, [(0, 1), (2, 3)], [5]), "1 times for 2 runs"),
    ],
)
def test_what_nobody_may_ask_is_named(call, said):
    machine = begun(4, runs_max=4)
    with pytest.raises(ConfigError, match=said):
        call(machine)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_deliveries": -1},
        {"max_deliveries": 256},
        {"backoff_min": -1.0},
        {"backoff_min": 9.0, "backoff_max": 8.0},
        {"blocks_max": 0},
        {"max_lease": -1.0},
    ],
)
def test_limits_that_cannot_be_are_refused(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        ShareLimits(**limits)


def test_a_look_at_single_records_tells_their_state_and_changes_nothing():
    machine = begun(8, max_deliveries=1)
    lease = decided(machine, machine.lease(7, "ann", 5)).lease
    decided(machine, machine.accept(lease, [(0, 1)]))
    decided(machine, machine.reject(8, lease, [(1, 2)], "bad"))
    decided(machine, machine.delay(8, lease, [(2, 3)], 500))
    decided(machine, machine.release(lease, [(3, 4)]))
    before = machine.snapshot()
    found = machine.peek("", 0, 100)
    assert [(it.offset, it.state, it.deliveries) for it in found] == [
        (1, "condemned", 1), (2, "waiting", 0), (3, "ready", 0), (4, "leased", 1),
        (5, "ready", 0), (6, "ready", 0), (7, "ready", 0),
    ]  # fmt: skip
    assert (found[0].reason, found[1].due_us) == ("bad", 500)
    assert (found[3].member, found[3].at_us) == ("ann", 7)
    assert [it.offset for it in machine.peek("ready", 4, 2)] == [5, 6]
    assert machine.peek("leased", 5, 9) == []
    assert machine.snapshot() == before


def test_runs():
    runs = ((3, 5), (9, 10), (12, 20))
    assert unpacked(packed(runs)) == runs
    assert checked([[3, 5], (5, 6)], 2) == ((3, 5), (5, 6))
    assert without(runs, ((4, 13), (15, 16))) == ((3, 4), (13, 15), (16, 20))
