"""The shared-memory layouts against the tables of the format, written out once more."""

from __future__ import annotations

import pytest

from penstock.ipc import layout as lo

# Byte positions of the u64 cursors, with the one who writes them.
LANE = {
    "Q_LANE_MAGIC": (0, "node"),
    "Q_LANE_VERSION": (8, "node"),
    "Q_LANE_CAPACITY": (16, "node"),
    "Q_LANE_PRODUCER_ID": (24, "node"),
    "Q_LANE_EPOCH": (32, "node"),
    "Q_LANE_PID": (40, "node"),
    "Q_LANE_START_TIME": (48, "node"),
    "Q_LANE_BOOT_HASH": (56, "node"),
    "Q_LANE_TAIL": (64, "producer"),
    "Q_LANE_TAIL_SEQUENCE": (72, "producer"),
    "Q_LANE_STATE": (128, "producer"),
    "Q_LANE_PRODUCER_HEARTBEAT": (136, "producer"),
    "Q_LANE_ACK_HEAD": (144, "producer"),
    "Q_LANE_HEAD": (192, "writer"),
    "Q_LANE_HEAD_SEQUENCE": (200, "writer"),
    "Q_LANE_GENERATION": (208, "writer"),
    "Q_LANE_ACK_TAIL": (216, "writer"),
    "Q_LANE_WRITER_SLEEPING": (256, "writer"),
    "Q_LANE_PRODUCER_SLEEPING": (320, "producer"),
}
PAGE = {
    "Q_PAGE_MAGIC": 0,
    "Q_PAGE_PARTITION": 24,
    "Q_PAGE_GENERATION": 32,
    "Q_PAGE_LEADER_EPOCH": 40,
    "Q_PAGE_SEQLOCK": 64,
    "Q_PAGE_SEGMENT_BASE": 72,
    "Q_PAGE_VALID_BYTES": 80,
    "Q_PAGE_LOG_END": 128,
    "Q_PAGE_HIGH_WATERMARK": 136,
    "Q_PAGE_LAST_STABLE": 144,
    "Q_PAGE_DURABLE": 152,
    "Q_PAGE_LOG_START": 160,
    "Q_PAGE_STATUS": 264,
    "Q_PAGE_ERRNO": 272,
    "Q_PAGE_OPEN_PRODUCER": 280,
    "Q_PAGE_OPEN_EPOCH": 288,
    "Q_PAGE_OPEN_BEGAN": 296,
    "Q_PAGE_RECORDS": 320,
    "Q_PAGE_BYTES": 328,
    "Q_PAGE_BATCHES": 336,
    "Q_PAGE_DUPLICATES": 344,
    "Q_PAGE_REFUSALS": 352,
    "Q_PAGE_THROTTLES": 360,
    "Q_PAGE_PRODUCERS_EXPIRED": 368,
    "Q_PAGE_CLEANINGS": 384,
    "Q_PAGE_SEGMENTS_DELETED": 392,
    "Q_PAGE_BYTES_DELETED": 400,
    "Q_PAGE_RECORDS_COMPACTED": 408,
    "Q_PAGE_CLEANING_ERRORS": 416,
    "Q_PAGE_CLEANED_AT": 424,
    "Q_PAGE_SYNC_US": 448,
    "Q_PAGE_SYNC_COUNTS": 456,
}
WRITER = {
    "Q_WRITER_PID": 0,
    "Q_WRITER_GENERATION": 8,
    "Q_WRITER_HEARTBEAT": 16,
    "Q_WRITER_PASSES": 24,
    "Q_WRITER_RESTARTS": 32,
}
CLIENT = {
    "Q_CLIENT_IN_USE": 0,
    "Q_CLIENT_PID": 8,
    "Q_CLIENT_START_TIME": 16,
    "Q_CLIENT_KIND": 24,
    "Q_CLIENT_NOTICE": 32,
    "Q_CLIENT_SLEEPING": 64,
    "Q_CLIENT_ASSIGNED": 72,
    "Q_CLIENT_DROPPED": 128,
    "Q_CLIENT_PRODUCER_ID": 136,
    "Q_CLIENT_POLLED": 144,
}


@pytest.mark.parametrize(
    ("prefix", "table"),
    [
        ("Q_LANE_", {name: position for name, (position, _) in LANE.items()}),
        ("Q_PAGE_", PAGE),
        ("Q_WRITER_", WRITER),
        ("Q_CLIENT_", CLIENT),
    ],
    ids=["lane", "page", "writer slot", "client slot"],
)
def test_every_cursor_stands_where_the_format_says(prefix, table):
    found = {name: getattr(lo, name) * 8 for name in dir(lo) if name.startswith(prefix)}
    assert found == table


def test_every_line_of_a_lane_has_one_writer():
    writers: dict[int, set[str]] = {}
    for position, writer in LANE.values():
        writers.setdefault(position // 64, set()).add(writer)
    assert {line: len(found) for line, found in writers.items() if len(found) > 1} == {}


def test_what_only_readers_need_stands_apart_from_what_is_written_with_every_append():
    often = {PAGE[name] // 64 for name in ("Q_PAGE_SEQLOCK", "Q_PAGE_LOG_END", "Q_PAGE_RECORDS")}
    assert len(often) == 3
    assert PAGE["Q_PAGE_MAGIC"] // 64 not in often


def test_numbers_that_never_change():
    assert lo.LANE_MAGIC.to_bytes(8, "little") == b"PSTKLANE"
    assert lo.STATE_MAGIC.to_bytes(8, "little") == b"PSTKSTAT"
    assert lo.CLIENT_MAGIC.to_bytes(8, "little") == b"PSTKCLNT"
    assert lo.PAGE_MAGIC.to_bytes(4, "little") == b"PAGE"
    assert lo.LAYOUT_VERSION == 1
    assert (lo.LANE_ACKS_AT, lo.ACKS_MAX, lo.ACK.size, lo.LANE_FRAMES_AT) == (4096, 128, 32, 8192)
    assert (lo.FRAME_BYTES, lo.FRAME_ALIGN, lo.FRAME_SHARE) == (64, 64, 4)
    assert (lo.KIND_DATA, lo.KIND_PAD, lo.LANE_OPEN, lo.LANE_CLOSED) == (1, 2, 1, 2)
    assert (lo.KIND_REPLICA, lo.KIND_ROLE) == (3, 4)
    assert (lo.FRAME_SYNC, lo.FRAME_COMMITTED, lo.FRAME_IN_EPOCH) == (1, 2, 4)
    assert (lo.WRITER_SLOTS_AT, lo.WRITER_SLOT_BYTES, lo.WRITERS_MAX) == (4096, 64, 64)
    assert (lo.PAGES_AT, lo.PAGE_BYTES, lo.PAGES_MAX) == (8192, 512, 4096)
    assert (lo.CLIENT_SLOTS_AT, lo.CLIENT_SLOT_BYTES, lo.CLIENTS_MAX) == (4096, 4096, 1024)
    assert (lo.CLIENT_POSITIONS_AT, lo.POSITIONS_MAX, lo.POSITION_BITS) == (1024, 384, 51)
    assert (lo.CLIENT_WATCH_AT, lo.PAGE_TOPIC_ID_AT, lo.LANE_VERSION_AT) == (512, 8, 8)
    assert (lo.KIND_PRODUCER, lo.KIND_CONSUMER, lo.KIND_ADMIN) == (1, 2, 3)
    assert (lo.KIND_CLEANER, lo.KIND_REPLICATOR) == (4, 5)
    assert lo.STATUS_NAMES == {
        lo.STATUS_ABSENT: "absent",
        lo.STATUS_ONLINE: "online",
        lo.STATUS_OFFLINE: "offline",
        lo.STATUS_FULL: "storage full",
        lo.STATUS_DELETED: "deleted",
        lo.STATUS_FOLLOWING: "following",
    }
    assert list(lo.STATUS_NAMES) == [0, 1, 2, 3, 4, 5]


def test_sizes_of_whole_objects():
    assert lo.LANE_CAPACITY_DEFAULT == 4 << 20
    assert lo.lane_bytes(lo.LANE_CAPACITY_DEFAULT) == 8192 + (4 << 20)
    assert lo.state_table_bytes() == 8192 + 4096 * 512
    assert lo.state_table_bytes(3) == 8192 + 3 * 512
    assert lo.client_table_bytes() == 4096 + 1024 * 4096
    assert lo.client_table_bytes(2) == 4096 + 2 * 4096
    assert lo.WRITER_SLOTS_AT + lo.WRITERS_MAX * lo.WRITER_SLOT_BYTES == lo.PAGES_AT
    # The sizes of shared memory are multiples of a page, so none is shared with something else.
    for size in (lo.lane_bytes(lo.LANE_CAPACITY_MIN), lo.state_table_bytes(), lo.CLIENT_SLOTS_AT):
        assert size % 4096 == 0
