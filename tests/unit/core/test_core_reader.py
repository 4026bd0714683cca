"""The mapping reader against logs that grow, roll and lose segments under it."""

from __future__ import annotations

import os
import random
import struct

import pytest
from craft import put, reseal

from penstock.core import header as hd
from penstock.core import reader as reader_module
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError
from penstock.core.log import Log, LogConfig
from penstock.core.reader import Limit, LogReader, divergence, offset_for_timestamp
from penstock.core.segment import list_segments, remove_segment, segment_path
from penstock.core.storage import Storage

TOPIC = bytes(range(16))
BOOT = "0d9a4f5e-boot"
ALL = 1 << 40
TIME = 1_700_000_000_000_000


class World:
    """A real log in a real folder, and what was appended to it, in order."""

    def __init__(self, folder, **config):
        self.folder = str(folder)
        self.storage = Storage()
        self.log, _ = Log.open(
            self.storage,
            self.folder,
            LogConfig(**{"preallocate_bytes": 1 << 16, "index_interval_bytes": 512, **config}),
            topic_id=TOPIC,
            partition=0,
            generation=1,
            now_us=TIME,
            boot_id=BOOT,
            node_clean=True,
        )
        self.values = []
        self.ends = [0]  # where batches end, in offsets
        self.times = []  # (base offset, max timestamp) of every batch

    def append(self, *batches, timestamps=None):
        images = []
        for values in batches:
            stamps = None if timestamps is None else [next(timestamps) for _ in values]
            encoded = encode_batch(
                values, base_timestamp=TIME, timestamps=stamps, topic_id=TOPIC, partition=0,
                producer_id=1, base_sequence=len(self.values),
            )  # fmt: skip
            self.times.append((len(self.values), max(stamps) if stamps else TIME))
            self.values += values
            self.ends.append(len(self.values))
            images.append(memoryview(encoded.image()))
        results = self.log.append(images, TIME)
        assert not any(result.error for result in results)

    @property
    def limit(self):
        return Limit(self.log.log_end, self.log.segment_base, self.log.valid_bytes)

    def reader(self, offset=0):
        return LogReader(self.storage, self.folder, offset)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "log")
    yield made
    made.log.close(clean=False)


def rolling(tmp_path, batches=80, **config):
    """A log of several segments."""
    made = World(tmp_path / "log", segment_bytes=4096, **config)
    for number in range(batches):
        made.append([b"%d/%d" % (number, index) * 9 for index in range(number % 5 + 1)])
    assert len(list_segments(made.storage, made.folder)) > 5
    return made


def values_of(found, offset=0):
    """The records of fetched batches from `offset` on, each as (offset, value)."""
    records: list[tuple[int, bytes | None]] = []
    for head, view, position in found:
        columns = decode(view, position, head)
        start = columns.first_at(offset)
        records += zip(
            columns.offsets[start:].tolist(), columns.values[start:].to_list(), strict=True
        )
    return records


def read_to(reader, limit, bytes_max=ALL):
    """Everything up to the limit, fetched piece by piece."""
    records, wanted = [], reader.offset
    while found := reader.fetch(limit, bytes_max):
        records += values_of(found, wanted)
        wanted = reader.offset
    return records


def expected(world, start=0, stop=None):
    return list(enumerate(world.values))[start:stop]


def images_of(*shapes, base=0, **fields):
    """Stamped batches of hand-made offsets: (base offset, count, options) -> bytes."""
    images = []
    for base_offset, count, options in shapes:
        options = {**fields, **options}
        flags = options.pop("flags", 0)
        encoded = encode_batch(
            [b"%d" % (base_offset + index) for index in range(count)],
            base_timestamp=TIME, topic_id=TOPIC, partition=0, **options,
        )  # fmt: skip
        hd.stamp(encoded.header, base_offset=base_offset, leader_epoch=0, generation=1,
                 append_timestamp=TIME, flags=flags)  # fmt: skip
        images.append(encoded.image())
    return images


def write_segment(folder, base, data, tail=4096):
    os.makedirs(folder, exist_ok=True)
    with open(segment_path(str(folder), base), "wb") as file:
        file.write(data + bytes(tail))


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


def test_seek_to_every_offset(tmp_path):
    world = rolling(tmp_path)
    reader = world.reader()
    for offset in random.Random("seek").sample(range(len(world.values) + 1), len(world.values) + 1):
        reader.seek(offset)
        found = reader.fetch(world.limit, 1)
        batch_end = next((end for end in world.ends if end > offset), offset)
        assert values_of(found, offset) == expected(world, offset, batch_end)
        assert reader.offset == batch_end
    reader.seek(3)
    assert read_to(reader, world.limit) == expected(world, 3)


@pytest.mark.parametrize("damage", ["gone", "empty", "torn", "zeroed", "garbage", "shifted"])
def test_invariant_9_no_index_changes_what_a_seek_finds(tmp_path, damage):
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
        reader.seek(offset)
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
            reader.fetch(Limit(4, 0, valid), ALL)


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


# --- segments that go ---------------------------------------------------------------------------
def test_rule_11_what_is_mapped_stays_valid_after_an_unlink(tmp_path):
    world = rolling(tmp_path)
    bases = list_segments(world.storage, world.folder)
    reader = world.reader()
    found = reader.fetch(world.limit, 1)
    for base in bases[:3]:
        remove_segment(world.storage, world.folder, base)
    # The rest of the segment it stands in is still read, and what it brought before is whole.
    while reader.offset < bases[1]:
        found += reader.fetch(world.limit, 1)
    assert values_of(found) == expected(world, 0, bases[1])
    # Then comes a hole that retention made: never a silent jump.
    with pytest.raises(CorruptBatchError, match=f"from offset {bases[1]} to {bases[3]}"):
        reader.fetch(world.limit, ALL)
    reader.seek(bases[3])
    assert read_to(reader, world.limit) == expected(world, bases[3])
    del found


def test_rule_11_a_wanted_offset_below_the_log_is_never_answered_by_another(tmp_path):
    world = rolling(tmp_path)
    bases = list_segments(world.storage, world.folder)
    remove_segment(world.storage, world.folder, bases[0])
    with pytest.raises(CorruptBatchError, match=f"from offset 0 to {bases[1]}"):
        world.reader().fetch(world.limit, ALL)


class Racing(Storage):
    """Segments vanish between the listing of a folder and the opening of a file in it."""

    def __init__(self, folder):
        super().__init__()
        self._folder = folder
        self.victims = []

    def listdir(self, path):
        names = super().listdir(path)
        if self.victims:
            remove_segment(Storage(), self._folder, self.victims.pop(0))
        return names


def test_rule_11_a_name_that_is_gone_means_the_list_is_read_again(tmp_path):
    world = rolling(tmp_path)
    bases = list_segments(world.storage, world.folder)
    storage = Racing(world.folder)
    # Opening: the segment of the wanted offset goes, and with it that offset.
    reader = LogReader(storage, world.folder, bases[1])
    storage.victims = [bases[1], bases[0]]
    with pytest.raises(CorruptBatchError, match=f"from offset {bases[1]} to {bases[2]}"):
        reader.fetch(world.limit, ALL)
    # Going on: the next segment goes while the reader steps to it. It stays where it is, and the
    # next fetch finds the hole.
    reader = LogReader(storage, world.folder, bases[2])
    storage.victims = []
    got = values_of(reader.fetch(world.limit._replace(offset=bases[3]), ALL))
    storage.victims = [bases[3]]
    assert reader.fetch(world.limit, ALL) == []
    assert reader.offset == bases[3]
    with pytest.raises(CorruptBatchError, match=f"to {bases[4]}"):
        reader.fetch(world.limit, ALL)
    assert got == expected(world, bases[2], bases[3])


def test_rule_11_a_folder_without_segments_brings_nothing(tmp_path):
    assert LogReader(Storage(), str(tmp_path)).fetch(Limit(9, 0, 900), ALL) == []


# --- what is passed over ------------------------------------------------------------------------
def test_control_and_empty_batches_are_passed_over(tmp_path):
    empty = {"offset_deltas": [], "last_offset_delta": 2}
    images = images_of(
        (0, 1, {"attributes": hd.ATTR_CONTROL}),
        (1, 2, {}),
        (3, 1, {"attributes": hd.ATTR_CONTROL | hd.ATTR_TRANSACTIONAL}),
        (4, 0, empty),
        (7, 1, {"attributes": hd.ATTR_TRANSACTIONAL}),
        (8, 0, empty),
    )
    write_segment(tmp_path, 0, b"".join(images))
    reader = LogReader(Storage(), str(tmp_path))
    found = reader.fetch(Limit(11, 0, sum(map(len, images))), ALL)
    assert [batch.head.base_offset for batch in found] == [1, 7]
    assert values_of(found) == [(1, b"1"), (2, b"2"), (7, b"7")]
    assert reader.offset == 11, "what was passed over is behind the reader, or it would wait on it"


def test_gaps_are_for_compacted_batches_only(tmp_path):
    for name, flags in (("compacted", hd.FLAG_COMPACTED), ("not", 0)):
        images = images_of((0, 1, {}), (5, 1, {"flags": flags}))
        write_segment(tmp_path / name, 0, b"".join(images))
        reader = LogReader(Storage(), str(tmp_path / name))
        limit = Limit(6, 0, sum(map(len, images)))
        if flags:
            assert values_of(reader.fetch(limit, ALL)) == [(0, b"0"), (5, b"5")]
        else:
            with pytest.raises(CorruptBatchError, match="from offset 1 to 5"):
                reader.fetch(limit, ALL)


def test_a_sparse_batch_is_found_by_offsets_it_no_longer_has(tmp_path):
    images = images_of(
        (0, 3, {"offset_deltas": [1, 4, 7], "last_offset_delta": 9}),
        (10, 1, {}),
    )
    write_segment(tmp_path, 0, b"".join(images))
    limit = Limit(11, 0, sum(map(len, images)))
    for start in range(11):
        reader = LogReader(Storage(), str(tmp_path), start)
        offsets = [at for at, _ in values_of(reader.fetch(limit, ALL), start)]
        assert offsets == [at for at in (1, 4, 7, 10) if at >= start]


# --- corruption below the limit -----------------------------------------------------------------
@pytest.mark.parametrize("is_active", [True, False])
def test_any_damaged_header_byte_below_the_limit_is_corrupt(tmp_path, is_active):
    images = images_of((0, 2, {}), (2, 2, {}), (4, 1, {}))
    data = b"".join(images)
    at = len(images[0])
    following = images_of((5, 1, {}))
    for byte in range(at, at + 128):
        damaged = bytearray(data)
        damaged[byte] ^= 0x20
        write_segment(tmp_path, 0, damaged)
        if not is_active:
            write_segment(tmp_path, 5, following[0])
        limit = Limit(5, 0, len(data)) if is_active else Limit(6, 5, len(following[0]))
        reader = LogReader(Storage(), str(tmp_path))
        with pytest.raises(CorruptBatchError):
            reader.fetch(limit, ALL)


def test_zeros_below_the_limit_are_corrupt_in_the_active_segment(tmp_path):
    images = images_of((0, 2, {}))
    write_segment(tmp_path, 0, images[0])
    with pytest.raises(CorruptBatchError, match="magic"):
        LogReader(Storage(), str(tmp_path)).fetch(Limit(4, 0, len(images[0]) + 192), ALL)


def test_a_closed_segment_that_ends_within_a_batch_is_corrupt(tmp_path):
    images = images_of((0, 2, {}), (2, 2, {}))
    following = images_of((4, 1, {}))
    data = b"".join(images)
    write_segment(tmp_path, 0, data[:-1], tail=0)
    write_segment(tmp_path, 4, following[0])
    with pytest.raises(CorruptBatchError, match="cut off"):
        LogReader(Storage(), str(tmp_path)).fetch(Limit(5, 4, len(following[0])), ALL)


def test_a_batch_of_another_version_is_named_as_such(tmp_path):
    image = bytearray(images_of((0, 1, {}))[0])
    put(image, version=9)
    reseal(image)
    write_segment(tmp_path, 0, image)
    with pytest.raises(UnsupportedVersionError, match="version 9"):
        LogReader(Storage(), str(tmp_path)).fetch(Limit(1, 0, len(image)), ALL)


def test_a_damaged_body_is_found_when_it_is_decoded(tmp_path):
    image = bytearray(images_of((0, 1, {}))[0])
    image[-1] ^= 1
    write_segment(tmp_path, 0, image)
    ((head, view, position),) = LogReader(Storage(), str(tmp_path)).fetch(
        Limit(1, 0, len(image)), ALL
    )
    with pytest.raises(CorruptBatchError, match="body checksum"):
        decode(view, position, head)


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


# --- times --------------------------------------------------------------------------------------
def by_brute_force(world, timestamp, below):
    return next(
        (base for base, newest in world.times if newest >= timestamp and base < below), None
    )


@pytest.mark.parametrize("seed", range(4))
def test_offsets_by_time_are_those_of_a_linear_search(tmp_path, seed):
    chance = random.Random(f"times {seed}")
    world = World(tmp_path / "log", segment_bytes=3000, index_interval_bytes=256)
    clock = 0

    def stamps():
        nonlocal clock
        while True:
            clock += chance.choice((0, 0, 1, 5))
            yield max(0, clock + chance.choice((0, 0, 0, -20, 7)))

    for _ in range(120):
        world.append([b"x"] * chance.randrange(1, 4), timestamps=stamps())
    limit = world.limit
    assert len(list_segments(world.storage, world.folder)) > 4
    for timestamp in (-1, 0, *range(1, clock + 10, 3), clock + 100):
        assert offset_for_timestamp(world.storage, world.folder, timestamp, limit) == (
            by_brute_force(world, timestamp, limit.offset)
        )
    middle = world.ends[60]
    lower = limit._replace(offset=middle)
    for timestamp in range(0, clock + 10, 7):
        found = offset_for_timestamp(world.storage, world.folder, timestamp, lower)
        assert found == by_brute_force(world, timestamp, middle)


def test_append_time_is_what_counts_where_a_topic_says_so(tmp_path):
    world = World(tmp_path / "log", timestamp_type="append")
    world.append([b"a"], timestamps=iter([TIME + 500]))
    world.append([b"b"], timestamps=iter([5]))
    find = world.storage, world.folder
    assert offset_for_timestamp(*find, TIME, world.limit) == 0
    assert offset_for_timestamp(*find, TIME + 1, world.limit) is None


@pytest.mark.timeout(10)
def test_invariant_10_a_search_by_time_ends_whatever_the_limit(tmp_path):
    """Limits are read piece by piece from shared memory: offsets may run ahead of bytes."""
    images = images_of((0, 4, {}), (4, 4, {}))
    write_segment(tmp_path, 0, b"".join(images))
    find = Storage(), str(tmp_path), TIME + 1
    for offset, valid in (
        (2, len(images[0])),
        (6, 2 * len(images[0])),
        (8, len(images[0])),
        (8, 0),
    ):
        assert offset_for_timestamp(*find, Limit(offset, 0, valid)) is None
    assert offset_for_timestamp(*find[:2], TIME, Limit(8, 0, 0)) is None


# --- divergence ---------------------------------------------------------------------------------
def test_rule_15_where_a_reader_parted_from_the_log(tmp_path):
    storage, folder = Storage(), str(tmp_path)
    assert divergence(storage, folder, 10, 1, 100) is None
    save_epochs(storage, folder, EpochCache([(1, 0), (3, 50), (4, 70)]))
    assert [divergence(storage, folder, offset, 1, 100) for offset in (49, 50, 51)] == [
        *(None, None, 50)
    ]
    assert divergence(storage, folder, 71, 3, 100) == 70
    assert divergence(storage, folder, 71, 2, 100) == 50, "epoch 2 is not known: it ends with 1"
    assert [divergence(storage, folder, offset, 4, 100) for offset in (100, 101)] == [None, 100]
