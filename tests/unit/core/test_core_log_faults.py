"""Appending while storage refuses: nothing is consumed, and nothing is left behind."""

from __future__ import annotations

import errno
from collections import Counter

import pytest
from unit.core.log_helpers import (
    FOLDER,
    MemoryStorage,
    contents,
    errors,
    fail_at,
    make_batch,
    numbered,
    open_log,
    opened,
    payload,
    refuse,
)

from penstock.core.errors import (
    ErrorCode,
    LogOfflineError,
    StorageError,
)
from penstock.core.log import LogConfig
from penstock.core.logreplica import LogReplica
from penstock.core.segment import segment_path
from penstock.core.storage import storage_error


def test_short_writes_at_every_call_change_nothing():
    plain, log = opened()
    storage = MemoryStorage()
    storage.fault = lambda call: -(1 + call.number * 37 % 150) if call.name == "pwritev" else None
    short, _ = open_log(storage)
    for target in (log, short):
        for batch in numbered(25, body=200):
            target.append([batch], 1)
        target.sync()
        target.close(clean=True)
    assert {name: node.content for name, node in plain.names.items()} == {
        name: node.content for name, node in storage.names.items()
    }


def scenario(storage, log, sent):
    """Append these calls, retrying what had no room; sync now and then."""
    refusals = 0
    for i, call in enumerate(sent):
        for _ in range(3):
            before = (log.log_end, log.append_timestamp, log.producers.encode(0))
            try:
                results = log.append(call, 10 + i)
                break
            except StorageError as error:
                if not error.retriable:
                    raise
                refusals += 1
                assert (log.log_end, log.append_timestamp, log.producers.encode(0)) == before
        assert errors(results) == [ErrorCode.NONE] * len(call)
        assert not any(result.duplicate for result in results)
        if i % 4 == 3:
            log.sync()
    return refusals


def calls_of(count):
    sent: list[list[memoryview]] = []
    sequence: Counter[int] = Counter()
    for i in range(count):
        call = []
        for producer in (1, 2)[: 1 + i % 2]:
            call.append(make_batch(sequence[producer], producer=producer, body=100 + 90 * (i % 5)))
            sequence[producer] += 1
        sent.append(call)
    return sent


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_at_any_call_consumes_nothing_and_goes_on_when_there_is(code):
    sent = calls_of(20)
    storage, log = opened()
    start = storage.calls
    scenario(storage, log, sent)
    expected = contents(log)
    total = storage.calls
    refused = 0
    for number in range(start + 1, total + 1):
        storage, log = opened()
        # (A folder's fsync that fails is another matter: see the recovery tests.)
        storage.fault = lambda call, n=number: (
            refuse(call, code) if call.number == n and call.name != "fsync_folder" else None
        )
        refused += scenario(storage, log, sent)
        storage.fault = None
        log.sync()
        assert [(offset, payload(data)) for offset, data in contents(log)] == [
            (offset, payload(data)) for offset, data in expected
        ]
        after, report = open_log(storage.killed(), published=log.log_end)
        assert report.lost is None
        assert contents(after) == contents(log)
        after, report = open_log(storage.power_cut(), boot_id="boot-2")
        assert contents(after) == contents(log)
    assert refused > 15


def test_a_write_that_fails_half_way_leaves_no_batch_behind():
    storage, log = opened()
    log.append(numbered(2), 1)

    def half_full():
        writes = []

        def fault(call):
            if call.name == "pwritev" and call.path.endswith(".log"):
                writes.append(call)
                if len(writes) == 1:
                    return -200  # one batch and a piece of the next
                if len(writes) == 2:
                    refuse(call, errno.ENOSPC)
            return None

        return fault

    for end_of_life in ("killed", "power_cut"):
        storage.fault = half_full()
        with pytest.raises(StorageError) as caught:
            log.append(numbered(3, 2), 1)
        assert caught.value.retriable
        storage.fault = None
        # Had nobody cleared them, recovery would find a whole batch that nobody was promised.
        after, report = open_log(
            getattr(storage, end_of_life)(),
            boot_id="boot-1" if end_of_life == "killed" else "boot-2",
        )
        assert report.lost is None
        assert after.log_end == (2 if end_of_life == "killed" else 0)
    assert [result.base_offset for result in log.append(numbered(3, 2), 1)] == [2, 3, 4]


def test_bytes_that_could_not_be_cleared_are_cleared_before_a_roll_closes_the_segment():
    storage, log = opened()
    log.append(numbered(1), 1)
    writes = []

    def full(call):
        if call.name == "pwritev" and call.path.endswith(".log"):
            writes.append(call)
            if len(writes) == 1:
                return -200
            refuse(call, errno.ENOSPC)
        return None

    storage.fault = full
    with pytest.raises(StorageError):
        log.append(numbered(3, 1), 1)
    with pytest.raises(StorageError):
        log.roll(1)
    assert log.segment_base == 0, "it could not be cleared, so the segment stays"
    valid, closed = log.valid_bytes, storage.names[segment_path(FOLDER, 0)]
    assert any(closed.content[valid:])
    storage.fault = None
    log.roll(1)
    assert log.segment_base == 1
    assert not any(closed.content[valid:]), "a closed segment holds no batch behind its end"
    assert errors(log.append(numbered(3, 1), 1)) == [ErrorCode.NONE] * 3


def test_bytes_that_could_not_be_cleared_are_cleared_before_the_next_write():
    storage, log = opened()
    log.append(numbered(1), 1)
    seen = []

    def worse(call):
        if call.name == "pwritev" and call.path.endswith(".log"):
            seen.append(call)
            if len(seen) == 1:
                return -300
            refuse(call, errno.ENOSPC)
        return None

    storage.fault = worse
    with pytest.raises(StorageError):
        log.append(numbered(3, 1), 1)
    assert any(storage.names[segment_path(FOLDER, 0)].content[192:])
    storage.fault = None
    log.append([make_batch(1, body=0)], 1)
    content = storage.names[segment_path(FOLDER, 0)].content
    assert not any(content[log.valid_bytes :])


def test_a_failing_device_takes_the_log_offline():
    storage, log = opened()
    log.append(numbered(3), 1)
    storage.fault = fail_at(1, errno.EIO, "pwritev")
    with pytest.raises(LogOfflineError, match="EIO") as caught:
        log.append(numbered(3, 3), 1)
    assert not caught.value.retriable
    storage.fault = None
    assert "EIO" in log.offline
    for call in (
        lambda: log.append(numbered(1, 3), 1),
        log.sync,
        lambda: LogReplica(log).truncate_to(1),
    ):
        with pytest.raises(LogOfflineError, match="EIO"):
            call()
    assert log.log_end == 3
    log.close(clean=True)
    log, report = open_log(storage.killed(), published=3)
    assert (log.log_end, report.lost) == (3, None)


def test_a_failing_index_does_not_fail_the_append():
    storage, log = opened(config=LogConfig(index_interval_bytes=64))
    storage.fault = lambda call: refuse(call, errno.EIO) if ".index" in call.path else None
    for batch in numbered(100):
        log.append([batch], 1)
    assert len(log.read(0, 1 << 20)) == 100
    storage.fault = None
    log.append(numbered(1, 100), 1)
    assert len(storage.names[f"{FOLDER}/{0:020d}.index"].content) == 100 * 16


def test_a_failing_snapshot_does_not_fail_the_roll():
    storage, log = opened()
    storage.fault = lambda call: refuse(call, errno.EIO) if "producers" in call.path else None
    log.append(numbered(1), 1)
    log.roll(1)
    assert log.segment_base == 1


def test_a_retriable_error_keeps_its_cause():
    """Whoever shows the state of a partition looks for the errno behind it."""
    storage, log = opened()
    cause = OSError(errno.ENOSPC, "no room")

    def fault(call):
        if call.name == "pwritev" and call.path.endswith(".log"):
            raise storage_error(cause, "write", call.path) from cause

    storage.fault = fault
    with pytest.raises(StorageError) as caught:
        log.append(numbered(1), 1)
    assert caught.value.retriable
    assert caught.value.__cause__ is cause


def test_a_folder_that_no_descriptor_was_free_for_is_fsynced_by_the_next_fsync():
    storage, log = opened()
    log.append(numbered(2), 1)
    log.roll(1)
    storage.fault = lambda call: refuse(call, errno.EMFILE) if call.name == "fsync_folder" else None
    with pytest.raises(StorageError) as caught:
        log.sync()
    assert caught.value.retriable
    assert (log.offline, log.durable) == ("", 0)
    log.append(numbered(2, 2), 1)
    storage.fault = None
    log.sync()
    assert log.durable == 4
    after, report = open_log(storage.power_cut(), boot_id="boot-2")
    assert (after.log_end, report.lost) == (4, None)
