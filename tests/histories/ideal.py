"""A queue that keeps its promises, as a model: seeded, with crashes, rebalances and transactions.

`World(seed).run(steps)` gives the lines of every process of a made-up run: what the checkers must
find nothing in. Tests plant anomalies into its lines. The log is a list for each partition; a
transaction's begin and end take an offset each, as in the real one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
from histories.events import WRITER_SHIFT

Place = tuple[str, int]
Lines = dict[str, list[dict[str, Any]]]

GUARANTEES = ("at-most-once", "at-least-once", "manual")


@dataclass(slots=True)
class Entry:
    """One offset of a log; `value` None is a control record."""

    value: int | None
    source: int | None = None
    txn: Txn | None = None


@dataclass(slots=True, eq=False)
class Txn:
    """Its outcome as the log has it."""

    open: bool = True
    committed: bool = False
    touched: set[Place] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Member:
    """Of a group, with the partitions that are its own and how far it has read each."""

    who: str
    at: dict[Place, int] = field(default_factory=dict)
    writer: int = 0
    sent: int = 0
    transactions: int = 0


@dataclass(slots=True)
class Group:
    """A group of the model."""

    name: str
    guarantee: str
    topics: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    members: list[Member] = field(default_factory=list)
    committed: dict[Place, int] = field(default_factory=dict)
    count: int = 0

    @property
    def read_committed(self) -> bool:
        return self.guarantee == "exactly-once"


class World:
    """See the module."""

    def __init__(self, seed: int, *, batch_max: int = 6) -> None:
        self.rng = rng = random.Random(seed)
        self.batch_max = batch_max
        self.now = 1000
        self.lines: Lines = defaultdict(list)
        self.logs: dict[Place, list[Entry]] = {
            (topic, number): []
            for topic in ("in", "also", "out")
            for number in range(rng.randint(1, 3))
        }
        self.writers: dict[str, tuple[int, int]] = {}
        self.count = self.depth = 0
        self.groups = [
            Group(f"g-{guarantee}", guarantee, ("in", "also")) for guarantee in GUARANTEES
        ]
        self.groups.append(Group("job", "exactly-once", ("in",), ("out",)))
        self.readers: dict[str, dict[Place, int]] = {}
        for isolation in ("read_committed", "read_uncommitted"):
            self._new_reader(f"reader-{isolation}", isolation)

    # --- writing it down ---
    def say(self, who: str, event: str, **fields: Any) -> None:
        self.now += self.rng.randint(1, 5)
        self.lines[who].append({"e": event, "t": self.now, **fields})

    def _places(self, topics: tuple[str, ...]) -> list[Place]:
        return [place for place in self.logs if place[0] in topics]

    def stable(self, place: Place) -> int:
        log = self.logs[place]
        return next((at for at, each in enumerate(log) if each.txn and each.txn.open), len(log))

    def _batch(self, place: Place, start: int, stop: int, committed: bool) -> tuple[list[Any], int]:
        """A `polls` row of what is there to see, and where to go on."""
        rows = [
            (at, each)
            for at, each in enumerate(self.logs[place][start:stop], start)
            if each.value is not None
            and not (committed and each.txn is not None and not each.txn.committed)
        ]
        sources = [-1 if each.source is None else each.source for _, each in rows]
        return [
            *place, [at for at, _ in rows], [each.value for _, each in rows],
            sources if any(source >= 0 for source in sources) else None,
        ], stop  # fmt: skip

    # --- writers ---
    def _number(self) -> int:
        self.count += 1
        return self.count

    def write(self) -> None:
        """A plain writer: acknowledged, or killed with some of it in the log."""
        rng, writer = self.rng, self._number()
        who = f"writer-{writer}"
        number = 0
        for _ in range(rng.randint(1, 3)):
            values = [writer << WRITER_SHIFT | number + k
                      for k in range(rng.randint(1, self.batch_max))]  # fmt: skip
            number += len(values)
            places = self._places(("in", "also"))
            targets = [rng.choice(places) for _ in values]
            self.say(who, "sends", r=[[v, t[0]] for v, t in zip(values, targets, strict=True)])
            killed = rng.random() < 0.15
            kept = rng.randint(0, len(values)) if killed else len(values)
            acks = []
            for value, target in zip(values[:kept], targets, strict=False):
                acks.append([value, *target, len(self.logs[target])])
                self.logs[target].append(Entry(value))
            if killed:
                return
            self.say(who, "acks", r=acks)

    def transact(self) -> None:
        """A transactional writer; meanwhile the world goes on in between."""
        writer = self._number()
        who, txn = f"transactor-{writer}", Txn()
        self.say(who, "begin", n=0)
        for number in range(self.rng.randint(1, self.batch_max)):
            self._write_in(who, txn, 0, writer << WRITER_SHIFT | number, ("in", "also"), None)
            if self.depth < 3 and self.rng.random() < 0.2:
                self.depth += 1
                self.step()
                self.depth -= 1
            elif self.rng.random() < 0.3:
                self.read()
        self._end(who, txn, 0)

    def _write_in(
        self, who: str, txn: Txn, n: int, value: int, topics: tuple[str, ...], source: int | None
    ) -> None:
        target = self.rng.choice(self._places(topics))
        self.say(who, "sends", r=[[value, target[0]]], txn=n)
        if target not in txn.touched:
            txn.touched.add(target)
            self.logs[target].append(Entry(None, None, txn))
        acked = [[value, *target, len(self.logs[target])]]
        self.logs[target].append(Entry(value, source, txn))
        if self.rng.random() < 0.9:
            self.say(who, "acks", r=acked)

    def _end(self, who: str, txn: Txn, n: int) -> bool:
        """Commit or abort; in some cases nobody hears of it. Whether it was committed."""
        rng = self.rng
        committed = rng.random() < 0.7
        if committed or rng.random() < 0.5:
            self.say(who, "ending", n=n, commit=committed or rng.random() < 0.5)
        txn.open, txn.committed = False, committed
        for place in sorted(txn.touched):
            self.logs[place].append(Entry(None))
        if rng.random() < 0.8:
            self.say(who, "ended", n=n, outcome="committed" if committed else "aborted")
        return committed

    # --- readers without a group ---
    def _new_reader(self, who: str, isolation: str) -> None:
        self.say(who, "hello", role="reader", isolation=isolation)
        self.say(who, "assigned", r=[list(place) for place in self.logs])
        self.readers[who] = dict.fromkeys(self.logs, 0)

    def read(self, who: str | None = None, *, to_the_end: bool = False) -> None:
        who = who or self.rng.choice(sorted(self.readers))
        committed = "uncommitted" not in who
        at = self.readers[who]
        rows = []
        for place in self.logs:
            end = self.stable(place) if committed else len(self.logs[place])
            stop = end if to_the_end else self.rng.randint(at[place], end)
            row, at[place] = self._batch(place, at[place], stop, committed)
            if row[2]:
                rows.append(row)
        if rows:
            self.say(who, "polls", r=rows)

    # --- groups ---
    def join(self, group: Group) -> None:
        group.count += 1
        member = Member(f"{group.name}-{group.count}", writer=self._number())
        self.say(
            member.who, "hello", role="member", group=group.name, guarantee=group.guarantee,
            isolation="read_committed" if group.read_committed else "read_uncommitted",
            topics=list(group.topics), outputs=list(group.outputs),
        )  # fmt: skip
        group.members.append(member)
        self._balance(group)

    def leave(self, group: Group, *, killed: bool) -> None:
        member = group.members.pop(self.rng.randrange(len(group.members)))
        if not killed:
            self._commit(group, member)
            self.say(member.who, "revoked", r=[list(place) for place in member.at])
        self._balance(group)

    def _balance(self, group: Group) -> None:
        """Partitions to members in turn; those that move are let go of first."""
        if not group.members:
            return
        owners = {
            place: group.members[index % len(group.members)]
            for index, place in enumerate(self._places(group.topics))
        }
        for member in group.members:
            lost = [place for place in member.at if owners[place] is not member]
            if lost:
                self._commit(group, member)
                self.say(member.who, "revoked", r=[list(place) for place in lost])
            for place in lost:
                del member.at[place]
        for member in group.members:
            new = [p for p, owner in owners.items() if owner is member and p not in member.at]
            if new:
                self.say(member.who, "assigned", r=[list(place) for place in new])
            for place in new:
                member.at[place] = group.committed.get(place, 0)

    def _commit(self, group: Group, member: Member) -> None:
        if group.guarantee not in ("at-least-once", "manual"):
            return
        rows = []
        for place, at in member.at.items():
            if at > group.committed.get(place, 0):
                group.committed[place] = at
                rows.append([*place, at])
        if rows:
            self.say(member.who, "committed", r=rows)

    def consume(self, group: Group, member: Member) -> None:
        work = {"at-most-once": self._claim, "exactly-once": self._transform}
        work.get(group.guarantee, self._process)(group, member)

    def _process(self, group: Group, member: Member) -> None:
        rows = []
        for place, at in member.at.items():
            stop = self.rng.randint(at, len(self.logs[place]))
            row, member.at[place] = self._batch(place, at, stop, False)
            if row[2]:
                rows.append(row)
        if rows:
            self.say(member.who, "polls", r=rows)
        if self.rng.random() < 0.5:
            self._commit(group, member)

    def _claim(self, group: Group, member: Member) -> None:
        for place in list(member.at):
            start = group.committed.get(place, 0)
            stop = self.rng.randint(start, len(self.logs[place]))
            row, group.committed[place] = self._batch(place, start, stop, False)
            if row[2] and self.rng.random() < 0.9:  # else it is dropped, or its member dies here
                self.say(member.who, "claimed", r=[[*place, stop]])
                self.say(member.who, "polls", r=[row])

    def _transform(self, group: Group, member: Member) -> None:
        if not member.at:
            return
        place = self.rng.choice(sorted(member.at))
        start = group.committed.get(place, 0)
        stop = self.rng.randint(start, max(start, self.stable(place)))
        row, _ = self._batch(place, start, stop, True)
        if not row[2]:
            return
        self.say(member.who, "polls", r=[row])
        n, txn = member.transactions, Txn()
        member.transactions += 1
        self.say(member.who, "begin", n=n)
        self.say(member.who, "inputs", n=n, r=[[*place, start, stop]])
        for value in row[3]:
            number = member.writer << WRITER_SHIFT | member.sent
            member.sent += 1
            self._write_in(member.who, txn, n, number, group.outputs, value)
        if self._end(member.who, txn, n):
            group.committed[place] = stop
            self.say(member.who, "committed", r=[[*place, stop]])
        else:
            self.say(member.who, "sought", r=[list(place)])

    # --- the run ---
    def step(self) -> None:
        rng = self.rng
        group = rng.choice(self.groups)
        draw = rng.random()
        if draw < 0.25:
            self.write()
        elif draw < 0.4:
            self.transact()
        elif draw < 0.55:
            self.read()
        elif draw < 0.62 or not group.members:
            self.join(group)
        elif draw < 0.7:
            self.leave(group, killed=rng.random() < 0.5)
        else:
            self.consume(group, rng.choice(group.members))

    def run(self, steps: int) -> Lines:
        for _ in range(steps):
            self.step()
        self.write()
        self.finish()
        return dict(self.lines)

    def finish(self) -> None:
        """Everybody comes to the end, and late readers read all."""
        for group in self.groups:
            if not group.members:
                self.join(group)
            places = self._places(group.topics)
            while any(group.committed.get(place, 0) < self._end_of(place) for place in places):
                for member in group.members:
                    self.consume(group, member)
                    self._commit(group, member)
        for group in self.groups:
            rows = [[*place, group.committed.get(place, 0)] for place in self._places(group.topics)]
            self.say("harness", "drained", group=group.name, r=rows)
        for isolation in ("read_committed", "read_uncommitted"):
            who = f"late-{isolation}"
            self._new_reader(who, isolation)
            self.read(who, to_the_end=True)
            self.say(who, "ends", r=[[*place, len(log)] for place, log in self.logs.items()])

    def _end_of(self, place: Place) -> int:
        """Behind the last record that everybody may see."""
        seen = [
            at + 1
            for at, each in enumerate(self.logs[place])
            if each.value is not None and (each.txn is None or each.txn.committed)
        ]
        return max(seen, default=0)


def encoded(lines: Lines) -> dict[str, list[bytes]]:
    """As `load` wants them."""
    encode = msgspec.json.encode
    return {who: [encode(line) for line in mine] for who, mine in lines.items()}
