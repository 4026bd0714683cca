"""The share group machine under random calls, held against a model with one entry for each record.

After every step: what the log tells, from its beginning or from a snapshot on, is the live state; a
record has one holder; final stays final; deliveries fall by a release alone; the floor never falls.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from seeds import seed_of

from penstock.cluster.shares import (
    ShareLimits,
    SharePartition,
    ShareSnapshot,
    waiting,
    window,
)
from penstock.cluster.shares import records as rec
from penstock.cluster.shares.runs import joined
from penstock.cluster.shares.window import BLOCK

ROUNDS = int(os.environ.get("PENSTOCK_MACHINE_EXAMPLES", "60")) // 6
STEPS = 250
START = BLOCK - 7
MEMBERS = ("ann", "bob", "eve")
LIMITS = ShareLimits(max_deliveries=3, backoff_min=1.0, backoff_max=4.0, max_lease=4.0)
ENCODER = msgspec.msgpack.Encoder()


@dataclass
class Job:
    """`holder`: of a leased record, the number of its lease; `is_alone`: it has no other one;
    `end_us`: when others may have it."""

    state: str = "ready"
    is_alone: bool = False
    deliveries: int = 0
    holder: int = 0
    due_us: int = 0
    leased_us: int = 0
    end_us: int = 0
    failures: list[str] = field(default_factory=list)


def in_runs(runs) -> list[int]:
    return [offset for first, end in runs for offset in range(first, end)]


def as_runs(offsets) -> list[tuple[int, int]]:
    """Also runs that touch, as requests may have them."""
    single = [(offset, offset + 1) for offset in sorted(offsets)]
    return list(joined(single)) if len(single) % 2 else single


def longest(low: float, high: float) -> float:
    return high


def image(machine: SharePartition) -> bytes:
    """All of its state, to compare."""
    return ENCODER.encode(machine.snapshot())


class ShareModel:
    """`seen`: how often something happened that a check is about."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.live = SharePartition(START, longest, LIMITS)
        self.log: list[bytes] = []
        self.base: tuple[ShareSnapshot | int, int] = (START, 0)
        self.jobs: dict[int, Job] = {}
        self.leases: dict[int, str] = {}
        self.frontier, self.floor, self.now_us = START, START, 1_000_000
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        [verb] = self.draw.choices(
            [self.begin, self.lease, self.answer, self.leave, self.wake, self.bury, self.seek,
             self.snapshot, self.expire],
            [15, 30, 40, 3, 10, 4, 1, 2, 8],
        )  # fmt: skip
        verb()

    def decided(self, decision):
        data = rec.encode(decision.deltas)
        for delta in rec.decode(data):
            self.live.replay(delta)
        self.log.append(data)
        return decision.answer

    def some(self, state: str) -> list[int]:
        there = [offset for offset, job in self.jobs.items() if job.state == state]
        return self.draw.sample(there, self.draw.randint(0, min(len(there), 9)))

    # --- what happens ---
    def begin(self) -> None:
        end = self.frontier + self.draw.randint(1, 20)
        first = self.draw.randint(self.frontier, end)
        last = self.draw.randint(first, end)
        skipped = [(first, last)] if first < last else []
        fresh = sorted(set(range(self.frontier, end)) - set(in_runs(skipped)))
        assert self.decided(self.live.begin(end, skipped)) == len(fresh)
        self.jobs |= {offset: Job() for offset in fresh}
        self.frontier = end

    def lease(self) -> None:
        member, count = self.draw.choice(MEMBERS), self.draw.randint(1, 12)
        by_state: dict[str, list[int]] = {"ready": [], "suspect": []}
        for offset, job in sorted(self.jobs.items()):
            by_state.setdefault(job.state, []).append(offset)
        suspects = by_state["suspect"]
        assert self.live.suspects == len(suspects)
        ready = suspects[:1] or by_state["ready"]
        self.seen["alone"] += bool(suspects)
        granted = self.decided(self.live.lease(self.now_us, member, count))
        if not ready:
            assert granted is None
            return
        leased = in_runs(granted.runs)
        assert len(leased) == min(count, len(ready))
        assert set(leased) <= set(ready)
        if not self.live.snapshot().singles:  # those have a line of their own
            assert leased == ready[:count]
        assert granted.lease not in self.leases
        self.leases[granted.lease] = member
        for offset in leased:
            job = self.jobs[offset]
            job.state, job.holder, job.deliveries = "leased", granted.lease, job.deliveries + 1
            job.is_alone = bool(suspects)
            job.leased_us, job.end_us = self.now_us, self.now_us + 4_000_000
            self.seen[f"delivery {job.deliveries}"] += 1
        told = {offset: n for n, run in granted.deliveries for offset in in_runs([run])}
        assert told == {offset: self.jobs[offset].deliveries for offset in leased}

    def answer(self) -> None:
        """Also for what others hold by now, or nobody."""
        if not self.leases:
            return
        held_now = sorted({job.holder for job in self.jobs.values() if job.state == "leased"})
        lease = self.draw.choice(
            held_now if held_now and self.draw.random() < 0.9 else [*self.leases]
        )
        mine = [it for it, job in self.jobs.items() if (job.state, job.holder) == ("leased", lease)]
        asked = set(self.draw.sample(mine, self.draw.randint(0, len(mine))))
        if self.draw.random() < 0.2:
            asked |= set(self.draw.sample(sorted(self.jobs), min(len(self.jobs), 5)))
        runs = as_runs(asked)
        verb = self.draw.choice(
            ["accept", "accept", "release", "reject", "fail", "fail", "delay", "extend"]
        )
        delay = self.draw.choice([None, 0.0, 2.0])
        match verb:
            case "accept" | "release":
                answer = self.decided(getattr(self.live, verb)(lease, runs))
            case "delay":
                due_us = self.now_us + int((delay or 0.0) * 1e6)
                answer = self.decided(self.live.delay(self.now_us, lease, runs, due_us))
            case "extend":
                seconds = self.draw.choice([1.0, 10.0, 60.0])
                answer = self.decided(self.live.extend(self.now_us, lease, runs, seconds))
                for offset in asked & set(mine):
                    job = self.jobs[offset]
                    least = job.leased_us + 4_000_000
                    job.end_us = max(least, self.now_us + int(seconds * 1e6))
            case "reject":
                answer = self.decided(self.live.reject(self.now_us, lease, runs, "bad"))
            case _:
                answer = self.decided(self.live.fail(self.now_us, lease, runs, "bad", delay))
        held = sorted(asked & set(mine))
        assert answer.settled == len(held)
        assert in_runs(answer.stale) == sorted(asked - set(mine))
        self.seen[verb] += len(held)
        self.seen["stale"] += len(asked) - len(held)
        for offset in held if verb != "extend" else ():
            self._answered(self.jobs[offset], verb, delay)

    def _answered(self, job: Job, verb: str, delay: float | None) -> None:
        job.holder = 0
        if verb in ("reject", "fail"):
            job.failures = [*job.failures, "bad"][-5:]
        if verb == "accept":
            job.state, job.failures = "done", []
        elif verb == "release" or (verb == "delay" and not delay):
            job.state = "suspect" if job.is_alone else "ready"
            job.deliveries -= 1
        elif verb == "delay":
            job.state, job.due_us = "waiting", self.now_us + int((delay or 0.0) * 1e6)
            job.deliveries -= 1
        elif verb == "reject" or job.deliveries >= LIMITS.max_deliveries:
            job.state = "condemned"
        elif delay == 0.0:
            job.state = "ready"
        else:
            wait = min(2.0 ** (job.deliveries - 1), 4.0) if delay is None else delay
            job.state, job.due_us = "waiting", self.now_us + int(wait * 1e6)

    def leave(self) -> None:
        member = self.draw.choice(MEMBERS)
        held = [
            job
            for job in self.jobs.values()
            if job.state == "leased" and self.leases[job.holder] == member
        ]
        assert self.decided(self.live.leave(self.now_us, member, "gone")).settled == len(held)
        self.seen["left"] += len(held)
        for job in held:
            job.failures = [*job.failures, "gone"][-5:]
            job.state = "condemned" if job.deliveries >= LIMITS.max_deliveries else "suspect"
            job.holder = 0

    def wake(self) -> None:
        self.now_us += self.draw.choice([500_000, 1_000_000, 4_000_000])
        due = [
            job
            for job in self.jobs.values()
            if job.state == "waiting" and job.due_us <= self.now_us
        ]
        assert self.decided(self.live.wake(self.now_us)) == len(due)
        self.seen["woken"] += len(due)
        for job in due:
            job.state = "ready"
        waiting = [job.due_us for job in self.jobs.values() if job.state == "waiting"]
        assert self.live.next_due_us() == min(waiting, default=None)

    def expire(self) -> None:
        leased = [job for job in self.jobs.values() if job.state == "leased"]
        old = [job for job in leased if job.end_us <= self.now_us]
        self.seen["extended and kept"] += sum(
            job.leased_us + 4_000_000 <= self.now_us < job.end_us for job in leased
        )
        answer = self.decided(self.live.expire(self.now_us))
        assert answer.settled == len(old)
        self.seen["expired"] += len(old)
        dead = [job for job in old if job.deliveries >= LIMITS.max_deliveries]
        assert answer.condemned == len(dead)
        for job in old:
            job.failures = [*job.failures, "no answer for max_lease, 4 s"][-5:]
            job.state, job.holder = "condemned" if job in dead else "ready", 0
        end_us = self.live.first_end_us()
        leased = [job for job in leased if job.state == "leased"]
        assert (end_us is None) == (not leased)
        assert end_us is None or end_us <= min(job.end_us for job in leased)

    def bury(self) -> None:
        chosen = self.some("condemned")
        runs = as_runs({*chosen, *self.some("ready")})
        assert self.decided(self.live.bury(runs)) == len(chosen)
        self.seen["buried"] += len(chosen)
        for offset in chosen:
            self.jobs[offset].state, self.jobs[offset].failures = "dead", []

    def seek(self) -> None:
        start = max(START, self.frontier - self.draw.randint(0, 30))
        self.decided(self.live.seek(start))
        self.jobs, self.floor, self.frontier = {}, start, start

    def snapshot(self) -> None:
        data = ENCODER.encode(self.live.snapshot())
        self.base = msgspec.msgpack.decode(data, type=ShareSnapshot), len(self.log)

    # --- what holds after each of them ---
    def the_log_tells_the_state(self) -> None:
        start, read = self.base
        again = SharePartition(start, longest, LIMITS)
        for data in self.log[read:]:
            for delta in rec.decode(data):
                again.replay(delta)
        assert image(again) == image(self.live)

    def the_machine_is_as_the_model(self) -> None:
        left = {
            offset: job for offset, job in self.jobs.items() if job.state not in ("done", "dead")
        }
        names = [job.state for job in left.values()]
        assert self.live.counts() == {
            state: names.count(state)
            for state in ("ready", "suspect", "waiting", "leased", "condemned", "behind")
        }
        assert self.live.frontier == self.frontier
        floor = min(left, default=self.frontier)
        assert self.floor <= self.live.floor <= floor
        if "waiting" not in names:  # those in runs are known by the lowest they came with
            assert self.live.floor == floor
        self.floor = self.live.floor
        condemned = [offset for offset, job in sorted(left.items()) if job.state == "condemned"]
        assert in_runs(self.live.condemned(1000)) == condemned
        members = {self.leases[job.holder] for job in left.values() if job.state == "leased"}
        assert set(self.live.members()) == members
        for member in MEMBERS:
            assert self.live.holds(member) == (member in members)
            assert self.live.is_alone(member) == any(
                job.state == "leased" and job.is_alone and self.leases[job.holder] == member
                for job in left.values()
            )
        for offset, job in self.jobs.items():
            assert [told.reason for told in self.live.failures(offset)] == job.failures


@pytest.mark.parametrize("is_small", [False, True])
def test_the_machine_is_the_model_of_single_records(monkeypatch, is_small):
    if is_small:  # so that blocks go while some of their records wait, which are in runs
        monkeypatch.setattr(window, "BLOCK", 8)
        monkeypatch.setattr(waiting, "LOOSE_MAX", 16)
    draw = random.Random(seed_of(f"shares {is_small}"))
    seen: Counter[str] = Counter()
    for _ in range(ROUNDS):
        model = ShareModel(draw)
        for number in range(STEPS):
            model.step()
            model.the_machine_is_as_the_model()
            if number % 10 == 0:
                model.the_log_tells_the_state()
        model.the_log_tells_the_state()
        seen += model.seen
    rare = (
        "accept",
        "release",
        "delay",
        "reject",
        "fail",
        "stale",
        "woken",
        "left",
        "buried",
        "delivery 3",
        "alone",
        "extend",
        "expired",
        "extended and kept",
    )
    assert min(seen[what] for what in rare) >= ROUNDS, seen
