"""Copies of state pages: what is heard in whatever order, and a page that is given away."""

from __future__ import annotations

import os

import pytest

from penstock.client.remote.mirror import MirroredPages, MirroredSlot
from penstock.cluster.frames.messages import PageState
from penstock.ipc import layout as lo
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage, check_table

UUID = b"u" * 16
TOPIC = b"t" * 16


@pytest.fixture
def pages():
    made = MirroredPages(UUID)
    yield made
    made.close()


@pytest.fixture
def page(pages):
    """As a session maps it."""
    with Region.of_fd(os.dup(pages.fd), writable=False) as region:
        assert check_table(region, UUID)
        yield StatePage(region, 3)


def state(end=10, *, epoch=1, topic=TOPIC, status=lo.STATUS_ONLINE, start=0, counters=()):
    return PageState(
        3, topic, 0, status, 0, 1, epoch, start, end - 3, end - 2, end - 1, end, [],
        list(counters), [],
    )  # fmt: skip


def ends(page):
    return page.log_start, page.durable, page.last_stable, page.high_watermark, page.log_end


def test_a_page_shows_what_was_heard(pages, page):
    assert page.identity is None
    pages.publish([state(counters=[5, 6, 7, 0, 0, 0])])
    assert page.identity == (TOPIC, 0)
    assert ends(page) == (0, 7, 8, 9, 10)
    assert (page.leader_epoch, page.status) == (1, lo.STATUS_ONLINE)
    assert page.counters()["records"] == 5


def test_in_one_epoch_nothing_moves_backwards(pages, page):
    pages.publish([state(20, start=4), state(10)])
    assert ends(page) == (4, 17, 18, 19, 20)


def test_another_epoch_may_end_earlier_and_an_older_one_says_nothing(pages, page):
    pages.publish([state(20), state(12, epoch=2), state(30, epoch=1)])
    assert ends(page) == (0, 9, 10, 11, 12)
    assert page.leader_epoch == 2


def test_nothing_of_another_partition_is_left_on_a_page(pages, page):
    pages.publish([state(20, epoch=9), state(5, epoch=1, topic=b"o" * 16)])
    assert page.identity == (b"o" * 16, 0)
    assert ends(page) == (0, 2, 3, 4, 5)
    assert page.leader_epoch == 1


def test_a_page_that_its_writer_has_not_opened_is_nobodys(pages, page):
    pages.publish([state(topic=b"", status=lo.STATUS_OFFLINE)])
    assert page.identity is None
    assert page.status == lo.STATUS_OFFLINE
    pages.publish([state(20), state(topic=b"", status=lo.STATUS_ABSENT)])
    assert ends(page) == (0, 17, 18, 19, 20)


def test_a_slot_is_rung_once_a_sleep():
    slot = MirroredSlot(os.getpid(), 1, lo.KIND_CONSUMER)
    slot.ring_if_asleep()
    assert not slot.bell.clear()
    slot.slot.publish_sleeping(5)
    slot.ring_if_asleep()
    assert slot.bell.clear()
    slot.ring_if_asleep()
    assert not slot.bell.clear()
    slot.give_notice(4)
    assert slot.bell.clear()
    assert slot.slot.notice == 4
    slot.close()
