"""State pages: byte for byte, read while written, and repaired after a writer died in the lock."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time

import pytest
from store_crash import Died, DyingRegion, memory

from penstock.core.errors import PenstockTimeout, UnsupportedVersionError
from penstock.ipc import layout as lo
from penstock.ipc import state as state_module
from penstock.ipc.shm import Region
from penstock.ipc.state import (
    PageIdentity,
    StatePage,
    WriterSlot,
    check_table,
    format_table,
)

NODE = bytes(range(16))
TOPIC = bytes(range(100, 116))
PAGES = 8
SIZE = 8192 + PAGES * 512
SEQLOCK = 64


def table_with_fd():
    fd, region = memory(SIZE)
    format_table(region, NODE, PAGES)
    return fd, region


@pytest.fixture
def table():
    fd, region = table_with_fd()
    os.close(fd)
    return region


def page_at(index):
    return 8192 + index * 512


# --- bytes --------------------------------------------------------------------------------------
def test_every_byte_of_a_table_in_use(table):
    page = StatePage(table, 3)
    page.claim(TOPIC, 12, 4)
    page.publish_epoch(5)
    page.publish_segment(100, 200)
    page.publish_segment(300, 400)
    page.publish_ends(1003, 1002, 1001)
    page.publish_durable(1000)
    page.publish_log_start(50)
    page.publish_status(lo.STATUS_FULL, 28)
    page.count(10, 2000, 3, 1, 2)
    page.count(1, 100, 1)
    page.count_throttle()
    slot = WriterSlot(table, 2)
    slot.claim(4242, 4, restarts=9)

    expected = bytearray(SIZE)
    struct.pack_into("<8sIIQ16s", expected, 0, b"PSTKSTAT", 1, 512, PAGES, NODE)
    at = 4096 + 2 * 64
    struct.pack_into("<QQ8sQQ", expected, at, 4242, 4, bytes(table.bytes[at + 16 : at + 24]), 1, 9)
    at = page_at(3)
    struct.pack_into("<4sI16sQQQ", expected, at, b"PAGE", 1, TOPIC, 12, 4, 5)
    struct.pack_into("<QQQ", expected, at + 64, 4, 300, 400)
    struct.pack_into("<QQQQQ", expected, at + 128, 1003, 1002, 1001, 1000, 50)
    struct.pack_into("<QQQ", expected, at + 256, 0, 3, 28)
    struct.pack_into("<QQQQQQ", expected, at + 320, 11, 2100, 4, 1, 2, 1)
    assert bytes(table.bytes) == expected


def test_a_page_read_through_a_read_only_mapping_as_clients_have_it():
    fd, region = table_with_fd()
    writer = StatePage(region, 7)
    page = StatePage(Region.of_fd(fd, writable=False), 7)
    assert page.identity is None
    assert (page.status, page.segment(), page.log_end) == (lo.STATUS_ABSENT, (0, 0), 0)
    writer.claim(TOPIC, 3, 9)
    writer.publish_epoch(8)
    writer.publish_segment(70, 71)
    writer.publish_ends(75, 74, 73)
    writer.publish_durable(72)
    writer.publish_log_start(60)
    writer.publish_status(lo.STATUS_OFFLINE, 5)
    writer.count(1, 2, 3, 4, 5)
    writer.count_throttle()
    assert page.identity == PageIdentity(TOPIC, 3)
    assert (page.generation, page.leader_epoch) == (9, 8)
    assert page.segment() == (70, 71)
    assert (page.log_end, page.high_watermark, page.last_stable) == (75, 74, 73)
    assert (page.durable, page.log_start) == (72, 60)
    assert (page.status, page.errno) == (lo.STATUS_OFFLINE, 5)
    assert page.counters() == {
        "records": 1,
        "bytes": 2,
        "batches": 3,
        "duplicates": 4,
        "refusals": 5,
        "throttles": 1,
    }
    with pytest.raises(TypeError):
        page.publish_durable(1)


def test_pages_do_not_touch_each_other(table):
    pages = [StatePage(table, index) for index in range(PAGES)]
    for number, page in enumerate(pages):
        page.claim(TOPIC, number, number + 1)
        page.publish_segment(number, 10 * number)
        page.publish_ends(3 * number, 2 * number, number)
        page.count(number, number, number)
    for number, page in enumerate(pages):
        assert page.identity == PageIdentity(TOPIC, number)
        assert page.segment() == (number, 10 * number)
        assert (page.log_end, page.counters()["records"]) == (3 * number, number)


@pytest.mark.parametrize("index", [-1, 4096, 1 << 40])
def test_a_page_outside_the_table_is_refused(table, index):
    with pytest.raises(ValueError, match=f"page {index} "):
        StatePage(table, index)


@pytest.mark.parametrize("writer", [-1, 64])
def test_a_writer_outside_the_table_is_refused(table, writer):
    with pytest.raises(ValueError, match=f"writer {writer} "):
        WriterSlot(table, writer)


# --- the table ----------------------------------------------------------------------------------
@pytest.mark.rule(10)
def test_rule_10_a_table_is_whole_or_is_none(table):
    assert check_table(table)
    assert check_table(table, NODE)
    assert not check_table(table, bytes(16)), "the table of another data folder"
    stores = 0
    while True:
        fd, region = memory(SIZE)
        os.close(fd)
        assert not check_table(region)
        dying = DyingRegion(region)
        dying.dies_after(stores)
        try:
            format_table(dying.as_region(), NODE, PAGES)
        except Died:
            assert not check_table(region)
            stores += 1
            continue
        assert check_table(region, NODE)
        assert stores == 1, "the magic is the last store"
        break


@pytest.mark.parametrize("size", [64, 8184, SIZE - 8])
def test_a_table_shorter_than_it_says_is_none(table, size):
    fd, region = memory(size)
    os.close(fd)
    region.bytes[:40] = table.bytes[:40]
    assert not check_table(region)


@pytest.mark.parametrize(("at", "number"), [(8, 0), (8, 2), (12, 256), (12, 1024)])
def test_a_table_of_another_layout_is_refused(table, at, number):
    struct.pack_into("<I", table.bytes, at, number)
    with pytest.raises(UnsupportedVersionError, match="same Penstock version"):
        check_table(table)
    table.q[0] = 0
    assert not check_table(table), "without its magic it is no table of any version"


# --- the sequence lock --------------------------------------------------------------------------
WRITER = """
import sys
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage

page = StatePage(Region.of_fd(int(sys.argv[1])), 0)
print("ready", flush=True)
number = 0
while True:
    number += 1
    page.publish_segment(number, 3 * number + 1)
    page.publish_ends(number, number, number)
"""


def start_writer(fd):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(fd)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        pass_fds=(fd,),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.rule(10)
def test_rule_10_a_pair_is_seen_together_while_another_process_writes_it():
    fd, region = table_with_fd()
    page = StatePage(region, 0)
    process = start_writer(fd)
    os.close(fd)
    try:
        page.segment()
        seen, last = 0, 0
        begun = time.monotonic()
        while seen < 20 or time.monotonic() < begun + 1.0:
            assert time.monotonic() < begun + 45.0, f"the writer wrote {seen} times meanwhile"
            for _ in range(100):
                ends = page.high_watermark  # bytes before offsets: the pair is at least as new
                base, valid = page.segment()
                assert valid == 3 * base + 1 or base == 0, f"torn: {base}, {valid}"
                assert base >= last
                assert base >= ends
                seen += base != last
                last = base
                glance = page.glance(bytes(32))  # of a page that was never claimed
                assert glance is None or glance[3] == 3 * glance[2] + 1 or glance[2] == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.rule(10)
def test_rule_10_writers_killed_anywhere_leave_a_page_that_the_next_one_repairs():
    fd, region = table_with_fd()
    page = StatePage(region, 0)
    for generation in range(1, 4):
        process = start_writer(fd)
        until = time.monotonic() + 20
        while not page.high_watermark and time.monotonic() < until:
            os.sched_yield()
        process.kill()
        process.communicate()
        page.claim(TOPIC, 0, generation)
        base, valid = page.segment()
        assert valid in (3 * base + 1, 0)
        page.publish_segment(0, 0)
        page.publish_ends(0, 0, 0)
        assert page.segment() == (0, 0)
    os.close(fd)


@pytest.mark.rule(10)
@pytest.mark.parametrize("stores", range(5))
def test_rule_10_claim_repairs_a_lock_whose_writer_died_at_any_store(table, monkeypatch, stores):
    monkeypatch.setattr(state_module, "SEGMENT_WAIT", 0.02)
    dying = DyingRegion(table)
    writer = StatePage(dying.as_region(), 1)
    writer.claim(TOPIC, 0, 1)
    writer.publish_segment(10, 20_000)
    dying.dies_after(stores)
    if stores < 4:
        with pytest.raises(Died):
            writer.publish_segment(500, 7)
    else:
        writer.publish_segment(500, 7)
    reader = StatePage(table, 1)
    if stores in (1, 2, 3):
        with pytest.raises(PenstockTimeout, match=r"page 1: .* middle of a publication"):
            reader.segment()
    replacement = StatePage(table, 1)
    replacement.claim(TOPIC, 0, 2)
    # Never the new segment with the old one's bytes: what is not whole shows no bytes at all.
    expected = {0: (10, 20_000), 1: (10, 0), 2: (500, 0), 3: (500, 0), 4: (500, 7)}
    assert reader.segment() == expected[stores]
    replacement.publish_segment(500, 9)
    assert reader.segment() == (500, 9)
    assert table.q[(page_at(1) + SEQLOCK) // 8] % 2 == 0


def test_a_glance_is_what_the_single_looks_say_and_of_this_partition_alone(table):
    page = StatePage(table, 3)
    packed = lo.PAGE_IDENTITY.pack(lo.PAGE_MAGIC, lo.LAYOUT_VERSION, TOPIC, 7)
    assert page.glance(packed) is None, "it was never given to anybody"
    page.claim(TOPIC, 7, 1)
    page.publish_epoch(4)
    page.publish_segment(100, 200)
    page.publish_log_start(50)
    assert page.glance(packed) == (page.log_start, page.leader_epoch, *page.segment())
    other = lo.PAGE_IDENTITY.pack(lo.PAGE_MAGIC, lo.LAYOUT_VERSION, TOPIC, 8)
    assert page.glance(other) is None
    page.publish_status(lo.STATUS_DELETED)
    assert page.glance(packed) is None


@pytest.mark.rule(10)
@pytest.mark.parametrize("stores", range(1, 4))
def test_rule_10_a_glance_brings_nothing_while_the_pair_is_published(table, stores):
    dying = DyingRegion(table)
    writer = StatePage(dying.as_region(), 1)
    writer.claim(TOPIC, 0, 1)
    writer.publish_segment(10, 20_000)
    dying.dies_after(stores)
    with pytest.raises(Died):
        writer.publish_segment(500, 7)
    packed = lo.PAGE_IDENTITY.pack(lo.PAGE_MAGIC, lo.LAYOUT_VERSION, TOPIC, 0)
    assert StatePage(table, 1).glance(packed) is None


@pytest.mark.rule(10)
def test_rule_10_a_reader_that_spins_goes_on_when_the_lock_is_repaired(table):
    dying = DyingRegion(table)
    writer = StatePage(dying.as_region(), 0)
    dying.dies_after(1)
    with pytest.raises(Died):
        writer.publish_segment(5, 6)
    found: list[tuple[int, int]] = []
    reader = StatePage(table, 0)
    thread = threading.Thread(target=lambda: found.append(reader.segment()))
    thread.start()
    replacement = StatePage(table, 0)
    replacement.publish_ends(1, 1, 1)  # other fields are read without the lock
    assert reader.log_end == 1
    assert found == []
    replacement.claim(TOPIC, 0, 2)
    thread.join(45)
    assert found == [(0, 0)]


def test_invariant_10_the_spin_is_bounded(table):
    table.q[(page_at(0) + SEQLOCK) // 8] = 7
    started = time.monotonic()
    with pytest.raises(PenstockTimeout, match=r"within 2\.0 s"):
        StatePage(table, 0).segment()
    assert 1.9 < time.monotonic() - started < 30


# --- claiming -----------------------------------------------------------------------------------
@pytest.mark.rule(10)
def test_rule_10_a_page_claimed_again_for_its_partition_keeps_everything(table):
    first = StatePage(table, 0)
    first.claim(TOPIC, 1, 1)
    first.publish_segment(1, 2)
    first.publish_ends(9, 8, 7)
    first.count(5, 5, 5)
    StatePage(table, 0).claim(TOPIC, 1, 2)
    assert first.identity == PageIdentity(TOPIC, 1)
    assert (first.generation, first.segment(), first.log_end) == (2, (1, 2), 9)
    assert first.counters()["records"] == 5


def test_a_page_is_nobodys_while_its_identity_changes(table):
    StatePage(table, 0).claim(TOPIC, 1, 1)
    seen = set()
    for stores in range(10):
        dying = DyingRegion(table)
        dying.dies_after(stores)
        try:
            StatePage(dying.as_region(), 0).claim(bytes(16), 2, 2)
        except Died:
            seen.add(StatePage(table, 0).identity)
            continue
        break
    assert seen <= {PageIdentity(TOPIC, 1), None}
    assert None in seen
    assert StatePage(table, 0).identity == PageIdentity(bytes(16), 2)


# --- signs of life ------------------------------------------------------------------------------
@pytest.mark.rule(8)
def test_rule_8_a_writer_that_beats_is_not_silent(table, monkeypatch):
    clock = 5_000_000_000
    monkeypatch.setattr("penstock.ipc.state.time.monotonic_ns", lambda: clock)
    slot = WriterSlot(table, 63)
    slot.claim(77, 3)
    assert (slot.pid, slot.generation, slot.silent_for) == (77, 3, 0.0)
    assert slot.restarts == 0
    clock += 1_500_000_000
    assert slot.silent_for == 1.5
    slot.beat()
    assert slot.silent_for == 0.0
    clock -= 1
    assert slot.silent_for == 0.0, "two readings of a clock may cross"
    assert WriterSlot(table, 62).pid == 0
