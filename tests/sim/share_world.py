"""A share group on three brokers, what goes wrong there, and what must hold.

The run has two halves. In the first the network is foul, brokers crash, lead for longer than they
are leaders, and workers crash and stop, as the seed says; in the second all is healed, and each job
must be done or dead. What must hold is judged by the `JobLedger`, from what workers saw.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sim.clients import Feeder, Ledger
from sim.partitions import Data, Writer
from sim.share_brokers import Broker, Quorum
from sim.share_clients import GROUP, JobLedger, ShareWorker

from penstock.cluster.decisions import Record
from penstock.cluster.transactions.records import Place
from penstock.ipc.sharing import ShareSettings
from penstock.server.coordinator.epoch import Machines
from penstock.testing.sim import FAIR, FOUL, Network, Simulation

TOPICS = {"jobs": (b"j" * 16, 2), "thumbs": (b"t" * 16, 2)}
JOBS_OF_A_FEEDER = 40
STOP_MAX = 8.0
OF_BROKERS = (
    *("kill leader", "kill broker", "isolate leader", "move leader"),
    *("lose answers", "lose answers"),
)
KINDS = (*("kill worker", "kill worker", "stop worker", "stop worker", "kill writer", *OF_BROKERS),)


def places(topic: str) -> list[Place]:
    topic_id, count = TOPICS[topic]
    return [(topic_id, number) for number in range(count)]


class ShareWorld:
    def __init__(self, seed: int, broker: type[Broker] = Broker) -> None:
        self.sim = sim = Simulation(seed)
        self.network = network = Network(sim, sim.random.choice([FAIR, FOUL]))
        self.every = sim.random.choice([0.2, 0.5, 1.5])
        """Mean seconds between two faults."""
        self.kinds = sim.random.choice([KINDS, OF_BROKERS])
        """Workers that die take with them what a lost answer gave them: some worlds have none."""
        self.is_healed = False
        self.jobs, self.ledger = JobLedger(), Ledger()
        self.writer = Writer(sim, network, [at for topic in TOPICS for at in places(topic)])
        self.quorum = Quorum(sim)
        self.brokers = [
            broker(sim, network, self.writer, TOPICS, f"broker-{number}", self.quorum)
            for number in range(3)
        ]
        settings = ShareSettings(
            max_deliveries=sim.random.choice([0, 3, 5]), backoff_min=0.1, backoff_max=1.0,
            max_lease=sim.random.choice([0.0, 0.0, 1.5]),
        )  # fmt: skip
        self.workers = []
        for number in range(4):
            worker = ShareWorker(sim, network, f"worker-{number}", self.writer, self.ledger)
            worker.jobs, worker.quorum, worker.settings = self.jobs, self.quorum, settings
            worker.places, worker.outputs = places("jobs"), places("thumbs")
            worker.dies_at_once = sim.random.random() < 0.5
            self.workers.append(worker)
        self.feeders = [
            Feeder(
                *(sim, network, f"feeder-{number}", self.writer, self.ledger),
                places=places("jobs"), count=JOBS_OF_A_FEEDER,
            )
            for number in range(2)
        ]  # fmt: skip
        for feeder in self.feeders:
            feeder.on_crash = lambda: None  # type: ignore[method-assign]
        self.nodes = (self.writer, *self.brokers, *self.workers, *self.feeders)
        sim.invariants.append(self.writer.check)

    # --- the run ----------------------------------------------------------------------------------
    def run(self, seconds: float = 12.0) -> None:
        for broker in self.brokers:
            broker.start()
        self.quorum.elect()
        for node in self.nodes:
            node.start()
        self.next_fault()
        self.sim.run(seconds)
        self.heal()
        if not self.sim.run(120.0, until=self.is_done):
            raise self.sim.failure(f"healed for 120 s, and still: {self.missing()}")
        try:
            self.check()
        except AssertionError as error:
            raise self.sim.failure(f"at the end: {error}") from error

    def next_fault(self) -> None:
        self.sim.after(self.sim.random.expovariate(1.0 / self.every), "a fault", self.fault)

    def fault(self) -> None:
        if self.is_healed:
            return
        random, leader = self.sim.random, self.leader
        kind = random.choice(self.kinds)
        worker = random.choice(self.workers)
        self.sim.note(kind)
        self.jobs.counts[f"fault: {kind}"] += 1
        match kind:
            case "kill worker":
                worker.crash()
                self.sim.after(random.uniform(0.0, 4.0), "restart", worker.start)
            case "stop worker" if worker.is_up and not worker.is_paused:
                self.stop(worker, random.uniform(0.2, STOP_MAX))
            case "kill writer":
                self.kill(self.writer)
            case "kill leader":
                self.kill(leader)
                self.sim.after(random.uniform(0.1, 0.8), "elect", self.quorum.elect)
            case "kill broker":
                broker = random.choice(self.brokers)
                self.kill(broker)
                if broker is leader:
                    self.sim.after(random.uniform(0.1, 0.8), "elect", self.quorum.elect)
            case "isolate leader":
                leader.isolate()
                self.sim.after(random.uniform(0.1, 0.8), "elect", self.quorum.elect)
                self.sim.after(random.uniform(0.5, 3.0), "mend", self.mend)
            case "move leader":
                self.quorum.elect()
            case "lose answers":
                self.network.cut(leader.name, worker.name)
                self.sim.after(random.uniform(0.1, 1.5), "mend", self.mend)
        self.next_fault()

    @property
    def leader(self) -> Broker:
        return next(each for each in self.brokers if each.name == self.quorum.leader)

    def kill(self, node: Any) -> None:
        node.crash()
        self.sim.after(self.sim.random.uniform(0.05, 1.0), "restart", node.start)

    def mend(self) -> None:
        self.quorum.cut_off.clear()
        self.network.mend()

    def stop(self, worker: ShareWorker, seconds: float) -> None:
        """SIGSTOP; it is silent, so its connection ends after a while."""
        life = worker.life
        worker.pause()
        if seconds > 1.0:
            self.sim.after(1.0, "silent", lambda: self.silent(worker, life))
        self.sim.after(seconds, "SIGCONT", worker.resume)

    def silent(self, worker: ShareWorker, life: int) -> None:
        for broker in self.brokers:
            if broker.is_up:
                broker.client_gone(worker.name, life, at_once=False)

    def heal(self) -> None:
        self.is_healed = True
        self.sim.note("healed")
        self.quorum.cut_off.clear()
        self.network.heal()
        for worker in self.workers:
            worker.resume()
            worker.is_diligent = True
        for node in self.nodes:
            node.start()
        self.quorum.elect()

    # --- what must hold ---------------------------------------------------------------------------
    def job_places(self) -> list[tuple[Place, int]]:
        logs = ((place, self.writer.logs[place]) for place in places("jobs"))
        return [(place, at) for place, log in logs for at, it in enumerate(log.entries)
                if type(it) is Data]  # fmt: skip

    def missing(self) -> list[str]:
        found = [f"{each.name} has {each.left} to send" for each in self.feeders if each.left]
        if not self.leader.is_serving:
            return [*found, "nobody leads"]
        shares = dict(self.leader.shares.partitions(GROUP))
        for place in places("jobs"):
            end = len(self.writer.logs[place].entries)
            if place not in shares or shares[place].floor < end:
                counts = shares[place].counts() if place in shares else {}
                floor = shares[place].floor if place in shares else 0
                found.append(f"lost jobs: {place} is done to {floor} of {end}: {counts}")
        if unmarked := list(self.leader.transactions.unmarked()):
            found.append(f"not marked: {unmarked[:3]}")
        for place, log in self.writer.logs.items():
            if log.last_stable < len(log.entries):
                found.append(f"hung in {place}: {log.open()}")
        return found

    def is_done(self) -> bool:
        return self.sim.steps % 100 == 0 and not self.missing()

    def check(self) -> None:
        values = (v for place in places("thumbs") for v in self.writer.logs[place].values())
        self.jobs.check(self.job_places(), Counter(values))
        self.check_replay()

    def check_replay(self) -> None:
        """Live state == replay of the log == replay of what compaction leaves of it."""
        log = [record for batch in self.leader.log for record in batch.records]
        newest = {record.key: at for at, record in enumerate(log)}
        compacted = [record for at, record in enumerate(log) if newest[record.key] == at]
        live = told(self.leader.machines)
        for records in (log, compacted):
            assert told(self.replayed(records)) == live, "share groups differ after a replay"

    def replayed(self, records: list[Record]) -> Machines:
        machines = self.leader.new_machines()
        for record in records:
            machines.replay(record)
        return machines


def told(machines: Machines) -> Any:
    return [(place, it.snapshot()) for place, it in machines.shares.partitions(GROUP)]
