"""Three coordinators with one log: the leader decides, and answers what a majority has stored.

`Quorum` stands for the cluster's controller: it says who leads, in which epoch. A leader that is
cut off from the others goes on until it hears of that, and nothing that it decides then counts.
Each broker has a clock of its own. Requests of workers go through the real `ShareRequests`.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from sim.coordinator import Answered, Coordinator, Refusal, Waiting
from sim.partitions import Marker, Writer

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.shares import ArrangedGroups
from penstock.core.errors import PenstockError
from penstock.server.coordinator.epoch import GONE
from penstock.server.coordinator.share_requests import ShareRequests
from penstock.server.security.permits import EVERYTHING
from penstock.testing.sim import Ask, Network, NoAnswer, Reply, Simulation, Task

BEGUN_AT: Final = 1_000_000.0
"""What the brokers' clocks show at first, but for the difference between them."""
SKEW_MAX: Final = 3.0
REPLICATE_TIMEOUT: Final = 0.1
WORKER: Final = SimpleNamespace(permits=EVERYTHING, remote=None)


class Batch(NamedTuple):
    epoch: int
    records: tuple[Record, ...]


class Replicate(NamedTuple):
    """The leader's log from `at` on."""

    epoch: int
    at: int
    batches: tuple[Batch, ...]


class ShareCall(NamedTuple):
    """A request of a worker. A connection keeps the order of its tickets."""

    connection: int
    ticket: int
    request: Any


class Quorum:
    """Elects the broker whose log is the newest of a majority, and tells that majority."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.brokers: list[Broker] = []
        self.cut_off: set[str] = set()
        self.epoch = 0
        self.leader = ""

    def elect(self) -> None:
        heard = [it for it in self.brokers if it.is_up and it.name not in self.cut_off]
        if 2 * len(heard) <= len(self.brokers):
            self.sim.after(0.2, "elect", self.elect)
            return
        self.sim.random.shuffle(heard)
        newest = max(heard, key=lambda it: it.newest)
        self.epoch += 1
        self.leader = newest.name
        for broker in heard:
            broker.promise(self.epoch)
        newest.lead(self.epoch)


class Broker(Coordinator):
    """Its log and the epoch that it promised outlive it."""

    def __init__(
        self,
        sim: Simulation,
        network: Network,
        writer: Writer,
        topics: dict[str, tuple[bytes, int]],
        name: str,
        quorum: Quorum,
    ) -> None:
        super().__init__(sim, network, writer, topics, name)
        self.quorum = quorum
        self.skew = sim.random.uniform(0.0, SKEW_MAX)
        self.log: list[Batch] = []
        self.promised = 0
        quorum.brokers.append(self)

    def clock(self) -> float:
        return BEGUN_AT + self.skew + self.sim.now

    @property
    def newest(self) -> tuple[int, int]:
        return (self.log[-1].epoch if self.log else 0, len(self.log))

    # --- life -------------------------------------------------------------------------------------
    def on_start(self) -> None:
        self.epoch = 0
        self.begin_empty()
        self.tick()
        self.sweep()

    def begin_empty(self) -> None:
        super().begin_empty()
        self.arranged = ArrangedGroups(self.shares)

    def on_crash(self) -> None:
        self.epoch, self.is_serving = 0, False

    def promise(self, epoch: int) -> None:
        """Nothing of an older epoch is taken from now on."""
        self.promised = epoch
        if self.epoch and self.epoch < epoch:
            self.counts["resigned"] += 1
            self.epoch = 0
            self.begin_empty()

    def lead(self, epoch: int) -> None:
        self.begin_empty()
        self.epoch = epoch
        self._tickets: dict[tuple[str, int], int] = {}
        self._stored = {it.name: 0 for it in self.quorum.brokers if it is not self}
        self._feeding: set[str] = set()
        self.begin_append(())
        self.wait(Waiting(self.log_end, True, self.take_over))

    def take_over(self) -> None:
        """What stands before the fence is committed with it."""
        records = [record for batch in self.log for record in batch.records]
        if self.sim.random.random() < 0.5:
            newest = {record.key: at for at, record in enumerate(records)}
            records = [each for at, each in enumerate(records) if newest[each.key] == at]
        for record in records:
            self.machines.replay(record)
        self.is_serving = True
        self.counts["took over"] += 1
        self.carry_out(self.groups.topics_changed(self.clock(), self.topics))
        self.groups.take_gone()
        for group, member in list(self.shares.holders()):
            if not self.groups.is_member(group, member):
                self.carry_out(self.shares.leave(self.clock(), group, member, GONE))
        self.send_markers(self.log_end)

    def client_gone(self, name: str, life: int, *, at_once: bool) -> None:
        """Its connection ended; `at_once`: it is known to be dead."""
        if not self.is_serving:
            return
        now = self.clock()
        for group, member, client in list(self.groups.members()):
            if (client.client_id, client.pid) == (name, life):
                if at_once:
                    self.carry_out(self.groups.died(now, group, member))
                else:
                    self.groups.disconnected(now, group, member)
        for producer_id, of in list(self._producers.get(name, {}).items()):
            if of == life:
                self.carry_out(self.transactions.abandon(now, producer_id))

    def tick(self) -> None:
        if self.is_serving:
            super().tick()
        else:
            self.after(0.05, "tick", self.tick)

    def sweep(self) -> None:
        """A partition takes no markers of a former coordinator."""
        if self.is_serving and self.quorum.epoch == self.epoch:
            super().sweep()
        else:
            self.after(1.0, "sweep", self.sweep)

    def mark(self, marker: Marker) -> Task:
        epoch = self.epoch
        yield from self.mark_one(marker)
        if self.epoch == epoch:
            marked = self.transactions.marked(marker.producer_id, marker.epoch, [marker.place])
            self.carry_out(marked)
            self._markers.discard(marker)
            self.send_markers(self.log_end)

    # --- the log ----------------------------------------------------------------------------------
    @property
    def log_end(self) -> int:
        return len(self.log)

    def begin_append(self, records: tuple[Record, ...]) -> None:
        self.log.append(Batch(self.epoch, records))
        for peer in self._stored.keys() - self._feeding:
            self._feeding.add(peer)
            self.spawn(self.feed(peer, self.epoch))

    def feed(self, peer: str, epoch: int) -> Task:
        """Until that broker has all there is."""
        while self.epoch == epoch and self._stored[peer] < len(self.log):
            at = self._stored[peer]
            question = Replicate(epoch, at, tuple(self.log[at:]))
            try:
                stored = yield Ask(peer, question, timeout=REPLICATE_TIMEOUT, tries=1)
            except NoAnswer:
                continue
            if self.epoch != epoch:
                return
            if isinstance(stored, Refusal):
                self.promise(self.promised + 1)
                return
            self._stored[peer] = max(at, stored)
            self.wake()
        if self.epoch == epoch:
            self._feeding.discard(peer)

    def replicated(self, question: Replicate, reply: Reply) -> None:
        if question.epoch < self.promised:
            reply(Refusal("NotLeaderError", f"epoch {self.promised} has begun"))
            return
        self.promise(question.epoch)
        for at, batch in enumerate(question.batches, question.at):
            if at < len(self.log) and self.log[at] is batch:
                continue
            del self.log[at:]
            self.log.append(batch)
        reply(question.at + len(question.batches))

    @property
    def committed(self) -> int:
        """What a majority has, once that is of this epoch."""
        stored = sorted([len(self.log), *self._stored.values()], reverse=True)
        count = stored[len(stored) // 2]
        return count if count and self.log[count - 1].epoch == self.epoch else 0

    def wake(self) -> None:
        committed = self.committed
        ready = [each for each in self._waiting_for if each.appends <= committed]
        self._waiting_for = [each for each in self._waiting_for if each.appends > committed]
        for waiting in ready:
            waiting.then()

    def carry_out(self, decision: Decision[Any], then: Any = lambda: None) -> None:
        if not self.is_serving:
            return  # a task of a leader that was
        super().carry_out(decision, then)
        self._return_leases()

    def _return_leases(self) -> None:
        for group, member in self.groups.take_gone():
            if member and group in self.shares.names():
                self.carry_out(self.shares.leave(self.clock(), group, member, GONE))

    # --- requests ---------------------------------------------------------------------------------
    def on_ask(self, source: str, question: Any, reply: Reply) -> None:
        if isinstance(question, Replicate):
            self.replicated(question, reply)
        elif not self.epoch:
            reply(Refusal("NotLeaderError", self.name))
        elif not self.is_serving:
            return
        elif isinstance(question, ShareCall):
            self.share(source, question, reply)
        else:
            super().on_ask(source, question, reply)

    def share(self, source: str, call: ShareCall, reply: Reply) -> None:
        worker: Any = self.network.nodes[source]
        who = (source, call.connection)
        if worker.connection != call.connection or call.ticket <= self._tickets.get(who, -1):
            self.counts["came late"] += 1
            return
        self._tickets[who] = call.ticket
        members = SimpleNamespace(seen=lambda *_: None, notice_of=lambda _: 0)
        names = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        requests = ShareRequests(self, members, {}, names, None, self.clock, 0.0)  # type: ignore[arg-type]
        answer: Answered | Refusal
        try:
            answer = Answered(requests._decided(WORKER, call.request))  # type: ignore[arg-type]
            self.counts[type(call.request).__name__] += 1
        except PenstockError as error:
            answer = Refusal(type(error).__name__, str(error))
            self.counts[type(error).__name__] += 1
        self.wait(Waiting(self.log_end, False, partial(reply, answer)))

    def decide(self, decide: Any) -> Decision[Any]:
        """As `Life.decide`."""
        decision: Decision[Any] = decide(self.clock())
        self.carry_out(decision)
        return decision

    def isolate(self) -> None:
        """From the other brokers, both ways; workers reach it."""
        self.quorum.cut_off.add(self.name)
        for other in self.quorum.brokers:
            if other is not self:
                self.network.cut(self.name, other.name)
                self.network.cut(other.name, self.name)
