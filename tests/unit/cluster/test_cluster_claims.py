"""Rule 18 under lost, late and repeated claims: nothing is ever handed out twice.

Clients send claims over a line that delays, repeats and loses them and their answers, while members
come, go and are fenced, and while the coordinator dies between deciding and appending. A client
hands out what it hears to be granted, once for each of its claims. PENSTOCK_MACHINE_EXAMPLES sets
how many histories are lived; a failure names its seed, and PENSTOCK_SEED begins with that one.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest
from group_machine_fixture import Shell, compacted
from seeds import seed_of

from penstock.cluster.groups import Claim, Claimed, OwnedPartition
from penstock.core.errors import UnknownMemberError

HISTORIES = int(os.environ.get("PENSTOCK_MACHINE_EXAMPLES", "100"))
STEPS = 300
PARTITIONS = 2


@dataclass
class Consumer:
    """`heard`: claims whose outcome it knows; it hands out on the first answer alone."""

    member_id: str
    told: tuple[OwnedPartition, ...]
    sent: list[tuple[int, Claim]] = field(default_factory=list)
    heard: set[int] = field(default_factory=set)


class History:
    """`line`: claims under way, also of members that are gone."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shell = Shell(t=PARTITIONS)
        self.consumers: list[Consumer] = []
        self.line: list[tuple[Consumer, int, Claim]] = []
        self.handed_out: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.stands = [-1] * PARTITIONS
        self.granted = 0

    def live(self) -> None:
        steps = (
            [self.join] + [self.go] + [self.sync] * 3 + [self.claim] * 6 + [self.repeat] * 3
            + [self.arrive] * 8 + [self.reload]
        )  # fmt: skip
        for _ in range(STEPS):
            self.chance.choice(steps)()
            self.check()

    def pick(self) -> Consumer | None:
        return self.chance.choice(self.consumers) if self.consumers else None

    def join(self) -> None:
        if len(self.consumers) < 3:
            told = self.shell.join(guarantee="at-most-once")
            self.consumers.append(Consumer(told.member_id, told.partitions))

    def go(self) -> None:
        """Fenced while it goes on: what it sent may arrive yet."""
        if (one := self.pick()) and self.chance.random() < 0.5:
            self.consumers.remove(one)
            self.shell.take(self.shell.machine.fence(self.shell.now, "g", one.member_id, "stalled"))

    def sync(self) -> None:
        if one := self.pick():
            released = [o for o in one.told if o.revoked]
            one.told = self.shell.sync(one.member_id, *released).partitions

    def claim(self) -> None:
        if (one := self.pick()) and one.told:
            own = self.chance.choice(one.told)
            start = max(0, self.stands[own.partition] + self.chance.choice([0, 0, 0, 0, -2, 1]))
            end = start + self.chance.randint(1, 5)
            one.sent.append(
                (len(one.sent), Claim(own.topic_id, own.partition, own.grant, start, end))
            )
            self.line.append((one, *one.sent[-1]))

    def repeat(self) -> None:
        if (one := self.pick()) and one.sent:
            self.line.append((one, *self.chance.choice(one.sent[-3:])))

    def arrive(self) -> None:
        if not self.line:
            return
        one, claim_id, claim = self.chance.choice(self.line[-6:])
        if self.chance.random() < 0.7:
            self.line.remove((one, claim_id, claim))
        machine, now = self.shell.machine, self.shell.now
        try:
            decision = machine.claim(now, "g", one.member_id, claim_id, [claim], 0)
        except UnknownMemberError:
            return
        if self.chance.random() < 0.1:  # dies with the decision replayed and not appended
            for record in decision.records:
                machine.replay(record)
            self.reload()
            return
        answer = self.shell.take(decision)
        if self.chance.random() < 0.7:
            self.hear(one, claim_id, claim, answer)

    def hear(self, one: Consumer, claim_id: int, claim: Claim, answer: Claimed) -> None:
        if claim_id in one.heard:
            return
        one.heard.add(claim_id)
        if answer.granted[0]:
            self.granted += 1
            records = set(range(claim.start, claim.end))
            assert not records & self.handed_out[claim.partition], "handed out twice"
            assert self.committed(claim.partition) >= claim.end, "handed out before the commit"
            self.handed_out[claim.partition] |= records

    def reload(self) -> None:
        if self.chance.random() < 0.5:
            self.shell.log = compacted(self.shell.log)
        self.shell.reload()
        self.shell.tick()

    def committed(self, partition: int) -> int:
        return self.shell.offsets().get(("t", partition), -1)

    def check(self) -> None:
        """The group stands at or after all that was handed out, and never goes back."""
        if self.consumers:
            before, self.stands = self.stands, [self.committed(p) for p in range(PARTITIONS)]
            assert all(was <= now for was, now in zip(before, self.stands, strict=True))
            for stands, records in zip(self.stands, self.handed_out, strict=True):
                assert max(records, default=-1) < max(stands, 0)


@pytest.mark.rule(18)
def test_rule_18_at_most_one_granted_claim_covers_an_offset():
    granted = 0
    first = seed_of("claims")
    for seed in range(first, first + HISTORIES):
        history = History(seed)
        try:
            history.live()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        granted += history.granted
    assert granted > 10 * HISTORIES, "the histories claim next to nothing"
