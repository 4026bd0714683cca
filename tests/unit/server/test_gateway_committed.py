"""Batches that are answered when committed, and what is answered by who leads elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from produce_fixture import TOPIC, Sending

from penstock.core.errors import ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage
from penstock.server.gateway.commit_wait import COMMIT_WITHIN, verdict
from penstock.server.gateway.membership import Membership

NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER
NOT_COMMITTED = ErrorCode.NOT_COMMITTED
COMMITTED, SYNC = lo.FRAME_COMMITTED, lo.FRAME_SYNC
PAGES = 3
EPOCH = 5


def leading(page: StatePage, partition: int, *, epoch: int = EPOCH, end: int = 0) -> None:
    """The page as its writer has it while it leads, with all committed up to `end`."""
    page.claim(TOPIC, partition, 1)
    page.publish_epoch(epoch)
    page.publish_ends(end, end, end)
    page.publish_status(lo.STATUS_ONLINE)


def broker_1(leaders: dict[int, int]) -> Membership:
    membership = Membership(1)
    brokers = [(1, "tcp://a:1"), (2, "tcp://b:2")]
    membership.told(ms.GatewayCluster(bytes(16), bytes(32), 7, 1, brokers, [*leaders.items()], 2))
    return membership


@pytest.fixture
def membership() -> Membership:
    return broker_1(dict.fromkeys(range(PAGES), 1))


@pytest.fixture
def sending(tmp_path: Path, membership: Membership) -> Iterator[Sending]:
    made = Sending(tmp_path, membership)
    for index in range(PAGES):
        leading(made.endpoint.states.page(index), index)
    made.send()
    made.open()
    made.append((0, 0, EPOCH))
    assert made.answers == [(0, NONE)], "nobody waits for its being committed"
    yield made
    made.close()


# --- what becomes of a batch ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "epoch", "high_watermark", "is_told"),
    [
        (lo.STATUS_ONLINE, EPOCH, 10, None),
        (lo.STATUS_ONLINE, EPOCH, 11, NONE),
        (lo.STATUS_ONLINE, EPOCH + 1, 11, NOT_LEADER),
        (lo.STATUS_FULL, EPOCH, 11, NONE),
        (lo.STATUS_FULL, EPOCH, 10, None),
        (lo.STATUS_FOLLOWING, EPOCH, 11, NOT_LEADER),
        (lo.STATUS_FOLLOWING, EPOCH + 1, 11, NOT_LEADER),
        (lo.STATUS_OFFLINE, EPOCH, 10, NOT_LEADER),
        (lo.STATUS_DELETED, EPOCH, 10, NOT_LEADER),
    ],
)
def test_a_batch_is_committed_where_its_leader_epoch_goes_on_behind_it(
    sending: Sending, status: int, epoch: int, high_watermark: int, is_told: ErrorCode | None
) -> None:
    page = sending.page
    page.publish_epoch(epoch)
    page.publish_ends(20, high_watermark, high_watermark)
    page.publish_status(status)
    assert verdict(page, 11, EPOCH) is is_told


def test_it_is_answered_when_the_hw_is_behind_it(sending: Sending) -> None:
    sending.send(flags=COMMITTED)
    sending.append((1, 0, EPOCH))
    sending.page.publish_ends(2, 1, 1)
    sending.look()
    assert sending.answers[1:] == []
    sending.page.publish_ends(2, 2, 2)
    sending.look()
    assert sending.answers[1:] == [(1, NONE)]
    assert sending.said[-1].acks[0].base_offset == 1
    assert sending.said[-1].pages[0].high_watermark == 2


def test_one_that_is_committed_already_is_answered_at_once(sending: Sending) -> None:
    sending.page.publish_ends(2, 2, 2)
    sending.send(flags=COMMITTED | SYNC)
    sending.append((1, 0, EPOCH))
    assert sending.answers[1:] == [(1, NONE)]


def test_answers_of_a_lane_keep_their_order(sending: Sending) -> None:
    """Also those of other partitions, and those that nobody waits with."""
    sending.send(0, COMMITTED)
    sending.send(1, COMMITTED)
    sending.send(1)
    sending.append((1, 0, EPOCH), (0, 0, EPOCH), (1, 0, EPOCH))
    sending.endpoint.states.page(1).publish_ends(2, 2, 2)
    sending.look()
    assert sending.answers[1:] == []
    sending.page.publish_ends(2, 2, 2)
    sending.look()
    assert sending.answers[1:] == [(1, NONE), (2, NONE), (3, NONE)]


def test_another_epoch_or_leader_first_and_nobody_knows(sending: Sending) -> None:
    for page in range(PAGES):
        sending.send(page, COMMITTED)
    sending.append((1, 0, EPOCH), (0, 0, EPOCH), (0, 0, EPOCH))
    leading(sending.page, 0, epoch=EPOCH + 2, end=9)
    sending.endpoint.states.page(1).publish_status(lo.STATUS_FOLLOWING)
    sending.endpoint.states.page(2).publish_ends(1, 1, 1)
    sending.look()
    assert sending.answers[1:] == [(1, NOT_LEADER), (2, NOT_LEADER), (3, NONE)]
    assert [ack.base_offset for ack in sending.said[-1].acks] == [0, 0, 0]


def test_a_partition_in_which_nothing_is_committed_holds_others_up_for_a_while_only(
    sending: Sending,
) -> None:
    for page in (0, 1, 2, 0):
        sending.send(page, COMMITTED)
    sending.append((1, 0, EPOCH), (0, 0, EPOCH), (0, 0, EPOCH), (2, 0, EPOCH))
    sending.endpoint.states.page(2).publish_ends(1, 1, 1)
    sending.now = 0.9 * COMMIT_WITHIN
    sending.look()
    assert sending.answers[1:] == []
    sending.now = 1.1 * COMMIT_WITHIN
    sending.look()
    assert sending.answers[1:] == [
        (1, NOT_COMMITTED), (2, NOT_COMMITTED), (3, NONE), (4, NOT_COMMITTED),
    ]  # fmt: skip
    sending.send(0, COMMITTED)  # asked again, which is known as it is
    sending.append((1, 0, EPOCH))
    assert sending.answers[5:] == [(5, NOT_COMMITTED)]
    sending.page.publish_ends(3, 3, 3)
    sending.send(0, COMMITTED)
    sending.append((1, 0, EPOCH))
    assert sending.answers[6:] == [(6, NONE)]
    sending.send(0, COMMITTED)  # is waited for like any other from now on
    sending.append((3, 0, EPOCH))
    assert sending.answers[7:] == []


def test_one_that_is_committed_slowly_is_waited_for(sending: Sending) -> None:
    """Its followers are late, and go on."""
    sending.page.publish_ends(9, 1, 1)
    sending.send(0, COMMITTED)
    sending.append((8, 0, EPOCH))
    for committed in range(2, 9):
        sending.now += 0.9 * COMMIT_WITHIN
        sending.page.publish_ends(9, committed, committed)
        sending.look()
        assert sending.answers[1:] == []
    sending.page.publish_ends(9, 9, 9)
    sending.look()
    assert sending.answers[1:] == [(1, NONE)]


def test_a_refusal_of_the_writer_waits_for_nothing(sending: Sending) -> None:
    sending.send(flags=COMMITTED)
    sending.append((0, ErrorCode.POISONED, EPOCH))
    assert sending.answers[1:] == [(1, ErrorCode.POISONED)]


def test_one_that_is_in_the_log_somewhere_waits_for_all_that_is(sending: Sending) -> None:
    sending.page.publish_ends(40, 30, 30)
    sending.send(flags=COMMITTED)
    sending.append((0, ErrorCode.DUPLICATE_TOO_OLD, EPOCH))
    sending.page.publish_ends(41, 39, 39)
    sending.look()
    assert sending.answers[1:] == []
    sending.page.publish_ends(41, 40, 40)
    sending.look()
    assert sending.answers[1:] == [(1, ErrorCode.DUPLICATE_TOO_OLD)]


def test_an_endpoint_that_ends_waits_for_nothing_any_more(sending: Sending) -> None:
    sending.send(flags=COMMITTED)
    sending.append((1, 0, EPOCH))
    sending.producing.gone(sending.endpoint)
    sending.endpoint.is_open = False
    sending.page.publish_ends(2, 2, 2)
    sending.look()
    assert sending.answers[1:] == []


# --- who leads -----------------------------------------------------------------------------------
def test_frames_name_the_epoch_that_they_are_for(sending: Sending) -> None:
    sending.send()
    [frame] = sending.frames()
    assert (frame.fetch_epoch, frame.flags) == (EPOCH, lo.FRAME_IN_EPOCH)


def test_frames_of_a_node_that_stands_alone_are_for_any_epoch(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    leading(sending.page, 0)
    sending.send()
    sending.open()
    [frame] = sending.frames()
    assert (frame.fetch_epoch, frame.flags) == (0, 0)
    sending.close()


def test_what_is_led_elsewhere_is_refused_here(
    tmp_path: Path, membership: Membership, sending: Sending
) -> None:
    sending.page.publish_status(lo.STATUS_FOLLOWING)
    sending.send(0)
    assert sending.answers[1:] == [(1, NOT_LEADER)]
    sending.send(1)
    assert len(sending.frames()) == 1, "others go on"


def test_what_comes_in_another_epoch_than_the_first_is_refused(sending: Sending) -> None:
    """What it sent in the first may be lost, and nothing may be written behind that hole."""
    leading(sending.page, 0, epoch=EPOCH + 1)
    sending.send(0)
    sending.send(1)
    assert [frame.page for frame in sending.frames()] == [1]
    sending.append((0, 0, EPOCH))
    assert sending.answers[1:] == [(1, NOT_LEADER), (2, NONE)]


def test_once_a_batch_was_sent_away_those_behind_it_are_too(tmp_path: Path) -> None:
    """It was told late that it leads, and by then batches were under way behind the hole."""
    membership = broker_1({0: 2})
    sending = Sending(tmp_path, membership)
    sending.send()
    leading(sending.page, 0)
    told = ms.GatewayCluster(bytes(16), bytes(32), 8, 1, [(1, "tcp://a:1")], [(0, 1)], 1)
    assert membership.told(told)
    sending.send()
    assert sending.answers == [(0, NOT_LEADER), (1, NOT_LEADER)]
    sending.close()


def test_what_a_writer_sent_away_is_followed_by_nothing(sending: Sending) -> None:
    sending.send()
    sending.append((0, NOT_LEADER, EPOCH))
    sending.send()
    assert sending.answers[1:] == [(1, NOT_LEADER), (2, NOT_LEADER)]


def test_who_comes_to_the_wrong_broker_is_counted_and_no_line_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a failover all come, and may come again."""
    caplog.set_level(logging.INFO)
    sending = Sending(tmp_path, broker_1({0: 2, 1: 1}))
    for _ in range(3):
        sending.send()
    assert sending.counts.refusals == {"not_leader": 3}
    sending.endpoint.states.page(1).claim(b"o" * 16, 1, 1)
    sending.send(page=1)
    [line] = caplog.messages
    assert "page 1 is of another partition" in line
    sending.close()


def test_a_page_that_is_not_open_here_is_another_brokers_or_not_yet_ours(tmp_path: Path) -> None:
    told = []
    for leaders in ({0: 2}, {}, {0: 1}):
        sending = Sending(tmp_path, broker_1(leaders))
        sending.send()
        told += sending.answers
        sending.close()
    assert told == [(0, NOT_LEADER)] * 3


def test_a_page_of_another_topic_is_wrong_only_where_it_is_led(tmp_path: Path) -> None:
    told = []
    for leader in (1, 2):
        sending = Sending(tmp_path, broker_1({0: leader}))
        sending.page.claim(b"o" * 16, 0, 1)
        sending.send()
        told += sending.answers
        sending.close()
    assert told == [(0, ErrorCode.WRONG_TOPIC_ID), (0, NOT_LEADER)]
