"""Clients of the simulation: they feed, consume under each guarantee, and write transactions.

What they hand to an application is written into the `Ledger`, which outlives every crash.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sim.coordinator import Answered, Call, Refusal
from sim.partitions import OK, Data, PartitionLog, Writer

from penstock.cluster.groups import Assignment, Claim, ClientIdentity, OffsetCommit, Release
from penstock.cluster.transactions import ConsumedOffsets, EndedTransaction
from penstock.cluster.transactions.records import Place
from penstock.testing.sim import Ask, Network, NoAnswer, Node, Simulation, Sleep, Task

GROUP_OF = {"at-least-once": "alo", "at-most-once": "amo", "exactly-once": "eos"}
TIMEOUT = 4.0
"""Of a transaction, in seconds."""


@dataclass
class Ledger:
    fed: dict[Place, list[str]] = field(default_factory=dict)
    delivered: dict[str, Counter[tuple[Place, int]]] = field(default_factory=dict)
    grants: dict[tuple[str, Place, int], str] = field(default_factory=dict)
    transactions: dict[str, tuple[int, bool | None]] = field(default_factory=dict)
    """name -> how many values it wrote, and what its producer learnt of it."""
    epochs: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Of stages: epoch -> how many stages, and whether it was committed."""
    counts: Counter[str] = field(default_factory=Counter)


class Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.error}: {refusal.message}")
        self.error = refusal.error


class Client(Node):
    def __init__(
        self, sim: Simulation, network: Network, name: str, writer: Writer, ledger: Ledger
    ) -> None:
        super().__init__(sim, network, name)
        self.writer = writer
        self.ledger = ledger

    def on_start(self) -> None:
        self.spawn(self.run())

    def run(self) -> Task:
        raise NotImplementedError

    def on_crash(self) -> None:
        coordinator: Any = self.network.nodes["coordinator"]
        life = self.life
        self.sim.after(
            self.sim.random.uniform(0.001, 0.05),
            f"{self.name}: its pidfd",
            lambda: coordinator.client_died(self.name, life),
        )

    def call(self, handler: str, *args: Any, tries: int = 8) -> Task:
        answer = yield Ask("coordinator", Call(handler, args), timeout=0.6, tries=tries)
        if isinstance(answer, Refusal):
            raise Refused(answer)
        assert isinstance(answer, Answered)
        return answer.value

    def write(self, data: Data) -> Task:
        """Sent until it is answered, as a lane does."""
        return (yield Ask("writer", data, timeout=0.2, tries=30))

    def a_while(self, longest: float = 0.05) -> Sleep:
        return Sleep(self.sim.random.uniform(0.0, longest))


class Feeder(Client):
    """Writes numbered values into every partition of a topic; a new life is a new producer."""

    def __init__(self, *args: Any, places: list[Place], count: int) -> None:
        super().__init__(*args)
        self.places = places
        self.left = count

    def run(self) -> Task:
        producer_id, sequences = self.sim.number(), Counter[Place]()
        while self.left > 0:
            place = self.sim.random.choice(self.places)
            value = f"{self.left}.{self.life}"
            self.left -= 1
            data = Data(place, producer_id, 0, sequences[place], value, False)
            if (yield from self.write(data)) == OK:
                sequences[place] += 1
                self.ledger.fed.setdefault(place, []).append(value)
            yield self.a_while(0.1)


class Member(Client):
    """A member of a group; what it owns is by grant, and its position goes with that."""

    guarantee = ""

    def on_start(self) -> None:
        self.member_id = self.joining = self.attempt = ""
        self.positions: dict[tuple[Place, int], int] = {}
        super().on_start()

    @property
    def group(self) -> str:
        return GROUP_OF[self.guarantee]

    def run(self) -> Task:
        yield self.a_while(1.0)
        while True:
            try:
                yield from self.join()
                yield from self.prepare()
                while True:
                    yield from self.turn()
                    yield self.a_while()
            except Refused as refused:
                self.ledger.counts[refused.error] += 1
                if refused.error == "UnknownMemberError":
                    self.member_id = ""
            except NoAnswer:
                self.ledger.counts["no answer"] += 1
            self.positions.clear()
            yield self.a_while(0.3)

    def join(self) -> Task:
        client = ClientIdentity(self.life, 0, "boot", self.name)
        # Until its answer is known: it makes one member, however often it is asked.
        self.attempt = self.attempt or f"{self.name}.{self.life}.{self.sim.number()}"
        self.joining = self.attempt
        try:
            assignment: Assignment = yield from self.call(
                *("join", self.group, self.member_id, self.attempt, ["input"], None),
                *(self.guarantee, None, 10.0, None, client),
            )
        finally:
            self.joining = ""
        self.member_id, self.attempt = assignment.member_id, ""

    def prepare(self) -> Task:
        yield Sleep(0.0)

    def turn(self) -> Task:
        assignment: Assignment = yield from self.call("sync", self.group, self.member_id, ())
        owned: dict[tuple[Place, int], int] = {}
        released = []
        for part in assignment.partitions:
            place, grant = (part.topic_id, part.partition), part.grant
            if part.revoked:
                released.append(Release(*place, grant))
                continue
            holder = self.ledger.grants.setdefault((self.group, place, grant), self.member_id)
            assert holder == self.member_id, f"invariant 7: {place} in {grant}: {holder} has it too"
            owned[place, grant] = self.positions.get((place, grant), max(part.offset, 0))
        self.positions = owned
        if released:
            yield from self.call("sync", self.group, self.member_id, tuple(released))
        for place, grant in list(owned):
            if self.sim.random.random() < 0.7:
                yield from self.consume(self.writer.logs[place], place, grant)

    def consume(self, log: PartitionLog, place: Place, grant: int) -> Task:
        raise NotImplementedError

    def read(self, log: PartitionLog, place: Place, grant: int) -> tuple[list[Any], int]:
        count = self.sim.random.randint(1, 4)
        return log.read(self.positions[place, grant], count, committed=True)

    def deliver(self, place: Place, offset: int) -> None:
        self.ledger.delivered.setdefault(self.group, Counter())[place, offset] += 1


class AtLeastOnce(Member):
    guarantee = "at-least-once"

    def consume(self, log: PartitionLog, place: Place, grant: int) -> Task:
        records, end = self.read(log, place, grant)
        if end == self.positions[place, grant]:
            return
        for offset, _ in records:
            self.deliver(place, offset)
            yield self.a_while(0.01)
        commit = OffsetCommit(*place, grant, end)
        stale = yield from self.call("commit", self.group, self.member_id, [commit])
        if stale:
            self.ledger.counts["stale commit"] += 1
        self.positions[place, grant] = end


class AtMostOnce(Member):
    guarantee = "at-most-once"

    def on_start(self) -> None:
        self.claim_id = 0
        super().on_start()

    def consume(self, log: PartitionLog, place: Place, grant: int) -> Task:
        records, end = self.read(log, place, grant)
        if end == self.positions[place, grant]:
            return
        self.claim_id += 1
        claim = Claim(*place, grant, self.positions[place, grant], end)
        claimed = yield from self.call(
            "claim", self.group, self.member_id, self.claim_id, [claim], 0
        )
        if not claimed.granted[0]:
            self.ledger.counts["claim refused"] += 1
            self.positions[place, grant] = max(claimed.committed[0], 0)
            return
        self.positions[place, grant] = end
        for offset, _ in records:
            self.deliver(place, offset)
            assert self.ledger.delivered[self.group][place, offset] == 1, (
                f"{offset} of {place} is handed out again, to {self.member_id}"
            )
            yield self.a_while(0.01)


class Transactional(Client):
    """The producer part: an identity, and one transaction after the other."""

    identity: tuple[int, int]

    def init(self) -> Task:
        self.identity = yield from self.call("init", self.name, TIMEOUT)

    def send_all(self, values: list[tuple[Place, str]]) -> Task:
        """Register and write. Raises Refused or NoAnswer; then the transaction is to be aborted."""
        producer_id, epoch = self.identity
        sequences: Counter[Place] = Counter()
        places = sorted({place for place, _ in values})
        yield from self.call("add_partitions", self.name, producer_id, epoch, places)
        for place, value in values:
            data = Data(place, producer_id, epoch, sequences[place], value, True)
            said = yield from self.write(data)
            if said != OK:
                raise Refused(Refusal(said, str(data)))
            sequences[place] += 1

    def end(self, commit: bool, offsets: tuple[ConsumedOffsets, ...] = ()) -> Task:
        ended: EndedTransaction = yield from self.call(
            "end", self.name, *self.identity, commit, offsets
        )
        self.identity = (self.identity[0], ended.next_epoch)
        return ended


class ExactlyOnce(Member, Transactional):
    """Reads, transforms, writes: each input value once into the output."""

    guarantee = "exactly-once"
    outputs: list[Place]

    def prepare(self) -> Task:
        yield from self.init()

    def consume(self, log: PartitionLog, place: Place, grant: int) -> Task:
        start = self.positions[place, grant]
        records, end = self.read(log, place, grant)
        if end == start:
            return
        values = [
            (self.sim.random.choice(self.outputs), f"{place[1]}.{offset}") for offset, _ in records
        ]
        offsets = ConsumedOffsets(self.group, self.member_id, [OffsetCommit(*place, grant, end)])
        try:
            if values:
                yield from self.send_all(values)
        except Refused as refused:
            self.ledger.counts[f"eos {refused.error}"] += 1
            yield from self.end(False)
            return
        yield self.a_while(3.0 if self.sim.random.random() < 0.15 else 0.02)
        commit = self.sim.random.random() < 0.9
        ended = yield from self.end(commit, (offsets,))
        if ended.committed:
            self.positions[place, grant] = end
        elif not commit:
            self.ledger.counts["eos aborted by itself"] += 1
        else:
            self.ledger.counts[f"eos aborted: {ended.why}"] += 1
            raise NoAnswer("begin with what is committed")


class TransactionProducer(Transactional):
    """Transactions over several partitions, some of which it aborts itself."""

    outputs: list[Place]
    left = 0

    def run(self) -> Task:
        while self.left > 0:
            try:
                yield from self.init()
                while self.left > 0:
                    yield from self.transaction()
                    yield self.a_while(0.1)
            except Refused as refused:
                self.ledger.counts[f"producer {refused.error}"] += 1
            except NoAnswer:
                self.ledger.counts["no answer"] += 1
            yield self.a_while(0.3)

    def transaction(self) -> Task:
        self.left -= 1
        name = f"{self.name}.{self.sim.number()}"
        values = [(self.sim.random.choice(self.outputs), f"{name}.{n}") for n in range(3)]
        self.ledger.transactions[name] = (len(values), None)
        yield from self.send_all(values)
        if self.sim.random.random() < 0.1:
            yield Sleep(TIMEOUT + 1.0)
        commit = self.sim.random.random() < 0.8
        ended = yield from self.end(commit)
        assert commit or not ended.committed
        self.ledger.transactions[name] = (len(values), ended.committed)


class StageDriver(Client):
    """A batch engine: each epoch is written by several stages and committed once. It remembers on
    disk which epoch it is at, and repeats that after a crash."""

    outputs: list[Place]
    epochs = 0
    at = 0

    def run(self) -> Task:
        while self.at < self.epochs:
            try:
                yield from self.one_epoch(self.at)
                self.at += 1
            except Refused as refused:
                self.ledger.counts[f"stages {refused.error}"] += 1
            except NoAnswer:
                self.ledger.counts["no answer"] += 1
            yield self.a_while(0.2)

    def one_epoch(self, epoch: int) -> Task:
        count = 1 + epoch % 3
        names: list[str] = []
        try:
            yield from self.attempt(epoch, count, names)
        except (Refused, NoAnswer):
            if self.sim.random.random() < 0.5:  # whether it was committed is not known here
                yield from self.call("end_stages", "job", names)
                self.ledger.counts["stages ended by name"] += len(names)
            raise

    def attempt(self, epoch: int, count: int, names: list[str]) -> Task:
        attempt = f"{self.sim.now:012.6f}"
        try:
            for number in range(count):
                for is_spare in [True, False] if self.sim.random.random() < 0.3 else [False]:
                    name = yield from self.stage(epoch, attempt, f"stages.{epoch}.{number}")
                    if not is_spare:
                        names.append(name)
                if self.sim.random.random() < 0.02:
                    yield Sleep(11.0)  # over the stage timeout
        except Refused as refused:
            if refused.error != "StageDecidedError":
                raise
            self.ledger.counts["stages decided before"] += 1
        decided = yield from self.call("commit_stages", "job", epoch, names, True)
        known = self.ledger.epochs.setdefault(epoch, (count, decided.committed))
        assert known == (count, decided.committed), f"epoch {epoch} has two outcomes"

    def stage(self, epoch: int, attempt: str, value: str) -> Task:
        who, name = yield from self.call("begin_stage", "job", epoch, attempt)
        place = self.sim.random.choice(self.outputs)
        yield from self.call("add_partitions", "job", *who, [place])
        said = yield from self.write(Data(place, who[0], who[1], 0, value, True))
        if said != OK:
            raise Refused(Refusal(said, value))
        return name
