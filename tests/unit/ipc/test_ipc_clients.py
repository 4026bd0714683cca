"""Client slots: byte for byte, who writes what, and the pages that a client watches."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_crash import Died, DyingRegion, memory

from penstock.core.errors import UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc.clients import ClientSlot, check_table, format_table

SLOTS = 3
SIZE = 4096 + SLOTS * 4096


@pytest.fixture
def table():
    return made()


def made():
    fd, region = memory(SIZE)
    os.close(fd)
    format_table(region, SLOTS)
    return region


def test_every_byte_of_a_table_in_use(table):
    slot = ClientSlot(table, 1)
    slot.assign(4242, 987654321, lo.KIND_CONSUMER)
    slot.publish_sleeping(99)
    slot.watch([0, 9, 4095])
    slot.publish_positions([(9, 7), (4095, 1 << 50)])
    slot.publish_position(0, 9, 8)
    slot.publish_dropped(5)
    slot.publish_producer(6)
    expected = bytearray(SIZE)
    struct.pack_into("<8sIIQ", expected, 0, b"PSTKCLNT", 1, 4096, SLOTS)
    at = 4096 + 4096
    struct.pack_into("<QQQQ", expected, at, 1, 4242, 987654321, 2)
    struct.pack_into("<QQ", expected, at + 64, 99, 2)
    struct.pack_into("<QQ", expected, at + 128, 5, 6)
    expected[at + 512] = 0b1
    expected[at + 513] = 0b10
    expected[at + 1023] = 0b1000_0000
    struct.pack_into("<QQ", expected, at + 1024, 10 << 51 | 8, 4096 << 51 | 1 << 50)
    assert bytes(table.bytes) == expected


def test_onlookers_find_the_positions_of_the_last_assignment(table):
    slot = ClientSlot(table, 1)
    slot.assign(4242, 77, lo.KIND_CONSUMER)
    slot.publish_positions([(page, page * 10) for page in range(500)])
    slot.publish_position(3, 3, 31)
    slot.publish_position(400, 400, 1)
    seen = ClientSlot(table, 1)
    assert (seen.pid, seen.start_time, seen.kind) == (4242, 77, lo.KIND_CONSUMER)
    assert seen.assigned == 500
    assert seen.positions() == [(p, 31 if p == 3 else p * 10) for p in range(lo.POSITIONS_MAX)]
    slot.publish_positions([(0, 5), (4095, 1 << 50)])
    assert (seen.assigned, seen.positions()) == (2, [(0, 5), (4095, 1 << 50)])
    assert ClientSlot(table, 2).positions() == [], "nothing runs over into the next slot"


PAGES = st.sets(st.integers(0, 4095) | st.integers(0, 20), max_size=60)


@settings(derandomize=True, max_examples=100)
@given(PAGES, PAGES, st.integers(0, 4095))
def test_a_client_watches_exactly_the_pages_it_named_last(before, pages, other):
    table = made()
    slot, neighbour = ClientSlot(table, 1), ClientSlot(table, 2)
    neighbour.watch([other])
    slot.watch(before)
    slot.watch(pages)
    writers = ClientSlot(table, 1)
    assert {page for page in range(4096) if writers.watches(page)} == pages
    assert {page for page in range(4096) if neighbour.watches(page)} == {other}
    assert not any(ClientSlot(table, 0).watches(page) for page in pages)


def test_a_slot_given_again_has_nothing_of_the_one_before(table):
    slot = ClientSlot(table, 2)
    slot.assign(1, 2, lo.KIND_PRODUCER)
    slot.publish_sleeping(7)
    slot.watch(range(100))
    assert (slot.in_use, slot.pid, slot.ticket) == (True, 1, 7)
    slot.free()
    assert (slot.in_use, slot.ticket) == (False, 0), "nobody rings a client that is gone"
    slot.assign(3, 4, lo.KIND_ADMIN)
    assert (slot.in_use, slot.pid, slot.ticket) == (True, 3, 0)
    assert not any(slot.watches(page) for page in range(4096))


def test_a_slot_is_in_use_only_when_it_is_whole(table):
    slot = ClientSlot(table, 0)
    slot.assign(1, 2, 3)
    for stores in range(10):
        dying = DyingRegion(table)
        dying.dies_after(stores)
        try:
            ClientSlot(dying.as_region(), 0).assign(5, 6, 7)
        except Died:
            assert not slot.in_use
            continue
        assert (slot.in_use, slot.pid, stores) == (True, 5, 4)
        return


@pytest.mark.parametrize("index", [-1, 1024])
def test_a_slot_outside_the_table_is_refused(table, index):
    with pytest.raises(ValueError, match=f"slot {index} "):
        ClientSlot(table, index)


def test_a_table_is_whole_or_is_none(table):
    assert check_table(table)
    for size in (64, 4088, SIZE - 8):
        fd, region = memory(size)
        os.close(fd)
        region.bytes[:24] = table.bytes[:24]
        assert not check_table(region)
    fd, region = memory(SIZE)
    os.close(fd)
    dying = DyingRegion(region)
    dying.dies_after(0)
    with pytest.raises(Died):
        format_table(dying.as_region(), SLOTS)
    assert not check_table(region)


@pytest.mark.parametrize(("at", "number"), [(8, 0), (8, 2), (12, 512)])
def test_a_table_of_another_layout_is_refused(table, at, number):
    struct.pack_into("<I", table.bytes, at, number)
    with pytest.raises(UnsupportedVersionError, match="same Penstock version"):
        check_table(table)
