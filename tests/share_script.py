"""Share groups by script: a text file of commands, and below each what it leads to.

    poll ann 3
    ----
    ann has 0-2 by lease 1, delivery 1

    gone ann
    ----
    3 records go back

As `raft_script` has it. A script is made again by `PENSTOCK_REWRITE=1 pytest
tests/unit/cluster/test_share_scenarios.py`. Offsets are single (4) or ranges, both ends named
(0-2); there is one partition.

Owns the commands (see `ShareScript`); the machine is `ShareGroups`, with a log of its decisions.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, Final

from raft_script import RULE, commands

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.shares import (
    AcceptedJobs,
    AcceptedLease,
    KnownEnds,
    LeaseAnswered,
    Runs,
    ShareGroups,
    SharePolicy,
    TransactedJobs,
    runs_of,
)
from penstock.core.errors import PenstockError

GROUP: Final = "workers"
PLACE: Final = (b"j" * 16, 0)


def run(text: str) -> str:
    """The script with what the machine does now below each command."""
    script, parts = ShareScript(), []
    for comment, command in commands(text):
        parts.append("\n".join([*comment, command, RULE, *script.carry_out(command)]))
    return "\n\n".join(parts) + "\n"


class ShareScript:
    """The commands. Waits are as long as they may be.

    group [KEY=VALUE ...]            how it delivers; keys are fields of `SharePolicy`
    records COUNT                    so many more are there
    poll WHO COUNT                   asks for so many
    lose WHO COUNT                   the same, and the answer never comes
    knows WHO [LEASES]               says which leases it knows, after a lost answer
    ack|release|reject WHO LEASE OFFSETS
    nack WHO LEASE OFFSETS [DELAY]   it failed
    extend WHO LEASE OFFSETS SECONDS
    done WHO LEASE OFFSETS           with a transaction
    bury OFFSETS                     their dead letters are written
    gone WHO | pause WHY | resume
    wait SECONDS                     time passes
    takeover [cut] [compacted]       another coordinator reads the log; cut: but the last decision
    status                           all records, and who waits for some
    """

    def __init__(self) -> None:
        self.log: list[tuple[Record, ...]] = []
        self.shares = self._new()
        self.now = 1000.0
        self.end = 0

    def _new(self) -> ShareGroups:
        return ShareGroups(lambda low, high: high)

    def carry_out(self, command: str) -> list[str]:
        name, *words = shlex.split(command)
        try:
            return getattr(self, f"_do_{name}")(*words) or ["ok"]
        except PenstockError as error:
            return [f"{type(error).__name__}: {error}"]

    def _decide(self, decision: Decision[Any]) -> Any:
        if decision.records:
            self.log.append(decision.records)
            for record in decision.records:
                self.shares.replay(record)
        return decision.answer

    # --- what workers ask ---
    def _do_group(self, *settings: str) -> None:
        given = dict(each.split("=") for each in settings)
        policy = SharePolicy(**{
            name: type(getattr(SharePolicy(), name))(text) for name, text in given.items()
        })  # fmt: skip
        self._decide(self.shares.configure(GROUP, policy))

    def _do_records(self, count: str) -> None:
        self.end += int(count)

    def _do_poll(self, who: str, count: str) -> list[str]:
        ends = [KnownEnds(PLACE, 0, self.end)]
        got = self._decide(self.shares.acquire(self.now, GROUP, who, int(count), ends, [PLACE[0]]))
        if got.is_paused:
            return ["the group is paused"]
        return [
            f"{who} has {told([run])} by lease {each.granted.lease}, delivery {times}"
            for each in got.granted for times, run in each.granted.deliveries
        ] or ["nothing is ready"]  # fmt: skip

    def _do_lose(self, who: str, count: str) -> None:
        self._do_poll(who, count)

    def _do_knows(self, who: str, leases: str = "") -> list[str]:
        holds = {(PLACE, int(lease)) for lease in leases.split(",") if lease}
        back = self._decide(self.shares.keep_only(GROUP, who, holds))
        return [f"{back} records go back"]

    def _do_ack(self, who: str, lease: str, offsets: str) -> list[str]:
        return self._told(self.shares.accept(GROUP, PLACE, int(lease), ranges(offsets)))

    def _do_release(self, who: str, lease: str, offsets: str) -> list[str]:
        return self._told(self.shares.release(GROUP, PLACE, int(lease), ranges(offsets), who))

    def _do_reject(self, who: str, lease: str, offsets: str) -> list[str]:
        wanted = (GROUP, PLACE, int(lease), ranges(offsets), "never", who)
        return self._told(self.shares.reject(self.now, *wanted))

    def _do_nack(self, who: str, lease: str, offsets: str, delay: str = "") -> list[str]:
        wanted = (GROUP, PLACE, int(lease), ranges(offsets), "failed")
        return self._told(self.shares.fail(self.now, *wanted, float(delay) if delay else None, who))

    def _do_extend(self, who: str, lease: str, offsets: str, seconds: str) -> list[str]:
        wanted = (GROUP, PLACE, int(lease), ranges(offsets), float(seconds))
        return self._told(self.shares.extend(self.now, *wanted))

    def _do_done(self, who: str, lease: str, offsets: str) -> list[str]:
        jobs = TransactedJobs(self.shares)
        done = [
            AcceptedJobs(GROUP, who, [AcceptedLease(PLACE, int(lease), ranges(offsets), "jobs-0")])
        ]
        jobs.check_done(done)
        records, _ = jobs.done_records(done)
        self._decide(Decision(records, None))
        return ["committed"]

    def _told(self, decision: Decision[LeaseAnswered]) -> list[str]:
        answer: LeaseAnswered = self._decide(decision)
        lines = [f"{answer.settled} count"] if answer.settled else []
        lines += [f"{answer.condemned} are condemned"] if answer.condemned else []
        return [*lines, *([f"{told(answer.stale)} stale"] if answer.stale else [])]

    # --- what happens to them, time and operators ---
    def _do_bury(self, offsets: str) -> list[str]:
        return [f"{self._decide(self.shares.bury(GROUP, PLACE, ranges(offsets)))} buried"]

    def _do_gone(self, who: str) -> list[str]:
        back = self._decide(self.shares.leave(self.now, GROUP, who, "gone"))
        return [f"{back} records go back"]

    def _do_pause(self, why: str) -> None:
        self._decide(self.shares.pause(self.now, GROUP, "operator", why))

    def _do_resume(self) -> None:
        self._decide(self.shares.resume(GROUP))

    def _do_wait(self, seconds: str) -> None:
        self.now += float(seconds)
        while (deadline := self.shares.deadline()) is not None and deadline <= self.now:
            self._decide(self.shares.tick(self.now))

    def _do_takeover(self, *how: str) -> None:
        if "cut" in how:
            del self.log[-1:]
        records = [record for batch in self.log for record in batch]
        if "compacted" in how:
            newest = {record.key: at for at, record in enumerate(records)}
            records = [each for at, each in enumerate(records) if newest[each.key] == at]
        self.shares = self._new()
        for record in records:
            self.shares.replay(record)

    def _do_status(self) -> list[str]:
        lines = []
        for _, machine in self.shares.partitions(GROUP):
            counts = " ".join(
                f"{name}={count}" for name, count in machine.counts().items() if count
            )
            lines.append(
                f"done below {machine.floor}, new from {machine.frontier}: {counts}".rstrip(": ")
            )
            lines += [f"{who} has {count}" for who, count in sorted(machine.members().items())]
        return lines


def ranges(text: str) -> Runs:
    pairs = [each.partition("-") for each in text.split(",")]
    return runs_of([(int(first), int(last or first) + 1) for first, _, last in pairs])


def told(runs: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{first}-{end - 1}" if end - first > 1 else f"{first}" for first, end in runs)
