"""Opening a log after crashes and power cuts: rule 14, its cost, and what may be deleted."""

from __future__ import annotations

import errno

import pytest
from crc32c import crc32c
from unit.core.log_helpers import (
    FOLDER,
    MemoryStorage,
    contents,
    fail_at,
    filled,
    make_batch,
    open_log,
    opened,
    rebooted,
    time_in,
)

from penstock.core.epochs import EPOCHS_FILE
from penstock.core.errors import ErrorCode, LogOfflineError, StorageError
from penstock.core.header import stamp
from penstock.core.log import LogConfig
from penstock.core.recoverypoint import POINT_FILE
from penstock.core.segment import list_segments, segment_path

ACTIVE = segment_path(FOLDER, 0)
POINT_PATH = f"{FOLDER}/{POINT_FILE}"


# ---- rule 14: where a log ends


@pytest.mark.rule(14)
@pytest.mark.parametrize("tail", ["zeros", "end of file"])
def test_rule_14_a_torn_tail_at_every_byte(tail):
    whole, places, kept = filled()
    size = places[-1][1]
    data = bytes(whole.names[ACTIVE].content)
    ends = [0] + [end for _, end in places]
    for cut in range(size + 1):
        storage = whole.copy()
        content = storage.names[ACTIVE].content
        content[:] = data[:cut] if tail == "end of file" else data[:cut].ljust(len(data), b"\0")
        torn = bytes(content)
        log, report = rebooted(storage)
        keep = sum(torn[:end] == data[:end] for end in ends[1:])
        assert contents(log) == kept[:keep], cut
        assert log.log_end == log.durable == keep
        left = len(torn.rstrip(b"\0")) - ends[keep]
        if left <= 0:
            assert report.lost is None
            assert log.segment_base == 0, "nothing is torn: the segment goes on"
        else:
            assert report.reason == "cut"
            assert report.lost is not None
            assert report.lost[0] == keep
            assert report.lost_bytes == left
            assert log.segment_base == keep, "appending resumes in a new segment"
            assert not any(storage.names[ACTIVE].content[ends[keep] :]), "the rest is zeroed"
            assert storage.names[ACTIVE].synced == bytes(storage.names[ACTIVE].content)
        [result] = log.append([make_batch(keep)], 1)
        assert (result.base_offset, result.error) == (keep, 0)
        again, second = rebooted(storage, published=log.log_end)
        assert contents(again) == contents(log)
        assert second.lost is None


@pytest.mark.rule(14)
@pytest.mark.parametrize("victim", [0, 2, 5])
def test_rule_14_a_flipped_bit_keeps_exactly_the_batches_before(victim):
    """Kafka's LogSegmentTest: corrupt from record k on, and 0..k-1 are left."""
    whole, places, kept = filled()
    start = places[victim - 1][1] if victim else 0
    for at in range(start, places[victim][1]):
        storage = whole.copy()
        storage.names[ACTIVE].content[at] ^= 1 << at % 8
        log, report = rebooted(storage)
        assert contents(log) == kept[:victim], at
        # The end of the loss is known from any later header that is whole, its own included.
        assert report.lost == (victim, 6 if victim < 5 or at - start >= 128 else 5)
        assert f"byte {start}" in report.cause
        assert report.lost_bytes > 0


@pytest.mark.rule(14)
def test_rule_14_zeros_before_other_batches_are_a_cut():
    whole, places, kept = filled()
    storage = whole.copy()
    storage.names[ACTIVE].content[places[1][1] : places[3][1]] = bytes(places[3][1] - places[1][1])
    log, report = rebooted(storage)
    assert contents(log) == kept[:2]
    assert report.lost == (2, 6)
    assert "with bytes behind" in report.cause
    assert not any(storage.names[ACTIVE].content[places[1][1] :])


@pytest.mark.rule(14)
@pytest.mark.parametrize(
    ("base", "epoch", "generation", "good"),
    [
        (6, 1, 1, True),
        (6, 1, 2, True),
        (6, 2, 0, True),
        (7, 1, 1, False),
        (5, 1, 1, False),
        (6, 1, 0, False),
        (6, 0, 9, False),
    ],
)
def test_rule_14_a_batch_continues_a_log_only_in_order(base, epoch, generation, good):
    storage, places, kept = filled()
    batch = bytearray(make_batch(6))
    head = batch[:128]
    stamp(head, base_offset=base, leader_epoch=epoch, generation=generation, append_timestamp=200)
    end = places[-1][1]
    storage.names[ACTIVE].content[end : end + 192] = head + batch[128:]
    log, report = rebooted(storage, generation=5)
    assert log.log_end == (7 if good else 6)
    assert (report.lost is None) is good
    assert contents(log)[:6] == kept


@pytest.mark.rule(14)
def test_rule_14_a_batch_of_another_topic_is_no_batch_of_this_log():
    storage, places, kept = filled()
    batch = bytearray(make_batch(6, topic_id=bytes(16)))
    head = batch[:128]
    stamp(head, base_offset=6, leader_epoch=1, generation=1, append_timestamp=200)
    end = places[-1][1]
    storage.names[ACTIVE].content[end : end + 192] = head + batch[128:]
    log, report = rebooted(storage)
    assert contents(log) == kept
    assert "another partition" in report.cause


@pytest.mark.rule(14)
def test_rule_14_same_boot_bad_below_the_published_end_is_offline_and_the_file_is_kept():
    for published, at in [(6, 4), (3, 2), (1, 0)]:
        storage, places, _ = filled()
        storage.names[ACTIVE].content[places[at][1] - 1] ^= 1
        before = storage.copy()
        with pytest.raises(LogOfflineError, match="damaged") as caught:
            open_log(storage, published=published)
        assert ACTIVE in str(caught.value)
        assert f"offset {published}" in str(caught.value)
        assert {name: node.content for name, node in storage.names.items()} == {
            name: node.content for name, node in before.names.items()
        }
        assert storage.open_files == []


@pytest.mark.rule(14)
def test_rule_14_same_boot_bad_above_the_published_end_is_a_torn_append():
    storage, places, kept = filled()
    storage.names[ACTIVE].content[places[3][1] + 140] ^= 1
    log, report = open_log(storage, published=4)
    assert contents(log) == kept[:4]
    assert report.lost == (4, 6)
    assert not report.epoch_bumped, "nobody has seen what was cut: no offset is given out twice"
    assert log.segment_base == 4


@pytest.mark.rule(14)
def test_rule_14_same_boot_keeps_what_was_appended_and_never_published():
    storage, _, kept = filled()
    log, report = open_log(storage, published=2, generation=2)
    assert (contents(log), report.lost, log.segment_base) == (kept, None, 0)
    assert log.durable == 0, "nothing was synced, and a restart does not make it so"
    log.sync()
    assert contents(rebooted(storage.power_cut())[0]) == kept


@pytest.mark.rule(14)
@pytest.mark.rule(15)
@pytest.mark.parametrize("published", [None, 4, 6, 9])
@pytest.mark.parametrize("node_clean", [False, True])
def test_rule_15_a_log_that_was_brought_back_begins_an_epoch_and_tells_what_is_missing(
    published, node_clean
):
    storage, _, kept = filled(synced=3)
    again = storage.brought_back()
    log, report = open_log(again, published=published, node_clean=node_clean, generation=2)
    assert contents(log) == kept
    assert report.epoch_bumped
    assert log.leader_epoch == 2
    assert report.missing == ((6, 9) if published == 9 else None)
    assert ("offsets 6 to 9 are missing" in report.summary()) is (published == 9)
    assert log.durable == 6
    log.close(clean=False)
    after = again.power_cut()
    survivor, second = rebooted(after)
    assert contents(survivor) == kept, "who copied it had not synced it"
    assert second.missing is None


@pytest.mark.rule(14)
def test_rule_14_segments_of_a_copy_below_the_recovery_point_are_made_durable_too():
    storage, _, kept = filled([300] * 12, synced=12)
    copy = storage.brought_back()
    assert len(list_segments(copy, FOLDER)) > 1
    log, _ = open_log(copy, published=None, generation=2)
    assert (contents(log), log.durable) == (kept, 12)
    log.close(clean=False)
    survivor, _ = rebooted(copy.power_cut())
    assert contents(survivor) == kept


@pytest.mark.rule(15)
def test_rule_15_only_the_first_opening_of_a_copy_begins_an_epoch():
    storage = filled(synced=3)[0].brought_back()
    log, _ = open_log(storage, published=9, node_clean=False, generation=2)
    log.close(clean=True)
    log, report = open_log(storage, published=log.log_end, node_clean=True, generation=3)
    assert (report.epoch_bumped, report.missing, log.leader_epoch) == (False, None, 2)


@pytest.mark.rule(14)
def test_rule_14_a_copy_that_is_bad_below_what_was_published_is_cut_and_reported():
    storage, places, kept = filled()
    storage.names[ACTIVE].content[places[3][1] + 140] ^= 1
    log, report = open_log(storage.brought_back(), published=6, generation=2)
    assert contents(log) == kept[:4]
    assert (report.lost, report.missing, report.epoch_bumped) == ((4, 6), (4, 6), True)


@pytest.mark.rule(14)
def test_rule_14_a_replica_that_was_brought_back_is_no_other_than_a_damaged_one():
    storage, _, _ = filled(synced=3)
    with pytest.raises(LogOfflineError, match="damaged"):
        open_log(storage.brought_back(), published=9, replicated=True)


@pytest.mark.rule(14)
def test_rule_14_bad_below_the_recovery_point_is_offline_where_it_is_met():
    storage, places, _ = filled(synced=5)
    del storage.names[ACTIVE].content[places[3][1] + 64 :]
    with pytest.raises(LogOfflineError, match="damaged"):
        rebooted(storage)
    storage, places, _ = filled(synced=5)
    storage.names[ACTIVE].content[places[1][1] : places[4][1]] = bytes(places[4][1] - places[1][1])
    with pytest.raises(LogOfflineError, match="damaged"):
        rebooted(storage)
    storage, _, _ = filled(synced=5)
    del storage.names[ACTIVE]
    with pytest.raises(LogOfflineError, match="no segment"):
        rebooted(storage)


@pytest.mark.rule(14)
def test_rule_14_only_what_stands_above_the_recovery_point_is_cut():
    storage, places, kept = filled(synced=3)
    storage.names[ACTIVE].content[places[3][1] + 3] ^= 1
    log, report = rebooted(storage)
    assert contents(log) == kept[:4]
    assert (report.batches_scanned, report.lost) == (1, (4, 6))
    assert report.bytes_scanned == places[3][1] - places[2][1]


@pytest.mark.rule(14)
def test_rule_14_the_cut_segment_is_used_again_if_it_holds_no_batch():
    storage, places, kept = filled([300] * 12)
    assert places[-1][0] == 9
    first = segment_path(FOLDER, 9)
    storage.names[first].content[5] ^= 1
    node = storage.names[first]
    log, report = rebooted(storage)
    assert (log.log_end, log.segment_base, log.valid_bytes) == (9, 9, 0)
    assert storage.names[first] is node
    assert not any(node.content)
    assert contents(log) == kept[:9]
    assert report.lost == (9, 12)


@pytest.mark.rule(14)
def test_rule_14_segments_behind_a_cut_go_and_are_counted():
    storage, _, kept = filled([300] * 40)
    storage.names[segment_path(FOLDER, 9)].content[500] ^= 1
    log, report = rebooted(storage)
    assert contents(log) == kept[:10]
    assert (report.segments_removed, report.lost) == (3, (10, 36))
    assert sorted(name for name in storage.listdir(FOLDER) if name.endswith(".log")) == [
        "00000000000000000000.log",
        "00000000000000000009.log",
        "00000000000000000010.log",
    ]
    assert "lost offsets 10 to at least 36" in report.summary()
    assert not [name for name in storage.listdir(FOLDER) if "producers" in name and "9" not in name]


@pytest.mark.rule(14)
def test_rule_14_a_lost_recovery_point_does_not_let_segments_be_cut_away():
    storage, _, kept = filled([300] * 40, synced=30)
    del storage.names[POINT_PATH]
    log, report = rebooted(storage.copy())
    assert (contents(log), report.batches_scanned) == (kept, 40)
    assert log.producers.next_sequence(1) == (0, 40)
    storage.names[segment_path(FOLDER, 9)].content[500] ^= 1
    with pytest.raises(LogOfflineError, match="recovery point is lost"):
        rebooted(storage)


@pytest.mark.rule(14)
def test_rule_14_a_lost_recovery_point_in_the_same_boot_fsyncs_all_there_is():
    storage, _, kept = filled([300] * 40)
    del storage.names[POINT_PATH]
    log, _ = open_log(storage, published=40)
    assert log.durable == 40
    assert contents(rebooted(storage.power_cut())[0]) == kept


def test_a_batch_of_a_future_version_is_neither_cut_nor_read():
    storage, places, _ = filled()
    content = storage.names[ACTIVE].content
    head = content[places[3][1] : places[3][1] + 128]
    head[4] = 2
    head[8:12] = bytes(4)
    head[8:12] = crc32c(bytes(head)).to_bytes(4, "little")
    content[places[3][1] : places[3][1] + 128] = head
    before = bytes(content)
    for boot in ("boot-1", "boot-2"):
        with pytest.raises(LogOfflineError, match="version 2"):
            open_log(storage, boot_id=boot)
    assert bytes(content) == before


def test_segments_that_overlap_are_damage():
    storage, _, _ = filled()
    storage.names[segment_path(FOLDER, 3)] = storage.copy().names[ACTIVE]
    batch = bytes(make_batch(0))
    other, log = opened()
    log.append([make_batch(0, records=5), memoryview(batch)], 1)
    storage.names[ACTIVE].content[:] = other.names[ACTIVE].content
    with pytest.raises(LogOfflineError, match="segment at offset 3"):
        rebooted(storage)


# ---- cost


class Counting(MemoryStorage):
    """Counts the bytes that are read of each file."""

    def __init__(self, names):
        super().__init__()
        self.names = names
        self.folders.add(FOLDER)
        self.read: dict[str, int] = {}

    def pread(self, fd, length, position):
        data = super().pread(fd, length, position)
        self.read[self.path_of(fd)] = self.read.get(self.path_of(fd), 0) + len(data)
        return data


def test_recovery_reads_only_above_the_recovery_point():
    storage, places, kept = filled([300] * 200, synced=195)
    counting = Counting(storage.names)
    log, report = rebooted(counting)
    assert len(places) == 200
    assert report.batches_scanned == 5
    segments = {name for name in counting.read if name.endswith(".log")}
    assert segments <= {segment_path(FOLDER, base) for base in (189, 198)}
    assert contents(log) == kept
    log.close(clean=True)
    counting = Counting(storage.names)
    _, report = open_log(counting, boot_id="boot-2", node_clean=True)
    assert (report.reason, report.batches_scanned, report.bytes_scanned) == ("clean", 0, 0)
    assert sum(counting.read.values()) < 12_000


def test_recovery_reads_headers_only_between_snapshot_and_recovery_point():
    config = LogConfig(snapshot_batches=10**6)
    storage, _, _ = filled([9000] * 60, synced=60, config=config)
    counting = Counting(storage.names)
    log, report = rebooted(counting, config=config)
    assert report.batches_scanned == 0
    assert log.producers.next_sequence(1) == (0, 60)
    assert log.append([make_batch(59, body=b"\xab" * 9000)], 1)[0].duplicate


# ---- invariant 9: deleting what is derived


def derived(storage):
    return [name for name in storage.names if not name.endswith((".log", POINT_FILE, EPOCHS_FILE))]


def test_invariant_9_deleting_indexes_and_snapshots_changes_no_result():
    storage, _, kept = filled([300] * 100, synced=50)
    log, _ = open_log(storage, published=100)
    log.close(clean=True)
    before = {name: bytes(storage.names[name].content) for name in derived(storage)}
    state = log.producers.encode(100)
    times = [time_in(log, t) for t in range(990, 1010)]
    for victims in [derived(storage), *([name] for name in derived(storage))]:
        after = storage.copy()
        for name in victims:
            del after.names[name]
        again, report = open_log(after, published=100)
        assert contents(again) == kept
        assert again.producers.encode(100) == state
        assert [time_in(again, t) for t in range(990, 1010)] == times
        assert report.lost is None
        while again.restore_indexes(3):
            pass
        again.sync()
        indexes = [name for name in victims if not name.endswith(".snapshot")]
        for name in indexes:
            assert bytes(after.names[name].content) == before[name], name


def test_idempotence_is_rebuilt_from_the_log_alone():
    storage = MemoryStorage()
    log, _ = open_log(storage)
    sent = []
    for i in range(60):
        for producer, epoch in ((1, 0), (2, i // 20), (3, 0)):
            sequence = i - 20 * (i // 20) if producer == 2 else i
            sent.append(make_batch(2 * sequence, records=2, producer=producer, epoch=epoch))
    first = log.append(sent[:90], 5) + log.append(sent[90:], 6)
    assert {result.error for result in first} == {ErrorCode.NONE}
    for name in [name for name in storage.names if "producers" in name]:
        del storage.names[name]
    log, _ = rebooted(storage)
    again = log.append(sent, 7)
    assert [result._replace(duplicate=False) for result in again] == first
    assert log.log_end == 360


def test_headers_that_went_bad_below_the_recovery_point_are_offline_where_they_are_needed():
    storage, _, _ = filled([300] * 40, synced=40)
    storage.names[segment_path(FOLDER, 9)].content[448 + 12] ^= 1
    assert rebooted(storage.copy())[0].log_end == 40, "nobody needs to look"
    for name in [name for name in storage.names if "producers" in name]:
        del storage.names[name]
    with pytest.raises(LogOfflineError, match="at byte 448"):
        rebooted(storage)


def test_a_plausible_index_that_is_wrong_is_written_anew():
    storage, _, kept = filled([300] * 7, synced=7)
    path = ACTIVE.replace(".log", ".index")
    times = ACTIVE.replace(".log", ".time")
    good = bytes(storage.names[path].content), bytes(storage.names[times].content)
    assert len(good[0]) == 6 * 16
    # Offsets 1, 2, .. 6 become 1, 2, .. 5, 7 in both files.
    storage.names[path].content[5 * 16] = 7
    storage.names[times].content[5 * 16 + 8] = 7
    log, _ = rebooted(storage)
    assert contents(log) == kept
    assert (bytes(storage.names[path].content), bytes(storage.names[times].content)) == good


def test_damaged_snapshots_are_passed_over():
    storage, _, _ = filled([300] * 40, synced=40)
    snapshots = [name for name in storage.names if "producers" in name]
    assert snapshots
    for name in snapshots:
        storage.names[name].content[30] ^= 1
        log, _ = rebooted(storage.copy())
        assert log.producers.next_sequence(1) == (0, 40)


def test_a_snapshot_that_a_power_cut_tore_goes_and_is_not_counted_among_those_that_are_kept():
    storage, _, _ = filled([300] * 40, synced=9)
    names = sorted(name for name in storage.names if "producers" in name)
    synced = [name for name in names if int(name[-29:-9]) <= 9]
    assert len(names) - len(synced) >= 2, names
    for name in set(names).difference(synced):
        del storage.names[name].content[30:]
    log, _ = rebooted(storage)
    assert log.producers.next_sequence(1) == (0, 40)
    assert sorted(name for name in storage.names if "producers" in name) == synced


def test_a_torn_snapshot_at_the_very_recovery_point_goes_too():
    """The one of a log without records is at 0, and so is the recovery point."""
    storage = MemoryStorage()
    log, _ = open_log(storage)
    log.snapshot()
    [name] = [name for name in storage.names if "producers" in name]
    del storage.names[name].content[30:]
    log, _ = rebooted(storage)
    assert not any("producers" in name for name in storage.names)


def test_a_snapshot_above_the_end_of_a_cut_log_goes():
    storage, _, _ = filled([300] * 40, synced=5)
    storage.names[segment_path(FOLDER, 9)].content[500] ^= 1
    log, _ = rebooted(storage)
    assert log.producers.next_sequence(1) == (0, 10)
    log.append([make_batch(i, body=310) for i in range(10, 30)], 1)
    log.sync()
    log, _ = open_log(storage.power_cut(), boot_id="boot-3")
    assert log.producers.next_sequence(1) == (0, 30)


# ---- folders


def test_a_new_folder_is_on_the_device():
    storage = MemoryStorage()
    log, report = open_log(storage)
    assert (report.reason, log.leader_epoch, report.epoch_bumped) == ("created", 1, False)
    assert {"/data"} <= storage.folders
    assert any(call.name == "fsync_folder" and call.path == "/data" for call in storage.log)
    log, report = rebooted(storage.power_cut())
    assert (report.reason, log.log_end) == ("clean", 0)


def test_a_segment_that_a_killed_process_made_is_on_the_device_before_the_point_names_it():
    storage, _, kept = filled(synced=6)
    log, _ = open_log(storage, published=6)
    log.roll(1)
    storage = storage.killed()
    log, _ = open_log(storage, published=6)
    assert log.segment_base == 6
    log.close(clean=True)
    log, _ = rebooted(storage.power_cut())
    assert contents(log) == kept


def test_leftovers_of_killed_steps_are_cleaned_away():
    storage, _, kept = filled()
    for name in ["epochs.tmp", "00000000000000000000.log.rescue"]:
        storage.names[f"{FOLDER}/{name}"] = storage.copy().names[ACTIVE]
    log, _ = open_log(storage, published=6)
    assert contents(log) == kept
    assert not [name for name in storage.listdir(FOLDER) if name.endswith((".tmp", ".rescue"))]


def test_an_open_that_fails_leaves_no_descriptor_and_may_be_tried_again():
    whole, _, kept = filled([300] * 20, synced=3)
    storage = whole.copy()
    rebooted(storage)
    for number in range(1, storage.calls + 1):
        storage = whole.copy()
        storage.fault = fail_at(number, errno.ENOSPC)
        try:
            log, _ = rebooted(storage)
        except StorageError:
            assert storage.open_files == []
            storage.fault = None
            log, _ = rebooted(storage)
        assert contents(log) == kept
