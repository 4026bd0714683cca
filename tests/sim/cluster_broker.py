"""A broker of the simulated cluster: the machines of a node, with a model of logs as their shell.

A process that dies leaves its logs behind, a power cut any part of what was not synced. A topic may
want its records synced before they count (`fsync`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.raft_world import replayed

from penstock.cluster.controller import Controller, Image, pack, unpack
from penstock.cluster.controller.image import Place
from penstock.cluster.decisions import Decision, Record
from penstock.cluster.raft import Effects, Raft, RaftConfig, Saved, Write
from penstock.cluster.raft.messages import DATA, RaftMessage
from penstock.cluster.replica import (
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    IsrChange,
    IsrChanged,
    LogEnd,
    LogEnds,
    Replica,
    ReplicaConfig,
    ReplicaFollower,
    ReplicaLeader,
)
from penstock.core.epochs import EpochCache
from penstock.core.errors import NotLeaderError, PenstockError, ResourceLimitError
from penstock.testing.sim import Disk, Message, Node

if TYPE_CHECKING:
    from sim.cluster_world import ClusterWorld

RAFT = RaftConfig()
REPLICA = ReplicaConfig(lag_time=0.6, retry=0.3)
HEARTBEAT = 0.3
FETCH_MAX = 4
FETCH_TIMEOUT = 0.5
SNAPSHOT_EVERY = 60


class Entry(NamedTuple):
    epoch: int
    value: str


class StoredLog:
    """One replica's log, as files: what is there, how much of it is on the device, and the high
    watermark that was written down."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.synced = 0
        self.checkpoint = 0

    def epochs(self) -> EpochCache:
        cache = EpochCache()
        for offset, entry in enumerate(self.entries):
            if not cache.entries or entry.epoch > cache.latest:
                cache.assign(entry.epoch, offset)
        return cache

    @property
    def worth(self) -> tuple[int, int]:
        """The epoch of the last record (-1: none), and how many there are."""
        return (self.entries[-1].epoch if self.entries else -1), len(self.entries)

    def copied(self) -> StoredLog:
        copy = StoredLog()
        copy.entries, copy.synced, copy.checkpoint = [*self.entries], self.synced, self.checkpoint
        return copy


class Copy(NamedTuple):
    """A data folder as it was: see `Broker`."""

    logs: dict[Place, StoredLog]
    lost: set[Place]
    lost_power: bool
    known_epoch: int
    counted: int
    was_closed: bool
    raft: list[Write]


class Produce(NamedTuple):
    place: Place
    value: str


class Fetch(NamedTuple):
    place: Place
    request: FetchRequest


class Answered(NamedTuple):
    place: Place
    answer: Fetched | Diverged | FetchRefused
    entries: tuple[Entry, ...]


class ToController(NamedTuple):
    """`number` of the asking broker's, echoed; `name` of a method of the controller."""

    number: int
    name: str
    arguments: tuple[Any, ...]


class FromController(NamedTuple):
    number: int
    answer: Any


class Held(NamedTuple):
    """An answer of the controller that waits for the log up to there."""

    until: int
    term: int
    source: str
    number: int
    answer: Any


class Broker(Node):
    def __init__(self, world: ClusterWorld, number: int, first: Saved) -> None:
        super().__init__(world.sim, world.network, f"b{number}")
        self.world = world
        self.number = number
        self.first = first
        self.raft_disk = Disk[Write](world.sim)
        self.logs: dict[Place, StoredLog] = {}
        self.lost_power = False
        """Since it last registered."""
        self.known: int | None = None
        """The epoch that the controller has for it, where its disk has another one."""
        self.lost: set[Place] = set()
        """Logs that went since it last registered."""
        self.broken: set[Place] = set()
        """Logs whose disk fails."""
        self.known_epoch = 0
        """Of its last life, on its disk."""
        self.counted, self.was_closed = 0, False
        """Producer ids up to its last clean stop, on its disk: what a copy has that is made then,
        on which it starts after a crash."""
        self.folder = b"folder"
        self.last_up = 0
        """The last epoch in which it knows to have led or followed."""
        self.copy: Copy | None = None
        """Of its folder, made in an earlier life."""
        self.raft: Raft | None = None

    # --- life ---
    def on_start(self) -> None:
        now = self.sim.now
        saved = replayed(self.raft_disk.batches, self.first)
        chance = random.Random(self.sim.random.random()).random
        self.raft = Raft(self.number, saved, RAFT, chance, now)
        self.incarnation = b"%d" % self.life
        self.known = None
        self.image = Image()
        self.controller: Controller | None = None
        self.held: deque[Held] = deque()
        self.applied = 0
        self.living: dict[int, int] = {}
        self.replicas: dict[Place, Replica] = {}
        self.fetching: set[Place] = set()
        self.broker_epoch: int | None = None
        self.is_leaving = self.is_current = False
        self.next_id, self.keeps_count, self.was_closed = self.counted, self.was_closed, False
        self.acks: list[tuple[Place, int, int, Callable[[bool], None]]] = []
        self.asked: dict[int, Callable[[Any], None]] = {}
        self.waits: list[tuple[int, int]] = []
        self.is_writing = False
        for place, log in self.logs.items():
            self.replicas[place] = self.replica(place, log)
        if saved.snapshot.index:
            self.carry_out(Effects(restore=saved.snapshot))
        self.arm()
        self.after(0.05, "beats", self.beat)
        self.after(0.1, "looks", self.look)

    def on_crash(self) -> None:
        self.raft = None

    def power_cut(self) -> None:
        self.crash()
        self.raft_disk.power_cut()
        for log in self.logs.values():
            keep = self.sim.random.randint(log.synced, len(log.entries))
            del log.entries[keep:]
            log.checkpoint = min(log.checkpoint, keep)
        self.lost_power = True

    def disk_fails(self, place: Place) -> None:
        """Its log takes nothing any more, and can be read."""
        if place in self.logs:
            self.broken.add(place)
            self.nack(place)

    def folder_goes(self, place: Place) -> None:
        """While it is down, and with it all that was in it."""
        self.crash()
        if self.logs.pop(place, None) is not None:
            self.lost.add(place)
        self.broken.discard(place)

    def is_copied(self, *, was_closed: bool = False) -> None:
        """Somebody copies its folder, unless there is a copy. That of a broker with a vote is
        brought back without what the quorum wrote there: it must not forget what it promised."""
        if self.copy is not None:
            return
        logs = {place: log.copied() for place, log in self.logs.items()}
        self.copy = Copy(
            logs, set(self.lost), self.lost_power, self.known_epoch,
            self.next_id, was_closed, [*self.raft_disk.batches],
        )  # fmt: skip

    def is_brought_back(self) -> None:
        """It is to be started on the copy, if it has been up since that was made."""
        copy = self.copy
        self.crash()
        if copy is None or copy.known_epoch >= self.last_up:
            return
        self.copy = None
        self.world.counts["older copies"] += 1
        self.world.lost.update(self.world.places)
        self.logs = {place: log.copied() for place, log in copy.logs.items()}
        self.lost, self.lost_power, self.known_epoch = (
            set(copy.lost),
            copy.lost_power,
            copy.known_epoch,
        )
        self.counted, self.was_closed = copy.counted, copy.was_closed
        self.broken.clear()
        if not self.has_vote:
            self.raft_disk.batches[:] = copy.raft
            self.raft_disk.synced = len(copy.raft)

    def is_replaced(self) -> None:
        """By a new host, with nothing. Only without a vote: a voter is taken out before."""
        if self.has_vote:
            return
        self.crash()
        self.world.counts["new folders"] += 1
        self.world.lost.update(self.world.places)
        self.folder = b"folder %d" % self.life
        self.logs.clear()
        self.lost.clear()
        self.broken.clear()
        self.lost_power, self.known_epoch, self.copy = False, 0, None
        self.counted, self.was_closed = 0, False
        self.raft_disk.batches.clear()
        self.raft_disk.synced = 0

    @property
    def has_vote(self) -> bool:
        return self.number in self.world.voters

    def renew(self) -> None:
        """Its replicator died: a life of the broker that knows nothing of what it said to others,
        in the process that was there."""
        if not self.is_up or self.is_paused:
            return
        self.incarnation = b"%d, %d" % (self.life, self.sim.number())
        self.broker_epoch, self.is_current = None, False
        self.fetching.clear()
        for place, replica in list(self.replicas.items()):
            self.nack(place)
            log = self.logs[place]
            log.checkpoint = replica.log.high_watermark  # its page is there still
            self.replicas[place] = self.replica(place, log)

    @property
    def offline(self) -> tuple[Place, ...]:
        return tuple(sorted(self.broken & self.logs.keys()))

    def replica(self, place: Place, log: StoredLog) -> Replica:
        synced = log.synced if self.world.is_synced(place) else None
        ends = LogEnds(0, len(log.entries), log.checkpoint, log.epochs(), synced)
        return Replica(self.number, ends, REPLICA, self.living)

    # --- raft ---
    def arm(self) -> None:
        assert self.raft is not None
        self.after(max(self.raft.deadline - self.sim.now, 0.001), "raft", self.tick)

    def tick(self) -> None:
        assert self.raft is not None
        self.carry_out(self.raft.tick(self.sim.now))
        self.arm()

    def carry_out(self, effects: Effects) -> None:
        assert self.raft is not None
        for write in effects.writes:
            self.waits.append((write.number, self.raft_disk.append(write)))
        self.write_on()
        for to, message in effects.messages:
            self.send(f"b{to}", message)
        if effects.restore is not None:
            self.image = Image()
            for record in unpack(effects.restore.data):
                self.image.replay(record)
            self.applied = effects.restore.index
            self.heard_metadata(list(self.image.partitions))
        for entry in effects.committed:
            self.applied = entry.index
            if entry.kind == DATA:
                self.metadata(unpack(entry.data))
            self.answer_held(entry.index, entry.term)
        self.check_activity()
        if self.applied - self.raft.log.snapshot.index > SNAPSHOT_EVERY:
            data = pack(tuple(self.image.records()))
            self.carry_out(self.raft.compacted(data, self.applied))

    def write_on(self) -> None:
        if self.waits and not self.is_writing:
            self.is_writing = True
            number, count = self.waits[-1]
            delay = self.sim.random.choice([0.001, 0.003, 0.03])
            self.after(delay, "synced raft", lambda: self.raft_synced(number, count))

    def raft_synced(self, number: int, count: int) -> None:
        assert self.raft is not None
        self.is_writing = False
        self.raft_disk.sync(count)
        self.waits = [wait for wait in self.waits if wait[0] > number]
        self.carry_out(self.raft.persisted(self.sim.now, number))
        self.write_on()

    # --- the controller ---
    def check_activity(self) -> None:
        assert self.raft is not None
        if self.raft.is_ready and self.controller is None:
            self.controller = self.world.controller_type(self.world.controller_config)
            for record in self.image.records():
                self.controller.replay(record)
            self.controller.lead(self.sim.now)
            self.term = self.raft.term
        elif self.controller is not None and (
            not self.raft.is_leader or self.raft.term != self.term
        ):
            self.controller = None
            self.held.clear()

    def control(self, source: str, asked: ToController) -> None:
        """Somebody asks the controller, which is here or not."""
        if self.controller is None:
            return
        arguments = asked.arguments
        if asked.name in ("register", "heartbeat"):
            arguments = (self.sim.now, *arguments)
        keywords = arguments[-1] if arguments and isinstance(arguments[-1], dict) else {}
        arguments = arguments[:-1] if keywords else arguments
        try:
            decision = getattr(self.controller, asked.name)(*arguments, **keywords)
        except PenstockError as error:
            self.send(source, FromController(asked.number, error))
            return
        self.decide(decision, source, asked.number)

    def decide(self, decision: Decision[Any], source: str = "", number: int = 0) -> None:
        assert self.raft is not None
        assert self.controller is not None
        term = self.raft.term
        if decision.records:
            try:
                index, effects = self.raft.propose(self.sim.now, pack(decision.records))
            except (NotLeaderError, ResourceLimitError):
                self.controller = None  # made again from the log, where this is not
                self.held.clear()
                return
            for record in decision.records:
                self.world.decided(self.controller.image, record)
                self.controller.replay(record)
            if source:
                self.held.append(Held(index, term, source, number, decision.answer))
            self.carry_out(effects)
        elif source:
            self.held.append(Held(self.raft.log.last_index, term, source, number, decision.answer))
            self.answer_held(self.applied, term)

    def answer_held(self, index: int, term: int) -> None:
        while self.held and self.held[0].until <= index:
            held = self.held.popleft()
            if held.term == term or held.until < index:
                self.send(held.source, FromController(held.number, held.answer))

    def ask_controller(self, name: str, *arguments: Any, then: Callable[[Any], None]) -> None:
        if self.raft is None or self.raft.leader is None:
            return
        number = self.sim.number()
        self.asked[number] = then
        self.send(f"b{self.raft.leader}", ToController(number, name, arguments))

    # --- this broker ---
    def beat(self) -> None:
        assert self.raft is not None
        self.after(HEARTBEAT, "beats", self.beat)
        if self.broker_epoch is None:
            instead_of = self.known_epoch if self.known is None else self.known
            clean = {"was_clean": not self.lost_power, "after": self.known_epoch,
                     "lost": tuple(sorted(self.lost)), "offline": self.offline,
                     "keeps_count": self.keeps_count, "instead_of": instead_of}  # fmt: skip
            self.ask_controller(
                "register", self.number, self.incarnation, self.folder, (), "", clean,
                then=partial(self.registered, self.incarnation),
            )  # fmt: skip
            return
        is_current = self.image.is_current(self.number, self.broker_epoch)
        state = {"is_current": is_current, "is_leaving": self.is_leaving}
        epoch = self.broker_epoch
        self.ask_controller("heartbeat", self.number, epoch, state, then=partial(self.heard, epoch))

    def registered(self, incarnation: bytes, answer: Any) -> None:
        if incarnation != self.incarnation:
            return  # renewed meanwhile
        if isinstance(answer, PenstockError):
            self.world.counts["registrations refused"] += 1
            return
        self.known = answer.broker_epoch if answer.ask_again else None
        if answer.ask_again:
            self.world.counts["registrations asked again"] += 1
            return
        self.broker_epoch = self.known_epoch = answer.broker_epoch
        self.lost_power = False
        self.lost.clear()
        self.keeps_count = True
        self.world.gives(answer.id_block, self.next_id)
        self.next_id += 1
        self.heard_metadata(())

    def heard(self, epoch: int, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            self.broker_epoch, self.is_current = None, False
            return
        if not answer.is_fenced:
            self.last_up = max(self.last_up, epoch)
        if answer.may_stop and self.is_leaving:
            self.world.counts["clean stops"] += 1
            self.counted, self.was_closed = self.next_id, True
            self.crash()
            if self.sim.random.random() < 0.5:
                self.is_copied(was_closed=True)
            self.sim.after(self.sim.random.uniform(0.1, 1.0), "restart", self.start)

    def metadata(self, records: list[Record]) -> None:
        changed: set[Place] = set()
        for record in records:
            before = dict(self.image.partitions) if self.world.is_small else self.image.partitions
            self.image.replay(record)
            changed |= {p for p, v in self.image.partitions.items() if before.get(p) is not v}
        self.heard_metadata(changed)

    def heard_metadata(self, places: Any) -> None:
        if self.broker_epoch is None or not self.image.is_current(self.number, self.broker_epoch):
            return
        if not self.is_current:
            self.is_current, places = True, self.image.partitions
        self.living.clear()
        self.living.update(self.image.living())
        for place in sorted(places):
            word = self.image.assignment(place)
            if word is None or (self.number not in word.replicas and place not in self.replicas):
                continue
            if place not in self.replicas:
                log = self.logs.setdefault(place, StoredLog())
                self.replicas[place] = self.replica(place, log)
            replica = self.replicas[place]
            if replica.assign(self.sim.now, word):
                self.fetching.discard(place)
                self.nack(place)
                if replica.role is None:
                    del self.replicas[place], self.logs[place]
                    self.broken.discard(place)
                elif isinstance(replica.role, ReplicaLeader):
                    self.world.leads(self, place, replica)
                else:
                    self.fetch(place)

    # --- leading ---
    def produce(self, place: Place, value: str, done: Callable[[bool], None]) -> None:
        """acks=all, idempotent: what is in the log already is answered when it counts."""
        replica = self.replicas.get(place)
        if self.is_paused or not self.is_up or replica is None or place in self.broken:
            done(False)
            return
        role = replica.role
        if not isinstance(role, ReplicaLeader) or role.is_short:
            self.world.counts[
                "too few in sync" if isinstance(role, ReplicaLeader) else "no leader"
            ] += 1
            done(False)
            return
        epoch = role.epoch
        log = self.logs[place]
        offset = next((o for o, e in enumerate(log.entries) if e.value == value), None)
        if offset is None:
            offset = len(log.entries)
            log.entries.append(Entry(epoch, value))
            replica.appended(len(log.entries))
            self.sync_later(place)
        self.acks.append((place, epoch, offset, done))
        self.moved(place)

    def sync_later(self, place: Place) -> None:
        if not self.world.is_synced(place):
            return
        delay = self.sim.random.choice([0.002, 0.02, 0.3])
        upto = len(self.logs[place].entries)
        self.after(delay, "syncs", lambda: self.log_synced(place, upto))

    def log_synced(self, place: Place, upto: int) -> None:
        replica = self.replicas.get(place)
        if replica is None:
            return
        log = self.logs[place]
        log.synced = max(log.synced, min(upto, len(log.entries)))
        if self.world.is_synced(place):
            replica.synced(log.synced)
            self.moved(place)

    def moved(self, place: Place) -> None:
        """The high watermark may have."""
        replica = self.replicas[place]
        if not isinstance(replica.role, ReplicaLeader):
            return
        self.world.sees(self, place, replica)
        waiting, self.acks = self.acks, []
        for ack in waiting:
            at, epoch, offset, done = ack
            if at != place:
                self.acks.append(ack)
            elif epoch == replica.role.epoch and offset < replica.log.high_watermark:
                self.world.acknowledged[place][self.logs[place].entries[offset].value] = offset
                done(True)
            else:
                self.acks.append(ack)

    def nack(self, place: Place) -> None:
        """Who waits for an acknowledgement of a role that is over is told so."""
        gone = [ack for ack in self.acks if ack[0] == place]
        self.acks = [ack for ack in self.acks if ack[0] != place]
        for *_, done in gone:
            done(False)

    def look(self) -> None:
        """Now and then: who lags, what is synced, who is silent."""
        self.after(0.1, "looks", self.look)
        now = self.sim.now
        gone = [b.number for b in self.world.brokers if not b.is_up]
        if not self.world.is_healed and self.sim.random.random() < 0.02:
            gone.append(self.sim.random.choice(self.world.brokers).number)  # which is wrong
        for number in gone if self.sim.random.random() < 0.3 else ():
            self.heard_gone(number)
        if self.controller is not None:
            self.decide(self.controller.tick(now))
        if self.controller is not None:
            moves = self.controller.balance(now)
            self.world.counts["balanced"] += moves.answer
            self.decide(moves)
        self.tell_of_logs()
        self.tell_ends()
        for place, replica in list(self.replicas.items()):
            log = self.logs[place]
            log.checkpoint = min(replica.log.high_watermark, len(log.entries))
            if self.sim.random.random() < 0.3:
                self.log_synced(place, len(log.entries))
            role = replica.role
            if isinstance(role, ReplicaLeader):
                role.tick(now)
                change = role.isr_change(now)
                if change is not None:
                    self.change_isr(place, role, change)
            elif place not in self.fetching:
                self.fetch(place)

    def tell_of_logs(self) -> None:
        """The controller is told where it believes something else of logs here."""
        if not self.is_current or self.broker_epoch is None:
            return
        held = {p: it for p, it in self.image.partitions.items() if self.number in it.replicas}
        wrong = {
            place for place, it in held.items()
            if (self.number in it.offline) != (place in self.broken)
        }  # fmt: skip
        if wrong:
            told = {"offline": tuple(sorted(wrong & self.broken)),
                    "online": tuple(sorted(wrong - self.broken))}  # fmt: skip
            self.ask_controller("logs", self.number, self.broker_epoch, told, then=lambda _: None)

    def tell_ends(self) -> None:
        """The controller is told what is here of what nobody leads."""
        if not self.is_current or self.broker_epoch is None:
            return
        ends = []
        for place, replica in self.replicas.items():
            known = self.image.partitions.get(place)
            if known is None or known.leader is not None or place in self.broken:
                continue
            if known.leader_epoch == replica.leader_epoch:
                log = replica.log
                end = LogEnd(known.leader_epoch, log.last_epoch, log.log_end, log.high_watermark)
                ends.append((place, end))
        if ends:
            self.ask_controller(
                "log_ends", self.number, self.broker_epoch, tuple(ends), then=lambda _: None
            )

    def heard_gone(self, number: int) -> None:
        """Its host says that nothing listens there."""
        assert self.raft is not None
        if self.controller is not None:
            self.controller.gone(number)
        self.carry_out(self.raft.gone(self.sim.now, number))
        self.arm()

    def change_isr(self, place: Place, role: ReplicaLeader, change: IsrChange) -> None:
        def then(answer: Any) -> None:
            replica = self.replicas.get(place)
            if isinstance(answer, IsrChanged) and replica is not None and replica.role is role:
                role.isr_changed(self.sim.now, change, answer)
                self.moved(place)

        self.ask_controller("change_isr", place, change, then=then)

    def serve(self, source: str, fetch: Fetch) -> None:
        replica = self.replicas.get(fetch.place)
        if replica is None:
            return
        answer = replica.fetch(self.sim.now, fetch.request)
        entries: tuple[Entry, ...] = ()
        if isinstance(answer, Fetched):
            end = min(answer.offset + FETCH_MAX, replica.log.log_end)
            entries = tuple(self.logs[fetch.place].entries[answer.offset : end])
        self.send(source, Answered(fetch.place, answer, entries))
        if isinstance(replica.role, ReplicaLeader):
            self.moved(fetch.place)

    # --- following ---
    def fetch(self, place: Place) -> None:
        self.fetching.discard(place)
        replica = self.replicas.get(place)
        if (
            replica is None
            or not isinstance(replica.role, ReplicaFollower)
            or self.broker_epoch is None
        ):
            return
        if place in self.broken:
            return
        role = replica.role
        request = role.request(self.sim.number(), self.broker_epoch)
        if request is None or role.leader is None:
            return
        self.fetching.add(place)
        self.send(f"b{role.leader}", Fetch(place, request))

        def again() -> None:
            now = self.replicas.get(place)
            if now is not None and now.role is role and role.number == request.number:
                self.fetch(place)

        self.after(FETCH_TIMEOUT, "no answer", again)

    def answered(self, came: Answered) -> None:
        replica = self.replicas.get(came.place)
        if (
            replica is None
            or not isinstance(replica.role, ReplicaFollower)
            or came.place in self.broken
        ):
            return
        log, role = self.logs[came.place], replica.role
        before = replica.log.log_end
        match came.answer:
            case Diverged():
                end = role.diverged(came.answer)
                if end is None:
                    return
                self.world.counts["truncations"] += 1
                del log.entries[end:]
                log.synced = min(log.synced, end)
            case Fetched():
                offset = came.answer.offset
                ends = [(offset + i, e.epoch) for i, e in enumerate(came.entries, 1)]
                if not role.fetched(came.answer, ends):
                    return
                if before != offset:
                    log.entries.clear()
                log.entries.extend(came.entries)
                if came.entries:
                    self.sync_later(came.place)
            case FetchRefused():
                role.refused(came.answer)
        assert replica.log.log_end == len(log.entries), (replica.log.log_end, len(log.entries))
        soon = 0.001 if came.entries or isinstance(came.answer, Diverged) else 0.05
        self.after(soon, "fetches", lambda: self.fetch(came.place))

    # --- the network ---
    def send(self, to: str, body: Any) -> None:
        if to == self.name:
            self.after(0.0, "to itself", lambda: self.on_ask(to, body, lambda _: None))
        elif to in self.network.nodes:
            self.network.send(self.name, to, Message(self.sim.number(), False, body))

    def on_ask(self, source: str, question: Any, reply: Any) -> None:
        if self.raft is None:
            return
        match question:
            case ToController():
                self.control(source, question)
            case FromController():
                then = self.asked.pop(question.number, None)
                if then is not None:
                    then(question.answer)
            case Fetch():
                self.serve(source, question)
            case Answered():
                self.answered(question)
            case _:
                message: RaftMessage = question
                self.carry_out(self.raft.receive(self.sim.now, int(source[1:]), message))
