"""Random lives of a log that is appended to, trimmed, retained and compacted, with deaths and power
cuts in any call, held against a plain list of batches and a plain dict of keys.

    at every moment                 every record read is the one that was written at its offset
                                    replaying what is read gives the dict of the newest values
                                    a tombstone that is gone has not left anything older behind
                                    what no compaction has seen is there without exception
    after a kill                    the log reaches what was published, and starts there too
    after a power cut               it reaches what was durable

PENSTOCK_HISTORIES sets how many lives are lived.
"""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from unit.core.compacting import Pair, compaction, keyed, records
from unit.core.log_helpers import FOLDER, Crash, MemoryStorage, crash_at, open_log

from penstock.core.log import Log, LogConfig
from penstock.core.retention import expired, segment_facts
from penstock.core.segment import list_segments
from penstock.logcheck import CheckedPartition, check_partition

LIVES = int(os.environ.get("PENSTOCK_HISTORIES", "100"))
SECOND = 1_000_000

KEYS = st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c", b"d", b"e"]))
VALUES = st.one_of(st.none(), st.sampled_from([b"", b"1", b"2" * 40, b"3" * 200]))
PAIRS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
PRODUCERS = st.integers(1, 3)
FRACTION = st.floats(0, 1)


class Life(RuleBasedStateMachine):
    """`batches` is the plain list: (base offset, producer, pairs) of all that was ever appended and
    is still part of the log, also below its start."""

    @initialize(
        segment_bytes=st.sampled_from([700, 1500, 4000]),
        preallocate=st.sampled_from([0, 1024]),
        kept=st.sampled_from([1, 128]),
    )
    def begin(self, segment_bytes: int, preallocate: int, kept: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=256,
            preallocate_bytes=preallocate,
            producer_batches_kept=kept,
            snapshot_batches=7,
        )
        self.storage = MemoryStorage()
        self.boot = self.generation = 1
        self.clock = 10 * SECOND
        self.batches: list[tuple[int, int, list[Pair]]] = []
        self.in_flight: list[tuple[int, int, list[Pair]]] = []
        self.start = self.end = self.durable = 0
        self.starts = {0}
        self.seen_by_cleaner = 0
        self.log: Log | None = None
        self.open(published=None, clean=True)

    # ---- the model

    @property
    def written(self) -> dict[int, Pair]:
        return {base + i: pair for base, _, pairs in self.batches for i, pair in enumerate(pairs)}

    def sequence(self, producer: int) -> int:
        return sum(len(pairs) for _, who, pairs in self.batches if who == producer)

    @invariant()
    def holds(self) -> None:
        if self.log is None:
            return
        log = self.log
        assert (log.log_start, log.log_end) == (self.start, self.end)
        assert self.start <= log.durable <= self.end
        found, written = records(log), self.written
        assert all(written[offset] == pair for offset, pair in found.items())
        untouched = {o for o in written if o >= max(self.start, self.seen_by_cleaner)}
        assert untouched <= found.keys()
        assert {o for o, (k, _) in written.items() if k is None and o >= self.start} <= found.keys()
        newest: dict[bytes | None, int] = {}
        newest.update((key, offset) for offset, (key, _) in sorted(written.items()))
        for key, offset in newest.items():
            if key is None or offset < self.start:
                continue
            older = [o for o, (k, _) in found.items() if k == key and o < offset]
            if offset not in found:
                assert written[offset][1] is None, f"the newest of {key!r} is lost"
                assert not older, f"{key!r} is revived"
        replayed: dict[bytes | None, bytes | None] = {}
        replayed.update(pair for _, pair in sorted(found.items()))
        wanted = {k: written[o][1] for k, o in newest.items() if k is not None and o >= self.start}
        assert {k: v for k, v in replayed.items() if v is not None and k in wanted} == {
            k: v for k, v in wanted.items() if v is not None
        }
        for producer in (1, 2, 3):
            sequence = self.sequence(producer)
            assert log.producers.next_sequence(producer) == ((0, sequence) if sequence else None)

    # ---- dying and opening

    def guarded(self, work: Any) -> bool:
        """Do it; False if the process died in it."""
        try:
            work()
        except Crash:
            self.die()
            return False
        return True

    def die(self) -> None:
        self.log = None

    def open(self, *, published: int | None, clean: bool = False) -> None:
        log, report = open_log(
            self.storage,
            config=self.config,
            boot_id=f"boot-{self.boot}",
            generation=self.generation,
            published=published,
            node_clean=clean,
            now_us=self.clock,
        )
        self.generation += 1
        possible = self.batches + self.in_flight
        ends = {0, *(base + len(pairs) for base, _, pairs in possible)}
        assert log.log_end in ends, report
        assert log.log_end >= (self.durable if published is None else published), report
        assert log.log_start in self.starts, report
        self.batches = [batch for batch in possible if batch[0] < log.log_end]
        self.in_flight = []
        self.start, self.end, self.durable = log.log_start, log.log_end, log.durable
        self.starts = {self.start}
        self.log = log
        assert not [n for n in self.storage.names if n.endswith((".cleaned", ".swap", ".tmp"))]
        checked = check_partition(CheckedPartition(FOLDER, "t-0", None), self.storage)
        # Of what only saves time a power cut may leave anything: it is checked before it is used.
        assert not [found for found in checked.errors if found.kind not in ("snapshot", "index")]

    @precondition(lambda self: self.log is None)
    @rule(power=st.booleans(), seed=st.integers(0, 1 << 16), dies=st.integers(0, 60))
    def come_back(self, power: bool, seed: int, dies: int) -> None:
        if power:
            self.storage = self.storage.power_cut(random.Random(seed) if seed else None)
            self.boot += 1
        else:
            self.storage = self.storage.killed()
        published = None if power else self.end
        if dies % 2:
            self.storage.fault = crash_at(self.storage.calls + dies)
        try:
            self.open(published=published)
        except Crash:
            # The next life knows of the page only if this boot goes on.
            self.end = self.durable if power else self.end
            return
        self.storage.fault = None

    @precondition(lambda self: self.log is not None)
    @rule(after=st.integers(1, 45), written=st.sampled_from([None, 0, 70, 300]))
    def soon_die(self, after: int, written: int | None) -> None:
        self.storage.fault = crash_at(self.storage.calls + after, written)

    @precondition(lambda self: self.log is not None)
    @rule()
    def kill(self) -> None:
        self.die()

    @precondition(lambda self: self.log is not None)
    @rule()
    def restart(self) -> None:
        log = self.log
        assert log is not None
        if self.guarded(lambda: log.close(clean=True)):
            self.storage.fault = None
            self.durable = self.end
            self.open(published=self.end, clean=True)

    # ---- living

    @precondition(lambda self: self.log is not None)
    @rule(batches=st.lists(st.tuples(PRODUCERS, PAIRS), min_size=1, max_size=4))
    def append(self, batches: list[tuple[int, list[Pair]]]) -> None:
        log, images, at = self.log, [], self.end
        assert log is not None
        self.clock += 1000
        ahead = {producer: self.sequence(producer) for producer in (1, 2, 3)}
        for producer, pairs in batches:
            images.append(keyed(pairs, ahead[producer], producer))
            self.in_flight.append((at, producer, pairs))
            ahead[producer] += len(pairs)
            at += len(pairs)
        if self.guarded(lambda: log.append(images, self.clock)):
            self.batches += self.in_flight
            self.in_flight = []
            self.end = log.log_end
            assert self.end == at

    @precondition(lambda self: self.log is not None)
    @rule()
    def sync(self) -> None:
        assert self.log is not None
        if self.guarded(self.log.sync):
            self.durable = self.log.durable
            assert self.durable == self.end

    @precondition(lambda self: self.log is not None)
    @rule()
    def roll(self) -> None:
        log = self.log
        assert log is not None
        self.guarded(lambda: log.roll(self.clock))

    @precondition(lambda self: self.log is not None)
    @rule(to=FRACTION)
    def trim(self, to: float) -> None:
        assert self.log is not None
        self.trim_to(self.log.log_start + round(to * (self.end - self.start)))

    def trim_to(self, offset: int) -> None:
        log = self.log
        assert log is not None
        self.starts.add(offset)

        def publish(start: int) -> None:
            self.starts = {start}

        if self.guarded(lambda: log.trim(offset, publish)):
            self.start, self.durable = log.log_start, log.durable
            assert self.start == offset
            self.starts = {offset}

    @precondition(lambda self: self.log is not None)
    @rule(nbytes=st.integers(0, 4000), age=st.integers(0, 20), by_time=st.booleans())
    def retain(self, nbytes: int, age: int, by_time: bool) -> None:
        log = self.log
        assert log is not None
        bases = list_segments(self.storage, FOLDER)
        facts = segment_facts(self.storage, FOLDER, bases, log.log_end, log.valid_bytes)
        assert sum(fact.nbytes for fact in facts[-1:]) == log.valid_bytes
        found = expired(
            facts,
            self.clock,
            high_watermark=self.end,
            retention_bytes=None if by_time else nbytes,
            retention_us=age * 1000 if by_time else None,
        )
        if found is not None:
            self.trim_to(max(found.log_start, self.start))

    @precondition(lambda self: self.log is not None)
    @rule(
        keys_max=st.sampled_from([1, 3, 1000]),
        later=st.sampled_from([0, 1, 5]),
        segment_bytes=st.sampled_from([700, 5000]),
        stop=st.integers(0, 6),
    )
    def compact(self, keys_max: int, later: int, segment_bytes: int, stop: int) -> None:
        log = self.log
        assert log is not None
        self.clock += later * SECOND

        def work() -> None:
            cleaner = compaction(
                self.storage,
                log,
                now_us=self.clock,
                delete_retention_us=2 * SECOND,
                keys_max=keys_max,
                segment_bytes=segment_bytes,
            )
            self.seen_by_cleaner = max(self.seen_by_cleaner, cleaner.plan.end)
            for count, prepared in enumerate(cleaner.prepare()):
                assert log.swap(prepared)
                if count == stop:
                    break

        self.guarded(work)


Life.TestCase.settings = settings(
    max_examples=LIVES, stateful_step_count=40, deadline=None, derandomize=True
)


TestLife = Life.TestCase  # Invariant 2, with all that may take records away
