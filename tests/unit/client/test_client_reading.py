"""A reader of one partition: damage, a log start and a leader epoch that move under it."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_fixture import Partition, drained
from unit.core.log_helpers import FOLDER, MemoryStorage

from penstock.client.consumer.partition_cursor import AssignedPartition
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import CorruptBatchError, LogTruncatedError, OffsetOutOfRangeError
from penstock.core.header import HEADER_BYTES
from penstock.core.segment import segment_path
from penstock.core.storage import Storage


@pytest.fixture
def at() -> Partition:
    return Partition(20_000)


@pytest.fixture
def on_disk(tmp_path: Path) -> Partition:
    """What is mapped of it grows with the file."""
    return Partition(20_000, Storage(), str(tmp_path / "t-0"))


def values(reader: AssignedPartition, room: int | None = None) -> list[int]:
    return [
        chunk.row_offset(row)
        for chunk in reader.take(room)
        for row in range(chunk.start, chunk.stop)
    ]


def test_what_is_good_before_damage_goes_out_first(at: Partition) -> None:
    at.write(1, 3)
    first = at.page.segment()[1]
    at.write(1, 3)
    assert isinstance(at.storage, MemoryStorage)
    content = at.storage.names[segment_path(FOLDER, 0)].content
    content[first + HEADER_BYTES + 1] ^= 1
    reader = at.reader("read_uncommitted")
    assert values(reader) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match=r"damaged at offset 3 .* begins at offset 6"):
            reader.take(None)
    assert reader.offset == 3
    reader.jump(6)
    at.write(1, 2)
    assert values(reader) == [6, 7]


def test_a_reader_takes_up_again_where_it_handed_out(at: Partition) -> None:
    at.write(1, 10)
    reader = at.reader("read_uncommitted")
    assert values(reader, 3) == [0, 1, 2]
    assert reader.offset == 3
    assert reader.is_ahead
    reader.pause()
    reader.paused = False
    assert values(reader, 2) == [3, 4]
    assert [offset for offset, _ in drained(reader)] == [5, 6, 7, 8, 9]


def test_a_batch_that_begins_before_the_reader_gives_what_is_left_of_it(at: Partition) -> None:
    at.write(1, 10)
    assert values(at.reader("read_uncommitted", 4)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.rule(11)
def test_rule_11_a_reader_that_retention_has_overtaken_is_told(at: Partition) -> None:
    at.write(1, 10)
    at.write(1, 10)
    reader = at.reader("read_uncommitted")
    assert values(reader, 2) == [0, 1]
    reader.jump(2)
    at.role.trim(5, at.clock)
    with pytest.raises(OffsetOutOfRangeError, match="offset 2 is gone, the log starts at 5"):
        reader.take(None)
    reader.jump(5)
    assert [offset for offset, _ in drained(reader)] == list(range(5, 20))


@pytest.mark.rule(15)
def test_rule_15_the_short_way_of_a_lone_record_heeds_another_leader_epoch(
    on_disk: Partition,
) -> None:
    on_disk.write(1, 4)
    on_disk.write(1, 1)
    reader = on_disk.reader("read_uncommitted")
    assert len(drained(reader)) == 5
    assert reader.leader_epoch == 1
    save_epochs(on_disk.storage, on_disk.folder, EpochCache([(1, 0), (2, 3)]))
    on_disk.page.publish_epoch(2)
    on_disk.write(1, 1)
    assert reader.take_alone() is None
    with pytest.raises(LogTruncatedError) as caught:
        reader.take(None)
    assert caught.value.divergence == 3


def test_a_lone_record_comes_the_short_way(
    on_disk: Partition,
) -> None:
    on_disk.write(1, 4)
    reader = on_disk.reader("read_uncommitted")
    drained(reader)
    assert reader.take_alone() is None
    on_disk.write(1, 1)
    chunk = reader.take_alone()
    assert chunk is not None
    assert (chunk.row_offset(0), len(chunk), reader.offset) == (4, 1, 5)
    on_disk.write(1, 2)
    assert reader.take_alone() is None, "two of them"
    assert values(reader) == [5, 6]
