"""The mapping reader follows logs that grow and roll, up to a limit and through its windows."""

from __future__ import annotations

import os
import random
import struct

import pytest
from reader_fixture import (
    ALL,
    TIME,
    World,
    expected,
    images_of,
    read_to,
    rolling,
    values_of,
    write_segment,
)

from penstock.core import header as hd
from penstock.core import reader as reader_module
from penstock.core.columns import decode
from penstock.core.errors import CorruptBatchError
from penstock.core.reader import Limit, LogReader
from penstock.core.segment import segment_path
from penstock.core.storage import Storage


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "log")
    yield made
    made.log.close(clean=False)


# --- following ----------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_a_reader_follows_appends_and_rolls_and_brings_every_record_once(tmp_path, seed):
    chance = random.Random(f"follow {seed}")
    world = World(tmp_path / "log", segment_bytes=chance.choice((1024, 4096, 1 << 20)))
    reader, got = world.reader(), []
    for _ in range(80):
        action = chance.random()
        if action < 0.6:
            world.append(*([b"v" * chance.randrange(200)] * chance.randrange(1, 9)
                           for _ in range(chance.randrange(1, 4))))  # fmt: skip
        elif action < 0.7:
            world.log.roll(TIME)
        else:
            before = reader.offset
            found = reader.fetch(world.limit, chance.choice((1, 500, 5000, ALL)))
            got += values_of(found, before)
            assert reader.offset == len(got)
    got += read_to(reader, world.limit)
    assert got == expected(world)
    assert reader.fetch(world.limit, ALL) == []
    reader.close()
    world.log.close(clean=True)


def test_a_reader_at_the_end_brings_nothing_until_something_comes(world):
    reader = world.reader()
    assert reader.fetch(world.limit, ALL) == []
    world.append([b"a"])
    assert values_of(reader.fetch(world.limit, ALL)) == [(0, b"a")]
    assert reader.fetch(world.limit, ALL) == []
    world.log.roll(TIME)
    assert reader.fetch(world.limit, ALL) == []
    world.append([b"b"])
    assert values_of(reader.fetch(world.limit, ALL)) == [(1, b"b")]


def test_bytes_max_bounds_a_fetch_but_never_to_nothing(world):
    world.append(*[[b"x" * 1000]] * 10)
    reader = world.reader()
    assert len(reader.fetch(world.limit, 1)) == 1
    assert len(reader.fetch(world.limit, 1300)) == 2  # the batch that passes the bound is the last
    assert len(reader.fetch(world.limit, ALL)) == 7
    assert reader.offset == 10


@pytest.mark.parametrize("go", [LogReader.seek, LogReader.look])
def test_seek_to_every_offset(tmp_path, go):
    world = rolling(tmp_path)
    reader = world.reader()
    for offset in random.Random("seek").sample(range(len(world.values) + 1), len(world.values) + 1):
        go(reader, offset)
        found = reader.fetch(world.limit, 1)
        batch_end = next((end for end in world.ends if end > offset), offset)
        assert values_of(found, offset) == expected(world, offset, batch_end)
        assert reader.offset == batch_end
    reader.seek(3)
    assert read_to(reader, world.limit) == expected(world, 3)


class Counting(Storage):
    """Counts what is opened and mapped, and knows what is open."""

    def __init__(self):
        super().__init__()
        self.opened, self.mapped, self.is_open = 0, 0, set()

    def open(self, path, flags, mode=0o600):
        fd = super().open(path, flags, mode)
        self.opened += path.endswith(".log")
        self.is_open.add(fd)
        return fd

    def close(self, fd):
        super().close(fd)
        self.is_open.discard(fd)

    def map_readonly(self, fd, length, position=0):
        self.mapped += 1
        return super().map_readonly(fd, length, position)


def test_looks_open_a_segment_once_and_map_a_window_once_also_while_it_grows(world, monkeypatch):
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", 8192)
    monkeypatch.setattr(reader_module, "INDEX_STEP", 4096)
    draw, storage = random.Random("looks"), Counting()
    reader = LogReader(storage, world.folder)
    for _ in range(40):
        world.append(*[[b"x" * draw.randrange(1, 900)] * draw.randrange(1, 4) for _ in range(4)])
        for _ in range(5):
            offset = draw.randrange(len(world.values))
            reader.look(offset)
            assert (offset, world.values[offset]) in values_of(reader.fetch(world.limit, 1), 0)
    assert storage.opened == len(storage.is_open) == 1
    assert storage.mapped < 100, "of 200 looks many find their window"
    reader.let_go_below(0)
    assert storage.is_open
    world.log.roll(TIME)
    world.append([b"new"])
    reader.look(len(world.values) - 1)
    assert values_of(reader.fetch(world.limit, 1)) == [(len(world.values) - 1, b"new")]
    assert (storage.opened, len(storage.is_open)) == (2, 1)
    reader.look(0)
    reader.fetch(world.limit, 1)
    reader.let_go_below(world.limit.base - 1)
    assert storage.is_open
    reader.let_go_below(world.limit.base)
    assert not storage.is_open


@pytest.mark.parametrize("go", [LogReader.seek, LogReader.look])
@pytest.mark.parametrize("damage", ["gone", "empty", "torn", "zeroed", "garbage", "shifted"])
def test_invariant_9_no_index_changes_what_a_seek_finds(tmp_path, damage, go):
    world = rolling(tmp_path)
    world.log.close(clean=True)
    indexes = sorted((tmp_path / "log").glob("*.index"))
    assert any(file.stat().st_size for file in indexes)
    for file in indexes:
        data = file.read_bytes()
        if damage == "gone":
            file.unlink()
            continue
        entries = list(struct.iter_unpack("<QQ", data))
        file.write_bytes(
            {
                "empty": b"",
                "torn": data[:-5],
                "zeroed": bytes(len(data)),
                "garbage": random.Random(damage).randbytes(len(data)),
                "shifted": b"".join(struct.pack("<QQ", at, where + 64) for at, where in entries),
            }[damage]
        )
    reader = world.reader()
    for offset in range(0, len(world.values), 3):
        go(reader, offset)
        assert values_of(reader.fetch(world.limit, 1), offset)[0] == (offset, world.values[offset])


# --- the limit ----------------------------------------------------------------------------------
def test_invariant_5_nothing_at_or_above_the_limit_is_returned(tmp_path):
    world = rolling(tmp_path)
    total = len(world.values)
    for offset in range(total + 1):
        limit = world.limit._replace(offset=offset)
        records = read_to(world.reader(), limit)
        whole = max(end for end in world.ends if end <= offset)
        assert records == expected(world, 0, whole)


def test_invariant_5_bytes_above_the_valid_ones_are_not_there_yet(tmp_path):
    folder = tmp_path / "log"
    images = images_of((0, 2, {}), (2, 2, {}), (4, 1, {}))
    first, second = len(images[0]), len(images[0]) + len(images[1])
    for torn in (1, 64, 127, 128, 150, len(images[1])):
        write_segment(folder, 0, images[0] + images[1][:torn])
        reader = LogReader(Storage(), str(folder))
        assert values_of(reader.fetch(Limit(2, 0, first), ALL)) == [(0, b"0"), (1, b"1")]
        assert reader.fetch(Limit(2, 0, first), ALL) == []
        # Offsets are published after bytes; even if they were not, nothing unfinished is shown.
        assert reader.fetch(Limit(5, 0, first), ALL) == []
        with open(segment_path(str(folder), 0), "r+b") as file:
            file.write(b"".join(images))
        assert values_of(reader.fetch(Limit(4, 0, second), ALL)) == [(2, b"2"), (3, b"3")]
        assert reader.offset == 4
        reader.close()


def test_valid_bytes_that_end_within_a_batch_are_corrupt(tmp_path):
    images = images_of((0, 2, {}), (2, 2, {}))
    write_segment(tmp_path, 0, b"".join(images))
    first, total = len(images[0]), len(images[0] + images[1])
    for valid in (first + 1, first + 64, first + 128, total - 1):
        reader = LogReader(Storage(), str(tmp_path))
        with pytest.raises(CorruptBatchError, match="past the"):
            read_to(reader, Limit(4, 0, valid))


def test_a_limit_of_an_older_moment_is_obeyed(tmp_path):
    world = World(tmp_path / "log")
    world.append([b"a"], [b"b"])
    old = world.limit
    world.append([b"c"])
    world.log.roll(TIME)
    world.append([b"d"])
    reader = world.reader()
    assert values_of(reader.fetch(old, ALL)) == [(0, b"a"), (1, b"b")]
    assert reader.fetch(old, ALL) == []
    assert values_of(reader.fetch(world.limit, ALL)) == [(2, b"c"), (3, b"d")]
    assert reader.fetch(old, ALL) == []


def test_invariant_5_a_segment_ends_where_the_next_one_begins(tmp_path):
    """Bytes of a write that failed can stay behind a closed segment's last batch."""
    kept = images_of((0, 2, {}), (2, 1, {}))
    stale = images_of((3, 1, {"producer_id": 666}), (4, 2, {"producer_id": 666}))
    current = images_of((3, 3, {"producer_id": 1}))
    limit = Limit(6, 3, len(current[0]))
    for torn in (len(stale[0]), len(stale[0] + stale[1]), 100, 130):
        folder = tmp_path / str(torn)
        write_segment(folder, 0, b"".join(kept) + b"".join(stale)[:torn])
        write_segment(folder, 3, b"".join(current))
        for start in (0, 2, 3, 5):
            reader = LogReader(Storage(), str(folder), start)
            found = reader.fetch(limit, ALL)
            assert found[-1].head.producer_id == 1
            assert values_of(found, start) == [(at, b"%d" % at) for at in range(start, 6)]
        # The same when the reader stood in the first segment while it was the active one.
        reader = LogReader(Storage(), str(folder))
        assert len(reader.fetch(Limit(3, 0, len(kept[0] + kept[1])), ALL)) == 2
        assert [batch.head.producer_id for batch in reader.fetch(limit, ALL)] == [1]


def test_invariant_5_a_hole_before_the_next_segment_is_not_filled_from_behind_the_last_batch(
    tmp_path,
):
    hole = {"flags": hd.FLAG_COMPACTED}
    kept = images_of((0, 2, {}))
    stale = images_of((3, 1, {"producer_id": 666, **hole}))
    current = images_of((3, 1, {"producer_id": 1, **hole}))
    write_segment(tmp_path, 0, kept[0] + stale[0])
    write_segment(tmp_path, 3, current[0])
    found = LogReader(Storage(), str(tmp_path)).fetch(Limit(4, 3, len(current[0])), ALL)
    assert [batch.head.producer_id for batch in found] == [0, 1]


# --- windows ------------------------------------------------------------------------------------
@pytest.mark.parametrize("window", [4096, 8192, 20_480])
def test_windows_move_over_batches_that_lie_across_their_borders(tmp_path, monkeypatch, window):
    monkeypatch.setattr(reader_module, "WINDOW_BYTES", window)
    world = World(tmp_path / "log", segment_bytes=200_000)
    chance = random.Random(f"windows {window}")
    for size in (
        3900,
        4096 - 192,
        4096,
        9000,
        30_000,
        *(chance.randrange(6000) for _ in range(90)),
    ):
        world.append([chance.randbytes(size), b"end"])
    reader = world.reader()
    found = []
    while piece := reader.fetch(world.limit, chance.randrange(1, 30_000)):
        found += piece
    assert len({id(batch.view) for batch in found}) > 10
    assert max(len(batch.view) for batch in found) <= max(window, 30_000 + 4096 + 512)
    assert values_of(found) == expected(world)  # views of windows that are gone long since
    world.log.close(clean=True)


def test_a_window_grows_with_the_file(world):
    reader = world.reader()
    for size in (10, 100_000, 10, 300_000):
        world.append([b"x" * size])
        ((head, view, position),) = reader.fetch(world.limit, ALL)
        assert decode(view, position, head).values.to_list() == [b"x" * size]


def test_closing_gives_every_descriptor_back(tmp_path):
    world = rolling(tmp_path)

    def held():
        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return [link for link in links if link.startswith(world.folder)]

    before = sorted(held())
    readers = [world.reader(offset) for offset in range(0, len(world.values), 10)]
    for reader in readers:
        assert reader.fetch(world.limit, 1)
    assert len(held()) >= len(before) + len(readers)
    for reader in readers:
        reader.close()
        reader.close()
    assert sorted(held()) == before
