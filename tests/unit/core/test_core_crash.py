"""A process that dies, or a power cut, in every single system call of a log's life.

One history of a log is run against a storage that crashes in call n, for every n and in several
ways; the next process then has to find all that was promised, to answer every repeated batch as
before, and to go on. The same for the recovery itself (invariant 9).
"""

from __future__ import annotations

import random

import pytest
from unit.core.log_helpers import (
    Crash,
    MemoryStorage,
    contents,
    crash_at,
    make_batch,
    open_log,
    payload,
)

from penstock.core.errors import ErrorCode
from penstock.core.log import Log, LogConfig
from penstock.core.logreplica import LogReplica

CONFIG = LogConfig(
    segment_bytes=2048,
    index_interval_bytes=256,
    preallocate_bytes=512,
    batch_bytes_max=2048,
    snapshot_batches=5,
)
SEEDS = range(3)


def sent_batches():
    """(producer, calls): what two producers send, in the order of the calls."""
    calls, sequence = [], {1: 0, 2: 0}
    for i in range(16):
        call = []
        for producer in ((1,), (2,), (1, 2, 1))[i % 3]:
            records = 1 + (i + producer) % 3
            body = bytes([1 + i]) * (64 * (i % 4) + 40)
            call.append(
                make_batch(sequence[producer], producer=producer, records=records, body=body)
            )
            sequence[producer] += records
        calls.append(call)
    return calls


CALLS = sent_batches()


class Life:
    """A history, and what it was promised so far."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.storage = storage
        self.log: Log | None = None
        self.published = 0
        self.durable = 0
        self.epoch = 0
        self.appended: list[tuple[int, memoryview]] = []

    def open(self, **options) -> None:
        self.log, _ = open_log(self.storage, config=CONFIG, **options)
        self._note()

    def _note(self) -> None:
        assert self.log is not None
        self.published = self.log.log_end
        self.durable = self.log.durable
        self.epoch = self.log.leader_epoch

    def run(self) -> None:
        self.open()
        assert self.log is not None
        for i, call in enumerate(CALLS):
            results = self.log.append(call, 100 + i)
            self.appended += [(r.base_offset, b) for r, b in zip(results, call, strict=True)]
            self._note()
            if i in (3, 8, 12):
                job = self.log.begin_sync()
                assert job is not None
                if i == 8:
                    self.log.roll(100 + i)
                job.run()
                self.log.finish_sync(job)
                self._note()
            if i == 6:
                self.log.close(clean=True)
                self.open(generation=2, node_clean=True, published=self.published)
            if i == 10:
                self.log.snapshot()
        self.log.close(clean=True)
        self._note()


def calls_of_a_life() -> int:
    storage = MemoryStorage()
    Life(storage).run()
    return storage.calls


TOTAL = calls_of_a_life()


def crashed(number, written=None):
    storage = MemoryStorage()
    storage.fault = crash_at(number, written)
    life = Life(storage)
    with pytest.raises(Crash):
        life.run()
    return life


def check(life, log, *, at_least):
    """Everything promised is there, nothing else is, and every producer can go on exactly."""
    found = [(offset, payload(data)) for offset, data in contents(log)]
    promised = [(o, payload(b)) for o, b in life.appended if o < at_least]
    assert found[: len(promised)] == promised
    every = [payload(batch) for call in CALLS for batch in call]
    assert [data for _, data in found] == every[: len(found)]
    assert log.log_end >= at_least
    # The lanes are drained again from the start: what is there is answered as it was, the rest
    # is appended, and each batch stands in the log once.
    known = dict(life.appended_by_payload())
    results = [result for call in CALLS for result in log.append(call, 5_000)]
    assert {result.error for result in results} == {ErrorCode.NONE}
    assert [result.duplicate for result in results] == [True] * len(found) + [False] * (
        len(results) - len(found)
    )
    for result, batch in zip(results, every, strict=True):
        if batch in known and result.duplicate:
            assert result.base_offset == known[batch]
    assert [payload(data) for _, data in contents(log)] == every


def appended_by_payload(self):
    return [(payload(batch), offset) for offset, batch in self.appended]


Life.appended_by_payload = appended_by_payload  # type: ignore[attr-defined]


@pytest.mark.parametrize("written", [None, 0, 70, 200])
def test_invariant_2_a_process_may_die_in_any_call(written):
    for number in range(1, TOTAL + 1):
        life = crashed(number, written)
        storage = life.storage.killed()
        log, report = open_log(
            storage, config=CONFIG, generation=3, published=life.published or None
        )
        assert report.lost is None or report.lost[0] >= life.published
        check(life, log, at_least=life.published)
        log.close(clean=True)
        again, report = open_log(storage, config=CONFIG, generation=3, node_clean=True)
        assert (report.batches_scanned, report.lost) == (0, None)
        assert contents(again) == contents(log)


@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_invariant_2_the_power_may_go_in_any_call(seed):
    for number in range(1, TOTAL + 1):
        life = crashed(number, None if seed is None else seed * 90)
        chance = None if seed is None else random.Random(f"{seed}/{number}")
        log, report = open_log(life.storage.power_cut(chance), config=CONFIG, boot_id="boot-2")
        assert life.durable <= log.log_end
        assert log.durable == log.log_end
        if life.epoch and report.reason != "created":
            assert log.leader_epoch > life.epoch
        check(life, log, at_least=life.durable)


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_invariant_9_a_recovery_may_be_killed_in_any_call(boot):
    rng = random.Random(20)
    for number in sorted(rng.sample(range(1, TOTAL + 1), 25)):
        life = crashed(number, 90)
        published = (life.published or None) if boot == "boot-1" else None
        torn = (
            life.storage.killed()
            if boot == "boot-1"
            else life.storage.power_cut(random.Random(number))
        )
        options = {"config": CONFIG, "boot_id": boot, "generation": 3, "published": published}
        storage = torn.copy()
        log, _ = open_log(storage, **options)
        expected = contents(log)
        for step in range(1, storage.calls + 1):
            for written in (None, 40):
                storage = torn.copy()
                storage.fault = crash_at(step, written)
                with pytest.raises(Crash):
                    open_log(storage, **options)
                log, _ = open_log(storage.killed(), **options)
                assert contents(log) == expected, (number, step, written)
                # and a power cut instead of the kill takes nothing that was durable
                later, _ = open_log(
                    storage.power_cut(random.Random(step)), config=CONFIG, boot_id="boot-3"
                )
                durable = life.durable
                assert later.log_end >= durable
                assert contents(later)[: len(expected)] == expected[: len(contents(later))]
        check(life, log, at_least=life.published if boot == "boot-1" else life.durable)


def truncatable():
    """A log of two epochs that is to be truncated to 13, the beginning of its epoch 2 behind that;
    and what its page shows."""
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG)
    for i, call in enumerate(CALLS):
        if i == 8:
            log.close(clean=True)
            log, _ = open_log(storage, config=CONFIG, boot_id="boot-2")
        log.append(call, i)
    assert log.epochs.entries[-1][1] > 13
    page = [log.log_end]
    return storage, log, page


def calls_of_a_truncation():
    storage, log, page = truncatable()
    first = storage.calls + 1
    LogReplica(log).truncate_to(13, page.append)
    return range(first, storage.calls + 1)


@pytest.mark.parametrize("written", [None, 64, 512])
def test_a_truncation_may_be_killed_in_any_call_and_nothing_truncated_returns(written):
    storage, log, page = truncatable()
    kept = contents(log)
    end = LogReplica(log).truncate_to(13, page.append)
    assert page[-1] == end
    for number in calls_of_a_truncation():
        storage, log, page = truncatable()
        epoch = log.leader_epoch
        storage.fault = crash_at(number, written)
        with pytest.raises(Crash):
            LogReplica(log).truncate_to(13, page.append)
        storage = storage.killed()
        log, report = open_log(
            storage, config=CONFIG, boot_id="boot-2", generation=2, published=page[-1]
        )
        assert report.lost is None
        # Its offsets are given out again, by somebody who is not the leader of that epoch any more.
        assert log.leader_epoch == epoch + (report.reason == "truncated")
        done = report.reason == "truncated" or log.log_end == end
        assert contents(log) == (kept[: sum(o < end for o, _ in kept)] if done else kept)
        # Other batches come in their place. Whatever a power cut leaves, it is not the old ones.
        was = contents(log)
        log.append([make_batch(0, producer=9, body=b"new" * 100)], 99)
        now = contents(log)
        for seed in range(4):
            chance = random.Random(f"{number}/{seed}") if seed else None
            after, _ = open_log(storage.power_cut(chance), config=CONFIG, boot_id="boot-3")
            assert contents(after) == now[: len(contents(after))]
        # And what is durable from then on is not taken by the truncation once more.
        log.sync()
        after, _ = open_log(storage.power_cut(), config=CONFIG, boot_id="boot-3")
        assert contents(after) == now
        assert len(now) == len(was) + 1
