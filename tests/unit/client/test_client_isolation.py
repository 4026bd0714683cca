"""read_committed: random transactions with kills, power cuts, trims and lost files, against a plain
list of what was written and what became of it.

    at every moment   a reader of committed records sees every record that is committed or was
                      written without a transaction, below the first open one, and no other
                      a reader that has followed from the start has seen the same, in order
                      one that does not ask for it sees all
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from partition_fixture import Partition, drained
from unit.core.log_helpers import MemoryStorage, abort, begin

from penstock.core.errors import ErrorCode, StorageError
from penstock.core.storage import Storage

LIVES = int(os.environ.get("PENSTOCK_HISTORIES", "120"))

PRODUCERS = st.integers(1, 4)


class Life(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([700, 3000, 20_000]))
    def begin_life(self, segment_bytes: int) -> None:
        self.at = Partition(segment_bytes)
        self.follower = self.at.reader("read_committed")
        self.followed: list[tuple[int, bytes]] = []

    @property
    def memory(self) -> MemoryStorage:
        assert isinstance(self.at.storage, MemoryStorage)
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
        self.at.power_cut(chance)
        self.refollow()

    def refollow(self) -> None:
        """A reader that goes on in what the next process shows, where it stood."""
        offset = min(self.follower.offset, self.at.stable)
        self.follower = self.at.reader("read_committed", max(offset, self.at.page.log_start))
        self.followed = [pair for pair in self.followed if pair[0] < offset]

    @rule(delete_retention=st.sampled_from([0, 1 << 40]), keys_max=st.sampled_from([3, 1000]))
    def compact(self, delete_retention: int, keys_max: int) -> None:
        self.at.compact(delete_retention, keys_max)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.at.trim(share)
        if self.follower.offset < self.at.page.log_start:
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
