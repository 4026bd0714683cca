"""Appending, rolling, syncing, reading and truncating a log, also when storage refuses."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from unit.core.log_helpers import (
    FOLDER,
    SMALL,
    TOPIC,
    MemoryStorage,
    contents,
    errors,
    make_batch,
    numbered,
    open_log,
    opened,
    payload,
    time_in,
)

from penstock.core import log as core_log
from penstock.core.errors import (
    ConfigError,
    ErrorCode,
    LogOfflineError,
    OffsetOutOfRangeError,
    StorageError,
)
from penstock.core.header import FLAG_APPEND_TIME, checked, seal_header
from penstock.core.log import Log, LogConfig
from penstock.core.logreplica import LogReplica
from penstock.core.segment import segment_path
from penstock.core.storage import Storage

# ---- append


def test_append_gives_offsets_and_stamps_a_copy():
    _, log = opened(generation=7)
    sent = [make_batch(0, records=3), make_batch(3, records=2, body=100)]
    before = [bytes(batch) for batch in sent]
    first, second = log.append(sent, 5_000)
    assert first == (0, 3, 5_000, 0, False, "")
    assert second == (3, 5, 5_000, 0, False, "")
    assert [bytes(batch) for batch in sent] == before, "the lane's bytes are not ours to change"
    assert (log.log_start, log.log_end, log.append_timestamp) == (0, 5, 5_000)
    assert (log.segment_base, log.valid_bytes) == (0, 192 + 256)
    for (head, data), batch in zip(log.read(0, 1 << 20), sent, strict=True):
        assert payload(data) == payload(batch)
        assert (head.leader_epoch, head.generation, head.append_timestamp) == (1, 7, 5_000)
        assert checked(data) == head


def test_one_call_is_one_write():
    storage, log = opened()
    log.append(numbered(1), 1)
    del storage.log[:]
    log.append(numbered(9, 1), 2)
    assert [call.name for call in storage.log if call.path.endswith(".log")] == [
        "allocate",
        "pwritev",
    ]


def test_a_bad_batch_gets_its_error_and_the_others_go_on():
    _, log = opened()
    broken = bytearray(make_batch(0, producer=2))
    broken[-1] ^= 1
    late = bytearray(make_batch(0, producer=3))
    late[4] = 2
    head = late[:128]
    seal_header(head, int.from_bytes(late[44:48], "little"))
    results = log.append(
        [
            make_batch(0),
            memoryview(broken),
            memoryview(bytes(head) + bytes(late[128:])),
            make_batch(0, producer=4, topic_id=bytes(16)),
            make_batch(0, producer=5, partition=1),
            make_batch(0, producer=6, body=2048),
            make_batch(0, producer=7, timestamp=5, base_timestamp=6),
            make_batch(0, producer=8)[:-64],
            memoryview(bytes(make_batch(0, producer=11)) + bytes(64)),
            make_batch(9, producer=9),
            make_batch(5),
            memoryview(b""),
            make_batch(0, producer=10),
        ],
        1,
    )
    assert errors(results) == [
        ErrorCode.NONE,
        ErrorCode.CORRUPT_BATCH,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.WRONG_TOPIC_ID,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.BATCH_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.CORRUPT_BATCH,
        ErrorCode.CORRUPT_BATCH,
        ErrorCode.UNKNOWN_PRODUCER,
        ErrorCode.OUT_OF_ORDER_SEQUENCE,
        ErrorCode.CORRUPT_BATCH,
        ErrorCode.NONE,
    ]
    assert all(bool(result.message) == bool(result.error) for result in results)
    assert [offset for offset, _ in contents(log)] == [0, 1]


def test_append_refuses_a_batch_with_any_bit_flipped():
    _, log = opened()
    good = bytes(make_batch(0, records=5, body=100))
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        [result] = log.append([memoryview(bad)], 1)
        assert result.error in (ErrorCode.CORRUPT_BATCH, ErrorCode.POISONED), at
        log.producers.forget(1)
    assert log.log_end == 0
    assert errors(log.append([memoryview(good)], 1)) == [ErrorCode.NONE]


@pytest.mark.rule(4)
def test_rule_4_a_final_refusal_poisons_the_epoch_of_that_producer_only():
    _, log = opened()
    assert errors(log.append(numbered(2), 1)) == [ErrorCode.NONE] * 2
    bad = make_batch(2, body=4096)
    assert errors(log.append([bad, make_batch(2), make_batch(0, producer=2)], 1)) == [
        ErrorCode.BATCH_TOO_LARGE,
        ErrorCode.POISONED,
        ErrorCode.NONE,
    ]
    results = log.append([make_batch(1), make_batch(2), make_batch(0, epoch=1)], 1)
    assert errors(results) == [ErrorCode.NONE, ErrorCode.POISONED, ErrorCode.NONE]
    assert (results[0].duplicate, results[0].base_offset) == (True, 1)
    assert errors(log.append([make_batch(1, epoch=1)], 1)) == [ErrorCode.NONE]


@pytest.mark.rule(4)
def test_rule_4_behind_a_gap_not_even_what_was_due_is_appended_in_that_epoch():
    _, log = opened()
    assert errors(log.append([make_batch(0), make_batch(2), make_batch(1)], 1)) == [
        ErrorCode.NONE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE,
        ErrorCode.POISONED,
    ]
    assert errors(log.append([make_batch(1)], 1)) == [ErrorCode.POISONED]
    assert errors(log.append([make_batch(0, epoch=1)], 1)) == [ErrorCode.NONE]


@pytest.mark.rule(4)
def test_rule_4_after_a_restart_the_gap_refuses_what_poison_did():
    storage, log = opened()
    log.append([make_batch(0), make_batch(1, body=4096)], 1)
    log.close(clean=True)
    log, _ = open_log(storage)
    assert errors(log.append([make_batch(2)], 1)) == [ErrorCode.OUT_OF_ORDER_SEQUENCE]


@pytest.mark.rule(2)
def test_rule_2_a_re_drain_is_exact_also_after_a_restart():
    storage, log = opened()
    sent = [make_batch(3 * i, records=3, producer=p) for i in range(40) for p in (1, 2)]
    first = [result for batch in sent for result in log.append([batch], 10 + batch[64])]
    assert len(log.read(0, 1 << 30)) == 80
    for clean in (True, False):
        log.close(clean=clean)
        log, _ = open_log(storage, published=log.log_end)
        again = log.append(sent, 99)
        assert [result._replace(duplicate=False) for result in again] == first
        assert all(result.duplicate for result in again)
    assert len(log.read(0, 1 << 30)) == 80


def test_a_duplicate_older_than_those_kept_is_refused_alone():
    config = LogConfig(producer_batches_kept=3)
    storage = MemoryStorage()
    log, _ = open_log(storage, config=config)
    log.append(numbered(6), 1)
    results = log.append([make_batch(2), make_batch(3), make_batch(6)], 1)
    assert errors(results) == [ErrorCode.DUPLICATE_TOO_OLD, ErrorCode.NONE, ErrorCode.NONE]
    assert [result.duplicate for result in results] == [False, True, False]


def test_append_time_never_goes_back():
    storage, log = opened()
    assert log.append([make_batch(0)], 900)[0].append_timestamp == 900
    assert log.append([make_batch(1)], 400)[0].append_timestamp == 900
    log.close(clean=True)
    log, _ = open_log(storage)
    assert log.append([make_batch(2)], 500)[0].append_timestamp == 900
    log.close(clean=False)
    log, _ = open_log(storage, boot_id="boot-2")
    assert log.append([make_batch(3)], 600)[0].append_timestamp == 900
    assert log.append([make_batch(4)], 901)[0].append_timestamp == 901
    log.close(clean=False)
    log, _ = open_log(storage, boot_id="boot-2")
    assert log.append([make_batch(5)], 600)[0].append_timestamp == 901


def test_timestamp_type_append_marks_the_batches():
    _, log = opened(config=LogConfig(timestamp_type="append"))
    log.append([make_batch(0, timestamp=5)], 777)
    [(head, _)] = log.read(0, 1)
    assert head.flags == FLAG_APPEND_TIME
    assert time_in(log, 700) == 0
    assert time_in(log, 778) is None


# ---- segments


def test_a_segment_is_closed_before_the_append_that_would_overfill_it():
    storage, log = opened()
    sizes: Counter[int] = Counter()
    for batch in numbered(50, body=200):
        log.append([batch], 1)
        sizes[log.segment_base] += 1
        assert log.valid_bytes <= SMALL.segment_bytes
    # 384 bytes each: ten fill a segment of 4096
    assert sizes == {0: 10, 10: 10, 20: 10, 30: 10, 40: 10}
    assert sorted(name for name in storage.listdir(FOLDER) if name.endswith(".log")) == [
        f"{base:020d}.log" for base in (0, 10, 20, 30, 40)
    ]
    assert [head.base_offset for head, _ in log.read(0, 1 << 20)] == list(range(50))


def test_one_call_never_spans_two_segments():
    _, log = opened()
    log.append(numbered(5, body=200), 1)
    log.append(numbered(8, 5, body=200), 1)
    assert (log.segment_base, log.valid_bytes) == (5, 8 * 384)
    log.append(numbered(30, 13, body=200), 1)
    assert (log.segment_base, log.valid_bytes) == (13, 30 * 384)
    log.append(numbered(1, 43), 1)
    assert log.segment_base == 43


def test_a_segment_is_closed_by_age():
    storage, log = opened(config=LogConfig(segment_age=2.0))
    assert not log.needs_roll(10**9)
    log.append([make_batch(0)], 5_000_000)
    assert not log.needs_roll(6_999_999)
    assert log.needs_roll(7_000_000)
    log.append([make_batch(1)], 7_000_001)
    assert log.segment_base == 1
    log.roll(7_000_002)
    assert (log.segment_base, log.valid_bytes) == (2, 0)
    log.roll(7_000_003)
    assert log.segment_base == 2, "an empty segment stays"
    log.append([make_batch(2)], 8_000_000)
    log.close(clean=True)
    log, _ = open_log(storage, config=LogConfig(segment_age=2.0), now_us=10_000_000)
    assert log.segment_base == 3, "the age counts from the first batch, across a restart"


def test_files_grow_in_doubling_steps_ahead_of_the_data():
    storage, log = opened(config=LogConfig(preallocate_bytes=1 << 20))
    sizes = []
    for i in range(9):
        log.append([make_batch(i, body=120_000)], 1)
        sizes.append(len(storage.names[segment_path(FOLDER, 0)].content) // 120_128)
    assert sizes == [1, 2, 4, 4, 8, 8, 8, 8, 16]
    none, log = opened(config=LogConfig(preallocate_bytes=0))
    log.append([make_batch(0)], 1)
    assert len(none.names[segment_path(FOLDER, 0)].content) == 192


def test_a_log_holds_one_descriptor():
    storage, log = opened()
    for batch in numbered(60, body=200):
        log.append([batch], 1)
    log.sync()
    assert storage.open_files == [segment_path(FOLDER, log.segment_base)]
    log.close(clean=True)
    assert storage.open_files == []


def test_a_closed_log_takes_nothing():
    _, log = opened()
    log.close(clean=True)
    for call in (lambda: log.append([make_batch(0)], 1), log.sync, lambda: log.roll(1)):
        with pytest.raises(LogOfflineError, match="closed"):
            call()


def test_other_settings_hold_from_the_next_call():
    _, log = opened()
    assert errors(log.append([make_batch(0, body=4000)], 1)) == [ErrorCode.BATCH_TOO_LARGE]
    log.configure(LogConfig(segment_bytes=1 << 20))
    assert errors(log.append([make_batch(0, body=4000, epoch=1)], 1)) == [ErrorCode.NONE]


@pytest.mark.parametrize(
    "option",
    [
        {"segment_bytes": 1},
        {"segment_age": 0},
        {"index_interval_bytes": 0},
        {"preallocate_bytes": -1},
        {"batch_bytes_max": 1 << 40},
        {"flush": "never"},
        {"flush_interval": 0},
        {"timestamp_type": "none"},
        {"producer_batches_kept": 0},
        {"recovery_batches_max": 0},
        {"snapshot_batches": 0},
    ],
)
def test_settings_are_checked(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        LogConfig(**option)


# ---- reading


def test_reading_begins_in_a_batch_and_keeps_to_its_size():
    _, log = opened()
    for i in range(30):
        log.append([make_batch(4 * i, records=4, body=200)], 1)
    assert [head.base_offset for head, _ in log.read(46, 384 * 3)] == [44, 48, 52]
    assert [head.base_offset for head, _ in log.read(46, 1)] == [44]
    assert log.read(120, 1 << 20) == []
    for offset in (-1, 121):
        with pytest.raises(OffsetOutOfRangeError, match="0 to 120"):
            log.read(offset, 1)


@given(times=st.lists(st.integers(0, 50), min_size=1, max_size=60), wanted=st.integers(-1, 51))
def test_the_offset_of_a_time_is_the_first_batch_that_reaches_it(times, wanted):
    _, log = opened()
    for i, time in enumerate(times):
        log.append([make_batch(i, timestamp=time, body=150)], 1)
    expected = next((i for i, time in enumerate(times) if time >= wanted), None)
    assert time_in(log, wanted) == expected


# ---- syncing


def test_fsync_moves_durable_and_survives_a_power_cut():
    storage, log = opened()
    for batch in numbered(30, body=200):
        log.append([batch], 1)
    assert log.durable == 0
    log.sync()
    assert log.durable == 30
    kept = contents(log)
    log.append(numbered(5, 30), 1)
    log, _ = open_log(storage.power_cut(), boot_id="boot-2")
    assert contents(log) == kept
    assert log.durable == log.log_end == 30


def test_appends_and_rolls_go_on_while_a_sync_runs():
    storage, log = opened()
    log.append(numbered(3), 1)
    job = log.begin_sync()
    assert job is not None
    log.append(numbered(4, 3, body=900), 1)
    log.append(numbered(4, 7, body=900), 1)
    assert log.segment_base == 7
    with pytest.raises(StorageError, match="under way") as caught:
        log.begin_sync()
    assert caught.value.retriable
    with pytest.raises(ValueError, match="after it ran"):
        log.finish_sync(job)
    job.run()
    log.finish_sync(job)
    assert log.durable == 3
    with pytest.raises(ValueError, match="begin_sync"):
        log.finish_sync(job)
    log.sync()
    assert log.durable == 11
    assert log.begin_sync() is None
    log, _ = open_log(storage.power_cut(), boot_id="boot-2")
    assert log.log_end == 11


def test_what_is_appended_to_the_same_segment_while_a_sync_runs_is_taken_by_the_next():
    storage, log = opened()
    log.append(numbered(3), 1)
    job = log.begin_sync()
    assert job is not None
    job.run()
    log.append(numbered(2, 3), 1)
    log.finish_sync(job)
    assert log.durable == 3
    log.sync()
    assert log.durable == 5
    kept = contents(log)
    log, _ = open_log(storage.power_cut(), boot_id="boot-2")
    assert contents(log) == kept


def test_what_came_together_is_written_out_once_and_never_what_a_sync_took(monkeypatch):
    monkeypatch.setattr(core_log, "WRITEBACK_BYTES", 1000)
    storage, log = opened()
    assert log.writeback() is None
    begun = 0
    for batch in numbered(12, body=200):
        log.append([batch], 1)
        found = log.writeback()
        if log.valid_bytes - begun < 1000:
            assert found is None
        else:
            assert found is not None
            assert storage.path_of(found.fd).endswith(f"{log.segment_base:020d}.log")
            assert (found.position, found.length) == (begun, log.valid_bytes - begun)
            assert log.writeback() is None
            begun = log.valid_bytes
    assert begun
    assert log.durable == 0, "it promises nothing"
    log.sync()
    assert log.writeback() is None
    log.roll(1)
    log.append(numbered(8, 12, body=200), 1)
    found = log.writeback()
    assert found is not None
    assert (found.position, found.length) == (0, log.valid_bytes)


def test_when_a_sync_is_due():
    def due(mode, seconds, *, seal=False, batches=1):
        _, log = opened(config=LogConfig(flush=mode, flush_interval=5.0, recovery_batches_max=10))
        log.append(numbered(batches), 1)
        if seal:
            log.roll(1)
        answer = log.sync_due(seconds)
        log.sync()
        assert not log.sync_due(10**6), "nothing is left to sync"
        return answer

    assert [due("batch", 0), due("interval", 4.9), due("interval", 5), due("os", 999)] == [
        True,
        False,
        True,
        False,
    ]
    assert due("os", 0, seal=True)
    assert due("os", 0, batches=10)
    assert not due("os", 0, batches=9)


def test_snapshots_are_few_and_never_all_above_the_recovery_point():
    storage, log = opened()
    for batch in numbered(60, body=200):
        log.append([batch], 1)
    assert len([name for name in storage.listdir(FOLDER) if "producers" in name]) == 5
    log.sync()
    assert sorted(name for name in storage.listdir(FOLDER) if "producers" in name) == [
        "producers-00000000000000000040.snapshot",
        "producers-00000000000000000050.snapshot",
    ]


def test_a_snapshot_is_on_the_device_after_the_next_sync():
    storage, log = opened()
    log.append(numbered(3), 1)
    log.sync()
    log.snapshot()
    log.sync()
    assert "producers-00000000000000000003.snapshot" in storage.power_cut().listdir(FOLDER)


# ---- against a model, and on real files


STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("sync"), st.none()),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("restart"), st.sampled_from(["clean", "killed", "power"])),
    st.tuples(st.just("truncate"), st.integers(0, 60)),
)


@given(steps=st.lists(STEP, max_size=25))
@hypothesis_settings(max_examples=150)
def test_any_history_reads_back_as_it_was_written(steps):
    storage = MemoryStorage()
    log, _ = open_log(storage)
    model: list[tuple[int, bytes]] = []
    time, boots = 0, 1
    for step, argument in steps:
        end = log.log_end
        if step == "append":
            epoch, sequence = log.producers.next_sequence(1) or (0, 0)
            for records in argument:
                time += 7
                batch = make_batch(sequence, epoch=epoch, records=records, body=150 * records)
                [result] = log.append([batch], time)
                assert (result.base_offset, result.next_offset) == (end, end + records)
                model.append((end, payload(batch)))
                sequence, end = sequence + records, end + records
        elif step in ("roll", "sync", "snapshot"):
            log.roll(time) if step == "roll" else getattr(log, step)()
        elif step == "truncate":
            end = LogReplica(log).truncate_to(min(argument, end))
            model = [(offset, data) for offset, data in model if offset < end]
        else:
            durable = log.durable
            if argument == "power":
                boots += 1
                storage = storage.power_cut()
                model = [(offset, data) for offset, data in model if offset < durable]
            elif argument == "killed":
                storage = storage.killed()
            else:
                log.close(clean=True)
            published = None if argument == "power" else end
            log, _ = open_log(storage, boot_id=f"boot-{boots}", published=published)
        assert [(offset, payload(data)) for offset, data in contents(log)] == model
        assert log.log_start <= log.durable <= log.log_end


def test_on_real_files(tmp_path):
    storage, folder = Storage(), str(tmp_path / "deep" / "topic-0")
    config = LogConfig(segment_bytes=1 << 20, preallocate_bytes=1 << 18)
    sent: list[memoryview] = []
    for round_ in range(3):
        log, report = open_log(storage, folder, config, published=len(sent) or None)
        assert report.log_end == len(sent)
        for _ in range(12):
            call = numbered(8, len(sent), body=9000)
            log.append(call, len(sent))
            sent += call
        if round_ < 2:
            log.sync()
        log.close(clean=round_ == 0)
    log, report = open_log(storage, folder, config, boot_id="boot-2")
    assert [payload(data) for _, data in contents(log)] == [payload(batch) for batch in sent]
    assert report.epoch_bumped
    assert time_in(log, 1_000) == 0
    log.close(clean=True)
    reopened, report = open_log(storage, folder, config, boot_id="boot-2")
    assert (report.reason, report.batches_scanned) == ("clean", 0)
    assert isinstance(reopened, Log)
    assert reopened.log_end == len(sent)
    reopened.close(clean=False)
    assert sent[0][104:120] == TOPIC
