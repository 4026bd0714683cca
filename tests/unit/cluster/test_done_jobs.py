"""Jobs that are done with a transaction: its decision takes them along, all or none."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from seeds import seed_of
from transaction_fixture import T, World

from penstock.cluster.shares import AcceptedJobs, AcceptedLease, KnownEnds
from penstock.core.errors import ConfigError, StaleGenerationError, TransactionError

TOPIC = b"j" * 16
PLACES = [(TOPIC, 0), (TOPIC, 1)]


@pytest.fixture
def world() -> World:
    return World()


def acquired(world: World, count: int, *, member: str = "m", group: str = "g", end: int = 100):
    """What the member was given, by place: (lease, runs)."""
    ends = [KnownEnds(place, 0, end) for place in PLACES]
    decision = world.shares.acquire(world.now, group, member, count, ends, (TOPIC,))
    return {it.place: it.granted for it in world.run(decision).granted}


def lease_of(granted, place, runs=None) -> AcceptedLease:
    return AcceptedLease(place, granted.lease, granted.runs if runs is None else runs, "jobs-0")


def counts(world: World, group: str = "g") -> Counter[str]:
    found: Counter[str] = Counter()
    for _, machine in world.shares.partitions(group):
        found.update(machine.counts())
    return found


def test_jobs_are_in_the_decision_that_commits(world):
    who = world.init()
    world.add(who, (T, 0))
    leases = [
        lease_of(granted, place)
        for count in (60, 60, 60)
        for place, granted in acquired(world, count).items()
    ]
    assert len({lease.place for lease in leases}) < len(leases), "two leases of one partition"
    done = [AcceptedJobs("g", "m", leases)]
    decision = world.machine.end(world.now, "a", *who, True, done=done)
    assert decision.durable
    assert len(decision.records) == 1 + len({lease.place for lease in leases})
    ended = world.run(decision)
    assert ended.committed
    assert counts(world)["leased"] == 0
    assert world.shares.counts("g")["accepted"] == 180
    log = list(world.log)
    assert world.end(who, done=done) == ended, "asked again it is the same"
    assert world.log == log


def test_an_abort_leaves_them_with_their_worker(world):
    who = world.init()
    granted = acquired(world, 2)
    done = [AcceptedJobs("g", "m", [lease_of(it, place) for place, it in granted.items()])]
    aborted = world.end(who, commit=False, done=done)
    assert not aborted.committed
    assert counts(world)["leased"] == 2
    assert world.end((who[0], aborted.next_epoch), done=done).committed
    assert counts(world)["leased"] == 0


@pytest.mark.parametrize("how", ["answered", "gone", "of another", "unknown", "deleted"])
def test_one_stale_lease_turns_a_commit_into_an_abort(world, how):
    who = world.init()
    world.add(who, (T, 0))
    [(place, good)] = acquired(world, 5).items()
    [(_, bad)] = acquired(world, 5, group="h").items()
    stale = lease_of(bad, place)
    match how:
        case "answered":
            world.run(world.shares.accept("h", place, bad.lease, ((2, 3),)))
        case "gone":
            world.run(world.shares.leave(world.now, "h", "m", "killed"))
            [(again, other)] = acquired(world, 1, group="h", member="n").items()
            assert (again, other.lease > bad.lease) == (place, True)
        case "of another":
            world.run(world.shares.leave(world.now, "h", "m", "killed"))
            [(_, other)] = acquired(world, 5, group="h", member="n").items()
            stale = lease_of(other, place)
        case "unknown":
            stale = stale._replace(lease=99)
        case "deleted":
            while world.run(world.shares.drop("h", place)):
                pass
    done = [AcceptedJobs("g", "m", [lease_of(good, place)]), AcceptedJobs("h", "m", [stale])]
    decision = world.machine.end(world.now, "a", *who, True, done=done)
    assert len(decision.records) == 1  # nothing is accepted of the good one either
    ended = world.run(decision)
    error = ended.error("a", commit=True)
    assert isinstance(error, StaleGenerationError)
    assert "is not this worker's any more" in str(error)
    assert counts(world)["leased"] == 5
    assert not world.end(who, done=done[:1]).committed, "decided once"
    assert world.mark_all() == {who: False}
    assert world.end((who[0], ended.next_epoch), done=done[:1]).committed


def test_what_is_no_set_of_jobs_decides_nothing(world):
    who = world.init()
    [(place, granted)] = acquired(world, 5).items()
    lease = lease_of(granted, place)
    with pytest.raises(ConfigError, match="lease 1 of jobs-0 in share group 'g' is named twice"):
        world.end(who, done=[AcceptedJobs("g", "m", [lease]), AcceptedJobs("g", "m", [lease])])
    with pytest.raises(ConfigError, match="ascending pairs"):
        world.end(who, done=[AcceptedJobs("g", "m", [lease._replace(runs=((3, 4), (1, 2)))])])
    assert world.end(who, done=[AcceptedJobs("g", "m", [lease])]).committed


class Model:
    """Who has which record, kept by hand."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.world = World()
        self.holders: dict[tuple[str, Any, int], tuple[str, int]] = {}
        self.done: Counter[tuple[str, Any, int]] = Counter()
        self.who = {name: self.world.init(name) for name in ("a", "b")}
        self.last: dict[str, tuple[Any, Any, Any]] = {}
        self.outcomes: Counter[str] = Counter()

    def acquire(self) -> None:
        group, member = self.anybody()
        for place, got in acquired(
            self.world, self.draw.randrange(1, 30), group=group, member=member, end=3000
        ).items():
            for first, end in got.runs:
                for offset in range(first, end):
                    assert (group, place, offset) not in self.holders
                    assert not self.done[group, place, offset], "handed out though it is done"
                    self.holders[group, place, offset] = member, got.lease

    def leases(self, group: str, member: str) -> dict[tuple[Any, int], list[int]]:
        found: dict[tuple[Any, int], list[int]] = {}
        for (name, place, offset), (who, lease) in self.holders.items():
            if (name, who) == (group, member):
                found.setdefault((place, lease), []).append(offset)
        return found

    def anybody(self) -> tuple[str, str]:
        return self.draw.choice("gh"), self.draw.choice("mno")

    def answer(self, who: tuple[str, str] | None = None) -> None:
        """By a plain answer: accepted, or given back."""
        group, member = who or self.anybody()
        shares = self.world.shares
        for (place, lease), offsets in [*self.leases(group, member).items()][:1]:
            some = self.draw.sample(sorted(offsets), self.draw.randrange(1, len(offsets) + 1))
            runs = tuple((at, at + 1) for at in sorted(some))
            if self.draw.random() < 0.5:
                self.world.run(shares.accept(group, place, lease, runs))
                self.done.update((group, place, at) for at in some)
            else:
                self.world.run(shares.release(group, place, lease, runs, member))
            for at in some:
                del self.holders[group, place, at]

    def leave(self, who: tuple[str, str] | None = None) -> None:
        group, member = who or self.anybody()
        self.world.run(self.world.shares.leave(self.world.now, group, member, "killed"))
        for key in [it for it, (who, _) in self.holders.items() if (it[0], who) == (group, member)]:
            del self.holders[key]

    def end(self) -> None:
        """A transaction with what its workers have, or had, of one group or two."""
        name = self.draw.choice("ab")
        wanted: list[AcceptedJobs] = []
        jobs: list[tuple[tuple[str, Any, int], tuple[str, int]]] = []
        for group in self.draw.sample("gh", self.draw.choice((1, 1, 2))):
            member = self.draw.choice("mno")
            told = []
            for (place, lease), offsets in self.leases(group, member).items():
                some = sorted(self.draw.sample(offsets, self.draw.randrange(len(offsets) + 1)))
                told.append(AcceptedLease(place, lease, tuple((at, at + 1) for at in some), "jobs"))
                jobs += [((group, place, at), (member, lease)) for at in some]
            wanted.append(AcceptedJobs(group, member, told))
        if self.draw.random() < 0.4:  # between what was sent and the end
            self.draw.choice((self.leave, self.answer, self.answer))(self.draw.choice(wanted)[:2])
        is_whole = all(self.holders.get(key) == who for key, who in jobs)
        if self.draw.random() < 0.5:
            self.world.add(self.who[name], (T, 0), name=name)
        ended = self.world.end(self.who[name], done=wanted, name=name)
        assert ended.committed == is_whole
        if is_whole:
            for key, _ in jobs:
                del self.holders[key]
            self.done.update(key for key, _ in jobs)
        self.outcomes["committed" if is_whole else "aborted"] += bool(jobs)
        self.last[name] = self.who[name], wanted, ended
        self.who[name] = self.who[name][0], ended.next_epoch
        self.world.mark_all()

    def repeat(self) -> None:
        """The answer was lost: the same is asked again, whatever happened since."""
        for name, (who, wanted, ended) in self.last.items():
            again = self.world.end(who, done=wanted, name=name)
            assert again._replace(detail="") == ended._replace(detail="")
            with pytest.raises(TransactionError):
                self.world.add(who, (T, 0), name=name)

    def state(self) -> Any:
        shares = {
            group: [(place, it.snapshot()) for place, it in self.world.shares.partitions(group)]
            for group in "gh"
        }
        return shares, self.world.machine.state()

    def check(self) -> None:
        leased = {
            (group, place, offset): (lease.member, number)
            for group in "gh" for place, it in self.world.shares.partitions(group)
            for number, lease in it.snapshot().leases.items()
            for first, end in lease.runs for offset in range(first, end)
            if not it.not_held(lease.member, number, [(offset, offset + 1)])
        }  # fmt: skip
        assert leased == self.holders
        assert set(self.done.values()) <= {1}, "done once"


@pytest.mark.parametrize("number", range(3))
def test_a_record_is_done_once_by_an_answer_or_a_transaction(number):
    model = Model(random.Random(seed_of(f"done jobs {number}")))
    steps = (model.acquire, model.acquire, model.answer, model.end, model.end, model.repeat)
    states = []
    for _ in range(500):
        model.draw.choice(steps)()
        states.append((len(model.world.log), model.state()))
    model.check()
    assert min(model.outcomes["committed"], model.outcomes["aborted"]) > 5
    log = model.world.log
    for length, state in model.draw.sample(states, 8):
        again = World()
        for record in log[:length]:
            again.machine.replay(record)
            again.shares.replay(record)
        model.world = again
        assert model.state() == state, "what the log says is what was decided"
