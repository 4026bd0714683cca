"""The lines of the node and the cleaner in the head of the state table."""

from __future__ import annotations

from store_crash import memory

from penstock.ipc import layout as lo
from penstock.ipc.hostslots import CleanerSlot, DiskRoom, DiskSlot
from penstock.ipc.state import StatePage, format_table


def test_the_slots_stand_beside_the_header_and_before_the_writers():
    assert lo.STATE_HEADER.size <= lo.DISK_SLOT_AT
    assert lo.DISK_SLOT_AT + 64 <= lo.CLEANER_SLOT_AT
    assert lo.CLEANER_SLOT_AT + 64 <= lo.WRITER_SLOTS_AT


def test_what_is_published_is_read_and_nothing_else_changes():
    _fd, region = memory(lo.state_table_bytes(1))
    format_table(region, b"u" * 16, 1)
    head = bytes(region.bytes[:64])
    disk, cleaner = DiskSlot(region), CleanerSlot(region)
    assert (disk.is_stopped, cleaner.read().pid) == (False, 0)
    said = DiskRoom(lo.DISK_STOP, 10, 1000, 100, 20)
    disk.publish(said)
    cleaner.claim(77)
    cleaner.count_run(5_000_000)
    cleaner.count_error()
    assert disk.read() == said
    assert StatePage(region, 0).disk.is_stopped
    state = cleaner.read()
    assert (state.pid, state.runs, state.errors, state.last_run) == (77, 1, 1, 5_000_000)
    assert state.heartbeat > 0
    assert bytes(region.bytes[:64]) == head
    assert not any(region.bytes[192:])
