"""Compaction against what it must leave: the newest record of each key, at its own offset."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest
from unit.core.compacting import (
    CONFIG,
    Keyed,
    compact,
    compaction,
    keyed,
    newest,
    records,
)
from unit.core.log_helpers import (
    FOLDER,
    MemoryStorage,
    abort,
    begin,
    commit,
    fail_at,
    open_log,
)

from penstock.core import header as hd
from penstock.core.aborted import decode_aborted, txn_path
from penstock.core.columns import decode
from penstock.core.compaction import plan_compaction
from penstock.core.errors import CorruptBatchError, ErrorCode, StorageError
from penstock.core.header import checked
from penstock.core.logreplica import LogReplica
from penstock.core.segment import list_segments, segment_path
from penstock.core.swapping import CLEANED_TO_FILE, load_cleaned_to, save_cleaned_to
from penstock.logcheck import CheckedPartition, check_partition

SECOND = 1_000_000


def findings(storage):
    checked = check_partition(CheckedPartition(FOLDER, "t-0", None), storage)
    return [(finding.kind, finding.message) for finding in checked.findings]


def chaotic(seed, batches=60, **options):
    """A log of random batches, its last segment closed."""
    rng = random.Random(seed)
    world = Keyed(**options)
    for _ in range(batches):
        pairs = [
            (
                b"key-%d" % rng.randrange(12) if rng.random() < 0.95 else None,
                None if rng.random() < 0.1 else rng.randbytes(rng.choice([0, 5, 5, 40])),
            )
            for _ in range(rng.choice([1, 2, 5, 20]))
        ]
        extra: dict[str, Any] = {}
        if rng.random() < 0.3:
            extra["timestamps"] = [rng.randrange(1 << rng.choice([8, 40])) for _ in pairs]
        if rng.random() < 0.3:
            extra["headers"] = [
                [(f"h{i}", rng.choice([None, b"", b"xyz"])) for i in range(rng.randrange(3))]
                for _ in pairs
            ]
        if rng.random() < 0.3:
            extra["codec"] = hd.CODEC_LZ4
        world.put(*pairs, producer=rng.randrange(1, 4), **extra)
    world.close_segment()
    return world


def full_records(log):
    """Offset -> key, value, timestamp, headers."""
    found = {}
    for head, data in log.read(log.log_start, 1 << 40):
        if not head.record_count:
            continue
        columns = decode(memoryview(data), 0, head)
        headers = columns.headers() or [()] * columns.count
        rows = zip(
            columns.offsets.tolist(),
            columns.keys,
            columns.values,
            columns.timestamps.tolist(),
            headers,
            strict=True,
        )
        found.update({offset: tuple(rest) for offset, *rest in rows})
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_newest_of_each_key_stays_with_all_it_carries(seed):
    world = chaotic(seed)
    before = full_records(world.log)
    wanted = newest({offset: row[:2] for offset, row in before.items()})
    stats = compact(world.storage, world.log, delete_retention_us=9 * SECOND)
    after = full_records(world.log)
    assert after == {offset: before[offset] for offset in wanted}
    assert stats.records_read == len(before)
    assert stats.records_kept == len(after) == len(before) - stats.records_dropped
    assert findings(world.storage) == []
    # Nothing changes when it is done again, whatever is known of the last time.
    assert compact(world.storage, world.log).records_dropped == 0
    world.storage.unlink(f"{FOLDER}/{CLEANED_TO_FILE}")
    compact(world.storage, world.log, now_us=9 * SECOND)
    assert full_records(world.log) == {
        offset: row for offset, row in after.items() if row[1] is not None or row[0] is None
    }, "tombstones whose horizon is reached are gone, and nothing else"
    assert findings(world.storage) == []


def test_append_times_stay_the_times_of_records():
    world = Keyed(config=CONFIG.__class__(segment_bytes=2048, timestamp_type="append"))
    for i in range(30):
        world.put((b"%d" % (i % 3), b"v" * 40), (b"x", b"w"), timestamps=[5, 1 << 40])
    world.close_segment()
    before = full_records(world.log)
    compact(world.storage, world.log)
    after = full_records(world.log)
    assert after == {o: before[o] for o in newest({o: r[:2] for o, r in before.items()})}
    assert findings(world.storage) == []


@pytest.mark.parametrize("offset_step", [1, 3])
def test_reads_from_any_offset_go_on_at_the_next_that_is_left(offset_step):
    world = chaotic(99)
    compact(world.storage, world.log)
    left = records(world.log)
    for start in range(0, world.log.log_end + 1, offset_step):
        assert records(world.log, start) == {o: p for o, p in left.items() if o >= start}


def test_small_neighbours_become_one_segment():
    world = chaotic(3)
    before = list_segments(world.storage, FOLDER)
    compact(world.storage, world.log)
    compact(world.storage, world.log)
    after = list_segments(world.storage, FOLDER)
    assert len(after) < len(before)
    assert set(after) <= set(before)
    work = compaction(world.storage, world.log, segment_bytes=1 << 20)
    (prepared,) = work.prepare()
    assert world.log.swap(prepared)
    assert list_segments(world.storage, FOLDER) == [0, before[-1]]
    assert findings(world.storage) == []


def test_tombstones_stay_until_their_delete_horizon():
    world = Keyed()
    world.put((b"a", b"1"), (b"b", b"1"))
    world.put((b"a", None), (b"c", b"1"))
    world.close_segment()
    for now, left in (
        (10, {1: (b"b", b"1"), 2: (b"a", None), 3: (b"c", b"1")}),
        (69, {1: (b"b", b"1"), 2: (b"a", None), 3: (b"c", b"1")}),
        (70, {1: (b"b", b"1"), 3: (b"c", b"1")}),
    ):
        compact(world.storage, world.log, now_us=now * SECOND, delete_retention_us=60 * SECOND)
        assert records(world.log) == left
    heads = [head for head, _ in world.log.read(0, 1 << 20)]
    assert [head.flags & hd.FLAG_DELETE_HORIZON for head in heads] == [0, 0]


def test_a_horizon_is_rounded_up_and_stamped_once():
    world = Keyed()
    world.put((b"a", None))
    world.close_segment()
    compact(world.storage, world.log, now_us=1, delete_retention_us=SECOND)
    ((head, _),) = world.log.read(0, 1)
    assert head.flags == hd.FLAG_COMPACTED | hd.FLAG_DELETE_HORIZON
    assert head.delete_horizon == 2
    stats = compact(world.storage, world.log, now_us=1_500_000, delete_retention_us=9 * SECOND)
    assert (stats.groups, stats.bytes_written) == (1, 0)
    assert world.log.read(0, 1)[0][0] == head


def test_a_key_that_comes_back_after_its_tombstone_stays():
    world = Keyed()
    world.put((b"a", b"1"))
    world.put((b"a", None))
    world.close_segment()
    compact(world.storage, world.log)
    offset = world.put((b"a", b"2"))
    world.close_segment()
    compact(world.storage, world.log, now_us=90 * SECOND)
    assert records(world.log) == {offset: (b"a", b"2")}


def test_invariant_3_sequences_survive_a_rebuild_after_all_records_went():
    world = Keyed()
    world.put((b"a", b"1"), (b"b", b"1"), producer=1)
    world.put((b"c", b"1"), producer=2, producer_epoch=0)
    world.put((b"a", b"2"), (b"b", b"2"), (b"c", b"2"), producer=3)
    world.close_segment()
    compact(world.storage, world.log)
    assert sorted(records(world.log)) == [3, 4, 5]
    heads = [head for head, _ in world.log.read(0, 1 << 20)]
    assert [(h.producer_id, h.record_count, h.length) for h in heads[:2]] == [
        (1, 0, hd.HEADER_BYTES),
        (2, 0, hd.HEADER_BYTES),
    ]
    world.log.close(clean=True)
    for name in list(world.storage.names):
        if "producers-" in name or name.endswith("/recovery-point"):
            world.storage.unlink(name)
    log, _ = open_log(world.storage, config=CONFIG, node_clean=True)
    assert [log.producers.next_sequence(p) for p in (1, 2, 3)] == [(0, 2), (0, 1), (0, 3)]
    again = log.append([keyed([(b"c", b"1")], 0, 2)], 5)[0]
    assert (again.duplicate, again.base_offset) == (True, 2)
    gap = log.append([keyed([(b"c", b"1")], 5, 2)], 5)[0]
    assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE


def test_an_emptied_batch_goes_once_its_producer_sent_more():
    world = Keyed()
    for round_ in range(6):
        world.put((b"a", b"%d" % round_), producer=1)
        world.put((b"a", b"%d" % round_), producer=2)
        world.close_segment()
        compact(world.storage, world.log, segment_bytes=1 << 20)
    heads = [head for head, _ in world.log.read(0, 1 << 20)]
    assert [(head.producer_id, head.base_offset) for head in heads] == [(1, 10), (2, 11)]


def test_keyless_records_stay_and_are_counted():
    world = Keyed()
    world.put((None, b"1"), (None, b"2"))
    world.put((b"a", b"1"), (None, None), (b"a", b"2"))
    world.close_segment()
    stats = compact(world.storage, world.log)
    assert stats.keyless == 3
    assert sorted(records(world.log)) == [0, 1, 3, 4]


@pytest.mark.rule(21)
def test_rule_21_of_transactions_only_committed_records_and_the_last_state_of_producers_stay():
    world = Keyed()
    world.put((b"a", b"1"))
    world.log.append([begin(0, producer=2)], world.at)
    world.put((b"a", b"3"), producer=2, attributes=hd.ATTR_TRANSACTIONAL)
    world.log.append([abort(0, producer=2)], world.at)
    world.log.append([begin(0, producer=3)], world.at)
    world.put((b"b", b"5"), (b"c", b"5"), producer=3, attributes=hd.ATTR_TRANSACTIONAL)
    world.log.append([commit(0, producer=3)], world.at)
    world.put((b"b", b"6"), producer=3, producer_epoch=1)
    world.put((b"a", b"4"))
    world.close_segment()
    before = world.log.producers.encode(world.log.log_end)
    stats = compact(world.storage, world.log)
    heads = [head for head, _ in world.log.read(0, 1 << 20)]
    assert [(head.base_offset, head.record_count) for head in heads] == [
        (3, 1), (5, 1), (8, 1), (9, 1),
    ]  # fmt: skip
    assert [head.attributes & hd.ATTR_TRANSACTIONAL for head in heads] == [1, 0, 0, 0]
    assert records(world.log)[6] == (b"c", b"5")
    assert 5 not in records(world.log)
    assert stats.records_aborted == 1
    assert findings(world.storage) == []
    again, _ = open_log(world.storage.killed(), config=CONFIG)
    assert again.producers.encode(again.log_end) == before


def test_an_aborted_record_replaces_none():
    world = Keyed()
    kept = world.put((b"a", b"1"))
    world.log.append([begin(0, producer=2)], world.at)
    world.put((b"a", b"2"), producer=2, attributes=hd.ATTR_TRANSACTIONAL)
    world.log.append([abort(0, producer=2)], world.at)
    world.close_segment()
    compact(world.storage, world.log)
    assert records(world.log)[kept] == (b"a", b"1")


def test_what_is_fsynced_but_not_by_name_is_not_swapped():
    """A sync whose fsync of the folder found no room has moved nothing that counts."""
    world = Keyed()
    for value in (b"1", b"2"):
        world.put((b"a", value))
    world.log.roll(world.at)
    world.storage.fault = fail_at(1, errno.ENOSPC, "fsync_folder")
    with pytest.raises(StorageError):
        world.log.sync()
    world.storage.fault = None
    assert world.log.durable == 0
    work = compaction(world.storage, world.log, bound=world.log.log_end)
    (prepared,) = work.prepare()
    assert not world.log.swap(prepared)
    assert sorted(records(world.log)) == [0, 1]


@pytest.mark.rule(21)
def test_rule_21_a_segment_waits_for_the_durable_end_of_what_reaches_into_it():
    world = Keyed()
    world.put((b"a", b"1"))
    world.log.append([begin(0, producer=2)], world.at)
    world.put((b"a", b"2"), producer=2, attributes=hd.ATTR_TRANSACTIONAL)
    world.close_segment()
    world.log.append([commit(0, producer=2)], world.at)
    assert world.log.last_stable == world.log.log_end
    assert compact(world.storage, world.log).records_read == 0
    world.put((b"b", b"1"))
    world.close_segment()
    compact(world.storage, world.log)
    assert sorted(records(world.log)) == [2, 4]


def test_aborts_of_all_sources_are_noted_beside_the_segment_that_takes_their_place():
    world = Keyed()
    for epoch in range(6):
        world.log.append([begin(epoch, producer=2)], world.at)
        world.put(
            (b"%d" % epoch, b"v"), producer=2, producer_epoch=epoch,
            attributes=hd.ATTR_TRANSACTIONAL,
        )  # fmt: skip
        world.log.append([abort(epoch, producer=2)], world.at)
        world.close_segment()
    compact(world.storage, world.log, segment_bytes=1 << 20)
    first, last = list_segments(world.storage, FOLDER)
    noted = decode_aborted(world.storage.read_file(txn_path(FOLDER, first)) or b"")
    assert [(each.epoch, each.last_offset) for each in noted] == [(i, 3 * i + 2) for i in range(6)]
    assert {name for name in world.storage.names if name.endswith(".txn")} == {
        txn_path(FOLDER, first), txn_path(FOLDER, last),
    }  # fmt: skip


@pytest.mark.parametrize("keys_max", [1, 3, 7])
def test_few_keys_a_pass_come_to_the_same_in_more_passes(keys_max):
    world = chaotic(5)
    wanted = newest(records(world.log))
    passes = 0
    while load_cleaned_to(world.storage, FOLDER) < world.log.durable:
        before = load_cleaned_to(world.storage, FOLDER)
        compact(world.storage, world.log, keys_max=keys_max, delete_retention_us=9 * SECOND)
        assert load_cleaned_to(world.storage, FOLDER) > before
        passes += 1
    assert passes > 1
    assert records(world.log) == wanted
    assert findings(world.storage) == []


def test_records_below_the_log_start_go_too():
    world = Keyed()
    world.put(*((b"%d" % i, b"v") for i in range(9)))
    world.put((b"x", b"1"))
    world.close_segment()
    world.log.trim(5)
    compact(world.storage, world.log)
    assert sorted(records(world.log)) == [5, 6, 7, 8, 9]
    ((_, head),) = [(o, h) for h, _ in world.log.read(5, 1) for o in [h.base_offset]]
    assert (head.base_offset, head.record_count, head.last_offset) == (0, 4, 8)


@pytest.mark.rule(21)
def test_rule_21_only_closed_segments_below_the_bound_and_old_enough():
    world = chaotic(7)
    bases = list_segments(world.storage, FOLDER)
    newest_first = {}
    for head, _ in world.log.read(0, 1 << 40):
        base = max(b for b in bases if b <= head.base_offset)
        newest_first[base] = head.append_timestamp

    def ends(**more):
        options = {"log_start": 0, "bound": 1 << 40, "now_us": 1 << 50, **more}
        plan = plan_compaction(world.storage, FOLDER, bases, **options)
        return [each.end for each in plan.segments]

    assert ends() == bases[1:]
    assert ends(bound=bases[3]) == bases[1:4]
    assert ends(bound=bases[3] - 1) == bases[1:3]
    now = newest_first[bases[2]] + 50
    assert ends(now_us=now, min_lag_us=50) == bases[1:4]
    assert ends(now_us=now, min_lag_us=51) == bases[1:3]


def test_the_dirty_share_is_what_is_new_since_the_last_time():
    world = chaotic(8)
    assert compaction(world.storage, world.log).plan.dirty_ratio == 1.0
    compact(world.storage, world.log)
    plan = compaction(world.storage, world.log).plan
    assert (plan.dirty_ratio, plan.dirty_bytes) == (0.0, 0)
    world.put((b"fresh", b"v" * 100))
    world.close_segment()
    plan = compaction(world.storage, world.log).plan
    assert 0 < plan.dirty_ratio < 0.5


def test_a_damaged_segment_is_never_swapped():
    world = chaotic(9)
    base = list_segments(world.storage, FOLDER)[1]
    file = world.storage.names[segment_path(FOLDER, base)]
    file.content[700] ^= 1
    with pytest.raises(CorruptBatchError, match="cannot be compacted"):
        compact(world.storage, world.log)
    assert not [name for name in world.storage.names if name.endswith(".cleaned")]


def test_who_paces_may_give_up():
    world = chaotic(10)
    seen = []

    def pace(nbytes):
        seen.append(nbytes)
        if len(seen) > 90:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        compact(world.storage, world.log, pace=pace)
    assert not [name for name in world.storage.names if name.endswith(".cleaned")]
    assert sum(seen) > 0
    assert records(world.log)


def test_what_the_log_is_not_any_more_is_not_swapped():
    def begun(seed=11):
        world = chaotic(seed)
        work = compaction(world.storage, world.log)
        return world, next(iter(work.prepare()))

    world, prepared = begun()
    world.log.trim(prepared.end)
    assert not world.log.swap(prepared)
    assert not [name for name in world.storage.names if name.endswith(".cleaned")]

    world, prepared = begun()
    before = records(world.log)
    world.storage.unlink(f"{segment_path(FOLDER, prepared.base)}.cleaned")
    assert not world.log.swap(prepared)
    assert records(world.log) == before

    world, prepared = begun()
    assert world.log.swap(prepared)
    assert not world.log.swap(prepared), "asked twice"

    world, prepared = begun()
    LogReplica(world.log).truncate_to(prepared.sources[-1].base)
    while world.log.segment_base < prepared.end:
        world.put((b"other", b"v"), producer=8)
        if world.log.log_end == prepared.end:
            world.close_segment()
    assert prepared.end in list_segments(world.storage, FOLDER)
    before = records(world.log)
    assert not world.log.swap(prepared), "the same names, other batches"
    assert records(world.log) == before


def test_a_segment_that_was_written_anew_under_its_name_is_not_swapped():
    world = Keyed()
    for value in (b"1", b"2"):
        world.put((b"a", value))
    world.close_segment()
    (prepared,) = compaction(world.storage, world.log).prepare()
    LogReplica(world.log).truncate_to(0)
    for value in (b"3", b"4"):
        world.put((b"b", value), producer=2)
    world.close_segment()
    assert list_segments(world.storage, FOLDER) == [0, 2]
    assert not world.log.swap(prepared)
    assert records(world.log) == {0: (b"b", b"3"), 1: (b"b", b"4")}


def test_a_swap_waits_for_a_sync_that_began_in_it():
    world = chaotic(12)
    log = world.log
    log.roll(world.at)
    log.chain.folder_changed = True
    world.put((b"z", b"1"))
    job = log.begin_sync()
    log.roll(world.at)
    swaps = [log.swap(prepared) for prepared in compaction(world.storage, log).prepare()]
    assert swaps
    assert all(swaps), "it began behind all of these"
    job.run()
    log.finish_sync(job)


def test_every_batch_of_a_swapped_segment_says_that_it_is_compacted():
    world = chaotic(13)
    seen = 0
    for prepared in compaction(world.storage, world.log).prepare():
        seen += 1
        assert world.log.swap(prepared)
        data = bytes(world.storage.names[segment_path(FOLDER, prepared.base)].content)
        assert len(data) == prepared.length
        at = 0
        while at < len(data):
            head = checked(data, at)
            assert head.flags & hd.FLAG_COMPACTED
            at += head.length
        assert head.next_offset == prepared.end
    assert seen > 0


def test_a_truncation_into_a_gap_ends_behind_what_is_left():
    world = Keyed()
    world.put((b"a", b"1"))
    for i in range(4):
        world.put((b"b", b"%d" % i))
    world.put((b"c", b"1"))
    world.close_segment()
    compact(world.storage, world.log)
    assert sorted(records(world.log)) == [0, 4, 5]
    assert LogReplica(world.log).truncate_to(3) == 1
    assert records(world.log) == {0: (b"a", b"1")}
    assert load_cleaned_to(world.storage, FOLDER) == 0
    assert world.put((b"d", b"1"), producer=9) == 1
    assert findings(world.storage) == []
    log, _ = open_log(world.storage, config=CONFIG, published=2)
    assert sorted(records(log)) == [0, 1]


def test_a_missing_segment_is_an_error_to_the_cleaner_only():
    world = chaotic(14)
    work = compaction(world.storage, world.log)
    world.log.trim(world.log.log_end)
    with pytest.raises(StorageError):
        list(work.prepare())
    assert not [name for name in world.storage.names if name.endswith(".cleaned")]


def test_a_plan_of_an_empty_log_is_empty():
    storage = MemoryStorage()
    log, _ = open_log(storage, config=CONFIG)
    assert list(compaction(storage, log).prepare()) == []


def test_only_a_pass_that_maps_a_tombstone_stamps_its_horizon():
    """Else it could go while something older of its key is left."""
    world = Keyed()
    for pair in ((b"a", b"1"), (b"b", b"1"), (b"c", None)):
        world.put(pair)
    world.close_segment()

    def horizons():
        return [bool(head.flags & hd.FLAG_DELETE_HORIZON) for head, _ in world.log.read(0, 1 << 20)]

    options = {"keys_max": 1, "delete_retention_us": 9 * SECOND}
    for reached, stamped in ((1, [False] * 3), (2, [False] * 3), (3, [False, False, True])):
        compact(world.storage, world.log, **options)
        assert load_cleaned_to(world.storage, FOLDER) == reached
        assert horizons() == stamped
    world.put((b"d", None))
    world.close_segment()
    save_cleaned_to(world.storage, FOLDER, world.log.log_end)  # as none but damage would leave it
    compact(world.storage, world.log, **options)
    assert horizons() == [False, False, True, False]
