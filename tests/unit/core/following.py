"""A leader's log with a busy past, and what a copy of it has to agree with, for the tests of
replicated logs."""

from __future__ import annotations

import random
from typing import Any

from unit.core.log_helpers import (
    FOLDER,
    MemoryStorage,
    abort,
    begin,
    commit,
    make_batch,
    open_log,
    within,
)

from penstock.core.aborted import Aborted, decode_aborted, txn_path
from penstock.core.log import Log, RecoveryReport
from penstock.core.logreplica import LogReplica
from penstock.core.segment import list_segments

PLAIN, TRANSACTIONAL = (1, 2, 3), (11, 12)


def open_replica(storage: MemoryStorage, **options: Any) -> tuple[Log, RecoveryReport]:
    return open_log(storage, **{"replicated": True, **options})


def led(epoch: int = 1, **options: Any) -> tuple[MemoryStorage, Log]:
    """A new replicated log that leads."""
    storage = MemoryStorage()
    log, _ = open_replica(storage, **options)
    LogReplica(log).lead(epoch)
    return storage, log


def batches_from(log: Log, offset: int, bytes_max: int = 1 << 40) -> list[memoryview]:
    """What a leader sends who is asked for that offset."""
    return [memoryview(data) for _, data in log.read(offset, bytes_max)]


class Traffic:
    """Producers that write to whatever log leads, in plain batches and in transactions."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.at = 1_000_000
        self.sent: list[memoryview] = []
        """Since the last call of `lost`, in order: what a producer would send again."""

    def write(self, log: Log, count: int = 1) -> None:
        for _ in range(count):
            self.at += self.chance.choice([1, 1_000, 50_000])
            batch = self.next_of(log)
            (result,) = log.append([batch], self.at)
            assert not result.error, result
            self.sent.append(batch)

    def next_of(self, log: Log) -> memoryview:
        chance, producers = self.chance, log.producers
        body = chance.choice([0, 64, 300, 900])
        if chance.random() < 0.5:
            producer = chance.choice(PLAIN)
            epoch, sequence = producers.next_sequence(producer) or (0, 0)
            if chance.random() < 0.05:
                epoch, sequence = epoch + 1, 0
            return make_batch(
                sequence, producer=producer, epoch=epoch, records=chance.randint(1, 4), body=body
            )
        producer = chance.choice(TRANSACTIONAL)
        epoch, sequence = producers.next_sequence(producer) or (0, 0)
        if producers.transactions.get(producer) is None:
            return begin(epoch, producer=producer)
        if chance.random() < 0.6:
            return within(sequence, epoch, producer=producer, body=body)
        return chance.choice([commit, abort])(epoch, producer=producer)


def noted(storage: MemoryStorage, log: Log, start: int = 0) -> list[Aborted]:
    """The aborted transactions that are noted with markers from `start` on."""
    bases = list_segments(storage, FOLDER)
    files = [storage.read_file(txn_path(FOLDER, base)) for base in bases]
    entries = [each for data in files for each in decode_aborted(data or b"")]
    return [each for each in entries if each.last_offset >= start]


def check_same(mine: tuple[MemoryStorage, Log], leaders: tuple[MemoryStorage, Log]) -> None:
    """A copy says of everything from its start on what the leader does."""
    (storage, log), (leader_storage, leader) = mine, leaders
    start, end = max(log.log_start, leader.log_start), leader.log_end
    assert log.log_end == end
    assert batches_from(log, start) == batches_from(leader, start)
    assert log.producers.encode(end) == leader.producers.encode(end)
    assert log.oldest_open == leader.oldest_open
    assert max(start, log.last_stable) == max(start, leader.last_stable)
    assert noted(storage, log, start) == noted(leader_storage, leader, start)
    for epoch, _ in leader.epochs.entries:
        ends = [each.epochs.end_offset(epoch, end) for each in (log, leader)]
        if ends[1] is not None and start < ends[1][1] and ends[0] is not None:
            assert ends[0][1] == ends[1][1], (epoch, log.epochs.entries, leader.epochs.entries)
