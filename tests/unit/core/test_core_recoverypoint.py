"""The recovery point: its bytes, and which of its two slots counts."""

from __future__ import annotations

from itertools import product

import pytest
from unit.core.log_helpers import (
    FOLDER,
    MemoryStorage,
    contents,
    numbered,
    open_log,
    opened,
)

from penstock.core import flush
from penstock.core.errors import ConfigError
from penstock.core.logconfig import LogConfig
from penstock.core.logreplica import LogReplica
from penstock.core.recoverypoint import POINT_FILE, SLOT_BYTES, PointFile, RecoveryPoint


def test_golden_recovery_point():
    point = RecoveryPoint(258, 513, 1027, 5, 6, 7, "boot-é")
    assert point.encode(9) == bytes.fromhex(
        "50535250 0100 0700 13692776 00000000"
        "0900000000000000 0201000000000000"
        "0102000000000000 0304000000000000"
        "05000000 06000000 0700000000000000" + "626f6f742dc3a9".ljust(128, "0")
    )
    assert RecoveryPoint.decode(point.encode(9)) == (point, 9, 0)
    known = point.encode(9, 0x1234)
    assert known[120:] == bytes.fromhex("3412000000000000")
    assert known[:8] == point.encode(9)[:8], "all but the checksum is as before"
    assert known[12:120] == point.encode(9)[12:120]
    assert RecoveryPoint.decode(known) == (point, 9, 0x1234)


def test_a_point_is_known_as_one_of_a_copy_where_its_file_has_another_identity():
    storage = MemoryStorage()
    point = RecoveryPoint(0, 0, 0, 1, 1, 1, "boot")
    file = PointFile(storage, "/data")
    for serial in (1, 2, 3):
        file.write(point, durable=False)
        same, other = PointFile(storage, "/data"), PointFile(storage.brought_back(), "/data")
        assert same.load() == other.load() == point
        assert (same.is_copy, other.is_copy) == (False, True), serial
    old = storage.brought_back()  # a version that wrote no identity
    slot = point.encode(1).ljust(SLOT_BYTES, b"\0")
    old.names[f"/data/{POINT_FILE}"].content[:] = slot + bytes(SLOT_BYTES)
    file = PointFile(old, "/data")
    assert file.load() == point
    assert not file.is_copy


def test_a_torn_recovery_point_leaves_the_one_before():
    storage = MemoryStorage()
    file = PointFile(storage, "/data")
    points = [RecoveryPoint(0, 64 * i, i, 1, 1, 1, "boot") for i in range(5)]
    path = f"/data/{POINT_FILE}"
    for i, point in enumerate(points):
        file.write(point, durable=False)
        content = storage.names[path].content
        assert len(content) == 2 * SLOT_BYTES
        assert PointFile(storage, "/data").load() == point
        for at in range(i % 2 * SLOT_BYTES, i % 2 * SLOT_BYTES + 128):
            content[at] ^= 1
            assert PointFile(storage, "/data").load() == (points[i - 1] if i else None)
            content[at] ^= 1
    file = PointFile(storage, "/data")
    file.load()
    file.write(points[0], durable=True)
    assert PointFile(storage.power_cut(), "/data").load() == points[0]


def test_no_power_cut_brings_a_truncation_back_that_has_ended():
    def point(offset, **more):
        return RecoveryPoint(0, 64 * offset, offset, 1, 1, 1, "boot", **more)

    storage = MemoryStorage()
    file = PointFile(storage, "/data")
    path = f"/data/{POINT_FILE}"
    file.write(point(9), durable=True)
    file.write(point(5, truncating=True), durable=True)
    file.write(point(5), durable=True)
    for offset in (6, 7, 8):
        file.write(point(offset), durable=False)
        now = bytes(storage.names[path].content)
        before = bytes(storage.power_cut().names[path].content)
        slots = [
            [data[at : at + SLOT_BYTES] for data in (before, now, b"torn".ljust(SLOT_BYTES))]
            for at in (0, SLOT_BYTES)
        ]
        for halves in product(*slots):  # each as it was, as it was to be, or torn
            after = storage.power_cut()
            after.names[path].content[:] = b"".join(halves)
            found = PointFile(after, "/data").load()
            assert found is None or not found.is_half_way, offset


@pytest.mark.parametrize("mode", ["os", "interval", "batch"])
def test_few_fsyncs_take_the_recovery_point_along_and_a_power_cut_loses_nothing(mode):
    storage, log = opened(config=LogConfig(flush=mode))
    path = f"{FOLDER}/{POINT_FILE}"

    def points_synced() -> int:
        return sum(call.path == path and call.name == "fdatasync" for call in storage.log)

    for batch in numbered(flush.POINT_SYNC_EVERY):
        log.append([batch], 1)
        log.sync()
        assert points_synced() <= 1, "the first one may go along"
    kept = contents(log)
    after, report = open_log(storage.power_cut(), boot_id="boot-2")
    assert contents(after) == kept
    assert after.durable == after.log_end == flush.POINT_SYNC_EVERY
    assert report.lost is None
    before = points_synced()
    for batch in numbered(2, flush.POINT_SYNC_EVERY):
        log.append([batch], 1)
        log.sync()
    assert points_synced() == before + 1


def test_a_recovery_point_that_is_far_ahead_of_the_device_goes_along(monkeypatch):
    """Bytes to check again after a power cut have a bound, however few syncs they took."""
    monkeypatch.setattr(flush, "POINT_SYNC_BYTES", 4096)
    storage, log = opened(config=LogConfig(flush="interval"))
    farthest = 0
    for batch in numbered(40, body=1000):
        log.append([batch], 1)
        log.sync()
        kept = PointFile(storage.power_cut(), FOLDER).load()
        assert kept is not None
        farthest = max(farthest, log.valid_bytes - kept.position)
    assert 2 * len(batch) < farthest < 4096 + 3 * len(batch)


def test_a_log_that_was_shortened_keeps_the_bound_of_the_recovery_point(monkeypatch):
    monkeypatch.setattr(flush, "POINT_SYNC_BYTES", 4096)
    storage, log = opened(config=LogConfig(flush="interval"))
    for batch in numbered(40, body=1000):
        log.append([batch], 1)
        log.sync()
    # The same segment goes on, with the point far behind the last one.
    LogReplica(log).truncate_to(0)
    for batch in numbered(20, body=1000):
        log.append([batch], 1)
        log.sync()
        kept = PointFile(storage.power_cut(), FOLDER).load()
        assert kept is not None
        assert log.valid_bytes - kept.position < 4096 + 3 * len(batch)


def test_the_recovery_point_goes_along_where_a_segment_was_begun():
    storage, log = opened(config=LogConfig(flush="interval"))
    for start in range(0, 12, 3):
        for batch in numbered(3, start):  # of the old segment, of the new one, and one more
            log.append([batch], 1)
            log.sync()
            if log.log_end == start + 1:
                log.roll(1)
        kept = PointFile(storage.power_cut(), FOLDER).load()
        assert kept is not None
        assert kept.segment_base == log.segment_base


def test_boot_ids_have_a_bound():
    with pytest.raises(ConfigError, match="boot id"):
        open_log(MemoryStorage(), boot_id="x" * 57)
    with pytest.raises(ConfigError, match="boot id"):
        open_log(MemoryStorage(), boot_id="")
