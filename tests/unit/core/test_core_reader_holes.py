"""The mapping reader where segments go, bytes rot, records are passed over; and places by time."""

from __future__ import annotations

import pytest
from batch_bytes import put, reseal
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
from unit.core.log_helpers import find_time

from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import CorruptBatchError, UnsupportedVersionError
from penstock.core.reader import Limit, LogReader, divergence
from penstock.core.segment import list_segments, remove_segment
from penstock.core.storage import Storage


# --- segments that go ---------------------------------------------------------------------------
@pytest.mark.rule(11)
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


@pytest.mark.rule(11)
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


@pytest.mark.rule(11)
def test_rule_11_a_name_that_is_gone_means_the_list_is_read_again(tmp_path):
    world = rolling(tmp_path)
    bases = list_segments(world.storage, world.folder)
    storage = Racing(world.folder)
    # Opening: the segment of the wanted offset goes, and with it that offset.
    reader = LogReader(storage, world.folder, bases[1])
    storage.victims = [bases[1], bases[0]]
    with pytest.raises(CorruptBatchError, match=f"from offset {bases[1]} to {bases[2]}"):
        reader.fetch(world.limit, ALL)
    # Going on: the next segment goes before the reader steps to it, or while it looks again.
    reader = LogReader(storage, world.folder, bases[2])
    storage.victims = []
    got = values_of(reader.fetch(world.limit._replace(offset=bases[3]), ALL))
    remove_segment(world.storage, world.folder, bases[3])
    storage.victims = [bases[4]]
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match=f"to {bases[5]}"):
            reader.fetch(world.limit, ALL)
        assert reader.offset == bases[3]
    assert got == expected(world, bases[2], bases[3])


@pytest.mark.rule(11)
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
                read_to(reader, limit)


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
        assert values_of(reader.fetch(limit, ALL)) == [(0, b"0"), (1, b"1")]
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                reader.fetch(limit, ALL)
            assert reader.offset == 2


def test_zeros_below_the_limit_are_corrupt_in_the_active_segment(tmp_path):
    images = images_of((0, 2, {}))
    write_segment(tmp_path, 0, images[0])
    reader = LogReader(Storage(), str(tmp_path))
    with pytest.raises(CorruptBatchError, match="magic"):
        read_to(reader, Limit(4, 0, len(images[0]) + 192))
    assert reader.offset == 2


def test_a_closed_segment_that_ends_within_a_batch_is_corrupt(tmp_path):
    images = images_of((0, 2, {}), (2, 2, {}))
    following = images_of((4, 1, {}))
    data = b"".join(images)
    write_segment(tmp_path, 0, data[:-1], tail=0)
    write_segment(tmp_path, 4, following[0])
    reader = LogReader(Storage(), str(tmp_path))
    with pytest.raises(CorruptBatchError, match="cut off"):
        read_to(reader, Limit(5, 4, len(following[0])))
    assert reader.offset == 2


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


# --- times --------------------------------------------------------------------------------------
def test_append_time_is_what_counts_where_a_topic_says_so(tmp_path):
    world = World(tmp_path / "log", timestamp_type="append")
    world.append([b"a"], timestamps=iter([TIME + 500]))
    world.append([b"b"], timestamps=iter([5]))
    find = world.storage, world.folder
    assert find_time(*find, TIME, world.limit) == 0
    assert find_time(*find, TIME + 1, world.limit) is None


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
        assert find_time(*find, Limit(offset, 0, valid)) is None
    assert find_time(*find[:2], TIME, Limit(8, 0, 0)) is None


# --- divergence ---------------------------------------------------------------------------------
@pytest.mark.rule(15)
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
