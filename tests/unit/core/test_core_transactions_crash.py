"""Transactions with a death or a power cut in every storage call, and an error in each."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest
from unit.core.compacting import compaction, keyed
from unit.core.log_helpers import (
    FOLDER,
    SMALL,
    Crash,
    MemoryStorage,
    abort,
    begin,
    commit,
    crash_at,
    fail_at,
    make_batch,
    open_log,
)

from penstock.core.aborted import decode_aborted, txn_path
from penstock.core.control import ControlType, control_of
from penstock.core.errors import StorageError
from penstock.core.header import ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchHeader
from penstock.core.log import Log
from penstock.core.segment import list_segments, segment_path

CONFIG = SMALL


def within(sequence: int, epoch: int = 0, *, producer: int = 1, body: int = 10) -> memoryview:
    """A batch of a transaction, of a key of its own."""
    pairs = [(b"%d-%d-%d" % (producer, epoch, sequence), bytes(body))]
    return keyed(pairs, sequence, producer, producer_epoch=epoch, attributes=ATTR_TRANSACTIONAL)


STEPS = 14


def live(storage: MemoryStorage, log: Log, done: list[int]) -> None:
    """Transactions, aborted and committed, over several segments, with syncs, a trim and a
    compaction. `done`: epochs of producer 1 whose marker was answered."""
    log.append([begin(0, producer=2), within(0, producer=2, body=600)], 1)
    for epoch in range(STEPS):
        log.append([begin(epoch)], 10 + epoch)
        log.append([within(0, epoch, body=400)], 10 + epoch)
        log.append([(abort if epoch % 2 else commit)(epoch)], 10 + epoch)
        done.append(epoch)
        if epoch == 5:
            log.append([abort(0, producer=2)], 20)
            log.sync()
        if epoch == 9:
            log.sync()
            for prepared in compaction(storage, log).prepare():
                log.swap(prepared)
            log.trim(4)
            log.append([begin(1, producer=2), within(0, 1, producer=2)], 30)
    log.close(clean=True)


def heads_of(log: Log) -> list[BatchHeader]:
    first = log.chain.bases[0]
    return [head for head, _ in log.read(max(first, log.log_start), 1 << 40)]


def check(storage: MemoryStorage, log: Log, *, since: int = 0) -> None:
    """What is noted of aborts is what the log says, and what is open holds the readers back."""
    paths = [txn_path(FOLDER, base) for base in list_segments(storage, FOLDER)]
    noted = [each for path in paths for each in decode_aborted(storage.read_file(path) or b"")]
    heads = heads_of(log)
    controls = [
        (head.base_offset, control_of(head)) for head in heads if head.attributes & ATTR_CONTROL
    ]
    aborts = {offset: (c.producer_id, c.epoch) for offset, c in controls
              if c.type is ControlType.ABORT}  # fmt: skip
    found = {each.last_offset: (each.producer_id, each.epoch) for each in noted}
    assert len(found) == len(noted)
    assert aborts.items() <= found.items()
    assert all(offset < log.log_end for offset in found)
    undecided: dict[int, int] = {}
    for head in heads:
        if head.attributes & ATTR_CONTROL:
            undecided.pop(head.producer_id, None)
        elif head.attributes & ATTR_TRANSACTIONAL:
            undecided.setdefault(head.producer_id, head.base_offset)
    assert log.last_stable <= min([log.log_end, *undecided.values()])
    assert undecided.keys() <= {
        producer for producer in (1, 2) if log.producers.transactions.get(producer)
    }


def goes_on(storage: MemoryStorage, log: Log) -> None:
    """Whatever is open can be ended, and a new one begun."""
    for producer in (1, 2):
        is_open = log.producers.transactions.get(producer)
        if is_open is not None:
            (answer,) = log.append([abort(is_open.epoch, producer=producer)], 100)
            assert not answer.error
        epoch, _ = log.producers.next_sequence(producer) or (0, 0)
        results = log.append(
            [begin(epoch, producer=producer), within(0, epoch, producer=producer)], 101
        )
        assert not any(result.error for result in results), results
        log.append([commit(epoch, producer=producer)], 102)
    assert log.last_stable == log.log_end
    check(storage, log)


def total_calls() -> int:
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG)
    start = storage.calls
    live(storage, log, [])
    assert len(list_segments(storage, FOLDER)) > 2
    return storage.calls - start


CALLS = total_calls()


@pytest.mark.parametrize("partly", [None, 30])
def test_a_death_in_every_call(partly):
    for number in range(1, CALLS + 1):
        storage = MemoryStorage()
        log, _ = open_log(storage, config=CONFIG)
        storage.fault = crash_at(storage.calls + number, partly)
        done: list[int] = []
        with contextlib.suppress(Crash):
            live(storage, log, done)
        seed = random.Random(number)
        for after, boot in (
            (storage.killed(), "boot-1"),
            (storage.power_cut(), "boot-2"),
            (storage.power_cut(seed), "boot-2"),
        ):
            again, _ = open_log(after, config=CONFIG, boot_id=boot, generation=2)
            check(after, again)
            if boot == "boot-1" and done:
                epoch, _ = again.producers.next_sequence(1) or (0, 0)
                assert epoch > done[-1]
            goes_on(after, again)
            again.close(clean=False)
            once_more, _ = open_log(after.killed(), config=CONFIG, boot_id=boot, generation=3)
            assert once_more.last_stable == once_more.log_end


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_in_every_call(code):
    for number in range(1, CALLS + 1):
        storage = MemoryStorage()
        log, _ = open_log(storage, config=CONFIG)
        storage.fault = fail_at(number, code)
        with contextlib.suppress(StorageError):
            live(storage, log, [])
        storage.fault = None
        again, _ = open_log(storage.killed(), config=CONFIG, generation=2)
        check(again.storage, again)  # type: ignore[arg-type]
        goes_on(again.storage, again)  # type: ignore[arg-type]


def test_what_a_killed_writer_noted_of_aborts_outlives_the_power_cut_behind_its_successors_sync():
    """No recovery looks for it again below the recovery point that the successor writes."""
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG)
    log.append([begin(0), within(0), abort(0)], 1)
    storage = storage.killed()
    log, _ = open_log(storage, config=CONFIG, generation=2)
    log.roll(2)  # with a snapshot
    for sequence in range(2):  # the second sync takes the recovery point of the first along
        log.append([make_batch(sequence, producer=3)], 3)
        log.sync()
    after = storage.power_cut()
    log, report = open_log(after, config=CONFIG, boot_id="boot-2", generation=3)
    assert (log.log_end, report.batches_scanned) == (5, 1)
    check(after, log)


def test_what_was_noted_of_a_marker_that_a_power_cut_took_goes_with_it():
    """The note may come to the device ahead of the log."""
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG)
    log.append([begin(0, producer=2), within(0, producer=2), abort(0, producer=2)], 1)
    log.trim(3)
    log.append([begin(0), within(0)], 1)
    log.close(clean=True)  # with a snapshot, so that nothing is replayed at the next open
    log, _ = open_log(storage, config=CONFIG, node_clean=True)
    end = log.valid_bytes
    log.append([abort(0)], 2)
    storage.names[txn_path(FOLDER, 3)].sync()  # by the kernel itself, and so the folder
    storage.fsync_folder(FOLDER)
    after = storage.power_cut()
    after.names[segment_path(FOLDER, 3)].content[end : end + 64] = b"torn" * 16
    log, report = open_log(after, config=CONFIG, boot_id="boot-2", generation=2)
    assert (log.log_end, report.reason, report.batches_scanned) == (5, "cut", 0)
    check(after, log)
    goes_on(after, log)
