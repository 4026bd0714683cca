"""Only the newest: against a plain dict, for any batches, keys and bounds."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consumer.latest import newest_of_keys, newest_of_partition
from penstock.client.consumer.records import Chunk, Record, RecordBatch
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.work import WorkColumns

KEYS = st.sampled_from([b"", b"a", b"b", b"cc", b"d" * 40])
RECORD = st.tuples(
    st.one_of(st.none(), KEYS),
    st.one_of(st.none(), st.binary(max_size=20)),
    st.integers(0, 1 << 40),
)
BATCH = st.tuples(
    st.lists(RECORD, min_size=1, max_size=12), st.booleans(), st.booleans(), st.booleans()
)


def chunk_of(base: int, records: list[Any], keyed: bool, stamped: bool, headed: bool) -> Chunk:
    keys, values, stamps = zip(*records, strict=True)
    headers = [(("n", str(i).encode()),) * (i % 3) for i in range(len(records))]
    encoded = encode_batch(
        values,
        hd.BatchIdentity(bytes(16), 0, 1, base_sequence=base),
        base_timestamp=7,
        keys=keys if keyed else None,
        timestamps=stamps if stamped else None,
        headers=headers if headed else None,
        work=WorkColumns(priorities=[i % 3 or None for i in range(len(records))])
        if headed
        else None,
    )
    header = encoded.header
    hd.stamp(header, base_offset=base, leader_epoch=3, generation=0, append_timestamp=9, flags=0)
    view = memoryview(encoded.image())
    return Chunk("t", 0, decode(view, 0, hd.checked(view, 0)))


def chunks_of(batches: list[Any]) -> list[Chunk]:
    found, base = [], 0
    for records, keyed, stamped, headed in batches:
        found.append(chunk_of(base, records, keyed, stamped, headed))
        base += len(records)
    return found


def expected_of(records: list[Record]) -> list[Record]:
    newest = {record.offset if record.key is None else record.key: record for record in records}
    return sorted(newest.values(), key=lambda record: record.offset)


@settings(deadline=None)
@given(st.lists(BATCH, max_size=8), st.integers(1, 4), st.integers(0, 11))
def test_the_newest_record_of_each_key_and_every_one_without(batches, at_once, first):
    chunks = chunks_of(batches)
    if chunks:
        chunks[0] = chunks[0].cut(min(first, len(chunks[0]) - 1), len(chunks[0]))
    left = list(chunks)

    def fetch():
        taken = left[:at_once]
        del left[:at_once]
        return taken

    newest = newest_of_keys(fetch, lambda: not left, 1 << 30)
    everything = list(RecordBatch(chunks))
    found = list(RecordBatch(newest.chunks()))
    assert found == expected_of(everything)
    assert newest.seen == len(everything)
    if found:
        assert newest.chunks()[-1].next_offset == chunks[-1].next_offset


@settings(deadline=None)
@given(st.lists(BATCH, min_size=1, max_size=8), st.integers(1, 4000))
def test_a_bound_brings_it_in_several_turns_each_of_which_is_the_newest_so_far(batches, bytes_max):
    chunks = chunks_of(batches)
    left = list(chunks)
    turns = 0
    while left:
        turns += 1
        before = list(left)
        newest = newest_of_keys(lambda: [left.pop(0)], lambda: not left, bytes_max)
        read = before[: len(before) - len(left)]
        assert list(RecordBatch(newest.chunks())) == expected_of(list(RecordBatch(read)))
    assert turns <= len(chunks)


def test_few_keys_hold_little_however_much_is_read():
    records = [(b"%d" % (number % 5), bytes(100), 0) for number in range(500)]
    chunks = [chunk_of(base * 500, records, True, False, False) for base in range(50)]
    left = list(chunks)
    newest = newest_of_keys(lambda: [left.pop(0)], lambda: not left, 200_000)
    assert not left, "it was read to the end"
    assert newest.nbytes < 2000
    assert [record.offset for record in RecordBatch(newest.chunks())] == [*range(24995, 25000)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.data())
def test_the_newest_of_a_partition_behind_ends_without_records(gaps, data):
    """Batches of one record with gaps behind them, as compaction leaves them."""
    offsets = [sum(gaps[: index + 1]) + index for index in range(len(gaps))]
    end = offsets[-1] + 1 + data.draw(st.integers(0, 1000))
    start = data.draw(st.integers(0, end))
    at = start

    def seek(offset):
        nonlocal at
        at = offset

    def fetch():
        nonlocal at
        following = [offset for offset in offsets if offset >= at]
        at = following[0] + 1 if following else end
        return [chunk_of(following[0], [(None, b"v", 0)], False, False, False)] if following else []

    last = newest_of_partition(fetch, seek, lambda: at >= end, start, end)
    wanted = [offset for offset in offsets if offset >= start]
    assert ([] if last is None else last.offsets.tolist()) == wanted[-1:]
