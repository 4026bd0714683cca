"""read_committed: random transactions with kills, power cuts, trims and lost files, against a plain
list of what was written and what became of it.

    at every moment   a reader of committed records sees every record that is committed or was
                      written without a transaction, below the first open one, and no other
                      a reader that has followed from the start has seen the same, in order
                      one that does not ask for it sees all
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any, cast

import pytest
from dying import memory
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from unit.core.log_helpers import FOLDER, TOPIC, MemoryStorage, abort, begin, commit

from penstock.assigned import AssignedPartition, Isolation
from penstock.core.compaction import Compaction, plan_compaction
from penstock.core.encode import encode_batch
from penstock.core.errors import ErrorCode, StorageError
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.core.segment import list_segments
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.alone import AloneRole
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.state import StatePage, format_table
from penstock.sources import LocalSource

LIVES = int(os.environ.get("PENSTOCK_HISTORIES", "120"))
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Mapped(MemoryStorage):
    """Files in memory that a reader can map, as they are at that moment."""

    def map_readonly(self, fd: int, length: int, offset: int = 0) -> mmap.mmap:
        return cast(mmap.mmap, bytes(self._open[fd].content[offset : offset + length]))

    def _as_mapped(self, other: MemoryStorage) -> Mapped:
        after = Mapped()
        after.__dict__.update(other.__dict__)
        return after

    def killed(self) -> Mapped:
        return self._as_mapped(super().killed())

    def power_cut(self, chance: Any = None) -> Mapped:
        return self._as_mapped(super().power_cut(chance))


@dataclass
class Written:
    """A batch: where it stands, its values, whose it is, and what became of its transaction."""

    offset: int
    values: list[bytes]
    who: tuple[int, int] | None
    state: str = COMMITTED
    is_gone: bool = False


class Partition:
    """A partition with its page, and a plain account of it."""

    def __init__(
        self, segment_bytes: int = 3000, storage: Storage | None = None, folder: str = FOLDER
    ) -> None:
        self.storage = storage or Mapped()
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.boot = self.generation = 1
        self.clock = 1_000_000
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.open_from: dict[int, int] = {}
        self.written: list[Written] = []
        self.count = 0
        self.new_page()
        self.start()

    def new_page(self) -> None:
        fd, region = memory(lo.state_table_bytes(4))
        os.close(fd)
        format_table(region, bytes(16), 4)
        self.page = StatePage(region, 2)

    def start(self) -> None:
        order = OpenPartition(
            2, "t", TOPIC, 0, self.folder, TopicSettings(segment_bytes=self.segment_bytes), False,
            f"boot-{self.boot}",
        )  # fmt: skip
        self.role, _ = AloneRole.open(
            self.storage, order, self.page, generation=self.generation, batch_bytes_max=1 << 16,
            now_us=self.clock,
        )  # fmt: skip

    def append(self, *batches: memoryview) -> list[int]:
        self.clock += 1000
        results = self.role.append(list(batches), self.clock)
        assert not any(result.error for result in results), results
        return [result.base_offset for result in results]

    def write(self, producer: int, count: int) -> None:
        """In the producer's transaction if it has one open."""
        epoch, inside = self.epochs.get(producer, 0), producer in self.open_from
        sequence = self.sequences.get(producer, 0)
        values = [b"%d" % number for number in range(self.count, self.count + count)]
        self.count += count
        image = encode_batch(
            values, keys=values, base_timestamp=self.clock, topic_id=TOPIC, partition=0,
            producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
            attributes=ATTR_TRANSACTIONAL if inside else 0,
        ).image()  # fmt: skip
        (offset,) = self.append(memoryview(image))
        self.sequences[producer] = sequence + count
        who = (producer, epoch) if inside else None
        self.written.append(Written(offset, values, who, OPEN if inside else COMMITTED))

    def begin(self, producer: int) -> None:
        epoch = self.epochs.setdefault(producer, 0)
        (self.open_from[producer],) = self.append(begin(epoch, producer=producer))

    def end(self, producer: int, *, committed: bool) -> None:
        epoch = self.epochs[producer]
        self.append((commit if committed else abort)(epoch, producer=producer))
        self.ended(producer, committed=committed)

    def ended(self, producer: int, *, committed: bool) -> None:
        epoch = self.epochs[producer]
        self.epochs[producer], self.sequences[producer] = epoch + 1, 0
        del self.open_from[producer]
        for one in self.written:
            if one.who == (producer, epoch):
                one.state = COMMITTED if committed else ABORTED

    def sync(self) -> None:
        self.role.request_sync()
        job = self.role.tick(0.0, self.clock)
        if job is not None:
            job.run()
            self.role.finish_sync(job)

    def reader(self, isolation: Isolation, offset: int | None = None) -> AssignedPartition:
        made = AssignedPartition(
            ("t", 0), TOPIC, self.page, LocalSource(self.storage, self.folder), None, isolation
        )
        made.jump(self.page.log_start if offset is None else offset)
        return made

    def read(self, isolation: Isolation) -> list[tuple[int, bytes]]:
        return drained(self.reader(isolation))

    @property
    def stable(self) -> int:
        return max(self.page.log_start, min([self.page.log_end, *self.open_from.values()]))

    def expected(self, committed: bool) -> list[tuple[int, bytes]]:
        """(offset, value) of what a reader is to see from the log start on."""
        start, end = self.page.log_start, self.stable if committed else self.page.log_end
        return [
            (one.offset + i, value)
            for one in self.written
            if one.state == COMMITTED or not (committed or one.is_gone)
            for i, value in enumerate(one.values)
            if start <= one.offset + i < end
        ]


def drained(reader: AssignedPartition) -> list[tuple[int, bytes]]:
    """All that a reader can bring now."""
    found: list[Any] = []
    while reader.has_more:
        before = reader.offset
        chunks = reader.take(None)
        for chunk in chunks:
            columns = chunk.columns
            rows = slice(chunk.start, chunk.stop)
            offsets = columns.offsets[rows].tolist()
            found += zip(offsets, columns.values[rows].to_list(), strict=True)
        assert chunks or reader.offset > before, "it says that there is more, and brings nothing"
    return found


PRODUCERS = st.integers(1, 4)


class Life(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([700, 3000, 20_000]))
    def begin_life(self, segment_bytes: int) -> None:
        self.at = Partition(segment_bytes)
        self.follower = self.at.reader("read_committed")
        self.followed: list[tuple[int, bytes]] = []

    @property
    def memory(self) -> Mapped:
        assert isinstance(self.at.storage, Mapped)
        return self.at.storage

    @rule(producer=PRODUCERS, count=st.integers(1, 5))
    def write(self, producer: int, count: int) -> None:
        self.at.write(producer, count)

    @rule(producer=PRODUCERS)
    def begin(self, producer: int) -> None:
        if producer not in self.at.open_from:
            self.at.begin(producer)

    @precondition(lambda self: self.at.open_from)
    @rule(which=st.integers(0, 3), committed=st.booleans())
    def end(self, which: int, committed: bool) -> None:
        self.at.end(list(self.at.open_from)[which % len(self.at.open_from)], committed=committed)

    @precondition(lambda self: self.at.open_from)
    @rule(which=st.integers(0, 3), committed=st.booleans())
    def end_twice_and_late(self, which: int, committed: bool) -> None:
        producer = list(self.at.open_from)[which % len(self.at.open_from)]
        epoch = self.at.epochs[producer]
        self.end(which, committed)
        late = [begin(epoch, producer=producer), abort(epoch, producer=producer)]
        for result in self.at.role.append(late, self.at.clock):
            assert result.duplicate or result.error == ErrorCode.STALE_PRODUCER_EPOCH

    @rule()
    def sync(self) -> None:
        self.at.sync()

    @rule()
    def follow(self) -> None:
        self.follower.pause()  # what it has mapped is as it was
        self.followed += drained(self.follower)

    @rule(lost=st.sets(st.sampled_from([".txn", ".index", ".time", ".snapshot"])))
    def kill(self, lost: set[str]) -> None:
        """The writer dies; files that hold nothing that the log does not may be gone, too."""
        at = self.at
        at.storage = self.memory.killed()
        for name in list(self.memory.names):
            if name.endswith(tuple(lost)) and not (at.page.log_start and "snapshot" in name):
                del self.memory.names[name]
        at.generation += 1
        at.start()
        self.refollow()

    @rule(chance=st.one_of(st.none(), st.randoms(use_true_random=False)))
    def power_cut(self, chance: Any) -> None:
        at = self.at
        at.storage = self.memory.power_cut(chance)
        at.new_page()
        at.boot += 1
        at.generation += 1
        at.start()
        end, table = at.role.log_end, at.role._log.producers
        at.written = [one for one in at.written if one.offset < end]
        for one in at.written:  # the markers that undid or made them may be gone
            if one.who is not None:
                is_open = table.transactions.get(one.who[0])
                if is_open is not None and is_open.epoch == one.who[1]:
                    one.state = OPEN
        known = {p: table.next_sequence(p) or (0, 0) for p in range(1, 5)}
        at.epochs = {p: epoch for p, (epoch, _) in known.items()}
        at.sequences = {p: sequence for p, (_, sequence) in known.items()}
        opened = [table.transactions.get(p) for p in known]
        at.open_from = {one.producer_id: one.first_offset for one in opened if one is not None}
        assert all(
            one.who is not None and one.who[0] in at.open_from
            for one in at.written
            if one.state == OPEN
        )
        self.refollow()

    def refollow(self) -> None:
        """A reader that goes on in what the next process shows, where it stood."""
        offset = min(self.follower.offset, self.at.stable)
        self.follower = self.at.reader("read_committed", max(offset, self.at.page.log_start))
        self.followed = [pair for pair in self.followed if pair[0] < offset]

    @rule(delete_retention=st.sampled_from([0, 1 << 40]), keys_max=st.sampled_from([3, 1000]))
    def compact(self, delete_retention: int, keys_max: int) -> None:
        """Keys are all different: only what was aborted goes, and marks of transactions."""
        self.at.sync()
        page = self.at.page
        bound = min(page.high_watermark, page.last_stable, page.durable)
        plan = plan_compaction(
            self.memory, FOLDER, list_segments(self.memory, FOLDER), log_start=page.log_start,
            bound=bound, now_us=self.at.clock,
        )  # fmt: skip
        work = Compaction(
            self.memory, plan, self.at.clock, delete_retention, self.at.segment_bytes,
            keys_max=keys_max,
        )  # fmt: skip
        for prepared in work.prepare():
            assert self.at.role.swap(prepared, 0, self.at.clock).done
        later = [each.base for each in work.plan.segments if each.base >= work.reached]
        end = min([*later, work.plan.end])
        for one in self.at.written:
            one.is_gone |= one.state == ABORTED and one.offset < end

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        page = self.at.page
        self.at.role.trim(
            page.log_start + int(share * (page.log_end - page.log_start)), self.at.clock
        )
        if self.follower.offset < page.log_start:
            self.refollow()

    @invariant()
    def readers_see_what_they_are_to_see(self) -> None:
        if not hasattr(self, "at"):
            return
        at = self.at
        assert at.page.last_stable == at.stable
        assert at.read("read_committed") == at.expected(committed=True)
        assert at.read("read_uncommitted") == at.expected(committed=False)
        oldest = at.page.oldest_open
        assert (oldest is None) == (not at.open_from)
        if oldest is not None:
            assert at.open_from[oldest.producer_id] == min(at.open_from.values())

    def teardown(self) -> None:
        if not hasattr(self, "at"):
            return
        self.follow()
        start = self.at.page.log_start
        seen = [pair for pair in self.followed if pair[0] >= start]
        assert seen == self.at.expected(committed=True)


TestLives = Life.TestCase
TestLives.settings = settings(
    max_examples=LIVES, stateful_step_count=40, deadline=None, derandomize=True
)


# --- one by one ----------------------------------------------------------------------------------
@pytest.fixture
def on_disk(tmp_path):
    return lambda segment_bytes=3000: Partition(segment_bytes, Storage(), str(tmp_path / "log"))


def test_a_follower_passes_a_transaction_once_it_is_decided(on_disk):
    at = on_disk()
    follower = at.reader("read_committed")
    at.write(9, 1)
    at.begin(1)
    at.write(1, 2)
    at.write(9, 1)
    assert [value for _, value in drained(follower)] == [b"0"]
    assert not follower.has_more
    at.end(1, committed=True)
    assert [value for _, value in drained(follower)] == [b"1", b"2", b"3"]
    assert follower.offset == at.page.log_end


def test_what_is_aborted_is_left_out_and_counted_also_where_nothing_else_is_there(on_disk):
    at = on_disk()
    for _ in range(50):
        at.begin(1)
        at.write(1, 4)
        at.end(1, committed=False)
    reader = at.reader("read_committed")
    assert drained(reader) == []
    assert (reader.offset, reader.aborted) == (at.page.log_end, 200)
    assert len(at.read("read_uncommitted")) == 200


def test_an_abort_in_a_later_segment_is_known_where_its_data_is_read(on_disk):
    at = on_disk(segment_bytes=700)
    at.begin(1)
    at.write(1, 1)
    for _ in range(20):
        at.write(9, 1)
    at.end(1, committed=False)
    at.begin(1)
    at.write(1, 1)
    assert at.read("read_committed") == at.expected(committed=True)
    assert len(at.expected(committed=True)) == 20


def test_a_reader_without_transactions_opens_no_txn_file(on_disk, monkeypatch):
    at = on_disk()
    reader = at.reader("read_committed")
    opened: list[str] = []
    original = Storage.open

    def noting(self, path, flags, mode=0o600):
        opened.append(path)
        return original(self, path, flags, mode)

    monkeypatch.setattr(Storage, "open", noting)
    for _ in range(30):
        at.write(9, 3)
        assert len(drained(reader)) == 3
    assert opened
    assert not [path for path in opened if path.endswith(".txn")]


def test_a_reader_that_goes_back_reads_the_aborts_before_it_again(on_disk):
    at = on_disk(segment_bytes=700)
    for number in range(30):
        at.begin(1)
        at.write(1, 1)
        at.end(1, committed=number % 2 == 0)
    reader = at.reader("read_committed", 60)
    drained(reader)
    reader.jump(0)
    assert drained(reader) == at.expected(committed=True)


def test_a_txn_file_that_cannot_be_read_is_an_error_and_no_record(on_disk, monkeypatch):
    at = on_disk()
    at.begin(1)
    at.write(1, 1)
    at.end(1, committed=False)
    reader = at.reader("read_committed")
    original = Storage.open

    def failing(self, path, flags, mode=0o600):
        if path.endswith(".txn"):
            raise StorageError("no descriptor", retriable=True)
        return original(self, path, flags, mode)

    monkeypatch.setattr(Storage, "open", failing)
    with pytest.raises(StorageError):
        reader.take(None)
    monkeypatch.undo()
    assert drained(reader) == []
    assert reader.offset == at.page.log_end
