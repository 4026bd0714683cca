"""Workers of a share group in the simulation, and what they saw: the `JobLedger` judges it.

A worker asks as `client/share` does: one request at a time; after an answer that was lost the next
request tells which leases it knows, and the answers follow again.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sim.clients import Refused, Transactional
from sim.coordinator import Answered, Call, Refusal
from sim.share_brokers import Quorum, ShareCall

from penstock.cluster.groups import Assignment, ClientIdentity
from penstock.cluster.groups.types import SHARED
from penstock.cluster.shares import AcceptedJobs, AcceptedLease, runs_of
from penstock.cluster.transactions import EndedTransaction
from penstock.cluster.transactions.records import Place
from penstock.ipc import sharing as sh
from penstock.testing.sim import Ask, NoAnswer, Task

GROUP: Final = "workers"
SESSION_TIMEOUT: Final = 3.0
FATES: Final = {
    "ack": 45, "done": 9, "nack": 9, "release": 5, "delay": 4, "extend": 7, "reject": 1, "later": 20
}  # fmt: skip
FINAL: Final = ("ack", "reject", "done")
BACK: Final = ("release", "delay")
"""Answers by which a delivery does not count."""

JobPlace = tuple[Place, int]


@dataclass
class Grant:
    """A record, as a worker was given it. `kept`: the answer of which it knows that it counts."""

    who: str
    lease: int
    deliveries: int
    told: float
    sent: dict[str, float] = field(default_factory=dict)
    kept: str = ""


class Held(NamedTuple):
    """A job in a worker's hands."""

    at: JobPlace
    lease: int


class JobLedger:
    """What workers were given and told, which outlives them. Raises where a promise is broken."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.grants: dict[JobPlace, list[Grant]] = defaultdict(list)
        self.dead: Counter[JobPlace] = Counter()
        self.outcomes: dict[str, bool | None] = {}
        """Of transactions, by the name in their values: what their producer learnt."""

    def given(self, who: str, at: JobPlace, lease: int, deliveries: int, now: float) -> None:
        grants = self.grants[at]
        same = [each for each in grants if each.lease == lease]
        assert not same, f"doubled lease {lease} of {at}: {same[0].who} has it, and {who}"
        grants.append(Grant(who, lease, deliveries, now))
        grants.sort(key=lambda each: each.lease)
        for before, after in itertools.pairwise(grants):
            told = f"of {at}: {before}, {after}"
            assert after.deliveries >= before.deliveries, f"deliveries fell {told}"
            assert after.deliveries > before.deliveries or set(BACK) & before.sent.keys(), (
                f"deliveries repeated {told}"
            )
            assert before.kept not in FINAL, f"done again {told}"
        self.counts["given"] += 1

    def grant(self, held: Held) -> Grant:
        return next(each for each in self.grants[held.at] if each.lease == held.lease)

    def kept(self, held: Held, by: str) -> None:
        """Its worker was told that this answer counts."""
        grant = self.grant(held)
        grant.kept = by
        for other in self.grants[held.at]:
            if other.lease > grant.lease:
                told = f"of {held.at}: {grant}, {other}"
                assert by not in FINAL, f"done again {told}"
                assert grant.sent[by] <= other.told, f"a stale answer counted {told}"
        self.counts[f"kept {by}"] += 1

    # --- at the end ---
    def finished(self, at: JobPlace) -> set[str]:
        """By which answers it may be done. Raises where nobody did it."""
        grants = self.grants[at]
        if any(each.kept in FINAL for each in grants):
            return {each.kept for each in grants if each.kept in FINAL}
        assert grants, f"lost job {at}: nobody had it"
        found = set(FINAL) & grants[-1].sent.keys()
        assert found, f"lost job {at}: nobody did it: {grants}"
        return found

    def check(self, jobs: Iterable[JobPlace], outputs: Counter[str]) -> None:
        """All jobs are done or dead, and each has the outputs of its transaction, if it was one."""
        values = Counter(value.split("/")[0] for value in outputs)
        assert max(outputs.values(), default=1) == 1, "exactly once: a transaction is there twice"
        for at in jobs:
            told = f"{at}: {self.grants[at]}"
            made = values[name_of(at)]
            assert made <= 1, f"{made} committed transactions have done {told}"
            if at in self.dead:
                assert not made, f"dead, and done with a transaction: {told}"
                assert all(each.kept not in ("ack", "done") for each in self.grants[at]), (
                    f"dead, and done: {told}"
                )
                continue
            finished = self.finished(at)
            assert not made or "done" in finished, f"not the transaction has done it: {told}"
            assert made or finished != {"done"}, (
                f"done with a transaction that is not there: {told}"
            )
        for name, committed in self.outcomes.items():
            there = sum(value.endswith(f"/{name}") for value in outputs)
            assert committed is None or committed == bool(there), f"{name} said {committed}"


def name_of(at: JobPlace) -> str:
    return f"{at[0][1]}.{at[1]}"


def runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


class ShareWorker(Transactional):
    """Takes jobs, and does with them what chance says. `settings`: how the group delivers."""

    jobs: JobLedger
    quorum: Quorum
    settings: sh.ShareSettings
    places: list[Place]
    outputs: list[Place]
    dies_at_once = True
    """Whether its death is seen; else its connection ends, and its session timeout runs."""
    is_diligent = False
    """All that it is given is done."""

    def on_start(self) -> None:
        self.member_id = self.joining = self.attempt = ""
        self.target = self.quorum.leader
        self.connection = self.sim.number()
        self.is_known = False
        self.at_us = 0
        self.hands: list[Held] = []
        self.answers: dict[Held, tuple[str, float]] = {}
        """What is to be told: the last answer for each, and its seconds."""
        super().on_start()

    def on_crash(self) -> None:
        life = self.life

        def tell() -> None:
            for broker in self.quorum.brokers:
                if broker.is_up:
                    broker.client_gone(self.name, life, at_once=self.dies_at_once)

        self.sim.after(self.sim.random.uniform(0.001, 0.3), f"{self.name}: it is gone", tell)

    # --- asking -----------------------------------------------------------------------------------
    def ask_once(self, question: Any, timeout: float) -> Task:
        """Raises NoAnswer, after which another connection is taken, and Refused."""
        try:
            answer = yield Ask(self.target, question, timeout=timeout, tries=1)
            if isinstance(answer, Refusal) and answer.error == "NotLeaderError":
                raise NoAnswer(answer.message)
        except NoAnswer:
            self.is_known = False
            self.connection = self.sim.number()
            names = [self.quorum.leader, *(each.name for each in self.quorum.brokers)]
            self.target = self.sim.random.choice(names)
            raise
        if isinstance(answer, Refusal):
            raise Refused(answer)
        assert isinstance(answer, Answered)
        return answer.value

    def call(self, handler: str, *args: Any, tries: int = 12) -> Task:
        for left in reversed(range(tries)):
            try:
                return (yield from self.ask_once(Call(handler, args), 0.6))
            except NoAnswer:
                if not left:
                    raise
                yield self.a_while(0.1)
        raise AssertionError("tries are above 0")

    def run(self) -> Task:
        yield self.a_while(0.5)
        while True:
            try:
                yield from self.join()
                while True:
                    yield from self.exchange()
                    yield from self.work()
            except Refused as refused:
                self.jobs.counts[refused.error] += 1
                if refused.error == "UnknownMemberError":
                    self.member_id = ""  # what it has in hand it answers for, too late
            except NoAnswer:
                self.jobs.counts["no answer"] += 1
            yield self.a_while(0.3)

    def join(self) -> Task:
        client = ClientIdentity(self.life, 0, "boot", self.name)
        self.attempt = self.attempt or f"{self.name}.{self.life}.{self.sim.number()}"
        self.joining = self.attempt
        try:
            joined: Assignment = yield from self.call(
                "join", GROUP, self.member_id, self.attempt, ["jobs"], None, SHARED, None,
                SESSION_TIMEOUT, None, client,
            )  # fmt: skip
        finally:
            self.joining = ""
        self.member_id, self.attempt, self.is_known = joined.member_id, "", False

    def exchange(self) -> Task:
        """Answers, and asks for more."""
        told = self.answers if self.is_known else {}
        by_lease: dict[tuple[Place, int], list[Held]] = defaultdict(list)
        for held in told:
            by_lease[held.at[0], held.lease].append(held)
        ends = [
            sh.PartitionEnds(*place, 0, self.writer.logs[place].last_stable)
            for place in self.places
        ]
        request = sh.AcquireRecords(
            GROUP, self.member_id, self.sim.random.choice([0, 1, 3, 8]), ends,
            [self.answer_of(held) for held in by_lease.values()],
            None if self.is_known else self.settings,
            None if self.is_known else self.known_leases(),
        )  # fmt: skip
        for held, (by, _) in told.items():
            self.jobs.grant(held).sent.setdefault(by, self.sim.now)
        question = ShareCall(self.connection, self.sim.number(), request)
        said: sh.RecordsAcquired = yield from self.ask_once(question, 0.5)
        self.at_us, told = said.at_us, dict(told)
        for (_, all_held), stale in zip(by_lease.items(), said.stale, strict=True):
            for held in all_held:
                by, _ = self.answers.pop(held)
                if any(first <= held.at[1] < end for first, end in stale):
                    self.jobs.counts["stale"] += 1
                else:
                    self.jobs.kept(held, by)
                if by == "extend":
                    self.hands.append(held)
        self.is_known = True
        for lease in said.leases:
            for times, first, end in lease.deliveries:
                for offset in range(first, end):
                    held = Held(((lease.topic_id, lease.partition), offset), lease.lease)
                    self.jobs.given(self.member_id, held.at, lease.lease, times, self.sim.now)
                    self.hands.append(held)
        for dead in said.condemned:
            place = (dead.topic_id, dead.partition)
            self.jobs.dead[place, dead.offset] += 1
            bury = sh.BuryRecords(GROUP, self.member_id, *place, [(dead.offset, dead.offset + 1)])
            yield from self.ask_once(ShareCall(self.connection, self.sim.number(), bury), 0.5)

    def known_leases(self) -> list[sh.HeldLease]:
        names = {(held.at[0], held.lease) for held in (*self.hands, *self.answers)}
        return [sh.HeldLease(*place, lease) for place, lease in sorted(names)]

    def answer_of(self, all_held: list[Held]) -> sh.LeaseAnswer:
        """One lease's answers."""
        by: dict[tuple[str, float], list[int]] = defaultdict(list)
        for held in all_held:
            by[self.answers[held]].append(held.at[1])
        found = {each: runs(offsets) for each, offsets in by.items()}
        return sh.LeaseAnswer(
            *all_held[0].at[0], all_held[0].lease,
            accepted=found.get(("ack", 0.0), []),
            released=found.get(("release", 0.0), []),
            failed=[sh.FailedRuns(it, "it failed", delay if delay >= 0 else None)
                    for (how, delay), it in found.items() if how == "nack"],
            rejected=[sh.FailedRuns(it, "never")
                      for (how, _), it in found.items() if how == "reject"],
            delayed=[sh.DelayedRuns(it, self.at_us + int(delay * 1e6))
                     for (how, delay), it in found.items() if how == "delay"],
            extended=[sh.ExtendedRuns(it, 1.0)
                      for (how, _), it in found.items() if how == "extend"],
        )  # fmt: skip

    # --- working ----------------------------------------------------------------------------------
    def work(self) -> Task:
        random = self.sim.random
        yield self.a_while(random.choice([0.02, 0.1]))
        for held in list(self.hands):
            fate = "ack" if self.is_diligent else random.choices([*FATES], [*FATES.values()])[0]
            if fate == "later":
                continue
            if fate == "done":
                yield from self.done([held])
                continue
            self.hands.remove(held)
            seconds = {"nack": random.choice([-1.0, 0.0, 0.3]), "delay": 0.5}.get(fate, 0.0)
            self.answers[held] = (fate, seconds)

    def done(self, found: list[Held]) -> Task:
        """With a transaction. What becomes of it may stay unknown: then it is answered for again,
        which is stale where it was committed."""
        self.jobs.counts["transactions"] += 1
        name = f"{self.name}.{self.sim.number()}"
        self.jobs.outcomes[name] = None
        values = [
            (self.sim.random.choice(self.outputs), f"{name_of(it.at)}/{name}") for it in found
        ]
        yield from self.init()
        try:
            yield from self.send_all(values)
        except Refused as refused:
            self.jobs.counts[f"transaction {refused.error}"] += 1
            return
        yield self.a_while(3.5 if self.sim.random.random() < 0.1 else 0.02)
        leases = [
            AcceptedLease(it.at[0], it.lease, runs_of(runs([it.at[1]])), "jobs") for it in found
        ]
        for held in found:
            self.jobs.grant(held).sent.setdefault("done", self.sim.now)
        commit = self.sim.random.random() < 0.9
        jobs = AcceptedJobs(GROUP, self.member_id, leases)
        ended: EndedTransaction = yield from self.call(
            "end", self.name, *self.identity, commit, (), 0, [jobs]
        )
        self.jobs.outcomes[name] = ended.committed
        self.jobs.counts[f"committed {ended.committed}"] += 1
        if ended.committed:
            for held in found:
                self.hands.remove(held)
                self.jobs.kept(held, "done")
