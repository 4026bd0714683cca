"""Segments: names, scans that end at the first bad batch, and finding a batch by its offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.core.log_helpers import TOPIC, MemoryStorage, make_batch

from penstock.core.header import FLAG_APPEND_TIME, checked, stamp
from penstock.core.index import IndexWriter, index_paths
from penstock.core.segment import (
    Scan,
    Stop,
    batch_time,
    find_batch,
    list_segments,
    segment_name,
    segment_path,
)
from penstock.core.storage import WRITE_ANY, write_all

# A segment as a list of (records, body in 64s).
SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=12)


def stamped(shapes, base=500, epoch=3, generation=2):
    """The bytes of a segment, and where its batches begin: [(position, base offset)]."""
    data, places, offset, sequence = b"", [], base, 0
    for records, units in shapes:
        batch = bytearray(make_batch(sequence, records=records, body=units * 64))
        private = batch[:128]
        stamp(
            private,
            base_offset=offset,
            leader_epoch=epoch,
            generation=generation,
            append_timestamp=7,
        )
        places.append((len(data), offset))
        data += bytes(private) + bytes(batch[128:])
        offset += records
        sequence += records
    return data, places, offset


def written(data, base=500):
    storage = MemoryStorage()
    fd = storage.open(segment_path("/data", base), WRITE_ANY)
    write_all(storage, fd, [data], 0)
    return storage, fd


def scan_of(storage, fd, **options):
    settings = {"position": 0, "offset": 500, "owner": (TOPIC, 0), "bodies": True, **options}
    return Scan(storage, fd, **settings)


def test_names_are_the_base_offset_and_sort_as_text():
    assert segment_name(0) == "00000000000000000000.log"
    assert segment_name(2**40) == "00000001099511627776.log"
    storage = MemoryStorage()
    for name in ["x.log", "1.log", segment_name(7) + ".tmp", "epochs", "0" * 20 + ".failed"]:
        storage.close(storage.open("/data/" + name, WRITE_ANY))
    for base in [300, 0, 2**40]:
        storage.close(storage.open(segment_path("/data", base), WRITE_ANY))
    assert list_segments(storage, "/data") == [0, 300, 2**40]


@given(shapes=SHAPES, zeros=st.integers(0, 300), chunk=st.sampled_from([256, 1024, 1 << 20]))
def test_a_scan_gives_every_batch_and_ends_in_the_zeros(shapes, zeros, chunk):
    data, places, end = stamped(shapes)
    storage, fd = written(data + bytes(zeros))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.core.segment.READ_BODIES", chunk)
        patch.setattr("penstock.core.segment.READ_HEADERS", chunk)
        for bodies in (True, False):
            scan = scan_of(storage, fd, bodies=bodies)
            found = []
            for at, head in scan:
                found.append((at, head.base_offset))
                if bodies:
                    assert scan.body(at, head) == data[at : at + head.length]
            assert found == places
            assert (scan.position, scan.offset) == (len(data), end)
            assert scan.stop is (Stop.ZERO if zeros >= 128 else Stop.END)


@given(shapes=SHAPES.filter(bool), data=st.data())
def test_a_scan_keeps_exactly_the_batches_before_a_flipped_bit(shapes, data):
    good, places, _ = stamped(shapes)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    storage, fd = written(bytes(bad))
    before = [place for place in places if place[0] <= at][:-1]
    scan = scan_of(storage, fd)
    assert [(p, head.base_offset) for p, head in scan] == before
    assert scan.stop in (Stop.BAD, Stop.TORN)


@given(shapes=SHAPES.filter(bool), data=st.data())
def test_a_scan_keeps_exactly_the_whole_batches_of_a_short_file(shapes, data):
    good, places, _ = stamped(shapes)
    size = data.draw(st.integers(0, len(good)))
    storage, fd = written(good[:size])
    ends = [position for position, _ in places[1:]] + [len(good)]
    whole = [place for place, stop in zip(places, ends, strict=True) if stop <= size]
    for bodies in (True, False):
        scan = scan_of(storage, fd, bodies=bodies)
        assert [(p, head.base_offset) for p, head in scan] == whole


def test_a_batch_continues_a_log_only_if_offset_and_order_do():
    first, _, end = stamped([(3, 1)])
    for base, epoch, generation, stop in [
        (end, 3, 2, Stop.END),
        (end, 3, 3, Stop.END),
        (end, 4, 0, Stop.END),
        (end, 3, 1, Stop.GAP),
        (end, 2, 9, Stop.GAP),
        (end + 1, 3, 2, Stop.GAP),
        (end - 1, 3, 2, Stop.GAP),
    ]:
        second, _, _ = stamped([(1, 1)], base, epoch, generation)
        storage, fd = written(first + second)
        scan = scan_of(storage, fd)
        assert sum(1 for _ in scan) == (2 if stop is Stop.END else 1)
        assert scan.stop is stop


def test_a_scan_stops_at_its_limit_at_foreigners_and_at_the_future():
    data, places, _ = stamped([(1, 1)] * 4)
    storage, fd = written(data)
    scan = scan_of(storage, fd, until=502)
    assert [offset for _, offset in ((at, head.base_offset) for at, head in scan)] == [500, 501]
    assert scan.stop is Stop.LIMIT
    scan = scan_of(storage, fd, owner=(TOPIC, 1))
    assert list(scan) == []
    assert scan.stop is Stop.FOREIGN
    future = bytearray(data)
    future[places[2][0] + 4] = 99
    from crc32c import crc32c

    head = future[places[2][0] : places[2][0] + 128]
    head[8:12] = bytes(4)
    future[places[2][0] + 8 : places[2][0] + 12] = crc32c(bytes(head)).to_bytes(4, "little")
    storage, fd = written(bytes(future))
    scan = scan_of(storage, fd)
    assert sum(1 for _ in scan) == 2
    assert scan.stop is Stop.VERSION


@given(shapes=SHAPES.filter(bool), kind=st.sampled_from(["good", "none", "zero", "wrong"]))
def test_invariant_9_find_batch_whatever_the_index_says(shapes, kind):
    data, places, end = stamped(shapes)
    storage, fd = written(data + bytes(500))
    index = IndexWriter(storage, "/data", 500, 64)
    index.create()
    for position, offset in places:
        index.note(offset, position, 1)
    index.flush()
    content = storage.names[index_paths("/data", 500)[0]].content
    if kind == "none":
        content.clear()
    elif kind == "zero":
        content[:] = bytes(len(content))
    elif kind == "wrong":
        for at in range(8, len(content), 16):
            content[at] ^= 0x40
    for offset in range(500, end):
        want = [(p, o) for p, o in places if o <= offset][-1]
        assert find_batch(storage, "/data", 500, fd, offset) == want
    assert find_batch(storage, "/data", 500, fd, end) == (len(data), end)


def test_the_time_of_a_batch_is_its_append_time_where_that_is_what_records_carry():
    batch = bytearray(make_batch(timestamp=44))
    private = batch[:128]
    stamp(private, base_offset=0, leader_epoch=1, generation=1, append_timestamp=99)
    assert batch_time(checked(private)) == 44
    stamp(
        private,
        base_offset=0,
        leader_epoch=1,
        generation=1,
        append_timestamp=99,
        flags=FLAG_APPEND_TIME,
    )
    assert batch_time(checked(private)) == 99
