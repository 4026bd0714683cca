"""The recovery point: its bytes, and which of its two slots counts."""

from __future__ import annotations

import pytest
from unit.core.log_helpers import (
    MemoryStorage,
    open_log,
)

from penstock.core.errors import ConfigError
from penstock.core.recoverypoint import POINT_FILE, SLOT_BYTES, PointFile, RecoveryPoint


def test_golden_recovery_point():
    point = RecoveryPoint(258, 513, 1027, 5, 6, 7, "boot-é")
    assert point.encode(9) == bytes.fromhex(
        "50535250 0100 0700 13692776 00000000"
        "0900000000000000 0201000000000000"
        "0102000000000000 0304000000000000"
        "05000000 06000000 0700000000000000" + "626f6f742dc3a9".ljust(128, "0")
    )
    assert RecoveryPoint.decode(point.encode(9)) == (point, 9)


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


def test_boot_ids_have_a_bound():
    with pytest.raises(ConfigError, match="boot id"):
        open_log(MemoryStorage(), boot_id="x" * 65)
    with pytest.raises(ConfigError, match="boot id"):
        open_log(MemoryStorage(), boot_id="")
