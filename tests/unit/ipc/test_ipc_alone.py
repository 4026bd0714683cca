"""A partition's role between its log and its page: what is shown, and when, while syncs fail."""

from __future__ import annotations

import errno
import os

import pytest
from store_crash import memory
from unit.core.log_helpers import (
    FOLDER,
    TOPIC,
    MemoryStorage,
    abort,
    begin,
    commit,
    numbered,
    refuse,
    within,
)

from penstock.core.errors import ErrorCode, StorageError
from penstock.core.header import FLAG_APPEND_TIME
from penstock.ipc import layout as lo
from penstock.ipc.alone import AloneRole
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.state import StatePage, format_table

SECOND = 1_000_000


@pytest.fixture
def region():
    fd, region = memory(lo.state_table_bytes(4))
    os.close(fd)
    format_table(region, bytes(16), 4)
    return region


@pytest.fixture
def page(region):
    return StatePage(region, 2)


def opened(storage: MemoryStorage, page: StatePage, generation: int = 1, **settings) -> AloneRole:
    order = OpenPartition(2, "t", TOPIC, 0, FOLDER, TopicSettings(**settings), False, "boot-1")
    role, _ = AloneRole.open(
        storage, order, page, generation=generation, batch_bytes_max=1 << 16, now_us=1
    )
    return role


def synced(role: AloneRole) -> None:
    role.request_sync()
    job = role.tick(0.0, 1)
    assert job is not None
    job.run()
    role.finish_sync(job)


def no_descriptor_for(path: str):
    return lambda call: refuse(call, errno.EMFILE) if call.path.endswith(path) else None


def no_folder_sync(call):
    if call.name == "fsync_folder":
        refuse(call, errno.EMFILE)


def test_an_open_whose_sync_finds_no_descriptor_keeps_no_file_open(page):
    storage = MemoryStorage()
    role = opened(storage, page, segment_age=10.0)
    role.append(numbered(1), 1 * SECOND)
    role.append(numbered(1, 1), 20 * SECOND)  # in another segment, whose name is not synced
    after = storage.killed()
    after.fault = no_folder_sync
    for generation in (2, 3):
        with pytest.raises(StorageError) as caught:
            opened(after, page, generation, durability="fsync")
        assert caught.value.retriable
        assert not after.open_files
    after.fault = None
    opened(after, page, 4, durability="fsync")
    assert (page.high_watermark, page.durable) == (2, 2)


# --- rule 15: topics that are fsynced first ------------------------------------------------------
@pytest.fixture
def behind(page):
    """A role that appended a record and could not sync it."""
    storage = MemoryStorage()
    role = opened(storage, page, durability="fsync", segment_age=10.0)
    role.append(numbered(1), 1 * SECOND)
    storage.fault = no_folder_sync
    with pytest.raises(StorageError):
        role.append(numbered(1, 1), 20 * SECOND)
    assert (role.log_end, page.high_watermark, page.durable) == (2, 1, 1)
    return storage, role


@pytest.mark.rule(15)
def test_rule_15_a_roll_by_age_shows_nothing_that_is_not_durable(page, behind):
    storage, role = behind
    for now in (40, 60, 80):  # the segment is over its age, and cannot be synced
        role.tick(now, now * SECOND)
        assert (page.log_end, page.high_watermark, page.durable) == (1, 1, 1)
    storage.fault = None
    role.tick(100.0, 100 * SECOND)
    assert (page.log_end, page.high_watermark, page.durable) == (2, 2, 2)


@pytest.mark.rule(15)
def test_rule_15_a_trim_shows_nothing_that_is_not_durable(page, behind):
    storage, role = behind
    with pytest.raises(StorageError):
        role.trim(1, 30 * SECOND)  # what it removes says something of producers: it wants a sync
    assert (page.log_start, page.high_watermark, page.durable) == (0, 1, 1)
    storage.fault = None
    assert role.trim(1, 31 * SECOND).segments == 1
    role.tick(32.0, 32 * SECOND)
    assert (page.log_start, page.high_watermark, page.durable) == (1, 2, 2)


@pytest.mark.rule(15)
def test_rule_15_an_fsync_from_before_the_setting_shows_nothing_that_is_not_durable(page):
    storage = MemoryStorage()
    role = opened(storage, page)
    role.append(numbered(1), 1)
    role.request_sync()
    job = role.tick(0.0, 1)
    assert job is not None
    role.configure(TopicSettings(durability="fsync"))
    with pytest.raises(StorageError, match="under way"):
        role.append(numbered(1, 1), 2)
    job.run()
    assert role.finish_sync(job)
    assert (page.high_watermark, page.durable) == (1, 1)
    role.tick(1.0, 3)
    assert (page.high_watermark, page.durable) == (2, 2)


# --- what readers may rely on ---------------------------------------------------------------------
class Ordered(StatePage):
    """Notes at each publication of offsets which bytes are published by then."""

    seen: list[tuple[int, tuple[int, int]]]

    def publish_ends(self, log_end: int, high_watermark: int, last_stable: int) -> None:
        self.seen.append((log_end, self.segment()))
        super().publish_ends(log_end, high_watermark, last_stable)


def test_bytes_are_published_before_the_offsets_that_they_hold(region):
    ordered = Ordered(region, 2)
    ordered.seen = []
    role = opened(MemoryStorage(), ordered, segment_age=10.0)
    ordered.seen.clear()
    sizes = []
    for number in range(3):
        (batch,) = numbered(1, number)
        sizes.append(len(batch))
        role.append([batch], 1 * SECOND)
    role.append(numbered(1, 3), 20 * SECOND)  # in another segment
    assert ordered.seen == [
        (1, (0, sizes[0])),
        (2, (0, sum(sizes[:2]))),
        (3, (0, sum(sizes))),
        (4, (3, sizes[0])),
    ]


@pytest.mark.rule(15)
def test_rule_15_a_topic_that_is_fsynced_answers_behind_the_sync(page):
    storage = MemoryStorage()
    role = opened(storage, page, durability="fsync")
    (result,) = role.append(numbered(1), 1)
    assert (result.error, page.durable, page.high_watermark) == (0, 1, 1)
    after = opened(storage.power_cut(), page, 2, durability="fsync")
    assert after.log_end == 1


def test_a_disk_that_is_ill_takes_the_partition_offline_and_says_so(page):
    storage = MemoryStorage()
    role = opened(storage, page)
    role.append(numbered(1), 1)

    def ill(call):
        if call.name == "pwritev":
            refuse(call, errno.EIO)

    storage.fault = ill
    assert [result.error for result in role.append(numbered(2, 1), 2)] == [
        ErrorCode.PARTITION_OFFLINE
    ] * 2
    assert (page.status, page.errno) == (lo.STATUS_OFFLINE, errno.EIO)
    assert "EIO" in role.offline
    storage.fault = None
    assert role.append(numbered(1, 1), 3)[0].error == ErrorCode.PARTITION_OFFLINE
    assert role.tick(9.0, 4) is None
    assert (page.log_end, page.high_watermark) == (1, 1)


# --- settings -------------------------------------------------------------------------------------
def test_the_flush_interval_is_the_topics(page):
    role = opened(MemoryStorage(), page, durability="interval", flush_interval=0.25)
    assert role.tick_every == 0.25
    role.append(numbered(1), 1)
    job = role.tick(0.1, 1)
    assert job is not None, "the first one is not counted from the boot of the machine"
    job.run()
    role.finish_sync(job)
    role.append(numbered(1, 1), 1)
    assert role.tick(0.3, 1) is None
    assert role.tick(0.36, 1) is not None


@pytest.mark.parametrize(("kind", "flag"), [("create", 0), ("append", FLAG_APPEND_TIME)])
def test_the_appends_time_counts_where_the_topic_says_so(page, kind, flag):
    role = opened(MemoryStorage(), page, timestamp_type=kind)
    role.append(numbered(1), 7 * SECOND)
    ((head, _),) = role._log.read(0, 1)
    assert (head.flags, head.append_timestamp) == (flag, 7 * SECOND)
    role.configure(TopicSettings(timestamp_type="append"))
    role.append(numbered(1, 1), 8 * SECOND)
    assert role._log.read(1, 1)[0][0].flags == FLAG_APPEND_TIME


def test_a_segment_ends_where_the_topic_says_so(page):
    role = opened(MemoryStorage(), page, segment_bytes=1 << 16, segment_age=5.0)
    role.append(numbered(1, body=40_000), 1 * SECOND)
    role.append(numbered(1, 1, body=40_000), 2 * SECOND)
    assert page.segment()[0] == 1
    role.append(numbered(1, 2), 8 * SECOND)
    assert page.segment()[0] == 2


# --- what operators see --------------------------------------------------------------------------
def test_fsyncs_are_counted_by_how_long_they_took(page):
    role = opened(MemoryStorage(), page)
    assert page.syncs() == (0, [0] * 7)
    for number, seconds in enumerate((0.001, 0.0011, 9.0)):
        role.append(numbered(1, number), 1)
        role.request_sync()
        job = role.tick(number, 1)
        assert job is not None
        job.run()
        job.seconds = seconds
        role.finish_sync(job)
    spent, counts = page.syncs()
    assert (spent, counts) == (9_002_100, [1, 1, 0, 0, 0, 0, 1])


def test_a_sync_before_the_answer_is_counted_too(page):
    role = opened(MemoryStorage(), page, durability="fsync")
    role.append(numbered(1), 1)
    assert sum(page.syncs()[1]) == 1


# --- invariant 1 ---------------------------------------------------------------------------------
def test_invariant_1_durable_does_not_fall_when_a_writer_is_replaced(page):
    """What it showed was fsynced, although the recovery point could not be written."""
    storage = MemoryStorage()
    role = opened(storage, page)
    role.append(numbered(3), 1)
    synced(role)
    storage.fault = no_descriptor_for("recovery-point")
    role.append(numbered(2, 3), 2)
    synced(role)
    role.append(numbered(2, 5), 3)
    assert (page.durable, page.log_end) == (5, 7)
    after = storage.killed()
    role = opened(after, page, 2)
    assert (page.durable, page.log_end) == (5, 7)
    role.trim(1, 4)  # below what the log knows to be durable: nothing is synced for it
    assert page.durable == 5
    synced(role)
    assert page.durable == 7


def test_durable_of_the_partition_that_had_the_page_before_is_not_kept(page):
    page.claim(bytes(16), 7, 1)
    page.publish_epoch(1)
    page.publish_durable(9)
    page.publish_status(lo.STATUS_DELETED)
    role = opened(MemoryStorage(), page, 2)
    assert (role.leader_epoch, page.log_end, page.durable) == (1, 0, 0)


def test_a_page_that_was_another_partitions_says_nothing_of_this_one(page):
    """A writer that dies after its claim of a used page, before it has published anything."""
    page.claim(bytes(16), 7, 1)
    page.publish_segment(40, 4096)
    page.publish_ends(100, 100, 100)
    page.publish_durable(90)
    page.publish_log_start(30)
    page.publish_epoch(5)
    page.count(1, 2, 3)
    page.publish_status(lo.STATUS_DELETED)
    page.claim(TOPIC, 0, 2)
    assert page.segment() == (0, 0)
    assert (page.log_end, page.durable, page.log_start, page.leader_epoch) == (0, 0, 0, 0)
    assert not any(page.counters().values())
    role = opened(MemoryStorage(), page, generation=3)
    assert role.log_end == 0
    assert page.status == lo.STATUS_ONLINE


# --- transactions --------------------------------------------------------------------------------
def test_the_page_shows_the_last_stable_offset_and_the_oldest_open_transaction(page):
    storage = MemoryStorage()
    role = opened(storage, page)
    role.append([begin(3), within(0, 3)], 1 * SECOND)
    role.append([begin(0, producer=2)], 2 * SECOND)
    assert (page.high_watermark, page.last_stable) == (3, 0)
    assert page.oldest_open == (1, 3, 1 * SECOND)
    role.append([commit(3)], 3 * SECOND)
    assert (page.high_watermark, page.last_stable) == (4, 2)
    assert page.oldest_open == (2, 0, 2 * SECOND)
    role.append([abort(0, producer=2)], 4 * SECOND)
    assert (page.last_stable, page.oldest_open) == (5, None)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_successor_shows_what_its_predecessor_showed_of_transactions(page, durability):
    storage = MemoryStorage()
    role = opened(storage, page, durability=durability)
    role.append([*numbered(1, producer=9), begin(3), within(0, 3)], 1 * SECOND)
    shown = (page.high_watermark, page.last_stable, page.oldest_open)
    assert shown == (3, 1, (1, 3, 1 * SECOND))
    again = opened(storage.killed(), page, 2, durability=durability)
    assert (page.high_watermark, page.last_stable, page.oldest_open) == shown
    again.append([abort(3)], 2 * SECOND)
    assert (page.last_stable, page.oldest_open) == (4, None)


def test_a_trim_beyond_an_open_transaction_keeps_the_last_stable_offset_above_the_start(page):
    storage = MemoryStorage()
    role = opened(storage, page)
    role.append([begin(3), within(0, 3), *numbered(2, producer=9)], 1 * SECOND)
    role.trim(3, 1 * SECOND)
    assert (page.log_start, page.last_stable) == (3, 3)
    assert page.oldest_open == (1, 3, 1 * SECOND)


def test_an_abort_that_found_no_room_is_shown_once_a_tick_could_note_it(page):
    storage = MemoryStorage()
    role = opened(storage, page)
    storage.fault = no_descriptor_for(".txn")
    role.append([begin(3), within(0, 3), abort(3)], 1 * SECOND)
    assert (page.high_watermark, page.last_stable, page.oldest_open) == (3, 0, None)
    role.tick(1.0, 2 * SECOND)
    assert page.last_stable == 0
    storage.fault = None
    role.tick(2.0, 3 * SECOND)
    assert page.last_stable == 3


# --- a namespace that is full -------------------------------------------------------------------
def test_what_comes_again_to_a_full_namespace_is_answered_as_ever(page):
    """Its sender would take it for lost otherwise, and send it once more."""
    role = opened(MemoryStorage(), page)
    (first,) = role.append(numbered(1), 1)
    page.full_pages.publish([2])
    repeated, new = role.append([*numbered(1), *numbered(1, 1)], 2)
    assert (repeated.duplicate, repeated.base_offset) == (True, first.base_offset)
    assert (repeated.error, new.error) == (ErrorCode.NONE, ErrorCode.NAMESPACE_FULL)
    assert page.log_end == 1
    page.full_pages.publish([])
    assert role.append(numbered(1, 1), 3)[0].base_offset == 1
