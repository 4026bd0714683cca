"""How old the record at an offset is: from looks, from the log, in bounded time."""

from __future__ import annotations

import os

import pytest
from reader_fixture import TOPIC, World

from penstock.core.encode import encode_batch
from penstock.core.header import BatchIdentity
from penstock.core.lookup import header_at
from penstock.core.storage import Storage
from penstock.observe.ages import LOOKS_MAX, Ages, LogPosition

LOG = (TOPIC.hex(), 0)
START = 1_700_000_000_000_000


@pytest.fixture
def world(tmp_path):
    """Batches of three records, one a second, over several segments."""
    made = World(tmp_path / "log", segment_bytes=4096)
    for number in range(60):
        image = encode_batch(
            [b"%d" % (number * 3 + i) * 20 for i in range(3)],
            BatchIdentity(TOPIC, 0, 1, base_sequence=number * 3),
            base_timestamp=7,
        ).image()
        made.log.append([memoryview(image)], START + number * 1_000_000)
    return made


def place(offset, world=None, who=1):
    return LogPosition(who, LOG, world.folder if world else "/nowhere", offset)


def time_of(ages, wanted, **options):
    return ages.times([wanted], **options).get(wanted)


def test_what_came_between_two_looks_came_evenly():
    ages = Ages()
    for end, now in ((100, 10.0), (100, 11.0), (200, 12.0), (200, 13.0), (201, 14.0)):
        ages.look(LOG, end, now)
    assert time_of(ages, place(149)) == 11.5
    assert time_of(ages, place(199)) == 12.0
    assert time_of(ages, place(200)) == 14.0
    assert time_of(ages, place(99)) is None, "older than the first look, and no log to look into"
    assert time_of(ages, place(201)) is None, "not there yet"


def test_only_so_many_looks_are_remembered():
    ages = Ages()
    for now in range(3 * LOOKS_MAX):
        ages.look(LOG, now, float(now))
    assert time_of(ages, place(3 * LOOKS_MAX - 10)) == 3 * LOOKS_MAX - 9
    assert time_of(ages, place(1)) is None


def test_a_log_that_was_cut_begins_anew():
    ages = Ages()
    for end, now in ((0, 1.0), (100, 2.0), (50, 3.0), (60, 4.0)):
        ages.look(LOG, end, now)
    assert time_of(ages, place(20)) is None
    assert time_of(ages, place(59)) == 4.0
    ages.keep(set())
    assert time_of(ages, place(59)) is None


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 88, 89, 90, 178, 179])
def test_what_is_older_is_looked_up_in_the_log(world, offset):
    ages = Ages()
    ages.look(LOG, 180, 1.0)
    assert time_of(ages, place(offset, world)) == START / 1e6 + offset // 3


def test_without_time_for_a_look_up_the_last_answer_stands(world):
    ages = Ages()
    assert time_of(ages, place(0, world), budget=0.0) is None
    assert time_of(ages, place(0, world)) == START / 1e6
    assert time_of(ages, place(2, world), budget=0.0) == START / 1e6, "the same batch"
    assert time_of(ages, place(90, world), budget=0.0) == START / 1e6
    assert time_of(ages, place(90, world, who=2), budget=0.0) is None
    assert time_of(ages, place(90, world)) == START / 1e6 + 30


def test_a_segment_that_is_gone_has_no_answer(world):
    os.unlink(f"{world.folder}/{0:020d}.log")
    assert time_of(Ages(), place(0, world)) is None


def test_a_look_up_goes_through_no_more_than_it_may(world):
    for name in os.listdir(world.folder):
        if name.endswith(".index"):
            os.unlink(f"{world.folder}/{name}")
    storage = Storage()
    found = header_at(storage, world.folder, 10)
    assert found is not None
    assert (found.base_offset, found.next_offset) == (9, 12)
    assert header_at(storage, world.folder, 10, batches_max=3) is None
    assert header_at(storage, world.folder, 180) is None
