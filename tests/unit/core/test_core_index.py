"""The sparse indexes: their bytes, look-ups against brute force, and coming back identical."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from unit.core.log_helpers import MemoryStorage

from penstock.core.index import (
    TIME_MIN,
    IndexWriter,
    index_paths,
    lookup_offset,
    lookup_time,
    trusted_entries,
)
from penstock.core.storage import Storage

# Batches of a segment as (length in 64s, offsets, max timestamp).
BATCHES = st.lists(
    st.tuples(st.integers(2, 40), st.integers(1, 50), st.integers(-5, 1000)), max_size=60
)


def filled(storage, folder, batches, interval, base=1000):
    """An index over these batches, not flushed; and the batches as (offset, position, time)."""
    index = IndexWriter(storage, folder, base, interval)
    index.create()
    notes = []
    offset, position = base, 0
    for units, span, time in batches:
        notes.append((offset, position, time))
        index.note(offset, position, time)
        offset += span
        position += units * 64
    return index, notes


def files(storage, folder, base=1000):
    return tuple(storage.read_file(path) for path in index_paths(folder, base))


def test_golden_bytes(tmp_path):
    index, _ = filled(Storage(), str(tmp_path), [(4, 10, 77), (4, 10, 55), (1, 1, 99)], 256)
    index.flush()
    assert files(Storage(), str(tmp_path)) == (
        bytes.fromhex(
            "f203000000000000 0001000000000000"  # offset 1010 at 256
            "fc03000000000000 0002000000000000"  # offset 1020 at 512
        ),
        bytes.fromhex(
            "4d00000000000000 f203000000000000"  # max 77, offset 1010
            "6300000000000000 fc03000000000000"  # max 99, offset 1020
        ),
    )
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "00000000000000001000.index",
        "00000000000000001000.time",
    ]


@given(batches=BATCHES, interval=st.sampled_from([64, 300, 1024]), data=st.data())
def test_lookup_by_offset_finds_the_last_indexed_batch_at_or_below(batches, interval, data):
    index, notes = filled(MemoryStorage(), "/data", batches, interval)
    index.flush()
    entries, _ = files(index._storage, "/data")
    end = notes[-1][0] + 60 if notes else 1010
    target = data.draw(st.integers(1000, end))
    offset, position = lookup_offset(entries, 1000, target)
    assert (offset, position) in {(o, p) for o, p, _ in notes} | {(1000, 0)}
    assert offset <= target
    behind = [p for o, p, _ in notes if o <= target and p >= position]
    assert not behind or behind[-1] - position < interval + 40 * 64


@given(batches=BATCHES, interval=st.sampled_from([64, 300, 1024]), time=st.integers(-10, 1010))
def test_lookup_by_time_never_begins_behind_the_first_match(batches, interval, time):
    index, notes = filled(MemoryStorage(), "/data", batches, interval)
    index.flush()
    _, times = files(index._storage, "/data")
    start = lookup_time(times, 1000, time)
    first = next((o for o, _, t in notes if t >= time), None)
    assert first is None or start <= first
    # and what it skips is not worth a look
    assert all(t < time for o, _, t in notes if o < start)


def test_lookups_in_empty_and_torn_files():
    assert lookup_offset(b"", 70, 99) == (70, 0)
    assert lookup_time(b"", 70, 5) == 70
    whole = (90).to_bytes(8, "little") + (640).to_bytes(8, "little")
    assert lookup_offset(whole + b"\xff" * 9, 70, 99) == (90, 640)
    assert lookup_offset(memoryview(whole), 70, 89) == (70, 0)
    assert lookup_offset(memoryview(whole), 70, 90) == (90, 640)


@given(batches=BATCHES, flushes=st.sets(st.integers(0, 60)))
def test_buffered_entries_reach_the_file_in_any_portions(batches, flushes):
    whole, _ = filled(MemoryStorage(), "/data", batches, 256)
    whole.flush()
    parts = IndexWriter(MemoryStorage(), "/data", 1000, 256)
    parts.create()
    offset, position = 1000, 0
    for i, (units, span, time) in enumerate(batches):
        parts.note(offset, position, time)
        offset, position = offset + span, position + units * 64
        if i in flushes:
            parts.flush()
            assert parts.pending == 0
    parts.flush()
    assert files(parts._storage, "/data") == files(whole._storage, "/data")


@given(batches=BATCHES, cut=st.integers(0, 60), junk=st.binary(max_size=50), data=st.data())
def test_invariant_9_damaged_index_files_come_back_identical(batches, cut, junk, data):
    storage = MemoryStorage()
    index, notes = filled(storage, "/data", batches, 256)
    index.flush()
    good = files(storage, "/data")
    for path, content in zip(index_paths("/data", 1000), good, strict=True):
        keep = data.draw(st.integers(0, len(content)))
        storage.names[path].content[:] = content[:keep] + junk
    position = data.draw(st.sampled_from([p for _, p, _ in notes] or [0]))
    again = IndexWriter(storage, "/data", 1000, 256)
    offset, at = again.resume(position)
    assert at <= position
    if (offset, at) not in [(o, p) for o, p, _ in notes]:  # plausible junk: what recovery does
        offset, at = again.restart()
    for note in notes:
        if note[1] >= at:
            again.note(*note)
    again.settle(durable=False)
    if junk.strip(b"\0") == b"":
        assert files(storage, "/data") == good
    assert again.entries == len(files(storage, "/data")[0]) // 16


def test_settling_replaces_a_file_that_says_too_much_and_never_shrinks_it():
    storage = MemoryStorage()
    index, _ = filled(storage, "/data", [(8, 1, 5)] * 10, 256)
    index.flush()
    path = index_paths("/data", 1000)[0]
    mapped = storage.names[path]
    again = IndexWriter(storage, "/data", 1000, 256)
    again.resume(1024)
    again.settle(durable=False)
    assert len(mapped.content) == 9 * 16
    assert storage.names[path] is not mapped
    assert len(storage.names[path].content) == 16


def test_entries_that_cannot_be_trusted():
    def pair(*entries):
        index = b"".join(o.to_bytes(8, "little") + p.to_bytes(8, "little") for o, p, _ in entries)
        times = b"".join(
            t.to_bytes(8, "little", signed=True) + o.to_bytes(8, "little") for o, _, t in entries
        )
        return index, times

    good = [(110, 256, 5), (120, 512, 5), (130, 1024, 9)]
    index, times = pair(*good)
    assert trusted_entries(index, times, 100, 1 << 40) == 3
    assert trusted_entries(index, times, 100, 1024) == 2
    assert trusted_entries(index, times[:-16], 100, 1 << 40) == 2
    assert trusted_entries(index[:40], times, 100, 1 << 40) == 2
    assert trusted_entries(index, times, 110, 1 << 40) == 0
    for bad in [(0, 0, 0), (120, 1024, 9), (130, 512, 9), (130, 1024, 4)]:
        index, times = pair(good[0], good[1], bad)
        assert trusted_entries(index, times, 100, 1 << 40) == 2
    index, times = pair(*good)
    assert trusted_entries(index, pair((110, 0, 5), (121, 0, 5))[1], 100, 1 << 40) == 1


def test_a_new_index_knows_no_time():
    assert IndexWriter(MemoryStorage(), "/data", 0, 256).max_timestamp == TIME_MIN
