"""Raft nodes under a bad network, slow disks, crashes and power cuts; see `test_sim_raft`.

Every node applies what is committed to a list; clients append to it where somebody leads. Followed
after every event: a term has one leader, who has all that was committed in terms before; no index
is committed twice with different contents; terms and votes outlive power cuts. After healing
everybody has everything that was acknowledged.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import msgspec

from penstock.cluster.raft import Effects, LogEntry, Members, Raft, RaftConfig, Saved, Write, fresh
from penstock.cluster.raft.messages import DATA, RaftMessage
from penstock.cluster.raft.roles import Leader
from penstock.core.errors import ConfigError, NotLeaderError, ResourceLimitError
from penstock.testing.sim import FAIR, FOUL, Disk, Message, Network, Node, Simulation

CONFIG = RaftConfig(snapshot_timeout=1.0, message_bytes=200, in_flight_max=4, uncommitted_max=50)
SNAPSHOT_EVERY = 25
PAIRS = msgspec.msgpack.Decoder(list[tuple[int, bytes]])
KINDS = ("say gone", "kill", "power", "stop", "cut", "cut", "change", "change", "hand over", "all")


def replayed(writes: list[Write], first: Saved) -> Saved:
    """What a disk with these writes says."""
    term, vote, snapshot, entries = first.term, first.vote, first.snapshot, list(first.entries)
    for write in writes:
        term, vote = write.term, write.vote
        if write.snapshot is not None:
            at = write.snapshot
            known = next((e.term for e in entries if e.index == at.index), None)
            entries = [e for e in entries if e.index > at.index] if known == at.term else []
            snapshot = at
        entries = [entry for entry in entries if entry.index < write.first_index]
        entries.extend(write.entries)
    return Saved(snapshot, term, vote, tuple(entries))


class RaftNode(Node):
    """The shell of one `Raft`: a disk that is slow, timers, messages; applies to `applied`."""

    machine: type[Raft] = Raft

    def __init__(self, world: RaftWorld, number: int, first: Saved) -> None:
        super().__init__(world.sim, world.network, f"n{number}")
        self.world = world
        self.number = number
        self.first = first
        self.disk = Disk[Write](world.sim)
        self.raft: Raft | None = None
        self.applied: list[tuple[int, bytes]] = []
        self.term_seen = 0

    def on_start(self) -> None:
        saved = replayed(self.disk.batches, self.first)
        assert saved.term >= self.term_seen or not self.disk.batches
        self.applied = []
        chance = random.Random(self.sim.random.random()).random
        self.raft = self.machine(self.number, saved, CONFIG, chance, self.sim.now)
        self.waits: list[tuple[int, int]] = []
        self.is_writing = False
        self.proposed: dict[tuple[int, int], bytes] = {}
        self.carry_out(Effects(restore=saved.snapshot if saved.snapshot.index else None))
        self.arm()

    def on_crash(self) -> None:
        self.raft = None

    def power_cut(self) -> None:
        self.crash()
        self.disk.power_cut()

    # --- time ---
    def arm(self) -> None:
        assert self.raft is not None
        self.after(max(self.raft.deadline - self.sim.now, 0.001), "timer", self.tick)

    def tick(self) -> None:
        assert self.raft is not None
        self.carry_out(self.raft.tick(self.sim.now))
        self.arm()

    # --- the network ---
    def on_ask(self, source: str, question: RaftMessage, reply: object) -> None:
        if self.raft is not None:
            self.carry_out(self.raft.receive(self.sim.now, int(source[1:]), question))

    # --- effects ---
    def carry_out(self, effects: Effects) -> None:
        for write in effects.writes:
            self.waits.append((write.number, self.disk.append(write)))
        self.write_on()
        for to, message in effects.messages:
            name = f"n{to}"
            if name in self.network.nodes:
                self.network.send(self.name, name, Message(self.sim.number(), False, message))
        if effects.restore is not None:
            self.applied = PAIRS.decode(effects.restore.data)
        for entry in effects.committed:
            self.apply(entry)
        self.world.look_at(self)

    def write_on(self) -> None:
        """One sync at a time takes what there is until then."""
        if self.waits and not self.is_writing:
            self.is_writing = True
            number, count = self.waits[-1]
            delay = self.sim.random.choice([0.001, 0.005, 0.05])
            self.after(delay, f"synced {number}", lambda: self.synced(number, count))

    def synced(self, number: int, count: int) -> None:
        assert self.raft is not None
        self.is_writing = False
        self.disk.sync(count)
        self.waits = [wait for wait in self.waits if wait[0] > number]
        self.term_seen = max(self.term_seen, replayed(self.disk.batches[:count], self.first).term)
        self.carry_out(self.raft.persisted(self.sim.now, number))
        self.write_on()

    def apply(self, entry: LogEntry) -> None:
        assert self.raft is not None
        self.world.chosen(entry, self.raft.term)
        if entry.kind == DATA:
            self.applied.append((entry.index, entry.data))
        mine = self.proposed.pop((entry.index, entry.term), None)
        if mine is not None:
            self.world.acknowledged.add(mine)
        snapshot = self.raft.log.snapshot
        if entry.index - snapshot.index >= SNAPSHOT_EVERY and self.sim.random.random() < 0.2:
            behind = self.sim.random.randint(snapshot.index + 1, entry.index)
            data = msgspec.msgpack.encode([pair for pair in self.applied if pair[0] <= behind])
            self.after(0.0, "compacts", lambda: self.compact(data, behind))

    def compact(self, data: bytes, index: int) -> None:
        assert self.raft is not None
        if index > self.raft.log.snapshot.index:
            self.world.counts["snapshots"] += 1
            self.carry_out(self.raft.compacted(data, index))

    def propose(self, data: bytes) -> None:
        if self.raft is None or self.is_paused or not self.raft.is_leader:
            return
        try:
            index, effects = self.raft.propose(self.sim.now, data)
        except (NotLeaderError, ResourceLimitError) as error:
            self.world.counts[type(error).__name__] += 1
            return
        self.proposed[index, self.raft.term] = data
        self.carry_out(effects)

    def change(self) -> None:
        """A member more or less, as an operator would have it."""
        raft, draw = self.raft, self.sim.random
        if raft is None or self.is_paused or not raft.is_leader:
            return
        now = raft.members
        outside = [n for n in self.world.numbers if n not in now]
        learners, voters = list(now.learners), list(now.voters)
        if learners and draw.random() < 0.7:
            chosen = learners.pop()
            assert isinstance(raft.role, Leader)
            progress = raft.role.progress.get(chosen)
            if progress is None or progress.match < raft.commit - 10:
                return
            voters.append(chosen)
        elif outside and draw.random() < 0.6:
            learners.append(draw.choice(outside))
        elif len(voters) > 2:
            voters.remove(draw.choice(voters))
        members = Members(tuple(sorted(voters)), tuple(sorted(learners)))
        try:
            _, effects = raft.change_members(self.sim.now, members)
        except (ConfigError, NotLeaderError):
            self.world.counts["changes refused"] += 1
            return
        self.world.counts["changes"] += 1
        self.carry_out(effects)

    def hand_over(self) -> None:
        if self.raft is not None and not self.is_paused and self.raft.is_leader:
            to = self.sim.random.choice(self.raft.members.voters)
            try:
                self.carry_out(self.raft.transfer(self.sim.now, to))
            except NotLeaderError:
                return

    def told_gone(self, number: int) -> None:
        if self.raft is not None and not self.is_paused:
            self.carry_out(self.raft.gone(self.sim.now, number))
            self.arm()


class RaftWorld:
    def __init__(self, seed: int, machine: type[Raft] = Raft) -> None:
        self.sim = sim = Simulation(seed)
        draw = sim.random
        self.network = Network(sim, draw.choice([FAIR, FOUL]))
        self.every = draw.choice([0.2, 0.5, 1.5])
        self.is_healed = False
        self.counts = Counter[str]()
        self.log: dict[int, tuple[int, bytes]] = {}
        self.chosen_in: dict[int, int] = {}
        """The term of the leader that committed it, which is the first to apply it."""
        self.leaders: dict[int, int] = {}
        self.acknowledged: set[bytes] = set()
        voters = draw.choice([1, 3, 3, 5])
        self.numbers = range(1, voters + draw.choice([0, 0, 2]) + 1)
        self.nodes: list[RaftNode] = []
        for number in self.numbers:
            first = fresh(*range(1, voters + 1)) if number <= voters else fresh()
            node = RaftNode(self, number, first)
            node.machine = machine
            self.nodes.append(node)
        self.made = 0

    # --- what must hold ---
    def chosen(self, entry: LogEntry, term: int) -> None:
        self.chosen_in.setdefault(entry.index, term)
        known = self.log.setdefault(entry.index, (entry.term, entry.data))
        assert known == (entry.term, entry.data), f"index {entry.index} is {known} and {entry}"

    def look_at(self, node: RaftNode) -> None:
        raft = node.raft
        if raft is None or not raft.is_leader:
            return
        if raft.term not in self.leaders:
            self.counts["terms"] += 1
            for index, (term, _) in self.log.items():
                # Votes that come late may still make somebody lead a term that is over.
                is_later = raft.term >= self.chosen_in[index]
                if is_later and index >= raft.log.first_index:
                    assert raft.log.term_at(index) == term, f"{node.name} leads without {index}"
        leader = self.leaders.setdefault(raft.term, node.number)
        assert leader == node.number, f"{leader} and {node.number} lead term {raft.term}"

    # --- the run ---
    def run(self, seconds: float = 15.0) -> None:
        for node in self.nodes:
            node.start()
        self.feed()
        self.next_fault()
        self.sim.run(seconds)
        self.heal()
        if not self.sim.run(60.0, until=self.is_done):
            raise self.sim.failure(f"healed for 60 s, and still: {self.missing()}")

    def feed(self) -> None:
        self.made += 1
        data = b"%d" % self.made
        for node in self.nodes:
            node.propose(data)  # two may believe that they lead
        if not self.is_healed:
            self.sim.after(self.sim.random.expovariate(20.0), "a client", self.feed)

    def next_fault(self) -> None:
        self.sim.after(self.sim.random.expovariate(1.0 / self.every), "a fault", self.fault)

    def fault(self) -> None:
        if self.is_healed:
            return
        draw = self.sim.random
        node = draw.choice(self.nodes)
        if draw.random() < 0.4:
            node = next((n for n in self.nodes if n.raft is not None and n.raft.is_leader), node)
        kind = draw.choice(KINDS)
        self.counts[f"fault: {kind}"] += 1
        self.sim.note(f"{kind} {node.name}")
        match kind:
            case "say gone":
                self.say_gone(node)  # which is wrong
            case "kill":
                node.crash()
                self.sim.after(draw.uniform(0.0, 0.5), "seen gone", lambda: self.say_gone(node))
                self.sim.after(draw.uniform(0.01, 2.0), "restart", node.start)
            case "power":
                node.power_cut()
                self.sim.after(draw.uniform(0.01, 2.0), "restart", node.start)
            case "stop":
                node.pause()
                self.sim.after(draw.uniform(0.1, 2.0), "SIGCONT", node.resume)
            case "cut":
                for other in self.nodes:
                    if other is not node and draw.random() < 0.7:
                        if draw.random() < 0.8:
                            self.network.cut(node.name, other.name)
                        if draw.random() < 0.8:
                            self.network.cut(other.name, node.name)
                self.sim.after(draw.uniform(0.2, 3.0), "mend", self.network.mend)
            case "change":
                for leader in self.nodes:
                    leader.change()
            case "hand over":
                node.hand_over()
            case "all":
                for each in self.nodes:
                    each.power_cut()
                    self.sim.after(draw.uniform(0.1, 1.0), "restart", each.start)
        self.next_fault()

    def say_gone(self, node: RaftNode) -> None:
        """Some are told that it is, each at a moment of its own."""
        for other in self.nodes:
            if other is not node and self.sim.random.random() < 0.7:
                told = partial(other.told_gone, node.number)
                self.sim.after(self.sim.random.uniform(0.0, 0.2), "told gone", told)

    def heal(self) -> None:
        self.is_healed = True
        self.sim.note("healed")
        self.network.heal()
        for node in self.nodes:
            node.resume()
            node.start()
        self.sim.after(1.0, "the last client", self.last)

    def last(self) -> None:
        """Until it is committed: proves that writing goes on."""
        if b"last" not in self.acknowledged:
            for node in self.nodes:
                node.propose(b"last")
            self.sim.after(0.5, "the last client", self.last)

    def missing(self) -> list[str]:
        leaders = [n for n in self.nodes if n.raft is not None and n.raft.is_ready]
        if not leaders:
            return ["nobody leads"]
        leader = max(leaders, key=lambda n: n.raft.term if n.raft else 0)
        found = [] if b"last" in self.acknowledged else ["nothing can be written"]
        assert leader.raft is not None
        there = {data for _, data in leader.applied}
        if lost := self.acknowledged - there:
            found.append(f"lost: {sorted(lost)[:5]}")
        for number in leader.raft.members.everybody():
            node = self.nodes[number - 1]
            if node.applied != leader.applied:
                found.append(f"{node.name} has {len(node.applied)} of {len(leader.applied)}")
        return found

    def is_done(self) -> bool:
        return self.sim.steps % 50 == 0 and not self.missing()
