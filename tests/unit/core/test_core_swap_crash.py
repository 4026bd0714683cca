"""A process that dies, a power cut, or an error in any call of a compaction and of its swaps.

After each the log holds the newest record of every key, nothing that was not in it, at the offsets
where it stood; the next open has finished the swap or dropped it, and left nothing beside the log.
"""

from __future__ import annotations

import errno
import random

import pytest
from unit.core.compacting import CONFIG, Keyed, compact, compaction, newest, records
from unit.core.log_helpers import FOLDER, Crash, crash_at, fail_at, open_log

from penstock.core.columns import decode
from penstock.core.errors import LogOfflineError, StorageError
from penstock.core.logreplica import LogReplica
from penstock.core.lookup import read_batches
from penstock.core.segment import list_segments
from penstock.core.swapping import load_cleaned_to
from penstock.logcheck import CheckedPartition, check_partition

SECOND = 1_000_000


def dirty():
    """A log to be cleaned: cleaned once, with tombstones that are due, then dirtied again."""
    rng = random.Random(4)
    world = Keyed()
    for part in range(2):
        for _ in range(14):
            pairs = [
                (b"k%d" % rng.randrange(9), rng.choice([None, b"v" * 30, b"w" * 60]))
                for _ in range(3)
            ]
            world.put(*pairs, producer=rng.randrange(1, 3))
        world.close_segment()
        if not part:
            compact(world.storage, world.log, delete_retention_us=SECOND)
    return world


def pass_over(world, *, segment_bytes=4096):
    """Compact as the cleaner and the writer do; gives the swaps that came through."""
    work = compaction(
        world.storage, world.log, now_us=5 * SECOND, delete_retention_us=SECOND,
        segment_bytes=segment_bytes,
    )  # fmt: skip
    for prepared in work.prepare():
        assert world.log.swap(prepared)


def calls_of_a_pass():
    world = dirty()
    first = world.storage.calls + 1
    pass_over(world)
    assert len(list_segments(world.storage, FOLDER)) == 3, "two swaps"
    return range(first, world.storage.calls + 1)


CALLS = calls_of_a_pass()


def check(log, storage, before, state):
    while log.restore_indexes(50):
        pass
    log.sync()
    found = records(log)
    wanted = newest(before)
    for offset, (key, value) in wanted.items():
        assert found.get(offset) == (key, value) or (value is None and offset not in found)
    assert all(before[offset] == pair for offset, pair in found.items())
    # A tombstone that is gone took all that was older with it.
    for offset in wanted.keys() - found.keys():
        key = wanted[offset][0]
        assert not [o for o, (k, _) in found.items() if k == key and o < offset], "revived"
    assert not [n for n in storage.names if n.endswith((".cleaned", ".swap", ".tmp"))]
    assert [
        (f.kind, f.message)
        for f in check_partition(CheckedPartition(FOLDER, "t-0", None), storage).findings
    ] == []
    assert [log.producers.next_sequence(producer) for producer in (1, 2)] == state


@pytest.mark.parametrize("written", [None, 70])
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_compaction_may_be_killed_in_any_call(boot, written):
    before, seen = records(dirty().log), set()
    for number in CALLS:
        world = dirty()
        state = [world.log.producers.next_sequence(producer) for producer in (1, 2)]
        end = world.log.log_end
        world.storage.fault = crash_at(number, written)
        with pytest.raises(Crash):
            pass_over(world)
        for seed in range(1 if boot == "boot-1" else 4):
            chance = random.Random(f"{number}/{seed}") if seed else None
            if boot == "boot-1":
                storage, published = world.storage.killed(), end
            else:
                storage, published = world.storage.power_cut(chance), None
            options = {"config": CONFIG, "boot_id": boot, "generation": 2, "published": published}
            log, report = open_log(storage, **options)
            assert (report.lost, log.log_end) == (None, end)
            check(log, storage, before, state)
            seen.add(tuple(list_segments(storage, FOLDER)))
            # It goes on, and comes to the same end.
            again = Keyed.__new__(Keyed)
            again.storage, again.log, again.at = storage, log, world.at
            pass_over(again)
            check(log, storage, before, state)
            again.put((b"k1", b"last"))
            assert records(log)[end] == (b"k1", b"last")
    assert len(seen) > 2, "before, after and between"


def test_invariant_9_an_open_that_finishes_a_swap_may_be_killed_in_any_call():
    before = records(dirty().log)
    rng = random.Random(2)
    for number in sorted(rng.sample(CALLS, 25)):
        world = dirty()
        state = [world.log.producers.next_sequence(producer) for producer in (1, 2)]
        end = world.log.log_end
        world.storage.fault = crash_at(number)
        with pytest.raises(Crash):
            pass_over(world)
        torn = world.storage.killed()
        options = {"config": CONFIG, "generation": 2, "published": end}
        storage = torn.copy()
        log, _ = open_log(storage, **options)
        expected = records(log)
        for step in range(1, storage.calls + 1):
            storage = torn.copy()
            storage.fault = crash_at(step, 30)
            with pytest.raises(Crash):
                open_log(storage, **options)
            killed = storage.killed()
            log, _ = open_log(killed, **options)
            assert records(log) == expected, (number, step)
            check(log, killed, before, state)
            # A swap whose mark was not on the device yet may be gone, and nothing else.
            for seed in range(3):
                after = storage.power_cut(random.Random(f"{step}/{seed}") if seed else None)
                log, _ = open_log(after, config=CONFIG, generation=2, boot_id="boot-3")
                assert log.log_end == end
                check(log, after, before, state)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_in_any_call_of_a_swap_loses_nothing(code):
    world = dirty()
    before = records(world.log)
    work = compaction(world.storage, world.log, now_us=0, segment_bytes=4096)
    prepared = next(work.prepare())
    first = world.storage.calls
    assert world.log.swap(prepared)
    for number in range(1, world.storage.calls - first + 1):
        world = dirty()
        work = compaction(world.storage, world.log, now_us=0, segment_bytes=4096)
        prepared = next(work.prepare())
        world.storage.fault = fail_at(number, code)
        try:
            world.log.swap(prepared)
        except LogOfflineError:
            assert code == errno.EIO
            world.storage.fault = None
            world.log, _ = open_log(world.storage, config=CONFIG, published=world.log.log_end)
        except StorageError as error:
            assert error.retriable  # noqa: PT017
            world.storage.fault = None
            world.put((b"more", b"1"))
            before_now = {**before, world.log.log_end - 1: (b"more", b"1")}
            assert newest(records(world.log)) == newest(before_now)
            assert world.log.swap(prepared), "asked again"
            assert newest(records(world.log)) == newest(before_now)
        world.storage.fault = None
        compact(world.storage, world.log, now_us=0, delete_retention_us=9 * SECOND)
        found = records(world.log)
        assert {o: p for o, p in found.items() if p[0] != b"more"} == newest(before)
        for name in world.storage.names:
            assert not name.endswith(".swap"), (number, name)


def test_a_failing_pass_does_not_say_that_the_log_is_clean():
    world = dirty()
    before = load_cleaned_to(world.storage, FOLDER)
    work = compaction(world.storage, world.log, segment_bytes=4096)
    for count, prepared in enumerate(work.prepare()):
        assert world.log.swap(prepared)
        if count:
            break
    assert count == 1
    assert load_cleaned_to(world.storage, FOLDER) == before


@pytest.mark.parametrize("seed", range(6))
def test_at_every_moment_the_segments_that_are_there_are_the_log(seed):
    rng = random.Random(seed)
    world = Keyed()
    for _ in range(30):
        world.put(*((b"k%d" % rng.randrange(5), b"v" * 90) for _ in range(rng.randrange(1, 5))))
        if rng.random() < 0.3:
            world.close_segment()
    world.close_segment()
    before, end, looks = records(world.log), world.log.log_end, set()

    def look(call):
        storage = world.storage
        bases = list_segments(storage, FOLDER)
        found: dict[int, object] = {}
        for head, data in read_batches(storage, FOLDER, bases, end, 0, 1 << 40):
            offsets = (
                decode(memoryview(data), 0, head).offsets.tolist() if head.record_count else []
            )
            assert not found.keys() & set(offsets), f"twice, before {call}"
            found.update(dict.fromkeys(offsets))
        assert newest(before).keys() <= found.keys() <= before.keys()
        checked = check_partition(CheckedPartition(FOLDER, "t-0", None), storage)
        assert [f for f in checked.errors if f.kind not in ("index", "producer")] == []
        looks.add(tuple(bases))

    world.storage.fault = look
    pass_over(world, segment_bytes=1 << 20)
    assert len(looks) > 3


def test_appends_and_fsyncs_go_on_while_a_swap_is_under_way():
    world = dirty()
    log, before = world.log, records(world.log)
    prepared = next(compaction(world.storage, log, segment_bytes=4096).prepare())
    job = log.begin_swap(prepared)
    assert job is not None
    world.put((b"new", b"1"))
    for refused in (
        lambda: log.trim(1),
        lambda: LogReplica(log).truncate_to(log.log_end - 1),
        lambda: log.begin_swap(prepared),
    ):
        with pytest.raises(StorageError, match="under way") as caught:
            refused()
        assert caught.value.retriable
    with pytest.raises(ValueError, match="finished first"):
        log.close(clean=True)
    with pytest.raises(ValueError, match="after it ran"):
        log.finish_swap(job)
    job.run()
    world.put((b"new", b"2"))
    world.close_segment()
    log.finish_swap(job)
    assert newest(records(log)).keys() == newest(before).keys() | {log.log_end - 1}
    assert log.begin_swap(prepared) is None
    assert log.trim(1) == 1
    log.close(clean=True)
