"""The shell of the two machines, as a node of the simulation: what `server/coordinator` does with
real files, in few lines and without them.

Decisions are replayed at once and appended one after the other. A crash leaves any of the appends
that were under way in the log, in their order; a power cut takes what is not synced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sim.partitions import OK, OTHER_OPEN, Begin, Marker, Writer

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.groups import ClientIdentity, GroupMachine
from penstock.cluster.shares import ShareGroups, TransactedJobs
from penstock.cluster.transactions import TransactionLimits, TransactionMachine
from penstock.cluster.transactions.records import Place
from penstock.core.errors import PenstockError
from penstock.server.coordinator.epoch import Machines
from penstock.testing.sim import (
    Ask,
    Disk,
    Network,
    NoAnswer,
    Node,
    Reply,
    Simulation,
    Sleep,
    Task,
)

LIMITS = TransactionLimits(stage_timeout=10.0)
APPEND = (0.0002, 0.003)
SYNC = (0.001, 0.02)


class Call(NamedTuple):
    """A question to the coordinator: the name of a handler, and what comes after `now`."""

    handler: str
    args: tuple[Any, ...]


class Answered(NamedTuple):
    value: Any


class Refusal(NamedTuple):
    error: str
    message: str


class Waiting(NamedTuple):
    """What happens once `appends` batches are in the log, and on the device if it is `durable`."""

    appends: int
    durable: bool
    then: Callable[[], None]


class Coordinator(Node):
    def __init__(
        self,
        sim: Simulation,
        network: Network,
        writer: Writer,
        topics: dict[str, tuple[bytes, int]],
        name: str = "coordinator",
    ) -> None:
        super().__init__(sim, network, name)
        self.writer = writer
        self.topics = topics
        self.disk: Disk[tuple[Record, ...]] = Disk(sim)
        self.counts: Counter[str] = Counter()
        self.appending: list[tuple[Record, ...]] = []

    # --- life -------------------------------------------------------------------------------------
    def new_machines(self) -> Machines:
        groups, shares = GroupMachine(), ShareGroups(self.sim.random.uniform)
        return Machines(groups, TransactionMachine(groups, TransactedJobs(shares), LIMITS), shares)

    def clock(self) -> float:
        return self.sim.now

    def begin_empty(self) -> None:
        """With nothing known, before a replay."""
        self.machines = self.new_machines()
        self.groups, self.transactions, self.shares = self.machines
        self._waiting_for: list[Waiting] = []
        self._markers: set[Marker] = set()
        self._producers: dict[str, dict[int, int]] = {}  # client -> producer id -> its life
        self._is_syncing = self.is_serving = False

    def on_start(self) -> None:
        self.begin_empty()
        self.appending.clear()
        for batch in self.disk.batches:
            self.replay(batch)
        self.after(self.sim.random.uniform(*SYNC), "fence and sync", self.serve)

    def on_crash(self) -> None:
        landed = self.sim.random.randint(0, len(self.appending))
        for batch in self.appending[:landed]:
            self.disk.append(batch)
        self.counts["appends_lost"] += len(self.appending) - landed
        self.appending.clear()

    def serve(self) -> None:
        self.disk.sync(len(self.disk.batches))
        self.is_serving = True
        self.carry_out(self.groups.topics_changed(self.clock(), self.topics))
        for group, member_id, client in list(self.groups.members()):
            if not self.is_alive(client):
                self.carry_out(self.groups.died(self.clock(), group, member_id))
        self.send_markers(len(self.disk.batches))
        self.tick()
        self.sweep()

    def is_alive(self, client: ClientIdentity) -> bool:
        node = self.network.nodes[client.client_id]
        return node.is_up and node.life == client.pid

    def replay(self, records: tuple[Record, ...]) -> None:
        for record in records:
            self.machines.replay(record)

    def client_died(self, name: str, life: int) -> None:
        """As by its pidfd; its lane was drained."""
        if not self.is_serving or not self.is_up:
            return
        for group, member_id, client in list(self.groups.members()):
            if (client.client_id, client.pid) == (name, life):
                self.carry_out(self.groups.died(self.clock(), group, member_id))
        for producer_id, of in list(self._producers.get(name, {}).items()):
            if of == life:
                self.carry_out(self.transactions.abandon(self.clock(), producer_id))

    def client_stalled(self, name: str, life: int) -> None:
        if not self.is_serving or not self.is_up:
            return
        for group, member_id, client in list(self.groups.members()):
            if (client.client_id, client.pid) == (name, life):
                self.carry_out(self.groups.fence(self.clock(), group, member_id, "stalled"))

    # --- decisions --------------------------------------------------------------------------------
    def carry_out(self, decision: Decision[Any], then: Callable[[], None] = lambda: None) -> None:
        if decision.records:
            self.sim.note(f"decided {decision.records!r}")
            self.replay(decision.records)
            self.begin_append(decision.records)
        self.wait(Waiting(self.log_end, decision.durable, then))
        if decision.durable:
            self.send_markers(self.log_end)

    def begin_append(self, records: tuple[Record, ...]) -> None:
        self.appending.append(records)
        self.after(self.sim.random.uniform(*APPEND), "append", self.append)

    @property
    def log_end(self) -> int:
        """How many batches there are, with those under way."""
        return len(self.disk.batches) + len(self.appending)

    def append(self) -> None:
        self.disk.append(self.appending.pop(0))
        self.wake()

    def wait(self, waiting: Waiting) -> None:
        self._waiting_for.append(waiting)
        self.wake()

    def wake(self) -> None:
        landed, synced = len(self.disk.batches), self.disk.synced
        ready = [w for w in self._waiting_for if w.appends <= (synced if w.durable else landed)]
        self._waiting_for = [w for w in self._waiting_for if w not in ready]
        for waiting in ready:
            waiting.then()
        wanted = any(w.durable and w.appends <= landed for w in self._waiting_for)
        if wanted and not self._is_syncing:
            self._is_syncing = True
            self.after(self.sim.random.uniform(*SYNC), "sync", lambda: self.sync(landed))

    def sync(self, count: int) -> None:
        self._is_syncing = False
        self.disk.sync(count)
        self.wake()

    # --- requests ---------------------------------------------------------------------------------
    def is_current(self, source: str, join: tuple[Any, ...]) -> bool:
        """Whether its client waits for the answer. It may have died on the way, as its pidfd says.
        And connections keep order, so a copy that comes after the client went on came by one that
        is over: carried out, it would make a member that nobody is."""
        client: Any = self.network.nodes[source]
        return self.is_alive(join[-1]) and client.joining == join[2]

    def joined_before(self, join: tuple[Any, ...]) -> str:
        """The member that this attempt made already, whose answer was lost."""
        return join[2] if self.groups.is_member(join[0], join[2]) else ""

    def on_ask(self, source: str, question: Call, reply: Reply) -> None:
        if not self.is_serving:
            return
        handler, args = question
        if handler == "join":
            if not self.is_current(source, args):
                return
            args = (args[0], args[1] or self.joined_before(args), *args[2:])
        if handler == "init":
            args = (*args, self.sim.number())
        elif handler == "begin_stage":
            stage = f"stage-{self.sim.number()}"
            args = (*args[:2], self.sim.number(), stage, *args[2:])
        machine = self.transactions if hasattr(TransactionMachine, handler) else self.groups
        try:
            decision = getattr(machine, handler)(self.clock(), *args)
        except PenstockError as error:
            self.counts[type(error).__name__] += 1
            refusal = Refusal(type(error).__name__, str(error))
            self.wait(Waiting(self.log_end, False, lambda: reply(refusal)))
            return
        self.counts[handler] += 1
        answer = Answered(decision.answer)
        if handler == "init":
            life = self.network.nodes[source].life
            self._producers.setdefault(source, {})[decision.answer.producer_id] = life
            self.carry_out(decision, lambda: self.spawn(self.when_marked(args[0], answer, reply)))
        elif handler == "add_partitions":
            begins = [Begin(place, args[1], args[2]) for place in args[3]]
            self.carry_out(decision, lambda: self.spawn(self.begin(begins, answer, reply)))
        elif handler == "begin_stage":
            self.carry_out(decision, lambda: reply(Answered((decision.answer, stage))))
        else:
            self.carry_out(decision, lambda: reply(answer))

    def when_marked(self, name: str, answer: Answered, reply: Reply) -> Task:
        while self.transactions.is_marking(name):
            yield Sleep(0.01)
        reply(answer)

    def begin(self, begins: list[Begin], answer: Answered, reply: Reply) -> Task:
        for begin in begins:
            said = OTHER_OPEN
            while said == OTHER_OPEN:
                try:
                    said = yield Ask("writer", begin, timeout=0.1, tries=20)
                except NoAnswer:
                    return
                if said == OTHER_OPEN:
                    yield Sleep(0.02)
            if said != OK:
                reply(Refusal("TransactionError", f"{begin}: {said}"))
                return
        reply(answer)

    # --- markers ----------------------------------------------------------------------------------
    def send_markers(self, count: int) -> None:
        """Of what was decided just now: once it is on the device."""
        for producer_id, epoch, commit, places in self.transactions.unmarked():
            for place in sorted(places):
                marker = Marker(place, producer_id, epoch, commit)
                if marker not in self._markers:
                    self._markers.add(marker)
                    self.wait(Waiting(count, True, partial(self.spawn_marker, marker)))

    def spawn_marker(self, marker: Marker) -> None:
        self.spawn(self.mark(marker))

    def mark(self, marker: Marker) -> Task:
        yield from self.mark_one(marker)
        marked = self.transactions.marked(marker.producer_id, marker.epoch, [marker.place])
        self.carry_out(marked)
        self._markers.discard(marker)
        self.send_markers(self.log_end)

    def mark_one(self, marker: Marker) -> Task:
        while True:
            try:
                yield Ask("writer", marker, timeout=0.1, tries=20)
            except NoAnswer:
                yield Sleep(0.1)
            else:
                return

    def sweep(self) -> None:
        """Transactions that stand open in a partition and nobody here knows of."""
        for place, log in self.writer.logs.items():
            for producer_id, epoch in log.open():
                if not self.transactions.is_open(producer_id, epoch):
                    self.counts["hung"] += 1
                    self.spawn(self.abort_hung(place, producer_id, epoch))
        self.after(1.0, "sweep", self.sweep)

    def abort_hung(self, place: Place, producer_id: int, epoch: int) -> Task:
        yield from self.mark_one(Marker(place, producer_id, epoch, False))

    def tick(self) -> None:
        for machine in self.machines:
            if (deadline := machine.deadline()) is not None and deadline <= self.clock():
                self.carry_out(machine.tick(self.clock()))
        self.after(0.05, "tick", self.tick)
