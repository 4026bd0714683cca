"""Replicated logs: batches that are kept as they came, epochs that others give, new beginnings."""

from __future__ import annotations

import errno
import random

import pytest
from unit.core.following import Traffic, batches_from, check_same, led, open_replica
from unit.core.log_helpers import (
    FOLDER,
    MemoryStorage,
    contents,
    errors,
    fail_at,
    make_batch,
    numbered,
    open_log,
)

from penstock.core.epochs import load_epochs
from penstock.core.errors import ErrorCode, LogOfflineError, NotLeaderError, StorageError
from penstock.core.header import ATTR_CONTROL, checked
from penstock.core.log import Log, LogConfig
from penstock.core.logreplica import LogReplica, Publish, Verbatim


@pytest.fixture
def leaders():
    storage, leader = led(3)
    Traffic(random.Random(5)).write(leader, 60)
    return storage, leader


def follower() -> tuple[MemoryStorage, Log]:
    storage = MemoryStorage()
    return storage, open_replica(storage, generation=9)[0]


def taken(log: Log, batches: list[memoryview], publish: Publish | None = None) -> Verbatim:
    """What became of these batches of a leader."""
    return LogReplica(log).append_verbatim(batches, 1, publish)


def test_a_log_that_is_copied_batch_by_batch_is_the_leaders(leaders):
    storage, log = follower()
    for batch in batches_from(leaders[1], 0):
        made = taken(log, [batch])
        assert (made.log_end, made.taken, made.error) == (log.log_end, 1, ErrorCode.NONE)
    check_same((storage, log), leaders)
    assert log.epochs.entries == ((3, 0),)
    assert log.append_timestamp == leaders[1].append_timestamp


def test_what_is_there_already_is_skipped_and_what_lies_beyond_refused(leaders):
    storage, log = follower()
    batches = batches_from(leaders[1], 0)
    assert taken(log, batches[:10]).taken == 10
    end = log.log_end
    assert taken(log, batches[:10]) == (end, 10, ErrorCode.NONE, "")
    made = taken(log, batches[11:15])
    assert made[:3] == (end, 0, ErrorCode.BEYOND_LOG_END)
    assert "beyond the log's end" in made.message
    made = taken(log, [*batches[5:14], batches[15]])
    assert made[1:3] == (9, ErrorCode.BEYOND_LOG_END)
    assert log.log_end == made.log_end > end
    assert taken(log, batches).taken == len(batches)
    check_same((storage, log), leaders)


def test_batches_twice_in_one_call_are_taken_once(leaders):
    storage, log = follower()
    batches = batches_from(leaders[1], 0)
    doubled = [batch for batch in batches for _ in range(2)]
    assert taken(log, doubled).taken == len(doubled)
    check_same((storage, log), leaders)


def flipped(batch: memoryview, at: int) -> memoryview:
    data = bytearray(batch)
    data[at] ^= 1
    return memoryview(data)


@pytest.mark.parametrize("at", [0, 8, 17, 60, 70, 127, 128, -1])
def test_damage_on_the_way_is_refused(leaders, at):
    _, log = follower()
    bodies = (b for b in batches_from(leaders[1], 0) if len(b) > 128)
    first, second, *_ = (b for b in bodies if not checked(b).attributes & ATTR_CONTROL)
    position = next(i for i, b in enumerate(batches_from(leaders[1], 0)) if b == first)
    made = taken(log, [*batches_from(leaders[1], 0)[:position], flipped(first, at)])
    assert made[1:3] == (position, ErrorCode.CORRUPT_BATCH)
    assert taken(log, [first[:64]]).error is ErrorCode.CORRUPT_BATCH
    assert taken(log, [memoryview(bytes(first) + bytes(64))]).taken == 0
    assert taken(log, [first, second]).taken >= 1


def test_batches_of_another_partition_are_refused():
    _, log = follower()
    _, other = led(topic_id=bytes(16))
    other.append([make_batch(topic_id=bytes(16))], 1)
    assert taken(log, batches_from(other, 0)).error is ErrorCode.WRONG_TOPIC_ID
    _, other = led(partition=4)
    other.append([make_batch(partition=4)], 1)
    assert taken(log, batches_from(other, 0)).error is ErrorCode.UNKNOWN_PARTITION


def test_bounds_that_the_topic_has_now_do_not_refuse_what_was_accepted():
    _, leader = led(config=LogConfig(batch_bytes_max=1 << 20))
    leader.append([make_batch(body=5000)], 1)
    _, log = follower()
    assert taken(log, batches_from(leader, 0)).taken == 1


def test_epochs_do_not_fall_within_a_log():
    _, old = led(2)
    old.append(numbered(3), 1)
    _, leader = led(4)
    leader.append(numbered(2), 1)
    _, log = follower()
    taken(log, batches_from(leader, 0))
    made = taken(log, batches_from(old, 2))
    assert (made.log_end, made.error) == (2, ErrorCode.CORRUPT_BATCH)
    assert "does not follow" in made.message


def test_a_failed_write_takes_nothing():
    storage, log = follower()
    _, leader = led()
    leader.append(numbered(4), 1)
    batches = batches_from(leader, 0)
    storage.fault = fail_at(1, errno.ENOSPC, "pwritev")
    with pytest.raises(StorageError) as caught:
        taken(log, batches)
    assert caught.value.retriable
    assert (log.log_end, len(log.producers)) == (0, 0)
    storage.fault = None
    assert taken(log, batches).taken == 4
    assert contents(log) == contents(leader)


# --- epochs ---------------------------------------------------------------------------------------
def test_a_replicated_log_begins_no_epoch_by_itself():
    storage = MemoryStorage()
    log, report = open_replica(storage)
    assert (log.leader_epoch, log.epochs.entries, report.epoch_bumped) == (0, (), False)
    LogReplica(log).lead(5)
    log.append(numbered(3), 1)
    log.sync()
    for boot in ("boot-2", "boot-3"):
        storage = storage.power_cut()
        log, report = open_replica(storage, boot_id=boot, generation=2)
        assert (log.leader_epoch, log.epochs.entries) == (5, ((5, 0),))
        assert not report.epoch_bumped
    LogReplica(log).lead(5)
    log.append(numbered(1, 3), 1)
    assert [head.leader_epoch for head, _ in log.read(0, 1 << 20)] == [5] * 4


def test_an_epoch_is_on_the_device_before_its_first_append():
    storage, log = led(1)
    log.append(numbered(2), 1)
    log.sync()
    LogReplica(log).lead(7)
    known = load_epochs(storage.power_cut(), FOLDER)
    assert known is not None
    assert known.entries == ((1, 0), (7, 2))
    _, other = follower()
    taken(other, batches_from(log, 0))
    log.append(numbered(1, 2), 1)
    (batch,) = batches_from(log, 2)

    class Died(Exception):
        pass

    def fault(call):
        if call.name == "pwritev" and call.path.endswith(".log"):
            raise Died

    stored = other.storage
    assert isinstance(stored, MemoryStorage)
    stored.fault = fault
    with pytest.raises(Died):
        taken(other, [batch])
    known = load_epochs(stored.power_cut(), FOLDER)
    assert known is not None
    assert known.entries == ((1, 0), (7, 2))


def test_no_log_is_led_in_an_epoch_that_is_over():
    storage, log = led(4, generation=6)
    log.append(numbered(1), 1)
    with pytest.raises(NotLeaderError, match="cannot be led in epoch 3"):
        LogReplica(log).lead(3)
    LogReplica(log).lead(4)
    log.close(clean=True)
    log, _ = open_replica(storage, generation=5)
    with pytest.raises(NotLeaderError, match="generation 5"):
        LogReplica(log).lead(4)  # its batches would fall behind the order of what is there
    LogReplica(log).lead(5)
    assert not errors(log.append(numbered(1, 1), 1))[0]


def test_who_led_without_a_record_forgets_that_epoch():
    storage, log = led(1)
    log.append(numbered(2), 1)
    LogReplica(log).lead(6)
    LogReplica(log).follow()
    assert log.epochs.entries == ((1, 0),)
    assert open_replica(storage.copy())[0].epochs.entries == ((1, 0),)
    _, leader = led(5)
    taken(leader, batches_from(log, 0))
    assert leader.log_end == 0, "5 was begun before those of 1"
    LogReplica(leader).follow()
    taken(leader, batches_from(log, 0))
    LogReplica(leader).lead(5)
    leader.append(numbered(1, 2), 1)
    assert taken(log, batches_from(leader, 2)).taken == 1
    assert list(log.epochs.entries) == [(1, 0), (5, 2)]


def test_a_new_epoch_that_finds_no_room_is_not_begun():
    storage, log = led(1)
    log.append(numbered(2), 1)
    storage.fault = fail_at(1, errno.ENOSPC)
    with pytest.raises(StorageError) as caught:
        LogReplica(log).lead(2)
    assert caught.value.retriable
    assert log.epochs.entries == ((1, 0),)
    storage.fault = None
    LogReplica(log).lead(2)
    assert list(log.epochs.entries) == [(1, 0), (2, 2)]


# --- truncation -----------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", [0, 1, 7, 40, 59, 60])
def test_a_truncated_copy_knows_its_producers_and_goes_on(leaders, cut):
    storage, log = follower()
    batches = batches_from(leaders[1], 0)
    taken(log, batches)
    at = log.log_end if cut == 60 else contents(log)[cut][0]
    assert LogReplica(log).truncate_to(at) == at
    other = follower()
    taken(other[1], batches[:cut])
    assert log.producers.encode(at) == other[1].producers.encode(at)
    assert (log.last_stable, log.oldest_open) == (other[1].last_stable, other[1].oldest_open)
    assert log.epochs.entries == other[1].epochs.entries
    assert log.leader_epoch == (3 if cut else 0)
    taken(log, batches)
    check_same((storage, log), leaders)


def test_truncation_below_the_newest_snapshots_still_knows_producers_from_before_the_start():
    """Snapshots above what is committed make no older one needless."""
    storage, log = led(1)
    log.append([make_batch(0, producer=50)], 1)
    for i in range(120):
        log.append([make_batch(i, body=500)], 2 + i)
        log.sync()
        if i == 40:
            LogReplica(log).note_committed(log.log_end)
            committed = log.log_end
    assert len(log.chain.bases) > 12
    log.trim(30)
    LogReplica(log).truncate_to(committed)
    assert log.log_start == 30
    assert log.producers.next_sequence(50) == (0, 1)
    assert log.producers.next_sequence(1) == (0, 41)
    again, _ = open_replica(storage.copy(), published=committed)
    assert again.producers.encode(committed) == log.producers.encode(committed)


# --- beginning again -----------------------------------------------------------------------------
@pytest.mark.parametrize("start", [0, 10, 5000])
def test_a_log_that_begins_anew_is_empty_there(leaders, start):
    storage, log = follower()
    taken(log, batches_from(leaders[1], 0))
    said: list[int] = []
    LogReplica(log).restart(start, said.append)
    assert said == [start]
    assert (log.log_start, log.log_end, log.durable, log.last_stable) == (start,) * 4
    assert (len(log.producers), log.epochs.entries, log.leader_epoch) == (0, (), 0)
    again, report = open_replica(storage.copy(), published=start)
    assert (again.log_start, again.log_end, report.reason) == (start, start, "clean")
    again, _ = open_replica(storage.power_cut(), boot_id="boot-2")
    assert (again.log_start, again.log_end) == (start, start)
    if not start:
        taken(log, batches_from(leaders[1], 0))
        check_same((storage, log), leaders)
    LogReplica(log).restart(log.log_start)
    LogReplica(log).restart(log.log_start, said.append)
    assert len(said) == 1, "it had begun there already"
    assert storage.open_files == [f"{FOLDER}/{log.log_start:020d}.log"]


def test_the_leaders_log_may_start_within_a_batch():
    _, leader = led(2)
    leader.append([make_batch(0, records=100), make_batch(100, records=50)], 1)
    leader.append([make_batch(150, records=50)], 1)
    leader.trim(120)
    storage, log = follower()
    LogReplica(log).restart(leader.log_start)
    said: list[int] = []
    batches = batches_from(leader, leader.log_start)
    assert taken(log, batches, said.append)[:2] == (200, 2)
    assert said == [100], "what is shown never lies above what a killed writer leaves"
    assert (log.log_start, log.log_end) == (120, 200)
    assert contents(log) == contents(leader)
    again, _ = open_replica(storage.copy(), published=200)
    assert (again.log_start, again.log_end) == (120, 200)
    made = taken(log, [*batches_from(leader, 150)])
    assert made[:2] == (200, 1)


def test_an_empty_log_stays_where_it_is_when_the_batch_across_its_start_is_refused():
    _, leader = led(2)
    leader.append([make_batch(0, records=100)], 1)
    _, log = led(3)
    LogReplica(log).restart(50)
    LogReplica(log).lead(3)
    said: list[int] = []
    made = taken(log, batches_from(leader, 0), said.append)
    assert made[:3] == (50, 0, ErrorCode.CORRUPT_BATCH)
    assert (log.log_start, log.log_end, said) == (50, 50, [])


def test_across_the_end_of_a_log_with_records_nothing_is_appended():
    _, leader = led(2)
    leader.append([make_batch(0, records=10)], 1)
    _, other = led(1)
    other.append([make_batch(0, records=5)], 1)
    made = taken(other, batches_from(leader, 0))
    assert made[:3] == (5, 0, ErrorCode.BEYOND_LOG_END)
    assert "lie across the log's end" in made.message


def test_a_new_beginning_waits_for_a_sync():
    _, log = led()
    log.append(numbered(3), 1)
    job = log.begin_sync()
    assert job is not None
    with pytest.raises(StorageError, match="under way") as caught:
        LogReplica(log).restart(10)
    assert caught.value.retriable
    job.run()
    log.finish_sync(job)
    LogReplica(log).restart(10)
    assert log.log_end == 10


def test_a_log_that_is_offline_takes_no_role():
    storage, log = led()
    log.append(numbered(3), 1)
    storage.fault = fail_at(1, errno.EIO, "pwritev")
    with pytest.raises(LogOfflineError):
        log.append(numbered(1, 3), 1)
    storage.fault = None
    for ask in (
        lambda: LogReplica(log).lead(9),
        LogReplica(log).follow,
        lambda: LogReplica(log).restart(5),
        lambda: taken(log, numbered(1)),
    ):
        with pytest.raises(LogOfflineError):
            ask()


def test_a_log_that_is_not_replicated_has_its_own_epochs_as_before():
    storage = MemoryStorage()
    log, _ = open_log(storage)
    log.append(numbered(3), 1)
    log, report = open_log(storage.power_cut(), boot_id="boot-2")
    assert (log.leader_epoch, report.epoch_bumped) == (2, True)


def test_a_replicated_log_remembers_epochs_from_before_its_start():
    """Who was away while retention went by is told where it parted, not where the log begins."""
    storage, log = led(1)
    log.append(numbered(4), 1)
    LogReplica(log).lead(2)
    for batch in numbered(40, 4, body=900):
        log.append([batch], 2)
    LogReplica(log).note_committed(44)
    log.trim(30)
    assert log.chain.bases[0] > 4
    assert log.epochs.entries == ((1, 0), (2, 4))
    assert log.epochs.end_offset(1, log.log_end) == (1, 4)
    for after, boot in ((storage.copy(), "boot-1"), (storage.power_cut(), "boot-2")):
        again, _ = open_replica(after, boot_id=boot)
        assert again.epochs.entries == ((1, 0), (2, 4))
