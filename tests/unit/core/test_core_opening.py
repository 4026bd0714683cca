"""What opening and closing a log costs the device: partitions are many, and syncs are slow."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace

import pytest
from unit.core.log_helpers import (
    FOLDER,
    SMALL,
    MemoryStorage,
    contents,
    errors,
    fail_at,
    numbered,
    open_log,
    opened,
)

from penstock.core.errors import ErrorCode, LogOfflineError, StorageError

SYNCS = ("fsync", "fdatasync", "fsync_folder")


def syncs(storage: MemoryStorage) -> Counter[str]:
    """Syncs so far, and the slate is clean after."""
    found = Counter(f"{call.name} {call.path}" for call in storage.log if call.name in SYNCS)
    storage.log.clear()
    return found


def closed_clean() -> MemoryStorage:
    """A log of three batches."""
    storage, log = opened()
    log.append(numbered(3), 1)
    log.close(clean=True)
    return storage


@pytest.mark.parametrize("is_there", [False, True], ids=["no folder", "a folder"])
def test_a_new_log_fsyncs_its_epoch_and_its_point_and_their_names(is_there):
    storage = MemoryStorage()
    if is_there:  # the node makes the folders of a topic all at once
        storage.makedirs(FOLDER)
    open_log(storage)
    assert syncs(storage) == Counter(
        {
            f"fsync {FOLDER}/epochs.tmp": 1,
            f"fsync {FOLDER}/recovery-point.tmp": 1,
            f"fsync_folder {FOLDER}": 2,
            **({} if is_there else {"fsync_folder /data": 1}),
        }
    )


def test_a_log_that_nothing_happened_to_is_opened_and_closed_without_a_change():
    storage = closed_clean()
    files = {path: bytes(node.content) for path, node in storage.names.items()}
    for generation in (2, 3):
        syncs(storage)
        log, report = open_log(storage, generation=generation, node_clean=True)
        assert report.reason == "clean"
        log.close(clean=True)
        assert not syncs(storage)
        assert {path: bytes(node.content) for path, node in storage.names.items()} == files


@pytest.mark.parametrize("change", ["append", "roll", "crash", "reboot"])
def test_a_log_that_something_happened_to_is_closed_as_ever(change):
    storage = closed_clean()
    if change == "crash":  # the node was not shut down cleanly
        log, _ = open_log(storage, generation=2)
    else:
        boot = "boot-2" if change == "reboot" else "boot-1"
        log, _ = open_log(storage, generation=2, node_clean=True, boot_id=boot)
    if change == "append":
        log.append(numbered(1, start=3), 5)
    elif change == "roll":
        log.roll(5)
    end = log.log_end
    log.close(clean=True)
    log, report = open_log(storage.power_cut(), generation=3, node_clean=True, boot_id="boot-3")
    assert (log.log_end, report.reason) == (end, "clean")
    assert log.durable == end


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_open_that_fails_at_any_call_keeps_no_file_open_and_can_be_tried_again(code, boot):
    """The last segment is over its age, so that opening it begins another one."""
    storage, log = opened(config=replace(SMALL, segment_age=1.0))
    log.append(numbered(3), 1)
    log.sync()
    log.append(numbered(3, 3), 1)
    log.close(clean=False)
    options = {"generation": 2, "boot_id": boot, "now_us": 9_000_000}
    number = 0
    while True:
        number += 1
        tried = storage.killed()
        tried.fault = fail_at(number, code)
        try:
            log, _ = open_log(tried, config=replace(SMALL, segment_age=1.0), **options)
        except (StorageError, LogOfflineError):
            assert not tried.open_files
            tried.fault = None
            log, _ = open_log(tried, config=replace(SMALL, segment_age=1.0), **options)
        if tried.calls < number:
            break
        tried.fault = None
        assert errors(log.append(numbered(1, 6), 10_000_000)) == [ErrorCode.NONE]
        assert [offset for offset, _ in contents(log)] == list(range(7))
        log.close(clean=True)
        assert not tried.open_files
    assert number > 5
