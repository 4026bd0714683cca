"""Trimming: the log start moves up, within segments and batches too, and never comes back down."""

from __future__ import annotations

import errno
import random

import pytest
from unit.core.log_helpers import (
    FOLDER,
    SMALL,
    Crash,
    MemoryStorage,
    contents,
    crash_at,
    fail_at,
    make_batch,
    open_log,
    payload,
    rebooted,
    refuse,
    time_in,
)

from penstock.core.errors import ErrorCode, LogOfflineError, OffsetOutOfRangeError, StorageError
from penstock.core.log import LogConfig
from penstock.core.logreplica import LogReplica
from penstock.core.logstart import START_FILE, decode_start, encode_start, load_start
from penstock.core.segment import list_segments, segment_path
from penstock.logcheck import CheckedPartition, check_partition

CONFIG = LogConfig(
    segment_bytes=1024, index_interval_bytes=256, preallocate_bytes=512, batch_bytes_max=2048
)


def lived(count=24, records=3, **options):
    """A log of some segments, `records` offsets a batch, of two producers; all of it durable."""
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG, **options)
    sequence = {1: 0, 2: 0}
    for i in range(count):
        producer = 2 if i < 4 else 1  # producer 2 is soon known by snapshots only
        batch = make_batch(sequence[producer], producer=producer, records=records, body=90)
        sequence[producer] += records
        assert not log.append([batch], 100 + i)[0].error
    log.sync()
    return storage, log


def held(log):
    return [(offset, payload(data)) for offset, data in contents(log)]


def test_a_trim_hides_what_is_below_and_removes_whole_segments():
    storage, log = lived()
    bases = list_segments(storage, FOLDER)
    before = held(log)
    assert len(bases) > 4
    start = bases[3] + 4  # in the second batch of that segment
    assert log.trim(start) == start == log.log_start
    assert list_segments(storage, FOLDER) == bases[3:]
    assert not [n for n in storage.names if n.rpartition("/")[2].startswith(f"{bases[0]:020d}")]
    with pytest.raises(OffsetOutOfRangeError, match=f"holds {start} to {log.log_end}"):
        log.read(start - 1, 1)
    # The batch that holds the start is given whole; who reads drops the records below.
    first, _ = contents(log)[0]
    assert first == bases[3] + 3
    assert held(log) == [(offset, data) for offset, data in before if offset >= first]
    assert log.epochs.entries[0][1] == bases[3]


def test_a_trim_never_lowers_the_start_and_never_passes_the_end():
    _, log = lived()
    assert log.trim(20) == 20
    assert log.trim(7) == 20
    assert log.trim(-1) == 20
    assert log.trim(10_000) == log.log_end


def test_a_trim_to_the_end_gives_all_room_back():
    storage, log = lived()
    end = log.log_end
    assert log.trim(end) == end
    assert list_segments(storage, FOLDER) == [end]
    assert contents(log) == []
    log.append([make_batch(60, producer=1, body=64)], 200)
    assert [offset for offset, _ in contents(log)] == [end]
    again, _ = open_log(storage, config=CONFIG, published=end + 1)
    assert (again.log_start, again.log_end) == (end, end + 1)


@pytest.mark.rule(11)
def test_rule_11_the_start_is_persisted_then_published_then_segments_go():
    storage, log = lived()
    bases = list_segments(storage, FOLDER)
    seen = []

    def publish(start):
        assert load_start(storage.power_cut(), FOLDER) == start
        assert list_segments(storage, FOLDER) == bases
        assert log.log_start == start
        seen.append(start)

    log.trim(bases[2], publish)
    assert seen == [bases[2]]
    assert list_segments(storage, FOLDER) == bases[2:]
    log.trim(bases[2], publish)
    assert seen == [bases[2]]


@pytest.mark.rule(3)
def test_rule_3_a_producer_is_known_after_its_last_batch_was_trimmed():
    storage, log = lived()
    log.trim(log.log_end)
    for again in (
        open_log(storage.killed(), config=CONFIG, published=log.log_end)[0],
        rebooted(storage.power_cut(), config=CONFIG)[0],
    ):
        for producer, following in ((1, 60), (2, 12)):
            assert again.producers.next_sequence(producer) == (0, following)
            late = again.append([make_batch(following + 5, producer=producer, records=3)], 9_000)
            assert late[0].error == ErrorCode.OUT_OF_ORDER_SEQUENCE


def test_what_is_not_durable_is_fsynced_before_it_may_be_trimmed():
    storage, log = lived()
    log.append([make_batch(60, producer=1, records=9, body=90)], 500)
    end = log.log_end
    assert log.durable < end
    assert log.trim(end - 2) == end - 2 <= log.durable
    again, report = rebooted(storage.power_cut(), config=CONFIG)
    assert report.lost is None
    assert (again.log_start, again.log_end) == (end - 2, end)


def test_a_trim_waits_for_a_sync_that_is_under_way():
    _, log = lived()
    log.append([make_batch(60, producer=1, records=3)], 500)
    job = log.begin_sync()
    with pytest.raises(StorageError, match="under way") as caught:
        log.trim(log.log_end)
    assert caught.value.retriable
    job.run()
    log.finish_sync(job)
    assert log.trim(log.log_end) == log.log_end


def test_a_full_device_leaves_the_start_as_it_was():
    storage, log = lived()
    bases = list_segments(storage, FOLDER)
    storage.fault = fail_at(1, errno.ENOSPC, "create")
    with pytest.raises(StorageError) as caught:
        log.trim(bases[2])
    assert caught.value.retriable
    assert log.log_start == 0
    assert list_segments(storage, FOLDER) == bases
    assert log.trim(bases[2]) == bases[2]


def test_what_could_not_be_removed_goes_with_the_next_trim():
    storage, log = lived()
    bases = list_segments(storage, FOLDER)
    storage.fault = fail_at(1, errno.ENOMEM, "unlink")
    assert log.trim(bases[2]) == bases[2]
    assert list_segments(storage, FOLDER) == bases
    assert log.trim(bases[2]) == bases[2]
    assert list_segments(storage, FOLDER) == bases[2:]


def test_dead_segments_go_the_oldest_first_so_that_no_hole_is_ever_left():
    storage, log = lived()
    bases = list_segments(storage, FOLDER)
    second = segment_path(FOLDER, bases[1])

    def stuck(call):
        if call.name == "unlink" and call.path == second:
            refuse(call, errno.ENOMEM)

    storage.fault = stuck
    log.trim(bases[3])
    assert list_segments(storage, FOLDER) == bases[1:]
    storage.fault = None
    log.trim(bases[3])
    assert list_segments(storage, FOLDER) == bases[3:]


def test_a_device_that_fails_takes_the_log_offline():
    storage, log = lived()
    storage.fault = fail_at(1, errno.EIO, "unlink")
    with pytest.raises(LogOfflineError):
        log.trim(log.log_end)
    assert log.offline


def test_a_truncation_into_the_first_batch_lowers_the_start_to_it():
    storage, log = lived()
    log.trim(31)
    assert LogReplica(log).truncate_to(31) == 30
    assert (log.log_start, log.log_end) == (30, 30)
    assert log.append([make_batch(0, producer=8, records=3)], 900)[0].base_offset == 30
    again, _ = open_log(storage, config=CONFIG, published=33)
    assert [offset for offset, _ in contents(again)] == [30]


@pytest.mark.parametrize("damage", [b"", b"x" * 20, encode_start(9)[:-1] + b"\1"])
def test_a_damaged_start_file_shows_what_is_there(damage):
    storage, log = lived()
    log.trim(10)
    assert decode_start(damage) is None
    storage.write_file(f"{FOLDER}/{START_FILE}", damage, durable=True)
    again, _ = open_log(storage, config=CONFIG, published=log.log_end)
    assert again.log_start == list_segments(storage, FOLDER)[0]


@pytest.mark.rule(14)
def test_rule_14_a_log_that_ends_below_its_start_is_damaged():
    storage, log = lived()
    log.close(clean=False)
    storage.write_file(f"{FOLDER}/{START_FILE}", encode_start(log.log_end + 1), durable=True)
    with pytest.raises(LogOfflineError, match="where it starts"):
        rebooted(storage, config=CONFIG)
    assert len(list_segments(storage, FOLDER)) > 4, "nothing was removed"


def test_offsets_by_time_lie_at_or_above_the_start():
    storage = MemoryStorage()
    log, _ = open_log(storage, config=SMALL)
    for i in range(10):
        log.append([make_batch(3 * i, records=3, timestamp=100 + i)], 1000)
    log.trim(10)
    assert time_in(log, 100) == 10
    assert time_in(log, 104) == 12


TARGETS = {"batch": 17, "segment": None, "end": 1 << 40}


def prepared(target):
    storage, log = lived()
    if target is None:
        target = list_segments(storage, FOLDER)[3]
    log.append([make_batch(60, producer=1, records=3, body=90)], 700)
    return storage, log, min(target, log.log_end)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("written", [None, 12])
def test_a_trim_may_be_killed_in_any_call(target, written):
    storage, log, start = prepared(target)
    first = storage.calls + 1
    log.trim(start)
    total = storage.calls + 1
    whole = dict(held(prepared(target)[1]))
    for number in range(first, total):
        for power in (False, True):
            storage, log, start = prepared(target)
            published = [0]
            durable, end = log.durable, log.log_end
            storage.fault = crash_at(number, written)
            with pytest.raises(Crash):
                log.trim(start, published.append)
            for seed in range(4 if power else 1):
                if power:
                    chance = random.Random(f"{number}/{seed}") if seed else None
                    again, report = rebooted(storage.power_cut(chance), config=CONFIG)
                else:
                    again, report = open_log(storage.killed(), config=CONFIG, published=end)
                assert again.log_start in (0, start)
                assert again.log_start >= published[-1]
                assert report.log_start == again.log_start <= again.durable
                assert again.log_end >= (durable if power else end)
                bases = list_segments(again.storage, FOLDER)
                assert len(bases) == 1 or bases[1] > again.log_start, "dead segments are gone"
                now = held(again)
                assert all(whole[offset] == data for offset, data in now)
                there = [o for o in whole if again.log_start < o + 3 and o < again.log_end]
                assert [o for o, _ in now] == there
                assert {again.producers.next_sequence(p) for p in (1, 2)} <= {
                    (0, 12),
                    (0, 60),
                    (0, 63),
                }
                # and it goes on
                assert again.trim(start) >= min(start, again.log_end)
                epoch = 1
                assert not again.append([make_batch(0, producer=1, epoch=epoch)], 9_999)[0].error


def verified(storage):
    """Where `log verify` says the log starts, and what it found; bodies are opaque bytes here."""
    checked = check_partition(CheckedPartition(FOLDER, "t-0", None), storage)
    return checked.log_start, [
        (finding.kind, finding.is_note) for finding in checked.findings if finding.kind != "columns"
    ]


def test_log_verify_knows_the_start_and_what_a_crash_left_below_it():
    storage, log, start = prepared(None)
    log.trim(start - 2)
    assert verified(storage) == (start - 2, [])
    first, second = list_segments(storage, FOLDER)[:2]
    assert first < start == second
    storage.write_file(f"{FOLDER}/{START_FILE}", encode_start(start), durable=True)
    assert verified(storage) == (start, [("leftover", True)])
    storage.write_file(f"{FOLDER}/{START_FILE}", b"?" * 20, durable=True)
    assert verified(storage) == (first, [("start", False)])


def test_segments_below_the_start_stay_while_no_snapshot_tells_of_their_producers():
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG)
    log.append([make_batch(0, producer=2)], 1)
    log.sync()
    log.append([make_batch(1, producer=2)], 2)
    log.trim(1)
    after = storage.power_cut()
    tail = after.names[f"{FOLDER}/{0:020d}.log"].content
    tail[448:456] = b"not-zero"  # of what was never synced, a page came through
    cut, _ = rebooted(after, config=CONFIG)
    assert cut.log_start == cut.log_end
    assert list_segments(after, FOLDER) == [0, cut.log_end]  # a cut goes on in a new one
    after = after.killed()
    again, _ = open_log(after, config=CONFIG, boot_id="boot-2", generation=3)
    assert (again.log_start, again.producers.next_sequence(2)) == (cut.log_end, (0, cut.log_end))
    again.trim(cut.log_end)
    assert list_segments(after, FOLDER) == [cut.log_end]
    after = after.killed()
    last, _ = open_log(after, config=CONFIG, boot_id="boot-2", generation=4)
    assert last.producers.next_sequence(2) == (0, cut.log_end)
