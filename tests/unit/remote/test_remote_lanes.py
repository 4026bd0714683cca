"""A lane that is drained ahead of its head: what is sent, what waits, what an answer moves."""

from __future__ import annotations

import os

import pytest

from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc.lane import LaneSender
from penstock.ipc.shm import Region
from penstock.remote.lanes import AnswerError, MirroredLane

CAPACITY = 64 << 10
WINDOW = 1 << 20


@pytest.fixture
def lane():
    made = MirroredLane(0, CAPACITY, 7)
    yield made
    made.close()


@pytest.fixture
def sender(lane):
    made = LaneSender(Region.of_fd(os.dup(lane.fd)), lane.name)
    yield made
    made.detach()


def write(sender, count, size=128):
    for number in range(count):
        assert sender.try_write(0, [bytes([number % 256]) * size], size) is not None


def send(lane, window=WINDOW):
    """What is sent in one go, as (sequence, first byte)."""
    found = []
    while frames := lane.next_frames(window):
        for frame in frames:
            lane.sends(frame)
            found.append((frame.sequence, frame.batch[0]))
    return found


def ack(*sequences, error=0):
    return [fr.Ack(sequence, sequence * 10, 5, error, 1) for sequence in sequences]


def test_frames_are_sent_ahead_of_the_head_and_once(lane, sender):
    write(sender, 3)
    assert send(lane) == [(0, 0), (1, 1), (2, 2)]
    write(sender, 2)
    assert send(lane) == [(3, 0), (4, 1)]
    assert sender.head == 0
    assert lane.in_flight == 5 * 128


def test_an_answer_moves_the_head_and_reaches_the_producer(lane, sender):
    write(sender, 3)
    send(lane)
    assert lane.answer(ack(0, 1)) == 2
    assert [(one.sequence, one.base_offset) for one in sender.acks()] == [(0, 0), (1, 10)]
    assert lane.in_flight == 128
    assert lane.answer(ack(2, error=3)) == 1
    assert [one.error for one in sender.acks()] == [3]
    assert sender.is_idle


def test_a_window_bounds_what_is_under_way(lane, sender):
    write(sender, 6)
    assert [sequence for sequence, _ in send(lane, 256)] == [0, 1]
    lane.answer(ack(0))
    assert [sequence for sequence, _ in send(lane, 256)] == [2]


def test_a_batch_over_the_window_goes_alone(lane, sender):
    write(sender, 2)
    assert [sequence for sequence, _ in send(lane, 100)] == [0]
    lane.answer(ack(0))
    assert [sequence for sequence, _ in send(lane, 100)] == [1]


def test_unread_answers_keep_their_places(lane, sender):
    """A producer that reads none of its answers is sent for no further than they have room."""
    total = lo.ACKS_MAX + 20
    write(sender, total, size=64)
    assert len(send(lane)) == lo.ACKS_MAX
    lane.answer(ack(*range(lo.ACKS_MAX)))
    assert send(lane) == []
    assert len(sender.acks()) == lo.ACKS_MAX
    assert [sequence for sequence, _ in send(lane)] == list(range(lo.ACKS_MAX, total))


def test_frames_over_the_seam_of_the_ring_come_whole(lane, sender):
    """Far beyond its capacity, with paddings where a frame would not fit."""
    sequence = 0
    for _ in range(40):
        write(sender, 3, size=5000)
        sent = send(lane)
        assert [at for at, _ in sent] == [sequence, sequence + 1, sequence + 2]
        lane.answer(ack(sequence, sequence + 1))
        write(sender, 1, size=3000)
        assert [at for at, _ in send(lane)] == [sequence + 3]
        lane.answer(ack(sequence + 2, sequence + 3))
        sequence += 4
        assert len(sender.acks()) == 4


def test_after_a_lost_connection_it_begins_again_at_the_head(lane, sender):
    write(sender, 4)
    send(lane)
    lane.answer(ack(0))
    lane.rewind()
    assert lane.in_flight == 0
    assert send(lane) == [(1, 1), (2, 2), (3, 3)]
    assert lane.answer(ack(1, 2, 3)) == 3


def test_answers_that_came_before_say_nothing_new(lane, sender):
    write(sender, 3)
    send(lane)
    lane.answer(ack(0, 1))
    assert lane.answer(ack(0, 1)) == 0
    assert lane.answer(ack(1, 2)) == 1
    assert [one.sequence for one in sender.acks()] == [0, 1, 2]


@pytest.mark.parametrize("sequence", [1, 2, 3, 1 << 40])
def test_an_answer_out_of_order_or_to_what_was_never_sent_is_no_answer(lane, sender, sequence):
    write(sender, 2)
    send(lane)
    if sequence == 2:
        lane.answer(ack(0, 1))
    with pytest.raises(AnswerError):
        lane.answer(ack(sequence))


def test_a_sleeping_producer_is_told_once_a_sleep(lane, sender):
    assert not lane.sleeper()
    sender.publish_sleeping(17)
    assert lane.sleeper()
    assert not lane.sleeper()
    sender.publish_sleeping(18)
    assert lane.sleeper()


def test_armed_it_is_rung_under_a_fresh_ticket_each_time(lane, sender):
    lane.arm()
    first = sender.writer_ticket()
    lane.arm()
    assert first
    assert sender.writer_ticket() not in (0, first)
