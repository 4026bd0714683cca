"""All share groups of a coordinator, and the log that makes them again: whole, cut, compacted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from seeds import seed_of

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.shares import (
    KnownEnds,
    ShareGroups,
    SharePolicy,
    breaker,
    share_log,
    waiting,
)
from penstock.cluster.shares import groups as groups_module
from penstock.cluster.shares.runs import count
from penstock.core.errors import ConfigError, CorruptBatchError, GroupError, ResourceLimitError

TOPICS = (b"a" * 16, b"b" * 16)
PLACES = [(topic, partition) for topic in TOPICS for partition in range(2)]


class Shell:
    """The machine, and the log of its decisions, a batch each."""

    def __init__(self) -> None:
        self.machine = ShareGroups(lambda low, high: high)
        self.log: list[tuple[Record, ...]] = []
        self.torn: list[int] = []
        """Batches within a snapshot of several, before the last of it."""

    def decide(self, decision: Decision[Any]) -> Any:
        if decision.records:
            self.log.append(decision.records)
            for record in decision.records:
                self.machine.replay(record)
        return decision.answer

    def tidy(self) -> None:
        begun = len(self.log)
        for snapshot in self.machine.snapshots():
            self.decide(snapshot)
        self.torn += range(begun + 1, len(self.log))


def replayed(batches, *, compacted: bool) -> ShareGroups:
    """The machine as another one is made of these."""
    records = [record for batch in batches for record in batch]
    if compacted:
        newest = {record.key: at for at, record in enumerate(records)}
        records = [record for at, record in enumerate(records) if newest[record.key] == at]
    machine = ShareGroups(lambda low, high: high)
    for record in records:
        machine.replay(record)
    return machine


def told(machine: ShareGroups):
    """All that is logged of it."""
    return {
        name: (
            (machine.policy(name), machine.pause_of(name)),
            {place: share.snapshot() for place, share in machine.partitions(name)},
        )
        for name in machine.names()
    }


def held(machine: ShareGroups, name: str, member: str):
    """(place, lease, runs) of a member."""
    return [
        (place, number, lease.runs)
        for place, share in machine.partitions(name)
        for number, lease in share.snapshot().leases.items()
        if lease.member == member
    ]


def step(draw: random.Random, shell: Shell, now: float) -> None:
    machine, name = shell.machine, draw.choice(("red", "blue"))
    member = f"{name}-{draw.randrange(3)}"
    match draw.randrange(14):
        case 0 | 1 | 2 | 3:
            ends = [
                KnownEnds(place, 0, draw.randrange(1, 9000))
                for place in draw.sample(PLACES, draw.randrange(4))
            ]
            count = draw.choice((0, 1, 7, 3000))
            shell.decide(machine.acquire(now, name, member, count, ends, TOPICS))
        case 4 | 5 | 6 | 7:
            for place, lease, runs in held(machine, name, member)[: draw.randrange(3)]:
                part = tuple((first, draw.randrange(first, end) + 1) for first, end in runs)
                match draw.randrange(5):
                    case 0:
                        shell.decide(machine.accept(name, place, lease, part))
                    case 4:
                        due_us = int((now + draw.choice((-1.0, 5.0))) * 1e6)
                        shell.decide(machine.delay(now, name, place, lease, part, due_us, member))
                    case 1:
                        shell.decide(machine.release(name, place, lease, part, member))
                    case 2:
                        delay = draw.choice((None, 0.0, 5.0))
                        shell.decide(
                            machine.fail(now, name, place, lease, part, "failed", delay, member)
                        )
                    case 3:
                        shell.decide(machine.reject(now, name, place, lease, part, "never", member))
        case 8:
            shell.decide(machine.leave(now, name, member, "gone"))
        case 9:
            for place, share in list(machine.partitions(name)):
                shell.decide(machine.bury(name, place, share.condemned(draw.randrange(1, 9))))
        case 10:
            policy = SharePolicy(draw.choice((0, 1, 3)), 1.0, draw.choice((1.0, 60.0)))
            shell.decide(machine.configure(name, policy))
        case 11:
            known = {(place, lease) for place, lease, _ in held(machine, name, member)[::2]}
            shell.decide(machine.keep_only(name, member, known))
        case 13 if name in machine.names() and not draw.randrange(3):
            paused = machine.pause_of(name) is not None
            pause = machine.pause(now, name, "ann", "") if not paused else machine.resume(name)
            shell.decide(pause)
        case 12 if name in machine.names() and not draw.randrange(4):
            shell.decide(machine.seek(name, draw.choice(PLACES), draw.randrange(5000)))


@pytest.mark.parametrize("number", range(4))
def test_the_log_makes_the_same_state_wherever_it_ends_and_whatever_a_compaction_took(
    monkeypatch, number
):
    monkeypatch.setattr(share_log, "PART_BYTES", 30)
    monkeypatch.setattr(share_log, "DELTA_BYTES_MIN", 400)
    monkeypatch.setattr(share_log, "SLOTS_MAX", 20)
    monkeypatch.setattr(waiting, "LOOSE_MAX", 40 if number % 2 else 1 << 13)
    draw = random.Random(seed_of(f"share groups {number}"))
    shell, states, now = Shell(), [], 1_000_000.0
    for steps in range(4000):
        if steps >= 400 and len(shell.torn) > 10:  # chance may pause a group for long
            break
        now += draw.random() * 3
        deadline = shell.machine.deadline()
        if deadline is not None and deadline <= now:
            shell.decide(shell.machine.tick(now))
        step(draw, shell, now)
        if draw.randrange(3) == 0:
            shell.tidy()
        if draw.randrange(12) == 0:
            states.append((len(shell.log), told(shell.machine)))
    assert len(shell.log) > 50
    for batches, state in draw.sample(states, 6):
        for compacted in (False, True):
            assert told(replayed(shell.log[:batches], compacted=compacted)) == state
    assert len(shell.torn) > 10
    for batches in draw.sample(shell.torn, 10):  # within one the state is that before it
        before = told(replayed(shell.log[:batches], compacted=False))
        assert told(replayed(shell.log[:batches], compacted=True)) == before


def acquired(shell: Shell, count: int, end: int, *, name: str = "red", member: str = "m"):
    ends = [KnownEnds(PLACES[0], 0, end)]
    return shell.decide(shell.machine.acquire(0.0, name, member, count, ends, TOPICS))


def shares_of(shell: Shell, end: int, *members: str) -> list[int]:
    """How many of at most 500 records each gets, one after the other."""
    asked = (acquired(shell, 500, end, member=member) for member in members)
    return [sum(count(each.granted.runs) for each in got.granted) for got in asked]


def test_workers_that_wait_share_what_comes():
    shell = Shell()
    assert shares_of(shell, 0, "a", "b", "c") == [0, 0, 0]
    assert shares_of(shell, 200, "a", "b", "c") == [67, 67, 66]
    assert shares_of(shell, 201, "a", "b") == [1, 0]


def test_who_asks_again_gets_what_others_do_not_come_for():
    shell = Shell()
    assert shares_of(shell, 0, "a", "b", "c") == [0, 0, 0]
    assert shares_of(shell, 90, "a", "a", "b") == [30, 60, 0]


def test_where_there_is_plenty_nobody_gets_less():
    shell = Shell()
    assert shares_of(shell, 0, "a", "b") == [0, 0]
    assert shares_of(shell, 1000, "a", "b") == [500, 500]


def test_a_member_that_was_called_has_its_share_and_one_that_left_has_none():
    shell = Shell()
    acquired(shell, 100, 100, member="a")
    assert shares_of(shell, 100, "b", "c", "d") == [0, 0, 0]
    shell.decide(shell.machine.leave(0.0, "red", "d", "gone"))
    released = shell.machine.release("red", PLACES[0], 1, ((0, 100),), "a")
    assert released.notify == {"b", "c"}
    shell.decide(released)
    assert shares_of(shell, 100, "b", "c") == [50, 50]


def delayed(shell: Shell, count: int, due_of) -> None:
    """So many records of the first partition wait, each until its time in seconds."""
    machine, place = shell.machine, PLACES[0]
    for first in range(0, count, 500):
        end = min(first + 500, count)
        ends = [KnownEnds(place, 0, end)]
        [(_, grant)] = shell.decide(
            machine.acquire(1.0, "red", "red-1", end - first, ends, TOPICS)
        ).granted
        runs = tuple((offset, offset + 1) for offset in range(first, end))
        dues = [int(due_of(offset) * 1e6) for offset in range(first, end)]
        shell.decide(machine.delay(1.0, "red", place, grant.lease, runs, dues, "red-1"))
        shell.tidy()


def test_runs_of_waiting_records_are_written_once_and_go_when_no_snapshot_names_them(monkeypatch):
    monkeypatch.setattr(share_log, "DELTA_BYTES_MIN", 4000)
    monkeypatch.setattr(waiting, "LOOSE_MAX", 500)
    shell = Shell()
    delayed(shell, 4000, lambda offset: 100.0 + offset * 7919 % 4000)
    records = [record for batch in shell.log for record in batch]
    runs = [record for record in records if b"share run" in record.key]
    assert len({record.key for record in runs}) == len(runs) > 6
    largest = max(len(it.value or b"") for it in records if b"share snapshot" in it.key)
    assert largest < 8 * 2 * 500, "a snapshot holds what is in no run"
    now = 100.0
    while shell.machine.deadline() is not None:
        now += 1000
        shell.decide(shell.machine.tick(now))
        for _, grant in shell.decide(
            shell.machine.acquire(now, "red", "red-1", 10_000, [], TOPICS)
        ).granted:
            shell.decide(shell.machine.accept("red", PLACES[0], grant.lease, grant.runs))
        shell.tidy()
        for compacted in (False, True):
            again = replayed(shell.log, compacted=compacted)
            assert told(again) == told(shell.machine)
            if (deadline := shell.machine.deadline()) is not None:
                assert (again.deadline() or deadline) <= deadline, "it may look once more"
    [(place, share)] = shell.machine.partitions("red")
    assert share.counts()["waiting"] == 0
    logged = shell.machine.share("red", place)
    for record in logged.snapshot_records() if logged is not None else ():
        shell.decide(Decision((record,), None))
    assert told(replayed(shell.log, compacted=True)) == told(shell.machine)
    newest = {record.key: record.value for batch in shell.log for record in batch}
    assert [value for key, value in newest.items() if b"share run" in key and value] == []


def test_a_log_that_lacks_a_run_is_not_gone_on_with(monkeypatch):
    monkeypatch.setattr(share_log, "DELTA_BYTES_MIN", 400)
    monkeypatch.setattr(waiting, "LOOSE_MAX", 200)
    shell = Shell()
    delayed(shell, 1000, lambda offset: 100.0 + offset)
    named = [it for it, batch in enumerate(shell.log) if b"share run" in batch[0].key]
    assert len(named) > 1
    lacking = [batch for at, batch in enumerate(shell.log) if at != named[0]]
    machine = replayed(lacking, compacted=True)
    ends = [KnownEnds(PLACES[0], 0, 2000)]
    with pytest.raises(CorruptBatchError, match="lacks 1 runs of records that wait"):
        machine.acquire(2.0, "red", "red-1", 10, ends, TOPICS)


def test_who_asks_while_too_many_wait_is_counted(monkeypatch):
    shell = Shell()
    delayed(shell, 100, lambda offset: 100.0)
    [(place, share)] = shell.machine.partitions("red")
    monkeypatch.setattr(share, "limits", replace(share.limits, waiting_max=100))
    ends = [KnownEnds(place, 0, 200)]
    answer = shell.decide(shell.machine.acquire(2.0, "red", "red-1", 10, ends, TOPICS))
    assert answer.is_full
    assert not answer.granted
    assert shell.machine.counts("red")["held_up"] == 1
    shell.decide(shell.machine.tick(100.0))
    answer = shell.decide(shell.machine.acquire(100.0, "red", "red-1", 110, ends, TOPICS))
    assert [grant.runs for _, grant in answer.granted] == [((0, 110),)]
    assert not answer.is_full


def test_a_log_that_ends_within_a_snapshot_has_the_state_before_it(monkeypatch):
    monkeypatch.setattr(share_log, "PART_BYTES", 30)
    monkeypatch.setattr(share_log, "SLOTS_MAX", 3)
    shell = Shell()
    for _ in range(20):
        acquired(shell, 1, 100)
        shell.tidy()
    assert len(shell.torn) >= 5
    for batches in shell.torn:
        before = told(replayed(shell.log[:batches], compacted=False))
        assert before["red"][1], "the log begins with a snapshot that is whole"
        assert told(replayed(shell.log[:batches], compacted=True)) == before


def test_a_deletion_leaves_no_key_that_is_not_a_tombstone(monkeypatch):
    monkeypatch.setattr(share_log, "SLOTS_MAX", 5)
    monkeypatch.setattr(groups_module, "TOMBSTONES_MAX", 3)
    shell = Shell()
    shell.decide(shell.machine.configure("red", SharePolicy()))
    for _ in range(40):
        acquired(shell, 1, 100)
        shell.tidy()
    rounds = 0
    while shell.decide(shell.machine.delete("red")):
        rounds += 1
    assert rounds > 2
    assert "red" not in shell.machine.names()
    newest = {record.key: record.value for batch in shell.log for record in batch}
    assert set(newest.values()) == {None}
    assert acquired(shell, 1, 100).granted[0].granted.runs == ((0, 1),), "it begins again"


def test_of_what_a_killed_worker_had_one_by_one_is_tried_and_only_the_bad_one_dies():
    shell, name = Shell(), "red"
    shell.decide(shell.machine.configure(name, SharePolicy(max_deliveries=3)))
    bad, seen = 4, []
    acquired(shell, 10, 10)
    acquired(shell, 3, 20, member="other")
    shell.decide(shell.machine.leave(0.0, name, "m", "SIGKILL"))
    assert acquired(shell, 5, 20, member="other").granted == (), "it has something in hand"
    shell.decide(shell.machine.leave(0.0, name, "other", "SIGTERM"))
    for number in range(40):
        member = f"worker-{number}"
        granted = acquired(shell, 5, 20, member=member).granted
        if granted[0].granted.runs[0][0] >= 13:
            break
        [(first, end)] = granted[0].granted.runs
        assert end == first + 1
        assert acquired(shell, 5, 20, member=member).granted == ()
        seen.append(first)
        if first == bad:
            shell.decide(shell.machine.leave(0.0, name, member, "SIGKILL"))
        else:
            lease = granted[0].granted.lease
            shell.decide(shell.machine.accept(name, PLACES[0], lease, ((first, end),)))
    assert sorted(seen) == sorted([*range(13), bad])
    assert [it.offset for it in shell.machine.dead_letters(1.0, name, "x", TOPICS, 9)] == [bad]


def test_partitions_take_turns():
    shell = Shell()
    first = [
        shell.decide(
            shell.machine.acquire(
                0.0, "red", "m", 1, [KnownEnds(place, 0, 100) for place in PLACES], TOPICS
            )
        ).granted[0].place
        for _ in range(8)
    ]  # fmt: skip
    assert {place: first.count(place) for place in PLACES} == dict.fromkeys(PLACES, 2)


def test_what_a_member_never_heard_of_goes_back_and_counts_for_nothing():
    shell = Shell()
    known = acquired(shell, 2, 9).granted[0].granted
    lost = acquired(shell, 3, 9).granted[0].granted
    acquired(shell, 9, 9, member="x")
    acquired(shell, 9, 9, member="y")
    decision = shell.machine.keep_only("red", "m", {(PLACES[0], known.lease)})
    assert (decision.answer, set(decision.notify)) == (3, {"y"})
    shell.decide(decision)
    again = acquired(shell, 9, 9, member="y").granted[0].granted
    assert (again.runs, again.deliveries) == (lost.runs, ((1, (2, 5)),))
    stale = shell.decide(shell.machine.accept("red", PLACES[0], lost.lease, lost.runs))
    assert stale.stale == lost.runs
    answer = shell.decide(shell.machine.accept("red", PLACES[0], known.lease, known.runs))
    assert answer.settled == 2


def test_a_topic_that_is_not_the_members_gives_nothing():
    shell = Shell()
    acquired(shell, 1, 100)
    assert shell.decide(
        shell.machine.acquire(0.0, "red", "m", 5, [KnownEnds(PLACES[0], 0, 100)], TOPICS[1:])
    ) == groups_module.Acquisition((), (1,), False)


def test_only_as_many_are_called_as_there_is_something_for():
    shell = Shell()
    leased = acquired(shell, 3, 3).granted[0]
    for member in ("x", "y", "z"):
        acquired(shell, 3, 3, member=member)
    decision = shell.machine.release("red", PLACES[0], leased.granted.lease, ((0, 2),), "m")
    assert decision.notify == {"x", "y"}
    shell.decide(decision)
    assert shell.machine.leave(0.0, "red", "m", "gone").notify == {"z"}


def test_who_does_not_write_a_dead_letter_in_time_is_not_asked_for_ever():
    shell = Shell()
    leased = acquired(shell, 1, 1).granted[0]
    shell.decide(
        shell.machine.reject(0.0, "red", PLACES[0], leased.granted.lease, ((0, 1),), "no", "m")
    )
    asked = shell.machine.dead_letters
    assert [it.offset for it in asked(1.0, "red", "x", TOPICS, 10)] == [0]
    assert asked(2.0, "red", "y", TOPICS, 10) == []
    assert [it.offset for it in asked(2.0, "red", "x", TOPICS, 10)] == [0]
    late = 3.0 + groups_module.BURY_WITHIN
    assert [it.offset for it in asked(late, "red", "y", TOPICS, 10)] == [0]
    shell.machine.leave(late, "red", "y", "gone")
    assert [it.offset for it in asked(late, "red", "x", TOPICS, 10)] == [0]


def test_the_latest_start_passes_over_what_is_there():
    shell = Shell()
    shell.decide(shell.machine.configure("red", SharePolicy(start="latest")))
    assert acquired(shell, 5, 70) == groups_module.Acquisition((), (70,), False)
    assert acquired(shell, 5, 72).granted[0].granted.runs == ((70, 72),)


def test_a_group_that_is_full_says_so_and_goes_on_once_something_is_done():
    shell = Shell()
    shell.decide(shell.machine.configure("red", SharePolicy()))
    for _, share in shell.machine.partitions("red"):
        assert not share.is_full
    first = acquired(shell, 1, 1 << 40).granted[0].granted
    taken = 0
    while not (found := acquired(shell, 100_000, 1 << 40)).is_full:
        taken += sum(end - at for each in found.granted for at, end in each.granted.runs)
    [(_, share)] = shell.machine.partitions("red")
    assert share.frontier == share.limits.blocks_max * 4096
    assert taken < share.frontier
    assert shell.decide(shell.machine.accept("red", PLACES[0], first.lease, first.runs)).settled


def test_bad_policies_and_too_many_partitions_are_refused_by_name():
    shell = Shell()
    with pytest.raises(ConfigError, match="start: 'now'"):
        shell.machine.configure("red", SharePolicy(start="now"))
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="dead_share"):
            shell.machine.configure("red", SharePolicy(dead_share=share))
    with pytest.raises(ConfigError, match="max_deliveries: 256"):
        shell.machine.configure("red", SharePolicy(256))
    with pytest.raises(GroupError, match="there is no share group 'red'"):
        shell.machine.seek("red", PLACES[0], 1)
    ends = [KnownEnds((TOPICS[0], number), 0, 1) for number in range(1001)]
    with pytest.raises(ResourceLimitError, match="PARTITIONS_MAX"):
        shell.machine.acquire(0.0, "red", "m", 1, ends, TOPICS)


def test_a_lease_that_is_too_old_goes_to_who_waits_and_one_that_was_extended_stays():
    shell, place = Shell(), PLACES[0]
    shell.decide(shell.machine.configure("red", SharePolicy(2, max_lease=10.0)))
    hung = acquired(shell, 1, 3).granted[0].granted
    busy = acquired(shell, 1, 3, member="busy").granted[0].granted
    acquired(shell, 1, 3, member="quick")
    acquired(shell, 1, 3, member="x")
    shell.decide(shell.machine.extend(4.0, "red", place, busy.lease, busy.runs, 30.0))
    for now in (0.0, 9.9):
        assert shell.machine.tick(now).records == ()
    shell.decide(shell.machine.configure("red", SharePolicy(2, max_lease=5.0)))
    decision = shell.machine.tick(10.0)
    assert decision.notify == {"x"}
    shell.decide(decision)
    counts = shell.machine.counts("red")
    assert (counts["timed_out"], counts["extended"]) == (2, 1)
    late = shell.decide(shell.machine.accept("red", place, hung.lease, hung.runs))
    assert late.stale == hung.runs
    late = shell.decide(shell.machine.extend(11.0, "red", place, hung.lease, hung.runs, 1.0))
    assert late.stale == hung.runs
    [again] = acquired(shell, 5, 3, member="x").granted
    assert again.granted.deliveries == ((2, (0, 1)), (2, (2, 3)))
    ticks = 0
    while shell.machine.counts("red")["timed_out"] == 2:
        ticks += 1
        due = shell.machine.deadline()
        assert due is not None
        shell.decide(shell.machine.tick(due))
        assert ticks < 99, "no tick comes again and again"
    found = shell.machine.dead_letters(99.0, "red", "x", TOPICS, 9)
    assert {it.offset for it in found} == {0, 2}, "a last delivery, too"
    assert "max_lease" in found[0].failures[-1].reason


def test_a_record_that_waits_for_weeks_does_not_keep_old_leases_from_ending():
    shell, place = Shell(), PLACES[0]
    shell.decide(shell.machine.configure("red", SharePolicy(max_lease=60.0)))
    first = acquired(shell, 1, 9).granted[0].granted
    due_us = 30 * 86_400 * 1_000_000
    shell.decide(shell.machine.delay(0.0, "red", place, first.lease, first.runs, due_us, "m"))
    shell.decide(shell.machine.tick(61.0))
    hung = shell.decide(
        shell.machine.acquire(2000.0, "red", "m", 1, [KnownEnds(place, 0, 9)], TOPICS)
    )
    assert hung.granted
    assert shell.machine.deadline() == 2060.0
    shell.decide(shell.machine.tick(2060.0))
    assert shell.machine.counts("red")["timed_out"] == 1


def test_what_the_log_tells_of_a_lease_has_its_end_in_it():
    shell = Shell()
    shell.decide(shell.machine.configure("red", SharePolicy(max_lease=10.0)))
    lease = acquired(shell, 1, 3).granted[0].granted
    shell.decide(shell.machine.extend(0.0, "red", PLACES[0], lease.lease, lease.runs, 60.0))
    again = replayed(shell.log, compacted=True)
    assert told(again) == told(shell.machine)
    now = again.deadline()
    assert now is not None
    assert again.tick(now).records == ()
    assert again.tick(59.0).records == ()
    assert again.tick(61.0).records != ()


def breaking(shell: Shell, **policy) -> list[tuple[str, str]]:
    """A group of which 30 records are done, and 30 die."""
    shell.decide(shell.machine.configure("red", SharePolicy(max_deliveries=1, **policy)))
    for number in range(60):
        [given] = acquired(shell, 1, 100).granted
        answer = shell.machine.accept if number % 2 else None
        lease, runs = given.granted.lease, given.granted.runs
        shell.decide(
            answer("red", PLACES[0], lease, runs)
            if answer is not None
            else shell.machine.fail(1.0, "red", PLACES[0], lease, runs, "bad", None, "m")
        )
        if shell.machine.pause_of("red"):
            break
    return shell.machine.take_tripped()


def test_a_group_whose_records_die_is_paused_until_it_is_resumed():
    shell = Shell()
    [(name, why)] = breaking(shell, dead_share=0.4)
    assert (name, why[:8]) == ("red", "20 of 39")
    assert shell.machine.counts("red")["breaker_trips"] == 1
    paused = acquired(shell, 5, 100, member="x")
    assert (paused.granted, paused.frontiers, paused.is_paused) == ((), (39,), True)
    again = replayed(shell.log, compacted=True)
    assert again.pause_of("red") == shell.machine.pause_of("red") is not None
    assert shell.machine.pause(2.0, "red", "ann", "as well").records == (), "it stays as it is"
    decision = shell.machine.resume("red")
    assert decision.notify == {"x"}
    shell.decide(decision)
    assert shell.machine.resume("red").records == ()
    [given] = acquired(shell, 1, 100).granted
    shell.decide(
        shell.machine.fail(
            1.0, "red", PLACES[0], given.granted.lease, given.granted.runs, "bad", None, "m"
        )
    )
    assert shell.machine.pause_of("red") is None, "the breaker begins to count"


def test_few_that_die_a_small_part_and_no_breaker_pause_nothing(monkeypatch):
    for policy in ({"dead_share": 0.6}, {}):
        shell = Shell()
        assert breaking(shell, **policy) == []
        assert shell.machine.pause_of("red") is None
    monkeypatch.setattr(breaker, "DEAD_MIN", 31)
    assert breaking(Shell(), dead_share=0.01) == []


def test_what_died_long_ago_does_not_count():
    counts = breaker.Breaker()
    counts.turn(1000.0)
    counts.note(0, 30)
    assert "30 of 30" in counts.complaint(0.5)
    counts.turn(1000.0 + breaker.WINDOW / 2)
    counts.note(29, 0)
    assert "30 of 59" in counts.complaint(0.5)
    counts.note(1, 0)
    assert counts.complaint(0.5) == "", "half is no more than half"
    counts.turn(1000.0 + breaker.WINDOW)
    assert counts.complaint(0.01) == ""
    counts.note(0, 30)
    counts.turn(2000.0)
    assert counts.complaint(0.01) == ""


def test_workers_that_are_killed_pause_a_group_and_its_deletion_leaves_nothing(monkeypatch):
    monkeypatch.setattr(breaker, "DEAD_MIN", 3)
    shell = Shell()
    shell.decide(shell.machine.configure("red", SharePolicy(1, dead_share=0.5)))
    acquired(shell, 3, 9)
    shell.decide(shell.machine.leave(1.0, "red", "m", "SIGKILL"))
    assert shell.machine.pause_of("red") is not None
    while shell.decide(shell.machine.delete("red")):
        pass
    assert list(shell.machine.names()) == list(replayed(shell.log, compacted=True).names()) == []
    with pytest.raises(GroupError, match="no share group 'red'"):
        shell.machine.pause(1.0, "red", "ann", "")
