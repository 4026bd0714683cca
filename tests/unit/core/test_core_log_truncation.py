"""Taking the end of a log away: what is left, and what a mapped file may see of it."""

from __future__ import annotations

import pytest
from unit.core.log_helpers import (
    FOLDER,
    contents,
    make_batch,
    numbered,
    open_log,
    opened,
)

from penstock.core.errors import (
    OffsetOutOfRangeError,
    StorageError,
)
from penstock.core.logreplica import LogReplica
from penstock.core.segment import segment_path
from penstock.core.snapshots import list_snapshots


def truncatable(flushed):
    storage, log = opened()
    for i in range(24):
        log.append([make_batch(3 * i, records=3, body=300)], 100 + i)
        if i == flushed:
            log.sync()
    return storage, log


@pytest.mark.parametrize("flushed", [None, 0, 9, 12, 23])
@pytest.mark.parametrize("offset", [0, 1, 3, 21, 24, 25, 26, 48, 69, 70, 71])
def test_truncating_leaves_the_whole_batches_below(offset, flushed):
    storage, log = truncatable(flushed)
    nodes = {name: len(node.content) for name, node in storage.names.items() if ".log" in name}
    inodes = {name: storage.names[name] for name in nodes}
    expected = [(o, data) for o, data in contents(log) if o + 3 <= offset]
    end = LogReplica(log).truncate_to(offset)
    assert end == offset // 3 * 3 == log.log_end
    assert contents(log) == expected
    assert log.durable <= end
    for name, node in inodes.items():
        assert len(node.content) >= nodes[name], "a mapped file was shrunk"
    again, report = open_log(storage.copy(), published=end)
    assert (contents(again), report.lost) == (expected, None)
    again, _ = open_log(storage.power_cut(), boot_id="boot-2")
    assert contents(again) == [(o, data) for o, data in expected if o < again.log_end]
    assert log.durable <= again.log_end <= end
    before = {name: bytes(node.content) for name, node in inodes.items() if node.content}
    [result] = log.append([make_batch(end, records=3, body=64)], 999)
    assert (result.base_offset, result.error) == (end, 0)
    assert log.segment_base == end, "readers may stand in the bytes of the file that was cut"
    cut = segment_path(FOLDER, end)
    assert all(bytes(inodes[name].content) == was for name, was in before.items() if name != cut)
    if end:
        [result] = log.append([make_batch(end - 3, records=3, body=300)], 999)
        assert (result.base_offset, result.duplicate) == (end - 3, True)


def test_a_truncation_shows_its_end_before_it_cuts_anything():
    storage, log = truncatable(12)
    before = {name: bytes(n.content) for name, n in storage.names.items() if ".log" in name}
    shown = []

    def publish(end):
        shown.append(end)
        assert {n: bytes(storage.names[n].content) for n in before} == before
        # Killed here, or before it: the next open finishes the cut, and takes it for no damage.
        after, report = open_log(storage.killed(), published=end)
        assert (after.log_end, report.reason) == (30, "truncated")

    assert LogReplica(log).truncate_to(31, publish) == 30
    assert shown == [30]


def test_snapshots_of_what_is_cut_do_not_tell_of_producers_later():
    storage, log = truncatable(None)
    log.sync()
    assert any(offset > 30 for offset in list_snapshots(storage, FOLDER))
    LogReplica(log).truncate_to(30)
    assert all(offset <= 30 for offset in list_snapshots(storage, FOLDER))
    for i in range(24):
        log.append([make_batch(3 * i, producer=2, records=3, body=300)], 500 + i)
    log, _ = open_log(storage.killed(), published=log.log_end)
    assert log.producers.next_sequence(1) == (0, 30)
    assert log.producers.next_sequence(2) == (0, 72)


def test_truncating_takes_epochs_along():
    storage, log = opened()
    log.append(numbered(4), 1)
    for boot in ("boot-2", "boot-3"):
        log.close(clean=False)
        log, _ = open_log(storage, boot_id=boot)
        log.append(numbered(4, log.log_end), 1)
    assert log.epochs.entries == ((1, 0), (2, 4), (3, 8))
    LogReplica(log).truncate_to(6)
    assert log.epochs.entries == ((1, 0), (2, 4), (3, 6))
    assert log.epochs.end_offset(2, log.log_end) == (2, 6)


def test_truncating_beyond_either_end():
    _, log = truncatable(None)
    assert LogReplica(log).truncate_to(72) == 72
    assert LogReplica(log).truncate_to(9999) == 72
    with pytest.raises(OffsetOutOfRangeError):
        LogReplica(log).truncate_to(-1)


def test_truncating_waits_for_a_sync():
    _, log = truncatable(None)
    job = log.begin_sync()
    with pytest.raises(StorageError, match="under way") as caught:
        LogReplica(log).truncate_to(3)
    assert caught.value.retriable
    job.run()
    log.finish_sync(job)
    assert LogReplica(log).truncate_to(3) == 3
