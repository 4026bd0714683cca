"""The short way of a record that comes alone, beside the long way that can do everything."""

from __future__ import annotations

import random

import pytest
from reader_fixture import (
    ALL,
    TIME,
    World,
    expected,
    images_of,
    values_of,
    write_segment,
)

from penstock.core import header as hd
from penstock.core.errors import CorruptBatchError
from penstock.core.reader import Limit, LogReader
from penstock.core.segment import segment_path
from penstock.core.storage import Storage


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_in_any_order_bring_every_record_once(tmp_path, seed):
    chance = random.Random(f"alone {seed}")
    world = World(tmp_path / "log", segment_bytes=chance.choice((1024, 1 << 20)))
    reader, got, short = world.reader(), [], 0
    for _ in range(200):
        count = chance.choice((1, 1, 1, 1, 2, 5))
        world.append([b"v" * chance.randrange(200)] * count)
        if chance.random() < 0.05:
            world.log.roll(TIME)
        limit, before = world.limit, reader.offset
        if chance.random() < 0.8:
            found = reader.alone(before, limit.base, limit.valid_bytes)
            if found is not None:
                short += 1
                got += values_of([found], before)
                assert reader.offset == before + 1
                continue
            assert reader.offset == before
        got += values_of(reader.fetch(limit, ALL), before)
    while reader.offset < world.limit.offset:
        before = reader.offset
        got += values_of(reader.fetch(world.limit, ALL), before)
    assert got == expected(world)
    assert short > 30
    reader.close()
    world.log.close(clean=True)


@pytest.mark.parametrize(
    "second",
    [(1, 2, {}), (1, 1, {"attributes": hd.ATTR_CONTROL}),
     (1, 1, {"attributes": hd.ATTR_TRANSACTIONAL}), (2, 1, {"flags": hd.FLAG_COMPACTED})],
    ids=["two records", "control", "transactional", "behind a gap"],
)  # fmt: skip
def test_what_is_not_one_plain_record_is_left_to_the_long_way(tmp_path, second):
    images = images_of((0, 1, {}), second)
    write_segment(tmp_path, 0, b"".join(images))
    reader = LogReader(Storage(), str(tmp_path))
    reader.fetch(Limit(1, 0, len(images[0])), ALL)
    assert reader.alone(1, 0, sum(map(len, images))) is None
    assert reader.offset == 1


def test_nothing_is_open_elsewhere_or_beyond_what_is_valid(tmp_path):
    images = images_of((0, 1, {}), (1, 1, {}))
    write_segment(tmp_path, 0, b"".join(images))
    valid = sum(map(len, images))
    reader = LogReader(Storage(), str(tmp_path))
    assert reader.alone(0, 0, valid) is None, "no segment is open yet"
    reader.fetch(Limit(1, 0, len(images[0])), ALL)
    assert reader.alone(1, 0, len(images[0])) is None, "invariant 5: not published yet"
    assert reader.alone(1, 0, valid - 1) is None
    assert reader.alone(1, 1, valid) is None, "the active segment is another one"
    assert reader.alone(0, 0, valid) is None, "the reader stands elsewhere"
    assert values_of([reader.alone(1, 0, valid)]) == [(1, b"1")]


def test_a_damaged_header_is_raised_with_the_cursor_where_it_was(tmp_path):
    images = images_of((0, 1, {}), (1, 1, {}))
    write_segment(tmp_path, 0, b"".join(images))
    reader = LogReader(Storage(), str(tmp_path))
    reader.fetch(Limit(1, 0, len(images[0])), ALL)
    with open(segment_path(str(tmp_path), 0), "r+b") as file:
        file.seek(len(images[0]) + 20)
        file.write(b"\xff")
    with pytest.raises(CorruptBatchError):
        reader.alone(1, 0, sum(map(len, images)))
    assert reader.offset == 1
