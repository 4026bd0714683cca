"""A copy of a log that grows in random chunks, dies, loses power, is cut, led by others for a while
and begun again: in the end it says what the leader's says. No cut goes below what is committed."""

from __future__ import annotations

import contextlib
import random
from itertools import pairwise

import pytest
from seeds import seed_of
from unit.core.compacting import CONFIG, compaction, keyed
from unit.core.following import Traffic, batches_from, check_same, led, noted, open_replica
from unit.core.log_helpers import SMALL, Crash, MemoryStorage, contents, crash_at

from penstock.core.errors import ErrorCode, StorageError
from penstock.core.log import Log, LogConfig
from penstock.core.logreplica import LogReplica
from penstock.core.reader import Limit, LogReader

RUNS = 40


class Copy:
    """A follower's log as its role keeps it: what its page shows outlives the process, but no
    reboot."""

    def __init__(self, chance: random.Random, config: LogConfig = SMALL) -> None:
        self.chance = chance
        self.config = config
        self.storage = MemoryStorage()
        self.boot = self.generation = 1
        self.committed = 0
        self.published: int | None = None
        self.counts = dict.fromkeys(("deaths", "power cuts", "truncations", "again", "led"), 0)
        self.open(clean=False)

    def open(self, *, clean: bool) -> None:
        self.generation += 1
        self.log, _ = open_replica(
            self.storage, config=self.config, boot_id=f"boot-{self.boot}", node_clean=clean,
            generation=self.generation, published=self.published,
        )  # fmt: skip
        self.replica = LogReplica(self.log)
        self.committed = max(self.log.log_start, min(self.committed, self.log.log_end))
        self.replica.note_committed(self.committed)
        self.shown()

    def shown(self) -> None:
        self.published = self.log.log_end

    def end_at(self, end: int) -> None:
        self.published = end
        self.committed = min(self.committed, end)

    def take(self, batches: list[memoryview]) -> None:
        made = self.replica.append_verbatim(batches, 1, self.end_at)
        assert (made.taken, made.error) == (len(batches), ErrorCode.NONE), made
        self.committed = max(self.committed, self.log.log_start)
        self.shown()

    def may_die(self, calls: int = 6) -> contextlib.ExitStack:
        """What is done within is done, or the process dies in it and there is a next one."""
        stack = contextlib.ExitStack()
        if self.chance.random() < 0.3:
            number = self.storage.calls + self.chance.randint(1, calls)
            self.storage.fault = crash_at(number, self.chance.choice([None, 0, 100]))
        stack.push(self._ended)
        return stack

    def _ended(self, kind, error, trace) -> bool:
        self.storage.fault = None
        if kind is None:
            return False
        if not issubclass(kind, Crash):
            return False
        self.counts["deaths"] += 1
        self.storage = self.storage.killed()
        self.open(clean=False)
        return True

    def lose_power(self) -> None:
        self.counts["power cuts"] += 1
        self.storage = self.storage.power_cut(self.chance)
        self.boot += 1
        self.published = None
        self.open(clean=False)

    def close(self) -> None:
        self.log.close(clean=True)
        self.open(clean=True)


def catch_up(mine: Copy, leader: Log, bytes_max: int = 1 << 40) -> None:
    """One fetch, as a replicator does it."""
    log = mine.log
    if not leader.log_start <= log.log_end <= leader.log_end:
        mine.counts["again"] += 1
        mine.replica.restart(leader.log_start, mine.end_at)
        mine.committed = leader.log_start
    batches = batches_from(leader, max(log.log_end, leader.log_start), bytes_max)
    if mine.chance.random() < 0.2:  # some of it came before
        batches = batches_from(leader, max(log.log_start, leader.log_start), 2000) + batches
    mine.take(batches[: mine.chance.randint(1, 30)])


def retained(log: Log, start: int) -> None:
    """Retention: not while the producers below would be forgotten by a truncation."""
    with contextlib.suppress(StorageError):
        log.trim(start)


def usurp(mine: Copy, traffic: Traffic, epoch: int) -> None:
    """It leads for a while, in an epoch that nobody else hears of."""
    mine.counts["led"] += 1
    sent = list(traffic.sent)
    try:
        mine.replica.lead(epoch)
        traffic.write(mine.log, mine.chance.randint(0, 8))
        mine.shown()
    finally:
        traffic.sent = sent


def cut_back(mine: Copy, end: int) -> None:
    """The next leader's log parts from this one there."""
    mine.replica.follow()
    if end < mine.log.log_end:
        mine.counts["truncations"] += 1
    mine.replica.truncate_to(max(end, mine.log.log_start), mine.end_at)
    mine.shown()


def test_a_copy_says_what_its_leader_says_whatever_happened_to_it():
    seed = seed_of("verbatim")
    totals: dict[str, int] = {}
    for run in range(RUNS):
        chance = random.Random(f"{seed}-{run}")
        try:
            counts = live(chance)
        except BaseException:
            print(f"run {run}")
            raise
        totals = {name: totals.get(name, 0) + count for name, count in counts.items()}
    assert all(totals.values()), totals


def live(chance: random.Random) -> dict[str, int]:
    storage, leader = led(1)
    traffic, mine = Traffic(chance), Copy(chance)
    epoch, common = 1, 0  # up to `common` both logs are the same for certain
    for _ in range(chance.randint(10, 60)):
        traffic.write(leader, chance.randint(0, 6))
        LogReplica(leader).note_committed(leader.log_end)
        dice = chance.random()
        with mine.may_die():
            if dice < 0.5:
                catch_up(mine, leader, chance.choice([1, 1000, 5000]))
            elif dice < 0.6:
                mine.log.sync()
            elif dice < 0.65:
                mine.log.roll(leader.append_timestamp)
            elif dice < 0.75:
                mine.committed = max(mine.committed, chance.randint(0, mine.log.log_end))
                mine.replica.note_committed(mine.committed)
                retained(mine.log, mine.committed - chance.randint(0, 20))
            elif dice < 0.8:
                mine.replica.truncate_to(
                    max(mine.committed, mine.log.log_end - chance.randint(0, 40)), mine.end_at
                )
                mine.shown()
        if dice > 0.97:
            mine.lose_power()
        elif dice > 0.95:
            mine.close()
        elif dice > 0.92:
            retained(leader, chance.randint(leader.log_start, leader.log_end))
        elif dice > 0.88:
            common, epoch = mine.log.log_end, epoch + 1
            with mine.may_die(20):
                usurp(mine, traffic, epoch)
            epoch += 1
            LogReplica(leader).lead(epoch)
            cut_back(mine, common)
    traffic.write(leader, 1)
    while mine.log.log_end < leader.log_end:
        catch_up(mine, leader)
    if not mine.counts["again"]:
        check_same((mine.storage, mine.log), (storage, leader))
    start = max(mine.log.log_start, leader.log_start)
    again, report = open_replica(mine.storage.copy(), published=mine.log.log_end)
    assert report.lost is None
    assert batches_from(again, start) == batches_from(leader, start)
    assert again.producers.encode(again.log_end) == mine.log.producers.encode(again.log_end)
    for batch in traffic.sent[-5:]:  # they come again, and the copy leads
        LogReplica(again).lead(epoch + 1)
        (here,), (there,) = again.append([batch], 1), leader.append([batch], 1)
        if not mine.counts["again"]:
            assert here == there
            assert here.duplicate
    return mine.counts


# --- behind a leader that was compacted -----------------------------------------------------------
def compacted(chance: random.Random) -> tuple[MemoryStorage, Log]:
    """A leader's log of few keys, most of it cleaned away, over some epochs."""
    storage, leader = led(1, config=CONFIG)
    for count in range(120):
        producer = chance.randint(1, 3)
        _, sequence = leader.producers.next_sequence(producer) or (0, 0)
        pairs = [(b"%d" % chance.randint(0, 3), bytes(chance.randint(0, 200)))]
        leader.append([keyed(pairs, sequence, producer)], 1_000 + count)
        if count in (30, 70):
            LogReplica(leader).lead(leader.leader_epoch + 1)
    LogReplica(leader).note_committed(leader.log_end)
    leader.sync()
    for prepared in compaction(storage, leader).prepare():
        assert leader.swap(prepared)
    heads = [head for head, _ in leader.read(0, 1 << 40)]
    gaps = sum(a.next_offset != b.base_offset for a, b in pairwise(heads))
    assert gaps > 5
    return storage, leader


@pytest.mark.parametrize("from_start", [True, False])
def test_gaps_that_compaction_left_are_no_damage_to_who_copies_them(from_start):
    """In every place of the copy's log: also in its active segment, and behind a recovery point."""
    seed = seed_of("gaps")
    for run in range(25):
        chance = random.Random(f"{seed}-{run}-{from_start}")
        _, leader = compacted(chance)
        mine = Copy(chance, CONFIG if chance.random() < 0.5 else LogConfig())
        if not from_start:
            retained(leader, chance.randint(1, 100))
        while mine.log.log_end < leader.log_end:
            with mine.may_die():
                catch_up(mine, leader, chance.choice([1, 300, 2000]))
                if chance.random() < 0.3:
                    mine.log.sync()
                if chance.random() < 0.1:
                    end = max(mine.log.log_start, mine.log.log_end - chance.randint(0, 30))
                    mine.replica.truncate_to(end, mine.end_at)
                    mine.shown()
            if chance.random() < 0.1:
                mine.lose_power()
        start = mine.log.log_start
        assert contents(mine.log) == leader_has(leader, start)
        again, report = open_replica(
            mine.storage.copy(), config=mine.config, published=mine.log.log_end
        )
        assert report.lost is None
        assert contents(again) == contents(mine.log)
        reread, report = open_replica(
            without(mine.storage, ".index", ".time", "recovery-point", ".snapshot"),
            config=mine.config,
        )
        assert (contents(reread), report.lost) == (contents(mine.log), None)
        assert read_as_consumers_do(mine) == [
            head.base_offset for head, _ in mine.log.read(start, 1 << 40) if head.record_count
        ]


def leader_has(leader: Log, start: int) -> list[tuple[int, bytes]]:
    return [(head.base_offset, data) for head, data in leader.read(start, 1 << 40)]


def without(storage: MemoryStorage, *ends: str) -> MemoryStorage:
    after = storage.copy()
    for name in list(after.names):
        if name.endswith(ends):
            del after.names[name]
    return after


def read_as_consumers_do(mine: Copy) -> list[int]:
    """The batches that a reader finds who maps the files, in small bites."""

    storage = MemoryStorage()
    storage.__dict__.update(mine.storage.copy().__dict__)
    log = mine.log
    reader = LogReader(storage, "/data/topic-0", log.log_start)
    limit = Limit(log.log_end, log.segment_base, log.valid_bytes, log.log_start)
    found = []
    while reader.offset < log.log_end:
        before = reader.offset
        found += [each.head.base_offset for each in reader.fetch(limit, 500)]
        assert reader.offset > before
    return found


def test_an_epoch_whose_beginning_was_compacted_away_begins_where_the_copy_ended():
    """Not where its first record stands: what an older leader wrote in between is nobody's."""
    _, leader = led(1, config=CONFIG)
    for i in range(40):
        leader.append([keyed([(b"k", bytes(150))], i)], 1_000 + i)
        if i == 9:
            mine = Copy(random.Random(1), CONFIG)
            mine.take(batches_from(leader, 0))
            LogReplica(leader).lead(2)
    LogReplica(leader).note_committed(40)
    leader.sync()
    storage = leader.storage
    assert isinstance(storage, MemoryStorage)
    swaps = [leader.swap(prepared) for prepared in compaction(storage, leader).prepare()]
    assert swaps
    assert all(swaps)
    first = next(head for head, _ in leader.read(10, 1 << 40) if head.leader_epoch == 2)
    assert first.base_offset > 11
    mine.take(batches_from(leader, 10))
    assert mine.log.epochs.entries == leader.epochs.entries == ((1, 0), (2, 10))
    assert noted(mine.storage, mine.log) == []


def test_a_log_is_cut_right_behind_a_gap():
    """It ends where the batch before the gap does: of what was in between nobody can tell."""
    _, leader = compacted(random.Random(7))
    mine = Copy(random.Random(7), CONFIG)
    mine.take(batches_from(leader, 0))
    heads = [head for head, _ in mine.log.read(0, 1 << 40)]
    before, behind = [
        (a, b) for a, b in pairwise(heads) if a.next_offset != b.base_offset
    ][-1]  # fmt: skip
    assert mine.replica.truncate_to(behind.base_offset, mine.end_at) == before.next_offset
    assert contents(mine.log)[-1][0] == before.base_offset
    mine.take(batches_from(leader, before.next_offset))
    assert contents(mine.log) == contents(leader)
