"""A trial of the guarantees: processes write and read under faults, then peace, then the judgement.

    plan the scene -> rounds of faults while everybody writes down what happens -> heal -> writers
    end -> groups drain -> late readers read all -> the checker of histories

Like an episode of the crash machine, with groups and transactions; what is right is the checker's.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
from crash.fault_injection import REMOTE_WEIGHTS, WEIGHTS, WRITERS, Faults
from crash.history_processes import isolated, poll_rows
from crash.node_under_test import Ground, is_running
from crash.participants import Roster, Scene
from crash.process_pool import Hand, Nursery
from histories.checker import Report, check, figures_of
from histories.events import SHARED, load

from penstock.client.admin.admin import Admin, TopicConfig
from penstock.client.client import Client
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.records import Record, RecordBatch
from penstock.core.errors import GroupError, PenstockError
from penstock.ipc.lane import undrained
from penstock.observe.shared import Shared
from penstock.testing import wait_until

HEAL_TIMEOUT: Final = 45.0
"""Seconds after the last fault. A node killed between a join and its answer leaves a member that
nobody is; it keeps its partitions for its `session_timeout`, 30 s by default."""
AMOUNTS_TIMEOUT: Final = 20.0
"""Seconds for which a trial waits for `LEAST` at most."""
Place = tuple[str, int]
BEHIND_ALL: Final = 1 << 30
"""An offset that no partition reaches."""
UNKNOWN_FOR: Final = 3_000_000_000
"""Nanoseconds for which a request that nobody answered may still be done."""
LATE_READERS: Final = ("read_committed", "read_uncommitted")

TRIAL_WEIGHTS: Final = {
    **{kind: weight for kind, weight in WEIGHTS.items() if kind != "stall writer"},
    "kill writer": 12.0,
    "kill consumer": 24.0,
    "stop consumer": 20.0,
    "kill producer": 12.0,
    "kill node": 6.0,
    "join": 8.0,
    "leave": 6.0,
    "add partitions": 2.0,
    "reset offsets": 6.0,
}


LEAST: Final = {"acknowledgements": 1, "reads": 10}
"""Of a trial on average. A trial whose clients did less goes on for a while."""


def least_of(scene: Scene) -> Mapping[str, int]:
    """What a trial of a scene comes to at least, on average."""
    shared = {"jobs": 10, "kept answers": 1} if SHARED in scene.guarantees else {}
    return LEAST | shared | ({"jobs in order": 10} if all(scene.orders) else {})


def too_few(
    trials: int, figures: Mapping[str, int], least: Mapping[str, int] = LEAST
) -> dict[str, int]:
    """What so many trials came to too little of."""
    return {name: figures[name] for name, each in least.items() if figures[name] < each * trials}


def check_amounts(
    trials: int,
    figures: Mapping[str, int],
    faults: Mapping[str, int],
    least: Mapping[str, int] = LEAST,
) -> None:
    """A run shows nothing in which next to nothing was acknowledged, read or struck."""
    assert trials > 0
    few = too_few(trials, figures, least)
    assert not few, f"too few in {trials} trials: {few} of {dict(figures)}"
    assert sum(faults.values()) >= trials, f"in {trials} trials only {dict(faults)}"


@dataclass(slots=True)
class Tally:
    """What trials amounted to."""

    trials: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    findings: int = 0
    """Trials and nodes that ended otherwise than they had to. A scene ends with its first."""

    def __iadd__(self, other: Tally) -> Tally:
        self.trials += other.trials
        self.faults += other.faults
        self.figures += other.figures
        self.findings += other.findings
        return self

    def summary(self) -> str:
        """In a few words."""
        kills = sum(count for kind, count in self.faults.items() if kind.startswith("kill "))
        return (
            f"{self.trials} trials in {self.seconds:.0f} s, {self.figures['reads']} deliveries, "
            f"{kills} kills, {self.findings} findings"
        )

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        figures = ", ".join(f"{count} {name}" for name, count in self.figures.items())
        return f"{self.trials} trials in {self.seconds:.0f} s; {figures}; {faults}"


class Upheaval(Faults):
    """The crash machine's faults, and what may befall groups."""

    def __init__(self, trial: Trial, *args: Any) -> None:
        super().__init__(*args)
        self._trial = trial

    def _join(self) -> str:
        return self._trial.roster.join()

    def _leave(self) -> str:
        return self._trial.roster.leave()

    def _add_partitions(self) -> str:
        name = self._rng.choice(self._topics)
        return self._administer(
            lambda admin: admin.add_partitions(
                name, min(5, len(admin.describe_topic(name).partitions) + 1)
            )
        )

    def _reset_offsets(self) -> str:
        return self._administer(self._trial.reset_offsets)


class Trial:
    """See the module. `run`, then `close` whatever became of it."""

    patience: ClassVar[float] = 1.0
    """How much longer than usual the pauses between faults are."""

    def __init__(
        self, node: Ground, nursery: Nursery, scene: Scene, seed: int, prefix: str
    ) -> None:
        self._node = node
        self._rng = rng = random.Random(seed)
        self._begun = time.monotonic()
        self._trace: list[str] = []
        self._lines: list[bytes] = []
        self.scene = scene
        self.tally: Counter[str] = Counter()
        self.roster = Roster(nursery, node.folder, node.url, prefix, scene, rng, self._note)
        self.topics = [*self.roster.inputs, *self.roster.outputs]
        self._faults = self._make_faults((node, self.roster, self.roster.inputs, rng, self._note))

    def _make_faults(self, args: tuple[Any, ...]) -> Upheaval:
        return Upheaval(self, *args)

    def weights(self) -> dict[str, float]:
        """How often each fault strikes, beside the others."""
        return TRIAL_WEIGHTS | (REMOTE_WEIGHTS if self._node.transport == "tcp" else {})

    def _note(self, event: str) -> None:
        self._trace.append(f"{time.monotonic() - self._begun:8.3f}  {event}")

    def _tell(self, event: str, **fields: Any) -> None:
        """An event of the trial's own."""
        line = {"e": event, "t": time.monotonic_ns(), **fields}
        self._lines.append(msgspec.json.encode(line))

    def trace_text(self) -> str:
        return "\n".join(self._trace)

    # --- the run ---
    def run(self, rounds: int) -> Report:
        self._begin()
        for _ in range(rounds):
            self._round()
        return self._conclude()

    def _conclude(self) -> Report:
        """Peace, and what it all came to."""
        self._await_amounts()
        self._heal()
        report = self._judge()
        with self._node.connect() as client:
            admin = client.admin()
            made = {*self.topics, *self.roster.dead_letters, *self._faults.passing}
            for name in made & set(admin.list_topics()):
                admin.delete_topic(name)
        return report

    def _begin(self) -> None:
        rng = self._rng
        with self._node.connect() as client:
            admin = client.admin()
            for name in (*self.topics, *self.roster.dead_letters):
                config = self._topic_config(rng)
                admin.create_topic(name, config)
                self._note(f"{name}: {config}")
        self.roster.start()

    def _topic_config(self, rng: random.Random) -> TopicConfig:
        return TopicConfig(
            partitions=rng.randint(1, 3),
            segment_bytes=rng.choice([8 << 10, 1 << 20]),
            durability=rng.choice(["os", "interval", "fsync"]),
        )

    def _round(self) -> None:
        rng = self._rng
        pause = rng.uniform(0.01, 0.08) if rng.random() < 0.3 else rng.uniform(0.08, 0.25)
        self._go_on_for(pause * self.patience * self.scene.pauses)
        self._check()
        weights = self.weights()
        kinds = self.scene.kinds or tuple(weights)
        kind = rng.choices(kinds, [weights[kind] for kind in kinds])[0]
        self._note(f"{kind} {self._faults.strike(kind)}")
        self.tally[kind] += 1

    def _go_on_for(self, pause: float) -> None:
        """Traffic, while faults that are due end."""
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            due = self._faults.next_at(deadline) - time.monotonic()
            time.sleep(max(0.0, min(left, due)))
            self._faults.go_on(time.monotonic())

    def _check(self) -> None:
        self.roster.check()
        if not self._node.is_running:
            raise AssertionError("the node left on its own")

    def reset_offsets(self, admin: Admin) -> None:
        """A group is moved: one that may repeat goes back, one that may lose goes forward, and back
        only where that is asked for in so many words."""
        rng = self._rng
        groups = [each for each in self.roster.members if each not in ("exactly-once", SHARED)]
        if not groups:
            return
        guarantee = rng.choice(groups)
        group = self.roster.group(guarantee)
        parts = [part for part in admin.describe_group(group).partitions if part.committed]
        if not parts:
            return
        part = rng.choice(parts)
        place, committed, end = (
            [part.topic, part.partition],
            part.committed or 0,
            part.high_watermark,
        )
        back = guarantee != "at-most-once" or rng.random() < 0.3
        to = rng.randint(0, committed) if back else rng.randint(committed, end)
        # Backwards, everything may come again that was there.
        row = [*place, BEHIND_ALL if back else committed, to]
        asked = time.monotonic_ns()
        try:
            admin.reset_offsets(
                group, part.topic, to=to, partitions=part.partition,
                allow_redelivery=back and guarantee == "at-most-once",
            )  # fmt: skip
        except GroupError:  # it has gone further by now
            return
        except PenstockError:
            self._tell_reset(group, row, asked, UNKNOWN_FOR)
            raise
        self._tell_reset(group, row, asked, 0)

    def _tell_reset(self, group: str, row: list[Any], asked: int, late: int) -> None:
        line = {"e": "reset", "t": time.monotonic_ns() + late, "asked": asked, "group": group}
        self._lines.append(msgspec.json.encode({**line, "r": [row]}))

    def _await_amounts(self) -> None:
        """A busy machine, on which clients have hardly begun, has more time between its faults and
        peace. Then many a client that was struck gets on, so this is no peace yet."""
        deadline = time.monotonic() + AMOUNTS_TIMEOUT
        while time.monotonic() < deadline and too_few(1, self._amounts(), least_of(self.scene)):
            self._go_on_for(0.1)
            self._check()

    def _amounts(self) -> dict[str, int]:
        """So far."""
        return figures_of(load(self.roster.histories()))

    # --- peace ---
    def _heal(self) -> None:
        self._faults.heal()
        self._check()
        self._note("healed")
        roster = self.roster
        roster.end([*roster.producers, *roster.leavers()], HEAL_TIMEOUT)
        self._note("writers are done")
        with self._node.connect() as client:
            wait_until(
                lambda: not self._lanes_of_the_dead(),
                HEAL_TIMEOUT,
                lambda: f"lanes are not drained: {self._lanes_of_the_dead()}",
            )
            self._settle(client)
            roster.end(roster.consumers, HEAL_TIMEOUT)
            self._note("readers are done")
            self._await_markers(client, self.topics)
            for isolation in LATE_READERS:
                self._read_all(client, isolation)

    def _lanes_of_the_dead(self) -> list[str]:
        """What dead processes left in theirs is not drained yet. Lanes of remote producers name
        nobody; they are drained once nothing stands in them."""
        found = []
        for owner in self._node.owners:
            shared = Shared(owner)
            try:
                found += [
                    name
                    for name, (who, region) in shared.lanes.items()
                    if (not is_running(who.pid) if who.pid else undrained(region) > 0)
                ]
            finally:
                shared.close()
        return found

    def _settle(self, client: Client) -> None:
        """Every reader and every group comes to the end of its topics."""
        self._await_markers(client, self.roster.inputs)
        for hand in self.roster.readers:
            isolation = hand.plan["isolation"]
            self._await_reader(hand, self._last_records(client, isolation, self.roster.inputs))
        self._note("readers came to the end")
        for guarantee in self.roster.members:
            self._drain(client, guarantee)

    def _await_markers(self, client: Client, topics: list[str]) -> None:
        """What was decided is marked in every log, and what its maker left open is aborted."""
        with (
            client.consumer(*topics, **isolated("read_committed")) as stable,
            client.consumer(*topics) as all_,
        ):
            wait_until(
                lambda: stable.end_offsets() == all_.end_offsets(),
                HEAL_TIMEOUT,
                lambda: f"transactions end: {stable.end_offsets()} of {all_.end_offsets()}",
            )

    def _await_reader(self, hand: Hand, last: dict[Place, int]) -> None:
        wait_until(
            lambda: self._has_read(hand.lines(), last),
            HEAL_TIMEOUT,
            lambda: f"{hand.who} reaches {last}: {hand.stacks()}",
        )

    def _drain(self, client: Client, guarantee: str) -> None:
        """A group comes to the end of what it may see. Its members may die on the way."""
        admin, group = client.admin(), self.roster.group(guarantee)
        isolation = self.roster.isolation[guarantee]
        last = self._last_records(client, isolation, self.roster.topics_of(guarantee))
        if guarantee == SHARED:
            self.roster.finish_jobs()

        def committed() -> dict[Place, int]:
            self._check()
            if guarantee == SHARED:
                shared = admin.describe_share_group(group).partitions
                return {(p.topic, p.partition): p.floor for p in shared}
            try:
                described = admin.describe_group(group)
            except GroupError:  # nobody has joined yet
                return {}
            return {(p.topic, p.partition): p.committed or 0 for p in described.partitions}

        def behind(at: dict[Place, int]) -> dict[Place, tuple[int, int]]:
            return {
                place: (at.get(place, 0), offset + 1)
                for place, offset in last.items()
                if at.get(place, 0) <= offset
            }

        def moved_from(before: dict[Place, int]) -> bool:
            return committed() != before

        while behind(before := committed()):  # for as long as it gets on: there may be much left
            wait_until(
                partial(moved_from, before),
                HEAL_TIMEOUT,
                lambda: (
                    f"{group} drains: committed and wanted are {behind(committed())}; "
                    f"{committed()}; "
                    + "".join(f"\n{m.who}: {m.stacks()}" for m in self.roster.members[guarantee])
                ),
            )
        asked = time.monotonic_ns()
        rows = [[*place, at] for place, at in committed().items()]
        if guarantee == SHARED:
            self._read_dead_letters(client, group)
        self._tell("drained", group=group, asked=asked, r=rows)
        self._note(f"{group} is drained")

    def _read_dead_letters(self, client: Client, group: str) -> None:
        """What the group has set aside, which its headers tell."""
        with client.consumer(*self.roster.dead_letters) as consumer:
            for batch in _up_to(consumer, consumer.end_offsets()):
                self._tell("dead", group=group, r=[dead_row(each) for each in batch])

    def _has_read(self, lines: list[bytes], last: dict[Place, int]) -> bool:
        at: dict[Place, int] = {}
        mine: set[Place] = set()
        for line in lines:
            event = msgspec.json.decode(line)
            if event["e"] == "assigned":
                mine |= {(topic, number) for topic, number in event["r"]}
            elif event["e"] == "polls":
                for topic, number, offsets, *_ in event["r"]:
                    at[topic, number] = offsets[-1]
        return all(at.get(place, -1) >= offset for place, offset in last.items() if place in mine)

    def _last_records(self, client: Client, isolation: str, topics: list[str]) -> dict[Place, int]:
        """The offset of the last record of each partition, as such a reader sees it."""
        last: dict[Place, int] = {}
        with client.consumer(*topics, **isolated(isolation)) as consumer:
            for batch in _up_to(consumer, consumer.end_offsets()):
                for chunk in batch.chunks:
                    last[chunk.topic, chunk.partition] = int(chunk.offsets[-1])
        return last

    def _read_all(self, client: Client, isolation: str) -> None:
        """A late reader, from the beginning, and the word that it has seen all."""
        who = f"late-{isolation}"
        with client.consumer(*self.topics, **isolated(isolation)) as consumer:
            ends = consumer.end_offsets()
            self._tell("hello", who=who, role="reader", isolation=isolation)
            self._tell("assigned", r=[list(place) for place in consumer.assignment()])
            for batch in _up_to(consumer, ends):
                self._tell("polls", r=poll_rows(batch))
        self._tell("ends", r=[[*place, end] for place, end in ends.items()])

    # --- the judgement ---
    def _judge(self) -> Report:
        report = check(load({**self.roster.histories(), "trial": self._lines}))
        if report.broken:
            raise AssertionError(str(report))
        self._note(str(report))
        self.roster.forget()
        return report

    def keep(self) -> None:
        """What the trial itself told, beside what its processes did."""
        (self._node.folder / "trial.jsonl").write_bytes(b"\n".join(self._lines))

    def close(self) -> None:
        self._faults.close()
        for hand in self.roster.all:
            if hand.is_running():
                hand.kill()


def dead_row(letter: Record) -> list[Any]:
    """A dead letter, as the event `dead` has it."""
    told = {
        name.removeprefix("penstock.dlq."): (text or b"").decode() for name, text in letter.headers
    }
    place = [told["topic"], int(told["partition"]), int(told["offset"])]
    failures = msgspec.json.decode(told["history"])
    return [*place, int(letter.value or b""), int(told["deliveries"]), len(failures)]


def _up_to(consumer: Consumer, ends: dict[Place, int]) -> Iterator[RecordBatch]:
    """All below these offsets, each of which it must reach in time."""
    deadline = time.monotonic() + HEAL_TIMEOUT
    while behind := {p: end for p, end in ends.items() if consumer.position(*p) < end}:
        if time.monotonic() > deadline:
            raise AssertionError(f"a late reader does not get up to {behind}")
        batch = consumer.poll(timeout=0.02)
        if batch:
            yield batch


__all__ = ["HEAL_TIMEOUT", "WRITERS", "Tally", "Trial"]
