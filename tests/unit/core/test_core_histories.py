"""Random lives of a log, with deaths, power cuts, full and failing devices and truncations, held
against a model. PENSTOCK_HISTORIES sets how many are lived; a failure names its seed.

    after        every batch below this is there      and nothing that the model does not know
    a kill       the published log end
    a power cut  the durable end
    (a truncation that was under way may or may not have happened)
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

import pytest
from unit.core.log_helpers import (
    Call,
    Crash,
    Fault,
    MemoryStorage,
    contents,
    crash_at,
    make_batch,
    open_log,
    payload,
    refuse,
)

from penstock.core.errors import LogOfflineError, StorageError
from penstock.core.log import Log, LogConfig
from penstock.core.logreplica import LogReplica

HISTORIES = int(os.environ.get("PENSTOCK_HISTORIES", "100"))
STEPS = 50
ACTIONS = ["append"] * 6 + ["sync"] * 2 + ["append during sync", "roll", "truncate", "snapshot"]
ENDS = ["kill", "power cut", "restart"]


class History:
    """One life after the other on the same data folder."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.config = LogConfig(
            segment_bytes=rng.choice([1024, 2048, 8192]),
            index_interval_bytes=rng.choice([64, 256, 1024]),
            preallocate_bytes=rng.choice([0, 512, 4096]),
            batch_bytes_max=4096,
            snapshot_batches=rng.choice([3, 20]),
            producer_batches_kept=rng.choice([2, 128]),
            flush=rng.choice(["os", "batch"]),
        )
        self.storage = MemoryStorage()
        self.log: Log | None = None
        self.boot = self.generation = 1
        self.clock = 100
        self.epoch = 0
        self.model: list[tuple[int, bytes]] = []
        self.in_flight: list[tuple[int, bytes]] = []
        self.published: int | None = None  # None: not known in this boot
        self.durable = 0
        self.truncating: int | None = None

    def live(self) -> None:
        for _ in range(STEPS):
            if self.log is None and not self.open():
                continue
            if self.storage.fault is None and self.rng.random() < 0.3:
                self.storage.fault = self.some_fault()
            try:
                self.step()
            except Crash:
                self.die(power=self.rng.random() < 0.5)
            except LogOfflineError:
                self.give_up()

    # ---- starting

    def open(self) -> bool:
        try:
            log, report = open_log(
                self.storage,
                config=self.config,
                boot_id=f"boot-{self.boot}",
                generation=self.generation,
                published=self.published,
            )
        except Crash:
            self.die(power=self.rng.random() < 0.5)
            return False
        except StorageError:
            assert self.storage.fault is not None, "a healthy device refused"
            self.storage.fault = None
            return False
        self.generation += 1
        found = [(offset, payload(data)) for offset, data in contents(log)]
        assert found == (self.model + self.in_flight)[: len(found)]
        floor = self.durable if self.published is None else self.published
        if self.truncating is not None:
            floor = min(floor, self.truncating)
        assert log.log_end >= floor, report
        assert log.log_start <= log.durable <= log.log_end
        assert log.leader_epoch >= self.epoch
        self.log, self.epoch = log, log.leader_epoch
        self.model, self.in_flight, self.truncating = found, [], None
        self.published, self.durable = log.log_end, log.durable
        return True

    def some_fault(self) -> Fault | None:
        rng, now = self.rng, self.storage.calls
        kind = rng.random()
        if kind < 0.45:
            return crash_at(now + rng.randrange(1, 40), rng.choice([None, 0, 64, 100, 300]))
        first = now + rng.randrange(1, 20)
        if kind < 0.6:
            return failing(errno.ENOSPC, range(first, first + 1), lambda c: "folder" not in c.name)
        if kind < 0.75:
            names = ("fdatasync", "fsync", "pwritev")
            calls = range(first, first + rng.choice([1, 1, 2, 5]))
            return failing(errno.EIO, calls, lambda call: call.name in names)
        return None

    # ---- dying

    def die(self, *, power: bool) -> None:
        if self.truncating is not None:
            self.durable = min(self.durable, self.truncating)
        if power:
            self.storage = self.storage.power_cut(self.rng)
            self.boot += 1
            self.published = None
        else:
            self.storage = self.storage.killed()
        self.log = None

    def give_up(self) -> None:
        """The log went offline: what its process does is to end."""
        assert self.log is not None
        assert self.log.offline
        self.die(power=self.rng.random() < 0.3)

    # ---- living

    def step(self) -> None:
        log, action = self.log, self.rng.choice(ACTIONS + ENDS)
        assert log is not None
        if action == "append":
            self.append(log)
        elif action == "append during sync":
            job = log.begin_sync()
            self.append(log)
            if job is not None:
                job.run()
                log.finish_sync(job)
                self.durable = log.durable
        elif action == "sync":
            log.sync()
            assert log.durable == log.log_end
            self.durable = log.durable
        elif action == "truncate":
            self.truncate(log)
        elif action == "snapshot":
            log.snapshot()
        elif action == "roll":
            try:
                log.roll(self.clock)
            except LogOfflineError:
                raise
            except StorageError as error:
                assert error.retriable  # noqa: PT017
        elif action == "restart":
            log.close(clean=True)
            self.durable = self.published = log.log_end
            self.log, self.storage.fault = None, None
            return
        else:
            self.die(power=action == "power cut")
            return
        assert [(offset, payload(data)) for offset, data in contents(log)] == self.model

    def append(self, log: Log) -> None:
        rng, end = self.rng, log.log_end
        call: list[memoryview] = []
        known: dict[int, tuple[int, int]] = {}
        for _ in range(rng.randrange(1, 4)):
            producer = rng.randrange(1, 3)
            epoch, sequence = known.get(producer) or log.producers.next_sequence(producer) or (0, 0)
            if rng.random() < 0.05:
                epoch, sequence = epoch + 1, 0
            records = rng.randrange(1, 4)
            body = bytes([rng.randrange(1, 256)]) * rng.choice([0, 10, 64, 200, 500])
            batch = make_batch(sequence, producer=producer, epoch=epoch, records=records, body=body)
            known[producer] = epoch, sequence + records
            call.append(batch)
            self.in_flight.append((end, payload(batch)))
            end += records
        self.clock += 1
        try:
            results = log.append(call, self.clock)
        except LogOfflineError:
            raise
        except StorageError as error:
            assert error.retriable  # noqa: PT017
            assert log.log_end == self.published
            self.in_flight = []
            return
        assert [(result.error, result.duplicate) for result in results] == [(0, False)] * len(call)
        self.model += self.in_flight
        self.in_flight = []
        self.published = log.log_end

    def publish(self, end: int) -> None:
        assert end == self.truncating
        self.published = end

    def truncate(self, log: Log) -> None:
        if log.log_end == log.log_start:
            return
        target = self.rng.randrange(max(0, log.log_end - 20), log.log_end + 1)
        end = max([o for o, _ in self.model if o <= target] if target < log.log_end else [target])
        self.truncating = end
        assert LogReplica(log).truncate_to(target, self.publish) == end == log.log_end
        self.model = [(offset, data) for offset, data in self.model if offset < end]
        self.truncating = None
        self.published = end
        self.durable = log.durable


def failing(code: int, numbers: range, when: Callable[[Call], bool]) -> Fault:
    def fault(call: Call) -> int | None:
        if call.number in numbers and when(call):
            refuse(call, code)
        return None

    return fault


@pytest.mark.parametrize("part", range(4))
def test_invariant_2_no_history_loses_or_revives_a_batch(part):
    for seed in range(part, HISTORIES, 4):
        try:
            History(seed).live()
        except BaseException as error:
            error.add_note(f"seed {seed}: History({seed}).live()")
            raise
