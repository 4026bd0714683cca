"""Some brokers with everything of a cluster on them, what goes wrong there, and what must hold.

Followed at every step: a partition has one leader in a leader epoch; what was visible to a reader
(below a high watermark) is in the log of every later leader, at the same offset, for ever. At the
end, after healing: everything that was sent is acknowledged, and once in every replica; and the
first replicas lead, where they are to come back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

from sim.cluster_broker import Broker, Entry

from penstock.cluster.controller import Controller, ControllerConfig, Image, Partition
from penstock.cluster.controller.image import Place
from penstock.cluster.controller.records import PARTITION, parsed
from penstock.cluster.decisions import Record
from penstock.cluster.raft import fresh
from penstock.cluster.replica import Replica, ReplicaLeader
from penstock.core.errors import PenstockError
from penstock.testing.sim import FAIR, FOUL, Network, Simulation

KINDS = (
    *("kill", "kill", "power", "stop", "stop", "cut", "cut", "cut", "leave"),
    *("kill all", "kill all", "power all", "power all"),
    *("prefer", "reassign", "resize", "drain", "undrain"),
    *("disk", "disk", "disk", "folder"),
    *("renew", "copy", "copy", "back", "back", "new folder", "insync", "forget"),
)


class ClusterWorld:
    controller_type: type[Controller] = Controller
    is_small = True

    def __init__(self, seed: int) -> None:
        self.sim = sim = Simulation(seed)
        draw = sim.random
        self.network = Network(sim, draw.choice([FAIR, FOUL]))
        self.every = draw.choice([0.4, 1.0, 2.0])
        self.counts = Counter[str]()
        size = draw.choice([3, 3, 3, 4, 5])
        self.numbers = range(1, size + 1)
        self.voters = voters = (1, 2, 3)
        self.brokers = [Broker(self, n, fresh(*voters)) for n in voters]
        for number in self.numbers[3:]:
            self.brokers.append(Broker(self, number, fresh()))
        self.min_insync = draw.choice([1, 2])
        self.controller_config = ControllerConfig(balance_interval=draw.choice([0.0, 0.5, 3.0]))
        self.places: list[Place] = [(b"a" * 16, 0), (b"a" * 16, 1), (b"f" * 16, 0)]
        self.visible: dict[Place, list[Entry]] = {place: [] for place in self.places}
        self.visible_in: dict[Place, list[int]] = {place: [] for place in self.places}
        """The leader epoch in which each became so."""
        self.acknowledged: dict[Place, dict[str, int]] = {place: {} for place in self.places}
        self.leaders: dict[tuple[Place, int], int] = {}
        self.was_unclean: set[Place] = set()
        self.lost: set[Place] = set()
        """Of which a folder went."""
        self.forced: set[Place] = set()
        """For which an operator has elected somebody."""
        self.is_healed = False
        self.ids: set[tuple[int, int]] = set()
        self.sent: dict[Place, list[str]] = {place: [] for place in self.places}

    def is_synced(self, place: Place) -> bool:
        """Whether its records count only when they are on the device."""
        return place[0][:1] == b"f"

    # --- what must hold ---
    def gives(self, block: int, number: int) -> None:
        """A broker gives a producer id."""
        assert block > 0
        assert (block, number) not in self.ids, f"id {number} of {block} again"
        self.ids.add((block, number))

    def leads(self, broker: Broker, place: Place, replica: Replica) -> None:
        key = (place, replica.leader_epoch)
        other = self.leaders.setdefault(key, broker.number)
        assert other == broker.number, f"{other} and {broker.number} lead {key}"
        self.counts["elections"] += 1
        if place not in self.was_unclean:
            # It may hear late that it was elected, when others have led after it.
            log = broker.logs[place].entries
            until = bisect_left(self.visible_in[place], replica.leader_epoch)
            seen = self.visible[place][:until]
            assert log[: len(seen)] == seen, (
                f"{broker.name} leads {place} in epoch {replica.leader_epoch} with "
                f"{len(log)} records and has not what was visible: {len(seen)}"
            )
        self.sees(broker, place, replica)

    def sees(self, broker: Broker, place: Place, replica: Replica) -> None:
        """A reader comes to a leader, which may be one of yesterday."""
        seen, log = self.visible[place], broker.logs[place].entries
        end = replica.log.high_watermark
        assert end <= replica.log.log_end <= len(log)
        if place in self.was_unclean:
            return
        known = min(end, len(seen))
        assert log[:known] == seen[:known], f"{broker.name} shows {place} otherwise than before"
        seen.extend(log[known:end])
        epochs = self.visible_in[place]
        newest = max(replica.leader_epoch, epochs[-1]) if epochs else replica.leader_epoch
        epochs.extend([newest] * (len(seen) - len(epochs)))

    def decided(self, image: Image, record: Record) -> None:
        """The active controller decides that. A partition that goes on though nobody of its last
        ISR is clean goes on with the one that has most."""
        kind, name, value = parsed(record)
        place: Place = name  # type: ignore[assignment]
        if kind != PARTITION or not isinstance(value, Partition) or place not in self.places:
            return
        before = image.partitions.get(place)
        if before is None or value.unclean == before.unclean:
            return
        assert value.unclean is not None
        assert value.leader is not None
        assert not self.is_synced(place) or place in self.lost, f"{place} {before}"
        self.was_unclean.add(place)
        if place in self.forced:
            return
        self.counts["unclean recoveries"] += 1
        assert not before.isr, f"{place}: {before.isr} may be clean"
        there = ((b, self.brokers[b - 1].logs.get(place)) for b in before.last_isr)
        logs = {broker: log.worth for broker, log in there if log is not None}
        if logs.get(value.leader, (0, None))[1] == value.unclean.first:  # else it has lost more
            assert logs[value.leader] == max(logs.values()), f"{place}: {value.leader} of {logs}"

    # --- the run ---
    def run(self, seconds: float = 15.0) -> None:
        for broker in self.brokers:
            broker.start()
        self.begin()
        self.sim.run(seconds)
        self.heal()
        if not self.sim.run(120.0, until=self.is_done):
            raise self.sim.failure(f"healed for 120 s, and still: {self.missing()}")

    def begin(self) -> None:
        """Topics, when a majority of brokers is there."""
        active = self.active()
        done = False
        if active is not None and active.controller is not None and active.raft is not None:
            image = active.controller.image
            if len(image.living()) >= 3 and len(active.raft.members.everybody()) < len(
                self.numbers
            ):
                self.join(active)
            elif len(image.living()) >= min(4, len(self.numbers)):
                for name, topic_id, count in (("a", b"a" * 16, 2), ("f", b"f" * 16, 1)):
                    if name in image.ids:
                        continue
                    active.decide(
                        active.controller.create_topic(
                            name,
                            topic_id,
                            count,
                            3,
                            self.min_insync,
                            b"",
                            is_synced=self.is_synced((topic_id, 0)),
                        )
                    )
                    break
                else:
                    done = {"a", "f"} <= active.image.ids.keys()  # and committed
        if not done:
            self.sim.after(0.2, "topics", self.begin)
            return
        for place in self.places:
            self.produce(place)
        self.next_fault()

    def join(self, active: Broker) -> None:
        """Brokers that have no vote hear the log all the same."""
        assert active.raft is not None
        members = active.raft.members
        learner = len(members.everybody()) + 1
        try:
            _, effects = active.raft.change_members(
                self.sim.now, type(members)(members.voters, (*members.learners, learner))
            )
        except PenstockError:
            return
        active.carry_out(effects)

    def active(self) -> Broker | None:
        found = [b for b in self.brokers if b.is_up and not b.is_paused and b.controller]
        return max(found, key=lambda b: b.raft.term if b.raft else 0, default=None)

    def produce(self, place: Place) -> None:
        """The next record, again until it is acknowledged."""
        value = f"{place[1]}:{len(self.sent[place])}"
        self.sent[place].append(value)
        self.send(place, value)
        if not self.is_healed:
            delay = self.sim.random.expovariate(8.0)
            self.sim.after(delay, "a producer", lambda: self.produce(place))

    def send(self, place: Place, value: str) -> None:
        state = {"is_done": False}

        def done(is_acknowledged: bool) -> None:
            state["is_done"] |= is_acknowledged

        def again() -> None:
            if not state["is_done"]:
                self.send(place, value)

        # To whoever believes that it leads; a producer's metadata may be old, too.
        candidates = [
            b for b in self.brokers
            if b.is_up and place in b.replicas and isinstance(b.replicas[place].role, ReplicaLeader)
        ]  # fmt: skip
        if candidates:
            self.sim.random.choice(candidates).produce(place, value, done)
        self.sim.after(self.sim.random.uniform(0.2, 0.6), "a retry", again)

    def next_fault(self) -> None:
        self.sim.after(self.sim.random.expovariate(1.0 / self.every), "a fault", self.fault)

    def fault(self) -> None:
        if self.is_healed:
            return
        draw = self.sim.random
        kind, broker = draw.choice(KINDS), draw.choice(self.brokers)
        self.counts[f"fault: {kind}"] += 1
        self.sim.note(f"{kind} {broker.name}")
        match kind:
            case "kill":
                broker.crash()
                self.restart(broker)
            case "power":
                broker.power_cut()
                self.restart(broker)
            case "stop":
                broker.pause()
                self.sim.after(draw.uniform(0.1, 4.0), "SIGCONT", broker.resume)
            case "cut":
                for other in self.brokers:
                    if other is not broker and draw.random() < 0.7:
                        if draw.random() < 0.8:
                            self.network.cut(broker.name, other.name)
                        if draw.random() < 0.8:
                            self.network.cut(other.name, broker.name)
                self.sim.after(draw.uniform(0.2, 4.0), "mend", self.network.mend)
            case "kill all":
                for each in self.brokers:
                    each.crash()
                    self.sim.after(draw.uniform(0.1, 1.0), "restart", each.start)
            case "power all":
                for each in self.brokers:
                    each.power_cut()
                    self.sim.after(draw.uniform(0.1, 1.0), "restart", each.start)
            case "disk":
                broker.disk_fails(draw.choice(self.places))
                self.sim.after(draw.uniform(1.0, 6.0), "a disk", lambda: self.mend(broker))
            case "folder":
                self.lost.add(place := draw.choice(self.places))
                broker.folder_goes(place)
                self.restart(broker)
            case "renew":
                broker.renew()
            case "copy":
                if broker.is_up:
                    broker.is_copied()
            case "back":
                broker.is_brought_back()
                self.restart(broker)
            case "new folder":
                broker.is_replaced()
                self.restart(broker)
            case "insync":
                name, least = draw.choice("af"), draw.choice([1, 2])
                config = b"%d" % self.sim.steps
                self.decide(lambda controller: controller.configure_topic(name, least, config))
            case "forget":
                self.decide(lambda controller: controller.forget(broker.number))
            case "leave" if broker.is_up:
                broker.is_leaving = True
            case "prefer":
                self.decide(lambda controller: controller.elect(self.places))
            case "drain":
                self.decide(lambda controller: controller.drain(broker.number))
            case "undrain":
                self.decide(lambda controller: controller.drain(broker.number, undo=True))
            case "reassign":
                place = draw.choice(self.places)
                target = tuple(draw.sample(list(self.numbers), draw.choice([1, 2, 3, 3])))
                self.decide(lambda controller: controller.reassign([place], target))
            case "resize":
                factor = draw.choice([1, 2, 3])
                places = draw.choice([self.places[:2], self.places[:1], self.places[2:]])
                self.decide(lambda c: c.reassign(places, replication_factor=factor))
        self.next_fault()

    def restart(self, broker: Broker) -> None:
        self.sim.after(self.sim.random.uniform(0.01, 3.0), "restart", broker.start)

    def mend(self, broker: Broker) -> None:
        """Its disk is replaced, and it is started again."""
        if broker.broken and not self.is_healed:
            broker.crash()
            broker.broken.clear()
            self.sim.after(self.sim.random.uniform(0.01, 1.0), "restart", broker.start)

    def decide(self, what: Callable[[Controller], object]) -> None:
        active = self.active()
        if active is not None and active.controller is not None:
            try:
                active.decide(what(active.controller))  # type: ignore[arg-type]
            except PenstockError:
                self.counts["refused"] += 1

    def heal(self) -> None:
        self.is_healed = True
        self.sim.note("healed")
        self.network.heal()
        for broker in self.brokers:
            broker.resume()
            broker.start()
        self.sim.after(10.0, "an operator", self.look_for_offline)
        self.sim.after(20.0, "an operator", self.mend_disks)

    def mend_disks(self) -> None:
        """Others lead by now what is on disks that failed, where others have it."""
        active = self.active()
        if active is None or active.controller is None:
            self.sim.after(1.0, "an operator", self.mend_disks)
            return
        for place, partition in active.controller.image.partitions.items():
            ill = {b.number for b in self.brokers if place in b.offline}
            if partition.leader in ill or set(partition.isr) & ill:
                assert set(partition.isr) <= ill, f"{place}: {sorted(ill)} cannot lead {partition}"
            self.counts["logs offline"] += len(ill)
        for broker in self.brokers:
            if broker.broken:
                broker.crash()
                broker.broken.clear()
                self.sim.after(0.1, "restart", broker.start)

    def look_for_offline(self) -> None:
        """What nobody has any more whole comes back by an unclean election alone: all else has come
        back by itself."""
        active = self.active()
        if active is not None and active.controller is not None:
            for place, partition in active.controller.image.partitions.items():
                if partition.leader is None and not partition.isr:
                    ill = {*partition.last_isr} & {*partition.offline}
                    assert place in self.lost or ill, f"{place} has no ISR: {partition}"
                    self.counts["unclean elections"] += 1
                    self.forced.add(place)
                    self.decide(lambda controller, p=place: controller.elect([p], is_unclean=True))  # type: ignore[misc]
        self.sim.after(2.0, "an operator", self.look_for_offline)

    def missing(self) -> list[str]:
        found = []
        for place in self.places:
            leaders = [
                b for b in self.brokers
                if b.is_up and place in b.replicas
                and isinstance(b.replicas[place].role, ReplicaLeader)
            ]  # fmt: skip
            if len(leaders) != 1:
                found.append(f"{place[0][:1]!r}{place[1]}: {len(leaders)} lead")
                continue
            leader = leaders[0]
            log = leader.logs[place].entries
            word = leader.image.partitions[place]
            newest = max(epoch for at, epoch in self.leaders if at == place)
            if leader.replicas[place].leader_epoch < newest:
                found.append(f"{place}: {leader.name} leads no more, and has not heard of it")
                continue
            if set(word.isr) != set(word.replicas):
                found.append(f"{place}: ISR {word.isr} of {word.replicas}")
            drained = [it for it in word.replicas if leader.image.is_drained(it)]
            if len(drained) < len(word.replicas) and word.leader in drained:
                found.append(f"{place}: {word.leader} leads, and is drained: {drained}")
            elif (
                self.controller_config.balance_interval
                and word.replicas[0] not in drained
                and word.leader != word.replicas[0]
            ):
                found.append(f"{place}: {word.leader} leads, and not the first of {word.replicas}")
            there = Counter(entry.value for entry in log)
            if place not in self.was_unclean:
                left = [v for v in self.sent[place] if v not in self.acknowledged[place]]
                if left:
                    found.append(f"{place}: not acknowledged: {left[:3]}")
                lost = [v for v in self.acknowledged[place] if not there[v]]
                assert not lost, f"{place}: lost {lost[:5]}"
            assert max(there.values(), default=1) == 1, f"{place}: doubled {there.most_common(3)}"
            for number in word.replicas:
                other = self.brokers[number - 1]
                if place not in other.logs or other.logs[place].entries != log:
                    found.append(f"{place}: {other.name} differs from {leader.name}")
        return found

    def is_done(self) -> bool:
        return self.sim.steps % 100 == 0 and not self.missing()
