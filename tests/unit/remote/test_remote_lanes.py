"""A lane that is drained ahead of its head: what is sent, what waits, what an answer moves."""

from __future__ import annotations

import os
from typing import Any

import pytest

from penstock.client.remote.lanes import AnswerError, Flow, MirroredLane
from penstock.cluster.frames import messages as fr
from penstock.core.errors import ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc.lane import LaneSender
from penstock.ipc.shm import Region

CAPACITY = 64 << 10
WINDOW = 1 << 20
NOWHERE: Any = None
"""At which gateway a way ends is not its business."""


class Sending:
    """A lane, and the ways that its batches go: by page, each with a window of its own."""

    def __init__(self, lane, window=WINDOW, ways=1):
        self.lane = lane
        self.flows = [Flow(NOWHERE, 1, number, window) for number in range(ways)]

    def send(self):
        """What is sent in one go, as (number, first byte)."""
        found = []
        while (frame := self.lane.peek()) is not None:
            flow = self.flows[frame.page % len(self.flows)]
            if not flow.takes(len(frame.batch)):
                break
            found.append((flow.sends(self.lane.sends()), frame.batch[0]))
        return found

    def answer(self, acks, way=0):
        """How many of them reached the producer."""
        for flight, answer in self.flows[way].answer(acks):
            flight.answer = answer
        return self.lane.settle()

    def rewind(self):
        self.flows = [Flow(NOWHERE, 1, flow.writer, WINDOW) for flow in self.flows]
        self.lane.rewind()


@pytest.fixture
def lane():
    made = MirroredLane(0, CAPACITY, 7)
    yield made
    made.close()


@pytest.fixture
def sending(lane):
    return Sending(lane)


@pytest.fixture
def sender(lane):
    made = LaneSender(Region.of_fd(os.dup(lane.fd)), lane.name)
    yield made
    made.detach()


def write(sender, count, size=128, page=0):
    for number in range(count):
        assert sender.try_write(page, [bytes([number % 256]) * size], size) is not None


def ack(*sequences, error=0):
    return [fr.Ack(sequence, sequence * 10, 5, error, 1) for sequence in sequences]


def test_frames_are_sent_ahead_of_the_head_and_once(lane, sending, sender):
    write(sender, 3)
    assert sending.send() == [(0, 0), (1, 1), (2, 2)]
    write(sender, 2)
    assert sending.send() == [(3, 0), (4, 1)]
    assert sender.head == 0
    assert lane.in_flight == 5 * 128


def test_an_answer_moves_the_head_and_reaches_the_producer(lane, sending, sender):
    write(sender, 3)
    sending.send()
    assert sending.answer(ack(0, 1)) == 2
    assert [(one.sequence, one.base_offset) for one in sender.acks()] == [(0, 0), (1, 10)]
    assert lane.in_flight == 128
    assert sending.answer(ack(2, error=3)) == 1
    assert [one.error for one in sender.acks()] == [3]
    assert sender.is_idle


def test_what_was_sent_back_is_not_among_those_that_were_answered(lane, sending, sender):
    write(sender, 3)
    lane.peek()
    flow = sending.flows[0]
    flow.sends(lane.sends())
    lane.send_back()
    lane.peek()
    flow.sends(lane.sends())
    assert sending.answer(ack(0, 1)) == 2
    assert [one.error for one in sender.acks()] == [0, ErrorCode.NOT_LEADER, 0]
    assert sender.is_idle


def test_a_window_bounds_what_is_under_way(lane, sender):
    narrow = Sending(lane, 256)
    write(sender, 6)
    assert [sequence for sequence, _ in narrow.send()] == [0, 1]
    narrow.answer(ack(0))
    assert [sequence for sequence, _ in narrow.send()] == [2]


def test_a_batch_over_the_window_goes_alone(lane, sender):
    narrow = Sending(lane, 100)
    write(sender, 2)
    assert [sequence for sequence, _ in narrow.send()] == [0]
    narrow.answer(ack(0))
    assert [sequence for sequence, _ in narrow.send()] == [1]


def test_unread_answers_keep_their_places(lane, sending, sender):
    """A producer that reads none of its answers is sent for no further than they have room."""
    total = lo.ACKS_MAX + 20
    write(sender, total, size=64)
    assert len(sending.send()) == lo.ACKS_MAX
    sending.answer(ack(*range(lo.ACKS_MAX)))
    assert sending.send() == []
    assert len(sender.acks()) == lo.ACKS_MAX
    assert [sequence for sequence, _ in sending.send()] == list(range(lo.ACKS_MAX, total))


def test_what_is_under_way_keeps_the_places_of_its_answers(lane, sending, sender):
    write(sender, 100, size=64)
    assert len(sending.send()) == 100
    write(sender, 100, size=64)
    assert len(sending.send()) == lo.ACKS_MAX - 100
    sending.answer(ack(*range(lo.ACKS_MAX)))
    assert len(sender.acks()) == lo.ACKS_MAX
    assert len(sending.send()) == 200 - lo.ACKS_MAX


def test_frames_over_the_seam_of_the_ring_come_whole(lane, sending, sender):
    """Far beyond its capacity, with paddings where a frame would not fit."""
    sequence = 0
    for _ in range(40):
        write(sender, 3, size=5000)
        sent = sending.send()
        assert [at for at, _ in sent] == [sequence, sequence + 1, sequence + 2]
        sending.answer(ack(sequence, sequence + 1))
        write(sender, 1, size=3000)
        assert [at for at, _ in sending.send()] == [sequence + 3]
        sending.answer(ack(sequence + 2, sequence + 3))
        sequence += 4
        assert len(sender.acks()) == 4


def test_after_a_lost_connection_it_begins_again_at_the_head(lane, sending, sender):
    write(sender, 4)
    sending.send()
    sending.answer(ack(0))
    sending.rewind()
    assert lane.in_flight == 0
    assert sending.send() == [(1, 1), (2, 2), (3, 3)]
    assert sending.answer(ack(1, 2, 3)) == 3


def test_it_knows_what_went_by_a_connection_before(lane, sending, sender):
    write(sender, 3)
    sending.send()
    sending.answer(ack(0))
    assert not lane.was_sent_before(sending.flows[0].flights[0].frame)
    sending.rewind()
    write(sender, 1)
    sending.send()
    flights = sending.flows[0].flights
    assert [lane.was_sent_before(flight.frame) for flight in flights] == [True, True, False]
    sending.rewind()
    lane.peek()
    lane.sends()
    sending.rewind()
    sending.send()
    again = [lane.was_sent_before(flight.frame) for flight in sending.flows[0].flights]
    assert again == [True, True, True]


def test_answers_that_came_before_say_nothing_new(lane, sending, sender):
    write(sender, 3)
    sending.send()
    sending.answer(ack(0, 1))
    assert sending.answer(ack(0, 1)) == 0
    assert sending.answer(ack(1, 2)) == 1
    assert [one.sequence for one in sender.acks()] == [0, 1, 2]


@pytest.mark.parametrize("sequence", [1, 2, 3, 1 << 40])
def test_an_answer_out_of_order_or_to_what_was_never_sent_is_no_answer(
    lane, sending, sender, sequence
):
    write(sender, 2)
    sending.send()
    if sequence == 2:
        sending.answer(ack(0, 1))
    with pytest.raises(AnswerError):
        sending.answer(ack(sequence))


def test_a_sleeping_producer_is_told_once_a_sleep(lane, sending, sender):
    assert not lane.sleeper()
    sender.publish_sleeping(17)
    assert lane.sleeper()
    assert not lane.sleeper()
    sender.publish_sleeping(18)
    assert lane.sleeper()


def test_armed_it_is_rung_under_a_fresh_ticket_each_time(lane, sending, sender):
    lane.arm()
    first = sender.writer_ticket()
    lane.arm()
    assert first
    assert sender.writer_ticket() not in (0, first)


# --- several ways ---
def test_answers_of_several_ways_reach_the_producer_in_the_order_of_the_lane(lane, sender):
    sending = Sending(lane, ways=2)
    for page in (0, 1, 0, 1):
        write(sender, 1, page=page)
    assert sending.send() == [(0, 0), (1, 0), (1, 0), (2, 0)]
    assert sending.answer(ack(1, 2), way=1) == 0  # of its batches the first has none
    assert sender.acks() == []
    assert sending.answer(ack(0)) == 2
    assert [(one.sequence, one.base_offset) for one in sender.acks()] == [(0, 0), (1, 10)]
    assert lane.in_flight == 2 * 128
    assert sending.answer(ack(1)) == 2
    assert [(one.sequence, one.base_offset) for one in sender.acks()] == [(2, 10), (3, 20)]
    assert sender.is_idle


def test_each_way_has_a_window_of_its_own(lane, sender):
    sending = Sending(lane, 256, ways=2)
    for page in (0, 0, 1, 0, 1):
        write(sender, 1, page=page)
    assert len(sending.send()) == 3  # the fourth holds the lane back
    sending.answer(ack(0))
    assert len(sending.send()) == 2


def test_a_way_shared_by_two_lanes_counts_on(lane, sender):
    """A client's lanes are as many as the first broker had writers, another one may have fewer."""
    other = MirroredLane(1, CAPACITY, 7)
    try:
        flow = Flow(NOWHERE, 1, 0, WINDOW)
        ends = [sender, LaneSender(Region.of_fd(os.dup(other.fd)), other.name)]
        numbers = []
        for one, end in ((lane, ends[0]), (other, ends[1]), (lane, ends[0])):
            write(end, 1)
            assert one.peek() is not None
            numbers.append(flow.sends(one.sends()))
        assert numbers == [0, 1, 2]
        for flight, answer in flow.answer(ack(0, 1, 2)):
            flight.answer = answer
        assert lane.settle() + other.settle() == 3
        assert [[one.sequence for one in end.acks()] for end in ends] == [[0, 1], [0]]
        ends[1].detach()
    finally:
        other.close()
