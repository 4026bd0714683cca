"""The first record at or after a time: within batches, across codecs, gaps, markers and aborts."""

from __future__ import annotations

import random

import pytest
from reader_fixture import (
    TIME,
    TOPIC,
    World,
    images_of,
    write_segment,
)
from unit.core.log_helpers import abort, begin, commit, find_time

from penstock.core import header as hd
from penstock.core.encode import encode_batch
from penstock.core.reader import Limit
from penstock.core.segment import list_segments
from penstock.core.storage import Storage
from penstock.core.timesearch import Step, searching


def search(world, timestamp, **limit):
    return find_time(world.storage, world.folder, timestamp, world.limit._replace(**limit))


def by_brute_force(times, timestamp, start=0):
    return next((n for n, at in enumerate(times) if at >= timestamp and n >= start), None)


def test_one_batch_of_many_records_is_looked_into(tmp_path):
    world = World(tmp_path / "log")
    world.append([b"x"] * 1000, timestamps=iter(range(TIME, TIME + 1000)))
    assert search(world, TIME + 500) == 500
    assert search(world, TIME - 1) == 0
    assert search(world, TIME + 999) == 999
    assert search(world, TIME + 1000) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("codec", [hd.CODEC_NONE, hd.CODEC_LZ4])
def test_times_are_found_as_a_linear_search_finds_them(tmp_path, seed, codec):
    """Also where they go back and forth within a batch, and from one batch to the next."""
    chance = random.Random(f"record times {seed}")
    world = World(tmp_path / "log", segment_bytes=6000, index_interval_bytes=256)
    clock, times = TIME, []
    for _ in range(60):
        stamps = []
        for _ in range(chance.randrange(1, 30)):
            clock += chance.choice((0, 1, 5))
            stamps.append(clock + chance.choice((0, 0, -40, 25, 3 << 32)))
        world.append([b"x" * 20] * len(stamps), timestamps=iter(stamps), codec=codec)
        times += stamps
    assert len(list_segments(world.storage, world.folder)) > 2
    for timestamp in (0, *range(TIME - 50, clock + 60, 7), clock + (3 << 32), clock + (4 << 32)):
        assert search(world, timestamp) == by_brute_force(times, timestamp)
        start = chance.randrange(len(times))
        assert search(world, timestamp, start=start) == by_brute_force(times, timestamp, start)
        end = chance.choice(world.ends)
        assert search(world, timestamp, offset=end) == by_brute_force(times[:end], timestamp)


def test_a_batch_that_compaction_thinned_is_searched_by_the_offsets_it_has_left(tmp_path):
    sparse = {
        "offset_deltas": [0, 3, 7], "last_offset_delta": 7, "flags": hd.FLAG_COMPACTED,
        "timestamps": [TIME, TIME + 30, TIME + 70],
    }  # fmt: skip
    images = images_of((0, 3, sparse), (8, 2, {}))
    data = b"".join(bytes(image) for image in images)
    write_segment(tmp_path, 0, data)
    limit = Limit(10, 0, len(data))
    for timestamp, start, offset in (
        (TIME + 1, 0, 3), (TIME + 31, 0, 7), (TIME + 30, 4, 7), (TIME, 1, 3),
    ):  # fmt: skip
        found = find_time(Storage(), str(tmp_path), timestamp, limit._replace(start=start))
        assert found == offset


def test_a_newest_time_that_no_record_has_is_passed_over(tmp_path):
    """Compaction leaves the header's, and whoever sends a batch may write any."""
    world = World(tmp_path / "log")
    world.append([b"a"] * 3, timestamps=iter([TIME, TIME + 1, TIME + 9]), claimed=TIME + 100)
    world.append([b"b"] * 2, timestamps=iter([TIME + 50, TIME + 60]))
    assert search(world, TIME + 20) == 3
    assert search(world, TIME + 55) == 4
    assert search(world, TIME + 70) is None


def test_a_body_that_cannot_be_read_is_where_its_reader_meets_it(tmp_path):
    world = World(tmp_path / "log")
    world.append([b"a"] * 3, timestamps=iter([TIME, TIME + 1, TIME + 9]), codec=hd.CODEC_LZ4)
    with open(tmp_path / "log" / "00000000000000000000.log", "r+b") as file:
        file.seek(hd.HEADER_BYTES + 20)
        file.write(b"\xff" * 16)
    assert search(world, TIME + 5) == 0


def within(world, values, stamps, epoch):
    encoded = encode_batch(
        values,
        hd.BatchIdentity(TOPIC, 0, 7, epoch, 0),
        base_timestamp=TIME,
        timestamps=stamps,
        attributes=hd.ATTR_TRANSACTIONAL,
    )
    return memoryview(encoded.image())


def transactional(tmp_path):
    """Offsets: BEGIN 0, aborted 1-3, ABORT 4, BEGIN 5, committed 6-8, COMMIT 9; markers are late
    by their own time."""
    world = World(tmp_path / "log")
    late = TIME + 5_000
    steps = [
        begin(0, producer=7, at=late),
        within(world, [b"a"] * 3, [TIME + 10, TIME + 20, TIME + 30], 0),
        abort(0, producer=7, at=late),
        begin(1, producer=7, at=late),
        within(world, [b"b"] * 3, [TIME + 15, TIME + 25, TIME + 40], 1),
        commit(1, producer=7, at=late),
    ]
    for step in steps:
        (result,) = world.log.append([step], TIME)
        assert not result.error, result
    return world


def test_markers_are_no_records_and_what_was_aborted_is_none_of_committed_ones(tmp_path):
    world = transactional(tmp_path)
    for timestamp, every, committed in (
        (TIME, 1, 6), (TIME + 18, 2, 7), (TIME + 26, 3, 8), (TIME + 40, 8, 8),
        (TIME + 41, None, None),
    ):  # fmt: skip
        assert search(world, timestamp) == every
        find = world.storage, world.folder, timestamp, world.limit
        assert find_time(*find, committed=True) == committed


def test_a_search_can_be_given_up_at_any_step_and_goes_on_from_there(tmp_path):
    world = World(tmp_path / "log", segment_bytes=3000)
    for number in range(40):  # headers that promise what no record has, but in the last one
        claimed = TIME + 10_000 if number % 3 else None
        world.append([b"x"] * 5, timestamps=iter([TIME + number] * 5), claimed=claimed)
    world.append([b"x"] * 5, timestamps=iter([TIME, TIME, TIME + 9_000, TIME, TIME]))
    last = [Step(202, is_found=True)]
    find = world.storage, world.folder, TIME + 8_000
    steps = list(searching(*find, world.limit))
    assert steps[-1:] == last
    assert len(steps) > 20
    for offset, _ in steps:
        again = list(searching(*find, world.limit._replace(start=offset)))
        assert again[-1:] == last
    rising = [offset for offset, _ in steps]
    assert rising == sorted(rising)
