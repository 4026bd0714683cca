"""Mapping readers while segments are swapped and trimmed under them, between any two system calls.

What a reader brings is always what was written at that offset, in order; every record that stays
comes; and what is gone is said to be out of range.
"""

from __future__ import annotations

import os
import random
import signal

import pytest
from unit.core.compacting import keyed, newest
from unit.core.log_helpers import TOPIC, find_time

from penstock.core.columns import decode
from penstock.core.compaction import Compaction, plan_compaction
from penstock.core.errors import CorruptBatchError, OffsetOutOfRangeError
from penstock.core.log import Log, LogConfig
from penstock.core.reader import Limit, LogReader
from penstock.core.segment import list_segments
from penstock.core.storage import Storage

CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=512, preallocate_bytes=1 << 16)


class Watched(Storage):
    """Somebody looks on before every call that changes a name."""

    def __init__(self, look):
        super().__init__()
        self._look = look

    def rename(self, source, target):
        self._look()
        super().rename(source, target)

    def link(self, source, target):
        self._look()
        super().link(source, target)

    def unlink(self, path):
        self._look()
        super().unlink(path)


class Scene:
    """A log in a real folder, keyed records in it, and readers that follow."""

    def __init__(self, folder, seed):
        self.rng = random.Random(seed)
        self.folder = str(folder)
        self.storage = Watched(self.look)
        self.readers: list[tuple[LogReader, dict[int, bytes | None], list[int]]] = []
        self.looker, self.looked_up = LogReader(Storage(), self.folder), 0
        self.start = 0
        self.written = {}
        self.sequence = 0
        self.log, _ = Log.open(
            self.storage, self.folder, CONFIG, topic_id=TOPIC, partition=0, generation=1,
            now_us=1, boot_id="boot", node_clean=True,
        )  # fmt: skip

    @property
    def limit(self):
        log = self.log
        return Limit(log.log_end, log.segment_base, log.valid_bytes, self.start)

    def write(self, batches):
        for _ in range(batches):
            pairs = [
                (b"k%d" % self.rng.randrange(20), self.rng.randbytes(self.rng.choice([9, 70])))
                for _ in range(self.rng.randrange(1, 9))
            ]
            (result,) = self.log.append([keyed(pairs, self.sequence)], 5)
            assert not result.error
            for offset, pair in enumerate(pairs, result.base_offset):
                self.written[offset] = pair
            self.sequence += len(pairs)
        self.log.roll(5)
        self.log.sync()

    def read(self, offset):
        self.readers.append((LogReader(Storage(), self.folder, offset), {}, [offset]))

    def look(self):
        for reader, found, begun in list(self.readers):
            if self.rng.random() < 0.5:
                self.fetch(reader, found, begun, self.rng.choice([1, 2000]))
        if self.readers:
            self.look_up()
        if self.readers and self.rng.random() < 0.1:
            self.read(self.rng.randrange(self.start, self.log.log_end + 1))

    def look_up(self):
        """A reader of single records, whose segment stays open, brings them or those behind."""
        self.looker.let_go_below(self.start)
        offset = self.rng.randrange(self.start, self.log.log_end + 1)
        self.looker.look(offset)
        for head, view, position in self.looker.fetch(self.limit, 1):
            columns = decode(view, position, head)
            assert head.next_offset > offset
            for at, value in zip(columns.offsets.tolist(), columns.values, strict=True):
                assert value == self.written[at][1]
                self.looked_up += 1

    def fetch(self, reader, found, begun, bytes_max):
        wanted = reader.offset
        try:
            batches = reader.fetch(self.limit, bytes_max)
        except (OffsetOutOfRangeError, CorruptBatchError):
            # Rule 11: who reads looks at the log start again before he believes in damage.
            assert reader.offset < self.start
            reader.seek(self.start)
            begun.append(self.start)
            found.clear()
            return False
        for head, view, position in batches:
            columns = decode(view, position, head)
            for offset, value in zip(columns.offsets.tolist(), columns.values, strict=True):
                if offset >= wanted:
                    assert offset not in found
                    assert value == self.written[offset][1]
                    found[offset] = value
        return reader.offset > wanted

    def compact(self):
        plan = plan_compaction(
            self.storage, self.folder, list_segments(self.storage, self.folder),
            log_start=self.log.log_start, bound=self.log.durable, now_us=0,
        )  # fmt: skip
        for prepared in Compaction(self.storage, plan, 0, 0, 8192, 512).prepare():
            assert self.log.swap(prepared)

    def trim(self, offset):
        def publish(start):
            self.start = start

        self.log.trim(offset, publish)

    def finish(self):
        """Every reader comes to the end and has seen all that is left from where it began."""
        left = {o: pair[1] for o, pair in newest(self.written).items()}
        for reader, found, begun in self.readers:
            while self.fetch(reader, found, begun, 4000):
                pass
            assert reader.offset == self.log.log_end
            assert {o for o in left if o >= begun[-1]} <= found.keys()
            assert list(found) == sorted(found)
            reader.close()
        assert self.looked_up
        self.looker.close()


@pytest.mark.rule(11)
@pytest.mark.parametrize("seed", range(10))
def test_rule_11_readers_go_on_while_segments_are_swapped(tmp_path, seed):
    scene = Scene(tmp_path / "log", seed)
    for _ in range(4):
        scene.write(40)
        for _ in range(3):
            scene.read(scene.rng.randrange(scene.log.log_end))
        scene.compact()
    scene.finish()
    assert len(list_segments(scene.storage, scene.folder)) < 8


@pytest.mark.rule(11)
@pytest.mark.parametrize("seed", range(10))
def test_rule_11_readers_are_told_what_a_trim_took(tmp_path, seed):
    scene = Scene(tmp_path / "log", seed)
    for _ in range(4):
        scene.write(40)
        for _ in range(3):
            scene.read(scene.rng.randrange(scene.start, scene.log.log_end))
        scene.trim(scene.rng.randrange(scene.start, scene.log.log_end + 1))
        scene.write(3)
        if scene.rng.random() < 0.5:
            scene.compact()
    scene.finish()


def test_what_is_mapped_outlives_swap_and_trim_without_a_bus_error(tmp_path):
    """In a process of its own: a SIGBUS would be the end of it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            scene = Scene(tmp_path / "log", 1)
            scene.write(200)
            reader = LogReader(Storage(), scene.folder)
            held = reader.fetch(scene.limit, 1 << 30)
            assert held
            scene.compact()
            scene.trim(scene.log.log_end)
            scene.write(30)
            for head, view, position in held:
                columns = decode(view, position, head)
                rows = zip(columns.offsets.tolist(), columns.values, strict=True)
                assert all(scene.written[offset][1] == value for offset, value in rows)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGBUS
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_offset_below_the_start_is_out_of_range_though_its_batch_is_there(tmp_path):
    scene = Scene(tmp_path / "log", 2)
    scene.write(10)
    scene.trim(3)
    assert list_segments(scene.storage, scene.folder)[0] == 0
    with pytest.raises(OffsetOutOfRangeError, match="starts at 3"):
        LogReader(Storage(), scene.folder, 2).fetch(scene.limit, 1)
    (first, *_) = LogReader(Storage(), scene.folder, 3).fetch(scene.limit, 1)
    assert first.head.base_offset <= 3 < first.head.next_offset


def test_times_are_looked_up_behind_the_log_start_and_across_gaps(tmp_path):
    scene = Scene(tmp_path / "log", 3)
    scene.write(60)
    assert find_time(scene.storage, scene.folder, 1_000, scene.limit) == 0
    scene.trim(7)
    assert find_time(scene.storage, scene.folder, 1_000, scene.limit) == 7
    scene.compact()
    found = find_time(scene.storage, scene.folder, 1_000, scene.limit)
    assert found is not None
    assert found >= 7
    assert find_time(scene.storage, scene.folder, 1_001, scene.limit) is None
