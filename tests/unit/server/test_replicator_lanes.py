"""When the writer behind a replication lane is woken for what is put there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from lane_bytes import MANY, made

from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import LaneReceiver
from penstock.ipc.roles import HighWatermark
from penstock.server.replicator.lanes import Lanes

PAGE, EPOCH = 3, 1


class To:
    """A partition as frames name it."""

    page, topic_id, partition = PAGE, b"t" * 16, 0


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    bell = Doorbell()
    yield bell
    bell.close()


@pytest.fixture
def ends(bell: Doorbell) -> tuple[Lanes, LaneReceiver]:
    """Lanes to a writer that sleeps."""
    region, sender, _ = made(1 << 16)
    receiver = LaneReceiver(region, "lane", 1, replicates=True)
    receiver.publish_sleeping(1)
    return Lanes(1, lambda _: (sender, Doorbell.from_fd(os.dup(bell.fileno())))), receiver


_numbers = itertools.count()


def note(lanes: Lanes, *, is_late: bool) -> None:
    order = HighWatermark(EPOCH, next(_numbers))
    lanes.note(To(), order, lambda _: None, is_late=is_late)


def test_a_leaders_high_watermark_wakes_its_writer_at_once(
    ends: tuple[Lanes, LaneReceiver], bell: Doorbell
) -> None:
    lanes, _ = ends
    note(lanes, is_late=False)
    lanes.ring()
    assert bell.clear()


def test_a_followers_goes_along_with_the_next_batch(
    ends: tuple[Lanes, LaneReceiver], bell: Doorbell
) -> None:
    lanes, receiver = ends
    note(lanes, is_late=True)
    lanes.ring()
    assert not bell.clear()
    lanes.of_page(PAGE).put(PAGE, b"a batch", lo.KIND_REPLICA, EPOCH, lambda _: None)
    lanes.ring()
    assert bell.clear()
    kinds = [frame.kind for frame in receiver.frames(MANY, MANY)]
    assert kinds == [lo.KIND_ROLE, lo.KIND_REPLICA]  # in the order of the lane


def test_a_followers_waits_for_no_batch_for_ever(
    ends: tuple[Lanes, LaneReceiver], bell: Doorbell
) -> None:
    lanes, _ = ends
    note(lanes, is_late=True)
    lanes.ring_late()
    assert bell.clear()
    lanes.ring_late()
    assert not bell.clear()  # it was rung for that
