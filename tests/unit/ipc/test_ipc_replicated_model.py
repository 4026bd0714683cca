"""Three brokers' roles of one partition, with real logs and lanes, told what to do by the machines
that a replicator runs: who leads changes, writers die, logs are trimmed and compacted. What was
committed stays, and machine and log are of one mind."""

from __future__ import annotations

import random
from bisect import bisect_right

from replica_fixture import ReplicaPartition
from seeds import seed_of
from unit.core.following import Traffic, check_same

from penstock.cluster.replica import (
    Diverged,
    Fetched,
    IsrChanged,
    LogEnds,
    Replica,
    ReplicaConfig,
    ReplicaFollower,
    ReplicaLeader,
)
from penstock.cluster.replica.messages import PartitionAssignment
from penstock.core.epochs import EpochCache
from penstock.core.errors import ErrorCode, StorageError
from penstock.core.header import checked
from penstock.core.log import Log
from penstock.ipc import roles as ro

RUNS = 15
BROKERS = (1, 2, 3)
CONFIG = ReplicaConfig(lag_time=3.0, retry=0.5)


class Broker:
    """A writer's role, and the machine beside it."""

    def __init__(self, number: int, word: PartitionAssignment, now: float) -> None:
        self.number = number
        self.partition = ReplicaPartition(segment_bytes=4096)
        ends = LogEnds(epochs=EpochCache())
        self.replica = Replica(number, ends, CONFIG, dict.fromkeys(BROKERS, 1))
        self.requests = 0
        self.take(word, now)

    @property
    def log(self) -> Log:
        return self.partition.role._log

    def tell(self, *orders: ro.RoleOrder) -> None:
        assert self.partition.obey(*orders) == [ErrorCode.NONE] * len(orders)

    def take(self, word: PartitionAssignment, now: float) -> None:
        if self.replica.assign(now, word):
            self.say_role()

    def say_role(self) -> None:
        epoch = self.replica.leader_epoch
        self.tell((ro.Lead if self.leader else ro.Follow)(epoch))

    def show(self) -> None:
        """What the machine knows of what is committed and of retention."""
        epoch, ends = self.replica.leader_epoch, self.replica.log
        self.tell(ro.HighWatermark(epoch, ends.high_watermark))
        if self.leader is None:
            self.tell(ro.Trim(epoch, ends.log_start))

    def agree(self, end: int) -> None:
        """The log ends a little earlier than it was told to: where the leader's log starts within a
        batch."""
        ends = self.replica.log
        if end != ends.log_end:
            assert end < ends.log_end
            ends.truncate(end)

    def batches(self, offset: int) -> list[tuple[int, bytes]]:
        return [(head.base_offset, data) for head, data in self.log.read(offset, 1 << 40)]

    @property
    def leader(self) -> ReplicaLeader | None:
        return self.replica.role if isinstance(self.replica.role, ReplicaLeader) else None

    @property
    def follower(self) -> ReplicaFollower | None:
        return self.replica.role if isinstance(self.replica.role, ReplicaFollower) else None


class World:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.word = PartitionAssignment(1, 1, 1, BROKERS, BROKERS, 2)
        self.brokers = {number: Broker(number, self.word, self.now) for number in BROKERS}
        self.traffic = Traffic(chance)
        self.committed: dict[int, bytes] = {}
        self.counts = dict.fromkeys(("elections", "cuts", "deaths", "again", "trims"), 0)

    @property
    def leading(self) -> Broker:
        return self.brokers[self.word.leader or 0]

    # --- what happens ---
    def produce(self) -> None:
        for broker in self.brokers.values():  # those that were deposed and do not know it too
            if broker.leader is not None and self.chance.random() < 0.7:
                self.write(broker)

    def write(self, broker: Broker) -> None:
        for _ in range(self.chance.randint(1, 5)):
            self.traffic.at += 1000
            batch = self.traffic.next_of(broker.log)
            (result,) = broker.partition.role.append([batch], self.traffic.at)
            assert not result.error, result
        broker.replica.appended(broker.partition.page.log_end)

    def fetch(self, broker: Broker) -> None:
        role = broker.follower
        if role is None or role.leader is None or broker is self.leading:
            return
        broker.requests += 1
        request = role.request(broker.requests, 1)
        source = self.brokers[role.leader]
        if request is None or source.leader is None:
            return
        answer = source.replica.fetch(self.now, request)
        if isinstance(answer, Diverged):
            end = role.diverged(answer)
            assert end is not None
            self.counts["cuts"] += 1
            broker.partition.say(ro.Truncate(role.epoch, end))
            (result,) = broker.partition.drain()
            assert result.error == ErrorCode.NONE
            broker.agree(result.base_offset)
        elif isinstance(answer, Fetched):
            self.copy(broker, role, answer, source)
        else:
            role.refused(answer)

    def copy(self, broker: Broker, role: ReplicaFollower, answer: Fetched, source: Broker) -> None:
        batches = [
            data for _, data in source.log.read(answer.offset, self.chance.choice([1, 1500, 9000]))
        ]
        if answer.offset != broker.replica.log.log_end:
            self.counts["again"] += 1
            broker.tell(ro.BeginAnew(role.epoch, answer.offset))
        assert broker.partition.follow(role.epoch, *batches) == [ErrorCode.NONE] * len(batches)
        heads = [checked(memoryview(batch)) for batch in batches]
        assert role.fetched(answer, [(head.next_offset, head.leader_epoch) for head in heads])
        broker.show()

    def elect(self) -> None:
        self.counts["elections"] += 1
        epoch = self.word.leader_epoch + 1
        leader = self.chance.choice(self.word.isr)
        self.word = PartitionAssignment(
            leader, epoch, self.word.partition_epoch + 1, BROKERS, self.word.isr, 2
        )
        self.brokers[leader].take(self.word, self.now)

    def hear(self) -> None:
        for broker in self.brokers.values():
            if self.chance.random() < 0.5:
                broker.take(self.word, self.now)

    def in_sync(self) -> None:
        """The controller grants what the leader asks for."""
        broker = self.leading
        role = broker.leader
        assert role is not None
        role.tick(self.now)
        change = role.isr_change(self.now)
        if change is not None:
            isr = tuple(number for number, _ in change.isr)
            epoch = self.word.partition_epoch + 1
            self.word = PartitionAssignment(
                self.word.leader, self.word.leader_epoch, epoch, BROKERS, isr, 2
            )
            role.isr_changed(self.now, change, IsrChanged(epoch, isr))

    def die(self) -> None:
        """A writer is killed, and its successor told what it was."""
        self.counts["deaths"] += 1
        broker = self.chance.choice(list(self.brokers.values()))
        broker.partition.killed()
        broker.say_role()

    def retain(self) -> None:
        broker = self.leading
        page = broker.partition.page
        before = self.chance.randint(page.log_start, page.high_watermark)
        try:
            start = broker.partition.role.trim(before, self.traffic.at).log_start
        except StorageError as error:
            if not error.retriable:
                raise
            return
        self.counts["trims"] += 1
        broker.replica.log.trim(start)
        for other in self.brokers.values():
            job = other.partition.role.tick(self.now, self.traffic.at)
            if job is not None:
                job.run()
                other.partition.role.finish_sync(job)

    # --- what must hold ---
    def check(self) -> None:
        leader = self.leading
        leader.show()
        high_watermark = leader.partition.page.high_watermark
        behind = max(self.committed, default=-1)
        at = max(behind, leader.log.log_start)
        if high_watermark > at:
            for offset, data in leader.batches(at):
                if checked(memoryview(data)).next_offset <= high_watermark:
                    known = self.committed.setdefault(offset, data)
                    assert known == data, offset
        offsets = sorted(self.committed)
        for broker in self.brokers.values():
            ends, log, page = broker.replica.log, broker.log, broker.partition.page
            assert ends.log_end == log.log_end == page.log_end
            assert page.high_watermark <= page.log_end
            assert page.log_start <= page.high_watermark
            start = max(ends.log_start, log.log_start)
            mine, files = (
                [entry for entry in each.epochs.entries if entry[1] > start] for each in (ends, log)
            )
            assert mine == files
            if broker.number in self.word.isr and high_watermark > page.log_start:
                upto = min(page.high_watermark, high_watermark)
                for offset, data in broker.batches(page.log_start):
                    if offset < upto and bisect_right(offsets, offset):
                        assert self.committed.get(offset, data) == data


def test_replicas_of_real_logs_agree_whoever_leads():
    seed = seed_of("replicas")
    totals: dict[str, int] = {}
    for run in range(RUNS):
        world = World(random.Random(f"{seed}-{run}"))
        try:
            live(world)
        except BaseException:
            print(f"run {run}")
            raise
        totals = {name: totals.get(name, 0) + n for name, n in world.counts.items()}
    assert all(totals.values()), totals


def live(world: World) -> None:
    chance = world.chance
    for _ in range(chance.randint(60, 160)):
        world.now += 0.2
        dice = chance.random()
        if dice < 0.3:
            world.produce()
        elif dice < 0.75:
            world.fetch(world.brokers[chance.choice(BROKERS)])
        elif dice < 0.83:
            world.hear()
        elif dice < 0.87:
            world.elect()
        elif dice < 0.91:
            world.die()
        elif dice < 0.95:
            world.retain()
        world.in_sync()
        world.check()
    leader = world.leading
    world.write(leader)
    for broker in world.brokers.values():
        broker.take(world.word, world.now)
    end = leader.log.log_end
    for _ in range(300):
        pages = [broker.partition.page for broker in world.brokers.values()]
        if all(page.high_watermark == end for page in pages):
            break
        world.now += 0.2
        for broker in world.brokers.values():
            world.fetch(broker)
        world.in_sync()
        world.check()
    else:
        raise AssertionError("they do not catch up")
    theirs = leader.partition.storage, leader.log
    for broker in world.brokers.values():
        if not world.counts["again"]:
            check_same((broker.partition.storage, broker.log), theirs)
        else:
            start = max(broker.log.log_start, leader.log.log_start)
            assert broker.partition.batches(start) == leader.partition.batches(start)
