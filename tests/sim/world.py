"""A host of the simulation with everybody on it, what goes wrong there, and what must hold.

The run has two halves. In the first the network is foul and processes crash, stop, and lose power,
as the seed says; in the second all is healed, and everything must arrive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from group_machine_fixture import durable
from sim.clients import (
    GROUP_OF,
    AtLeastOnce,
    AtMostOnce,
    Client,
    ExactlyOnce,
    Feeder,
    Ledger,
    StageDriver,
    TransactionProducer,
)
from sim.coordinator import Coordinator
from sim.partitions import Data, Writer

from penstock.cluster.decisions import Record
from penstock.cluster.transactions.records import Place
from penstock.testing.sim import FAIR, FOUL, Network, Simulation

TOPICS = {"input": (b"i" * 16, 3), "output": (b"o" * 16, 2), "direct": (b"d" * 16, 2)}
TOPICS["staged"] = (b"s" * 16, 2)
STALL = 2.0


def places(topic: str) -> list[Place]:
    topic_id, count = TOPICS[topic]
    return [(topic_id, number) for number in range(count)]


@dataclass(frozen=True)
class Trouble:
    """Mean seconds between two faults, and which ones there are."""

    every: float = 0.7
    kinds: tuple[str, ...] = (
        *("kill client", "kill client", "kill client", "stop client", "stop client"),
        *("kill coordinator", "kill coordinator", "kill writer", "cut", "power cut"),
    )


class World:
    def __init__(self, seed: int, trouble: Trouble | None = None) -> None:
        self.sim = sim = Simulation(seed)
        self.network = network = Network(sim, sim.random.choice([FAIR, FOUL]))
        self.trouble = trouble or Trouble(every=sim.random.choice([0.3, 0.7, 2.0]))
        self.is_healed = False
        self.ledger = Ledger()
        everywhere = [place for topic in TOPICS for place in places(topic)]
        self.writer = Writer(sim, network, everywhere)
        self.coordinator = Coordinator(sim, network, self.writer, TOPICS)
        self.clients: list[Client] = []
        for name, kind, count in (
            ("alo", AtLeastOnce, 2), ("amo", AtMostOnce, 2), ("eos", ExactlyOnce, 3),
        ):  # fmt: skip
            for number in range(count):
                member = kind(sim, network, f"{name}-{number}", self.writer, self.ledger)
                if isinstance(member, ExactlyOnce):
                    member.outputs = places("output")
                self.clients.append(member)
        for number in range(2):
            feeder = Feeder(
                *(sim, network, f"feeder-{number}", self.writer, self.ledger),
                places=places("input"), count=60,
            )  # fmt: skip
            self.clients.append(feeder)
            producer = TransactionProducer(
                sim, network, f"producer-{number}", self.writer, self.ledger
            )
            producer.outputs, producer.left = places("direct"), 25
            self.clients.append(producer)
        self.driver = StageDriver(sim, network, "driver", self.writer, self.ledger)
        self.driver.outputs, self.driver.epochs = places("staged"), 12
        self.clients.append(self.driver)
        sim.invariants.append(self.writer.check)

    # --- the run ----------------------------------------------------------------------------------
    def run(self, seconds: float = 12.0) -> None:
        for node in (self.writer, self.coordinator, *self.clients):
            node.start()
        self.next_fault()
        self.sim.run(seconds)
        self.heal()
        if not self.sim.run(240.0, until=self.is_done):
            raise self.sim.failure(f"healed for 240 s, and still: {self.missing()}")
        try:
            self.check()
        except AssertionError as error:
            raise self.sim.failure(f"at the end: {error}") from error

    def next_fault(self) -> None:
        delay = self.sim.random.expovariate(1.0 / self.trouble.every)
        self.sim.after(delay, "a fault", self.fault)

    def fault(self) -> None:
        if self.is_healed:
            return
        random = self.sim.random
        kind = random.choice(self.trouble.kinds)
        client = random.choice(self.clients)
        self.sim.note(kind)
        self.ledger.counts[f"fault: {kind}"] += 1
        match kind:
            case "kill client":
                client.crash()
                self.sim.after(random.uniform(0.0, 2.0), "restart", client.start)
            case "stop client" if client.is_up and not client.is_paused:
                self.stop(client, random.uniform(0.2, 2 * STALL))
            case "kill coordinator":
                self.coordinator.crash()
                self.sim.after(random.uniform(0.01, 0.5), "restart", self.coordinator.start)
            case "kill writer":
                self.writer.crash()
                self.sim.after(random.uniform(0.01, 0.5), "restart", self.writer.start)
            case "cut":
                self.network.cut(client.name, "coordinator")
                if random.random() < 0.5:
                    self.network.cut("coordinator", client.name)
                self.sim.after(random.uniform(0.1, 2.0), "mend", self.network.mend)
            case "power cut":
                for node in (self.coordinator, self.writer, *self.clients):
                    node.crash()
                lost = self.coordinator.disk.power_cut()
                self.ledger.counts["batches lost with the power"] += lost
                # A generation that was not synced may come again: all who had it are dead.
                self.ledger.grants.clear()
                for node in (self.coordinator, self.writer, *self.clients):
                    self.sim.after(random.uniform(0.1, 1.0), "restart", node.start)
        self.next_fault()

    def stop(self, client: Client, seconds: float) -> None:
        """SIGSTOP; a client that stands still for too long is put out of its groups."""
        life = client.life
        client.pause()
        if seconds > STALL:
            self.sim.after(
                STALL, "stalled", lambda: self.coordinator.client_stalled(client.name, life)
            )
        self.sim.after(seconds, "SIGCONT", client.resume)

    def heal(self) -> None:
        self.is_healed = True
        self.sim.note("healed")
        self.network.heal()
        for client in self.clients:
            client.resume()
        for node in (self.writer, self.coordinator, *self.clients):
            node.start()

    # --- what must hold ---------------------------------------------------------------------------
    def values(self, topic: str) -> Counter[str]:
        """What a read_committed reader has of it in the end."""
        return Counter(v for place in places(topic) for v in self.writer.logs[place].values())

    def input_offsets(self) -> list[tuple[Place, int]]:
        logs = ((place, self.writer.logs[place]) for place in places("input"))
        return [(p, at) for p, log in logs for at, e in enumerate(log.entries) if type(e) is Data]

    def missing(self) -> list[str]:
        found = []
        if any(getattr(client, "left", 0) for client in self.clients):
            found.append("producers are not through")
        if self.driver.at < self.driver.epochs:
            found.append(f"stages are at epoch {self.driver.at}")
        inputs = self.input_offsets()
        delivered = self.ledger.delivered.get(GROUP_OF["at-least-once"], Counter())
        if left := [at for at in inputs if at not in delivered]:
            found.append(f"not delivered at least once: {left[:5]} and so on, {len(left)}")
        outputs = self.values("output")
        if left := [at for at in inputs if not outputs[f"{at[0][1]}.{at[1]}"]]:
            found.append(f"not transformed: {left[:5]} and so on, {len(left)}")
        if not self.coordinator.is_serving:
            return [*found, "the coordinator is not there"]
        committed = self.committed("at-most-once")
        if left := [at for at in inputs if committed.get(at[0], 0) <= at[1]]:
            found.append(f"not claimed: {left[:5]} and so on, {len(left)}")
        if unmarked := list(self.coordinator.transactions.unmarked()):
            found.append(f"not marked: {unmarked[:3]}")
        for place, log in self.writer.logs.items():
            if log.last_stable < len(log.entries):
                found.append(f"hung in {place}: {log.open()}")
        return found

    def is_done(self) -> bool:
        return self.sim.steps % 200 == 0 and not self.missing()

    def committed(self, guarantee: str) -> dict[Place, int]:
        group = GROUP_OF[guarantee]
        if all(info.group != group for info in self.coordinator.groups.list_groups("").groups):
            return {}
        description = self.coordinator.groups.describe(group, 0)
        return {(part.topic_id, part.partition): part.offset for part in description.partitions}

    def check(self) -> None:
        for place, values in self.ledger.fed.items():
            there = self.writer.logs[place].values()
            assert not set(values) - set(there), f"acknowledged and lost in {place}"
        inputs = Counter(f"{place[1]}.{at}" for place, at in self.input_offsets())
        assert self.values("output") == inputs, (
            f"exactly once: {self.values('output') - inputs} too often, "
            f"{inputs - self.values('output')} too seldom"
        )
        committed = self.committed("at-most-once")
        delivered = self.ledger.delivered.get(GROUP_OF["at-most-once"], Counter())
        for (place, at), times in delivered.items():
            assert times == 1, f"{at} of {place} was handed out {times} times"
            assert committed[place] > at, f"{at} of {place} was handed out, not committed"
        self.check_transactions()
        self.check_stages()
        self.check_replay()

    def check_transactions(self) -> None:
        direct = self.values("direct")
        for name, (count, outcome) in self.ledger.transactions.items():
            there = [direct[f"{name}.{number}"] for number in range(count)]
            wanted = {True: [[1] * count], False: [[0] * count], None: [[0] * count, [1] * count]}
            assert there in wanted[outcome], f"{name} said {outcome} and has {there}"

    def check_stages(self) -> None:
        staged, expected = self.values("staged"), Counter[str]()
        for epoch, (count, committed) in self.ledger.epochs.items():
            if committed:
                expected += Counter(f"stages.{epoch}.{number}" for number in range(count))
        assert staged == expected, f"stages: {staged - expected} too many, {expected - staged} lost"

    def check_replay(self) -> None:
        """Live state == replay of the log == replay of what compaction leaves of it."""
        batches = [*self.coordinator.disk.batches, *self.coordinator.appending]
        log = [record for batch in batches for record in batch]
        newest = {record.key: place for place, record in enumerate(log)}
        compacted = [record for place, record in enumerate(log) if newest[record.key] == place]
        for records in (log, compacted):
            self.compare(records)

    def compare(self, records: list[Record]) -> None:
        machines = self.coordinator.new_machines()
        groups, transactions, _ = machines
        for record in records:
            machines.replay(record)
        expected = self.coordinator.transactions.state()
        assert transactions.state() == expected, "transactions differ after a replay"
        groups.topics_changed(self.sim.now, TOPICS)
        for name in GROUP_OF.values():
            mine, live = (it.describe(name, 0) for it in (groups, self.coordinator.groups))
            assert durable(mine) == durable(live), f"{name} differs"
