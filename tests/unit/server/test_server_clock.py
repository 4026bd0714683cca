"""The node's clock of expiry over restarts: what it notes, says and counts."""

from __future__ import annotations

import logging
import time

import msgspec
import pytest

from penstock.core.storage import Storage
from penstock.server.node.clock import CLOCK_FILE, JUMP_US, ClockNote, NodeClock
from penstock.server.node.process_clock import ProcessClock, up_us

BOOT, OTHER = "boot", "another boot"
DAY = 86_400_000_000
SLACK = 60_000_000


def noted(folder, *, ahead, up=0, boot=BOOT):
    """What a run before left, whose wall clock was so far ahead, `up` microseconds ago."""
    note = ClockNote(time.time_ns() // 1000 - ahead, up_us() - up, boot, 3)
    (folder / CLOCK_FILE).write_bytes(msgspec.json.encode(note))


def clock_of(folder):
    return NodeClock(str(folder), Storage(), BOOT)


def test_a_new_folder_believes_the_wall_clock(tmp_path, caplog):
    clock = clock_of(tmp_path)
    clock.look()
    assert abs(clock.ahead_us) < SLACK
    assert (clock.counts(), caplog.records) == ({"jumps": 0, "ahead": 0}, [])
    kept = msgspec.json.decode((tmp_path / CLOCK_FILE).read_bytes(), type=ClockNote)
    assert abs(kept.believed_us - time.time_ns() // 1000) < SLACK


@pytest.mark.parametrize(
    ("boot", "up", "ahead", "left"),
    [
        (OTHER, 0, DAY // 2, 0),
        (OTHER, 0, 365 * DAY, 364 * DAY),
        (OTHER, 0, -365 * DAY, -365 * DAY),
        (BOOT, 0, 365 * DAY, 365 * DAY),
        (BOOT, DAY, DAY, 0),
        (BOOT, DAY, 365 * DAY, 363 * DAY),
    ],
    ids=["off for a while", "boots ahead", "boots behind", "set ahead", "was stopped", "both"],
)
def test_a_restart_believes_what_can_have_passed(tmp_path, boot, up, ahead, left, caplog):
    noted(tmp_path, ahead=ahead, up=up, boot=boot)
    clock = clock_of(tmp_path)
    assert abs(clock.ahead_us - left) < SLACK
    with caplog.at_level(logging.WARNING):
        clock.look()
        clock.look()
    assert len(caplog.records) == int(abs(left) > JUMP_US), "a jump is told once"
    assert clock.jumps == 3 + len(caplog.records)
    assert all(str(tmp_path / CLOCK_FILE) in record.getMessage() for record in caplog.records)
    again = clock_of(tmp_path)
    assert abs(again.ahead_us - left) < SLACK, "it is kept"


def test_a_damaged_note_is_none(tmp_path, caplog):
    (tmp_path / CLOCK_FILE).write_bytes(b"{")
    assert abs(clock_of(tmp_path).ahead_us) < SLACK
    assert "damaged" in caplog.text


def test_other_processes_go_on_from_what_the_node_believes():
    before = time.time_ns() // 1000 - 365 * DAY
    assert abs(ProcessClock(before).now_us() - before) < SLACK
