"""Rule 16: a failed fsync is never retried; the log is copied, or it stays offline.

The storage of these tests behaves like Linux: after a failed fsync the pages count as clean, and
later fsyncs of that file succeed without writing them.
"""

from __future__ import annotations

import errno

import pytest
from unit.core.log_helpers import (
    FOLDER,
    Crash,
    MemoryStorage,
    contents,
    crash_at,
    fail_at,
    make_batch,
    open_log,
    refuse,
)

from penstock.core.errors import LogOfflineError, StorageError
from penstock.core.logreplica import LogReplica
from penstock.core.rescue import MARK_FILE, read_mark, write_mark
from penstock.core.segment import segment_path
from penstock.core.storage import WRITE_ANY

MARK = f"{FOLDER}/{MARK_FILE}"


def running(batches=20, synced=4):
    """A log in its third segment, the first batches of it on the device."""
    storage = MemoryStorage()
    log, _ = open_log(storage)
    for i in range(batches):
        log.append([make_batch(i, body=300)], i)
        if i + 1 == synced:
            log.sync()
    return storage, log


def fail_sync_of(base, code=errno.EIO):
    """Every fdatasync of that segment's file fails."""
    path = segment_path(FOLDER, base)
    return lambda call: (
        refuse(call, code) if (call.name, call.path) == ("fdatasync", path) else None
    )


def test_the_storage_of_these_tests_loses_what_a_failed_fsync_had():
    storage = MemoryStorage()
    fd = storage.open("/data/file", WRITE_ANY)
    storage.fsync_folder("/data")
    storage.pwritev(fd, [b"x"], 0)
    storage.fault = fail_at(1, errno.EIO, "fdatasync")
    with pytest.raises(StorageError, match="EIO"):
        storage.fdatasync(fd)
    storage.fdatasync(fd)
    assert storage.read_file("/data/file") == b"x"
    assert storage.power_cut().read_file("/data/file") == b"\0"


def both(first, second):
    """Two faults: the second is asked where the first lets a call pass."""

    def fault(call):
        result = first(call)
        return second(call) if result is None else result

    return fault


@pytest.mark.rule(16)
@pytest.mark.parametrize("victim", [0, 9, 18])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_rule_16_a_failed_fsync_copies_the_segment_and_keeps_the_old_file(victim, code):
    storage, log = running()
    kept = contents(log)
    path = segment_path(FOLDER, victim)
    old = storage.names[path]
    before = bytes(old.content)
    active = (log.segment_base, log.valid_bytes)
    storage.fault = fail_sync_of(victim, code)
    log.sync()
    assert log.durable == log.log_end == 20
    failed = path.replace(".log", ".failed")
    assert storage.names[failed] is old
    assert bytes(old.content) == before
    copy = storage.names[path]
    assert copy is not old
    assert before.startswith(bytes(copy.content)), "positions that readers know stay true"
    assert MARK not in storage.names
    if victim == 18:
        assert (log.segment_base, log.valid_bytes) == (20, 0), "nothing is appended to the copy"
    else:
        assert (log.segment_base, log.valid_bytes) == active
    assert contents(log) == kept
    log.append([make_batch(20, body=300)], 99)
    after, report = open_log(storage.power_cut(), boot_id="boot-2")
    assert contents(after) == kept
    assert report.lost is None


@pytest.mark.rule(16)
def test_rule_16_a_failed_fsync_is_never_retried():
    storage, log = running()
    storage.fault = fail_sync_of(18)
    log.sync()
    failing = [call for call in storage.log if call.name == "fdatasync" and "18.log" in call.path]
    assert len(failing) == 1
    log.append([make_batch(20, body=300)], 99)
    log.sync()
    assert [call for call in storage.log if call.name == "fdatasync" and "18.log" in call.path] == (
        failing
    )


@pytest.mark.rule(16)
def test_rule_16_a_process_that_dies_before_it_knows_has_left_the_mark():
    storage, log = running()
    kept = contents(log)
    job = log.begin_sync()
    assert job is not None
    storage.fault = fail_sync_of(18)
    job.run()
    log, report = open_log(storage.killed(), published=20)
    assert (report.segments_rescued, log.segment_base) == (1, 20)
    assert contents(log) == kept


@pytest.mark.rule(16)
def test_rule_16_the_rescue_leaves_the_mark_where_the_sync_found_no_room_for_it():
    storage, log = running()
    job = log.begin_sync()
    assert job is not None
    storage.fault = both(fail_at(1, errno.ENOSPC, "create"), fail_sync_of(18))
    job.run()
    assert MARK not in storage.names

    def dies_copying(call):
        if call.name == "create" and call.path.endswith(".rescue"):
            raise Crash

    storage.fault = dies_copying
    with pytest.raises(Crash):
        log.finish_sync(job)
    assert read_mark(storage, FOLDER, "boot-1", same_boot=True) == [18]


@pytest.mark.rule(16)
def test_rule_16_appends_during_the_failed_sync_are_rescued_too():
    storage, log = running()
    job = log.begin_sync()
    log.append([make_batch(20, body=300)], 99)
    storage.fault = fail_sync_of(18)
    job.run()
    log.append([make_batch(21, body=300)], 99)
    log.finish_sync(job)
    assert (log.durable, log.segment_base) == (22, 22)
    after, _ = open_log(storage.power_cut(), boot_id="boot-2")
    assert after.log_end == 22


@pytest.mark.rule(16)
def test_rule_16_a_roll_during_the_failed_sync():
    storage, log = running()
    job = log.begin_sync()
    log.append([make_batch(20, body=300)], 99)
    log.roll(99)
    log.append([make_batch(21, body=300)], 99)
    storage.fault = fail_sync_of(18)
    job.run()
    log.finish_sync(job)
    assert (log.durable, log.segment_base) == (20, 21)
    log.sync()
    assert log.durable == 22
    after, _ = open_log(storage.power_cut(), boot_id="boot-2")
    assert after.log_end == 22


@pytest.mark.rule(16)
def test_rule_16_what_cannot_be_copied_leaves_the_log_offline_and_marked():
    storage, log = running()
    kept = contents(log)

    def ill(call):
        if "18" in call.path and call.name in ("fdatasync", "fsync"):
            refuse(call, errno.EIO)

    storage.fault = ill
    with pytest.raises(LogOfflineError, match="EIO"):
        log.sync()
    assert log.durable == 4
    assert read_mark(storage, FOLDER, "boot-1", same_boot=True) == [18]
    with pytest.raises(LogOfflineError):
        log.append([make_batch(20)], 99)
    log.close(clean=True)
    # In the same boot an open does it all again: the page cache must not be trusted to be written.
    with pytest.raises(LogOfflineError, match="EIO"):
        open_log(storage, published=20)
    storage.fault = None
    log, report = open_log(storage, published=20)
    assert (report.segments_rescued, log.segment_base) == (1, 20)
    assert contents(log) == kept
    assert MARK not in storage.names
    log.sync()
    after, _ = open_log(storage.power_cut(), boot_id="boot-2")
    assert contents(after) == kept


@pytest.mark.rule(16)
def test_rule_16_bytes_that_went_bad_are_not_copied():
    storage, log = running()
    storage.names[segment_path(FOLDER, 18)].content[200] ^= 1
    storage.fault = fail_sync_of(18)
    with pytest.raises(LogOfflineError, match="cannot be rescued"):
        log.sync()
    assert read_mark(storage, FOLDER, "boot-1", same_boot=True) == [18]


@pytest.mark.rule(16)
def test_rule_16_dying_at_any_step_of_the_rescue():
    storage, log = running()
    kept = contents(log)
    storage.fault = fail_sync_of(18)
    first = storage.calls
    log.sync()
    steps = storage.calls - first
    assert steps > 12
    for number in range(1, steps + 1):
        for written in (None, 0, 100):
            storage, log = running()
            storage.fault = both(crash_at(first + number, written), fail_sync_of(18))
            with pytest.raises(Crash):
                log.sync()
            # the same boot: nothing that was published may go, and a later sync must be true
            after = storage.killed()
            log, report = open_log(after, published=20)
            assert contents(log) == kept
            assert report.lost is None
            log.sync()
            assert log.durable == 20
            later, _ = open_log(after.power_cut(), boot_id="boot-2")
            assert contents(later) == kept, (number, written)
            # another boot: what was durable is there
            log, _ = open_log(storage.power_cut(), boot_id="boot-2")
            assert contents(log) == kept[: log.log_end]
            assert log.log_end >= 4


@pytest.mark.rule(16)
def test_rule_16_a_folder_that_cannot_be_fsynced_takes_the_log_offline():
    storage, log = running()
    storage.fault = fail_at(1, errno.EIO, "fsync_folder")
    with pytest.raises(LogOfflineError, match="fsync_folder"):
        log.sync()
    assert log.durable == 4


@pytest.mark.rule(16)
def test_rule_16_a_failed_fsync_while_truncating_or_cutting_is_marked_too():
    storage, log = running()
    storage.fault = fail_sync_of(9)
    with pytest.raises(LogOfflineError):
        LogReplica(log).truncate_to(12)
    assert read_mark(storage, FOLDER, "boot-1", same_boot=True) == [9]
    storage.fault = None
    log, report = open_log(storage.killed(), published=12)
    assert (log.log_end, report.segments_rescued) == (12, 1)

    storage, log = running()
    storage.names[segment_path(FOLDER, 18)].content[log.valid_bytes - 1] ^= 1
    storage = storage.killed()
    storage.fault = fail_sync_of(18)
    with pytest.raises(LogOfflineError):
        open_log(storage, published=19)
    assert read_mark(storage, FOLDER, "boot-1", same_boot=True) == [18]
    storage.fault = None
    log, report = open_log(storage.killed(), published=19)
    assert (log.log_end, log.segment_base, report.segments_rescued) == (19, 19, 1)


@pytest.mark.rule(16)
def test_rule_16_zeros_that_a_failed_fsync_lost_do_not_bring_truncated_batches_back():
    for target in (9, 12):
        storage, log = running(synced=20)
        storage.fault = fail_sync_of(9)
        with pytest.raises(LogOfflineError):
            LogReplica(log).truncate_to(target)
        storage = storage.killed()
        log, _ = open_log(storage, published=target)
        log.append([make_batch(0, producer=2)], 99)
        kept = contents(log)
        after, _ = open_log(storage.power_cut(), boot_id="boot-2")
        assert contents(after) == kept[: len(contents(after))]
        log.sync()
        after, _ = open_log(storage.power_cut(), boot_id="boot-2")
        assert contents(after) == kept


def test_the_mark_gathers_segments_and_ends_with_its_boot():
    storage = MemoryStorage()
    write_mark(storage, "/data", "boot-1", [7])
    write_mark(storage, "/data", "boot-1", [3, 7])
    assert read_mark(storage, "/data", "boot-1", same_boot=True) == [3, 7]
    assert read_mark(storage, "/data", "boot-2", same_boot=False) == []
    storage.names[f"/data/{MARK_FILE}"].content[9] ^= 1
    assert read_mark(storage, "/data", "boot-2", same_boot=False) == []
    with pytest.raises(LogOfflineError, match="damaged itself"):
        read_mark(storage, "/data", "boot-1", same_boot=True)


def test_golden_mark():
    storage = MemoryStorage()
    write_mark(storage, "/data", "b", [258])
    assert bytes(storage.names[f"/data/{MARK_FILE}"].content) == bytes.fromhex(
        "50534646 0100 0100 bb499818 01000000" + "62".ljust(128, "0") + "0201000000000000"
    )
