"""What a log costs when it has grown: many segments, many producers, indexes that are gone."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from reader_fixture import World
from unit.core.log_helpers import (
    FOLDER,
    Crash,
    MemoryStorage,
    begin,
    errors,
    find_time,
    make_batch,
    open_log,
    opened,
    time_in,
)

from penstock.core.errors import ErrorCode, LogOfflineError
from penstock.core.log import LogConfig
from penstock.core.logreplica import LogReplica
from penstock.core.reader import LogReader
from penstock.core.segment import list_segments
from penstock.core.storage import Storage

TINY = LogConfig(segment_bytes=256, index_interval_bytes=64, preallocate_bytes=0)


class Counting(MemoryStorage):
    """Counts the calls that look at names or open files, besides those that change something."""

    def __init__(self):
        super().__init__()
        self.looks = Counter()  # type: ignore[var-annotated]

    def open(self, path, flags, mode=0o600):
        self.looks["open"] += 1
        self.looks["open a log"] += path.endswith(".log")
        return super().open(path, flags, mode)

    def listdir(self, path):
        self.looks["listdir"] += 1
        return super().listdir(path)

    def exists(self, path):
        self.looks["exists"] += 1
        return super().exists(path)


def grown(storage, segments, config=TINY, **options):
    """A log of so many segments of one batch each."""
    log, _ = open_log(storage, config=config, **options)
    while len(log.segments) < segments:
        log.append([make_batch(log.log_end)], 5)
        log.roll(5)
        log.sync()
    return log


def costs(segments):
    """The calls of an append, a roll and a sync; and of a trim of one segment."""
    storage = Counting()
    log = grown(storage, segments)
    found = []
    log.append([make_batch(log.log_end)], 5)
    for work in (lambda: (log.roll(5), log.sync()), lambda: log.trim(log.segments[1])):
        storage.looks.clear()
        before = storage.calls
        work()
        found.append({**storage.looks, "changes": storage.calls - before})
    return found


def test_rolls_fsyncs_and_trims_cost_the_same_with_many_segments():
    few, many = costs(10), costs(200)
    assert few == many
    assert not any(each.get("listdir") for each in many)


def test_a_reader_does_not_list_the_folder_for_each_segment(tmp_path):
    world = World(tmp_path / "log", segment_bytes=256)
    for number in range(60):
        world.append([b"%d" % number])
    assert len(list_segments(world.storage, world.folder)) == 60
    listings = []

    class Listing(Storage):
        def listdir(self, path):
            listings.append(path)
            return super().listdir(path)

    reader = LogReader(Listing(), world.folder)
    while reader.fetch(world.limit, 1, 1):
        pass
    assert reader.offset == 60
    reader.seek(10)
    assert len(reader.fetch(world.limit, 1 << 20)) == 50
    assert find_time(Listing(), world.folder, 1 << 60, world.limit) is None
    assert len(listings) <= 6
    reader.close()


def indexes(storage):
    return {
        name: bytes(node.content)
        for name, node in storage.names.items()
        if name.endswith((".index", ".time"))
    }


def restore(log, batches=10):
    while log.restore_indexes(batches):
        pass


def unindexed(segments=40):
    """A closed log of several segments, what its indexes were, and none of them."""
    storage = Counting()
    config = LogConfig(segment_bytes=2048, index_interval_bytes=256, preallocate_bytes=0)
    log, _ = open_log(storage, config=config)
    while len(list_segments(storage, FOLDER)) < segments:
        at = log.log_end
        assert errors(log.append([make_batch(at, timestamp=1_000 + at)], 5 + at)) == [0]
    log.close(clean=True)
    wanted = indexes(storage)
    for name in wanted:
        del storage.names[name]
    storage.looks.clear()
    return storage, config, wanted, log.log_end


def test_opening_without_indexes_costs_no_look_into_each_segment_and_they_come_back():
    storage, config, wanted, end = unindexed()
    log, report = open_log(storage, config=config, node_clean=True)
    assert report.reason == "clean"
    assert storage.looks["open a log"] < 10
    assert [time_in(log, 1_000 + at) for at in range(0, end, 7)] == [*range(0, end, 7)]
    steps = 0
    while log.restore_indexes(5):
        steps += 1
    assert steps > 40
    log.sync()
    assert indexes(storage) == wanted
    assert not any(name.endswith(".tmp") for name in storage.names)
    log.close(clean=True)


MINUTE = 60 * 1_000_000


def crowded(attached=(3,)):
    """A hundred producers, a minute apart, where 32 are to be remembered."""
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=1 << 20, producers_max=32)
    log, _ = open_log(storage, config=config, attached=lambda: set(attached))
    for producer in range(1, 101):
        batch = make_batch(0, producer=producer)
        assert errors(log.append([batch], producer * MINUTE)) == [0]
        assert len(log.producers) <= 32
    return storage, config, log


@pytest.mark.rule(3)
def test_the_producers_of_a_partition_are_bounded_the_longest_silent_go_first():
    storage, config, log = crowded()
    assert log.expiry.expired == 100 - len(log.producers)
    now = 101 * MINUTE
    assert errors(log.append([make_batch(1, producer=3)], now)) == [0]  # it has a lane
    assert errors(log.append([make_batch(1, producer=80)], now)) == [0]
    forgotten = make_batch(1, producer=5), make_batch(2, producer=5)
    assert errors(log.append(forgotten, now)) == [ErrorCode.UNKNOWN_PRODUCER] * 2
    assert errors(log.append([make_batch(0, producer=5, epoch=1)], now)) == [0]
    log.close(clean=True)
    again, _ = open_log(storage, config=config, node_clean=True)
    assert len(again.producers) <= 32


def test_a_flood_of_producers_takes_none_that_was_here_just_now_up_to_twice_the_bound():
    _, _, log = crowded()
    now = 101 * MINUTE
    log.append([make_batch(1, producer=100)], now)
    for producer in range(1_000, 1_100):
        log.append([make_batch(0, producer=producer)], now + producer)
        assert len(log.producers) <= 64 + 2
        if producer < 1_030:
            assert log.producers.next_sequence(100) == (0, 2)
    assert log.producers.next_sequence(3) == (0, 1)
    assert log.producers.next_sequence(1_099) == (0, 1)


def test_open_transactions_are_never_forgotten_and_lanes_alone_may_exceed_the_bound():
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=1 << 20, producers_max=8)
    log, _ = open_log(storage, config=config, attached=lambda: set(range(100, 140)))
    log.append([begin(0, producer=7)], 1)
    for producer in range(100, 140):
        log.append([make_batch(0, producer=producer)], producer * 10 * MINUTE)
    assert log.producers.next_sequence(7) == (0, 0)
    assert all(log.producers.next_sequence(each) for each in range(100, 140))
    assert log.expiry.expired == 0


def test_poison_of_producers_that_the_log_never_knew_is_bounded():
    _, log = opened(config=LogConfig(batch_bytes_max=512, producers_max=8))
    for producer in range(3_000):
        log.append([make_batch(0, producer=producer, body=4096)], 5)
        log.append([make_batch(0, producer=5_000, epoch=producer)], 5)
    assert len(log.producers._poisoned) < 1_200


def test_indexes_come_into_place_whole_whenever_the_process_dies():
    """Killed or without power at any step: an index is there as it was, or not at all."""
    storage, config, wanted, _ = unindexed(8)
    compared = 0
    for number in range(1, 200):
        after = storage.killed()

        def die(call, number=number):
            if call.number == number:
                raise Crash

        after.fault = die
        try:
            log, _ = open_log(after, config=config, node_clean=True)
            restore(log, 3)
            log.sync()
            break
        except Crash:
            pass
        for left in (after.killed(), after.power_cut(random.Random(number))):
            found = indexes(left)
            compared += sum(name in wanted for name in found)
            assert all(found[name] == wanted[name] for name in found if name in wanted)
            again, _ = open_log(left, config=config)
            again.restore_indexes(1 << 30)
            again.sync()
            again.close(clean=True)
            assert indexes(left) == wanted
            assert not any(name.endswith(".tmp") for name in left.names)
    else:
        raise AssertionError("it never came to its end")
    assert number > 20
    assert compared > 0


def test_segments_that_go_or_change_meanwhile_get_no_index_of_what_they_were():
    storage, config, _, _ = unindexed(12)
    log, _ = open_log(storage, config=config, node_clean=True)
    bases = log.segments
    log.restore_indexes(350)  # some are prepared, and one is begun
    job = log.begin_sync()
    assert job is not None
    job.run()
    log.finish_sync(job)
    log.restore_indexes(250)
    LogReplica(log).truncate_to(bases[5] + 1)
    log.trim(bases[2])
    restore(log)
    log.sync()
    log.close(clean=True)
    stems = {name.rpartition(".")[0] for name in storage.names if name.endswith(".log")}
    assert {name.rpartition(".")[0] for name in indexes(storage)} == stems
    restored = indexes(storage)
    for name in restored:
        del storage.names[name]
    again, _ = open_log(storage, config=config, node_clean=True)
    restore(again)
    again.sync()
    assert indexes(storage) == restored


@pytest.mark.rule(14)
def test_rule_14_damage_below_the_recovery_point_is_met_and_takes_the_log_offline():
    storage, config, _, _ = unindexed(12)
    name = sorted(name for name in storage.names if name.endswith(".log"))[3]
    storage.names[name].content[20] ^= 1
    log, _ = open_log(storage, config=config, node_clean=True)
    with pytest.raises(LogOfflineError, match=f"{name} is damaged"):
        restore(log)
    assert name in log.offline
    with pytest.raises(LogOfflineError):
        log.restore_indexes(10)


def test_a_wall_clock_that_jumps_makes_nobody_silent():
    storage, years = MemoryStorage(), 10 * 365 * 24 * 60 * MINUTE
    config = LogConfig(segment_bytes=1 << 20, producers_max=16)
    log, _ = open_log(storage, config=config, attached=set, believed_us=lambda: 5 * MINUTE)
    for producer in range(30):
        at = 5 * MINUTE + (years if producer > 15 else 0)
        assert errors(log.append([make_batch(0, producer=producer)], at)) == [0]
    assert log.expiry.expired == 0
