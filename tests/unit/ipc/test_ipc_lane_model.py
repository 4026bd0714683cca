"""Lanes against a model, with either end dying at any store, and between two real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from lane_bytes import (
    ACK_HEAD,
    ACK_TAIL,
    FRAMES_AT,
    GENERATION,
    HEAD,
    MANY,
    TAIL,
    ack,
    at,
    identity_of,
)
from store_crash import Died, DyingRegion, memory

from penstock.ipc.lane import LaneReceiver, LaneSender, format_lane, undrained


class LaneMachine(RuleBasedStateMachine):
    """Both ends over one memory, either of which may die at any store, against plain lists.

    `sent`: every frame that was published, (page, bytes, start, end, flags); `drained`: how many
    of them head has passed; `answers`: acknowledgements in the ring that the sender has not read.
    """

    @initialize(units=st.sampled_from([16, 20, 37, 64]))
    def make(self, units):
        self.capacity = 64 * units
        fd, self.region = memory(FRAMES_AT + self.capacity)
        os.close(fd)
        format_lane(self.region, identity_of(self.capacity))
        self.generation = 0
        self.sent = []
        self.drained = 0
        self.answers = []
        self.answered = []  # all that the sender read
        self.taken = []
        self.held = None  # index into sent
        self.before: tuple[int, ...] = (0, 0, 0, 0)
        self.attach_sender()
        self.attach_receiver()

    def attach_sender(self):
        self.sender_memory = DyingRegion(self.region)
        self.sender = LaneSender(self.sender_memory.as_region(), "lane")
        self.held = None

    def attach_receiver(self):
        self.generation += 1
        self.receiver_memory = DyingRegion(self.region)
        self.receiver = LaneReceiver(self.receiver_memory.as_region(), "lane", self.generation)
        self.taken = []
        assert at(self.region, GENERATION) == self.generation

    def head(self):
        return self.sent[self.drained - 1][3] if self.drained else 0

    def tail(self):
        return self.sent[-1][3] if self.sent else 0

    def floor(self):
        return self.head() if self.held is None else min(self.head(), self.sent[self.held][2])

    def placed(self, length):
        """(start of the frame, end of the frame) if there is room now, None if not."""
        size = 64 + (length + 63) // 64 * 64
        start = self.tail()
        left = self.capacity - start % self.capacity
        if left < size:
            start += left
        end = start + size
        return (start, end) if end - self.floor() <= self.capacity else None

    data = st.builds(
        lambda size, letter: bytes([letter]) * size,
        st.sampled_from([0, 1, 63, 64, 65, 128, 129, 190, 192]),
        st.integers(0, 255),
    )

    @rule(data=data, page=st.integers(0, 4095), pieces=st.integers(1, 3), flags=st.integers(0, 1))
    def write(self, data, page, pieces, flags):
        data = data[: self.sender.frame_max - 64]
        cut = max(1, len(data) // pieces)
        parts = [data[place : place + cut] for place in range(0, len(data), cut)]
        place = self.placed(len(data))
        sequence = self.sender.try_write(page, parts, len(data), flags)
        if place is None:
            assert sequence is None
            assert self.head() != self.tail() or self.held is not None, "an idle lane has room"
            return
        assert sequence == len(self.sent)
        self.sent.append((page, data, *place, flags))
        assert self.sender.last_start == place[0]
        assert self.sender.tail == place[1]
        assert self.sender.next_sequence == len(self.sent)

    @rule(
        sizes=st.lists(st.sampled_from([0, 64, 65, 128, 192]), min_size=1, max_size=5),
        rounds=st.integers(1, 12),
        share=st.sampled_from([20, 50, 70, 100]),
    )
    def stream(self, sizes, rounds, share):
        """Fill the lane and drain a part of it, again and again, without a look at the answers."""
        number = 0
        for _ in range(rounds):
            while True:
                data = bytes([number & 255]) * min(
                    sizes[number % len(sizes)], self.capacity // 4 - 64
                )
                if self.placed(len(data)) is None:
                    self.write(data, 0, 1, 0)  # there is no room, and it says so
                    break
                self.write(data, number, 1, number & 1)
                number += 1
            self.take(128, MANY)
            if not self.taken:
                return
            self.finish(share)

    @rule(data=data)
    def sender_dies_while_copying(self, data):
        class Killed(Exception):
            pass

        class Deadly(bytes):
            def __len__(self):
                raise Killed

        data = data[: self.sender.frame_max - 64]
        with suppress(Killed):
            self.sender.try_write(9, [data[: len(data) // 2], Deadly(b"")], len(data))
        self.attach_sender()

    @rule(data=data, stores=st.integers(0, 1))
    def sender_dies_while_publishing(self, data, stores):
        """Tail is the last store: without it nothing was published. Nobody resumes a process that
        was killed: its lane is drained and goes."""
        data = data[: self.sender.frame_max - 64]
        self.sender_memory.dies_after(stores)
        with suppress(Died):
            self.sender.try_write(9, [data], len(data))
        self.invariant_8_holds()
        self.drain_to_the_end()
        self.make(self.capacity // 64)

    @rule(choice=st.integers(0, 1 << 20))
    def hold(self, choice):
        """Keep frames from some that are intact on, or none."""
        floor = self.floor()
        intact = [index for index, frame in enumerate(self.sent) if frame[2] >= floor]
        index = [*intact, None][choice % (len(intact) + 1)]
        self.sender.floor = None if index is None else self.sent[index][2]
        self.held = index

    @rule()
    def read_acks(self):
        assert self.sender.has_acks() == bool(self.answers)
        assert self.sender.acks() == self.answers
        self.answered += self.answers
        self.answers = []
        assert self.sender.acks() == []

    @rule(
        frames_max=st.sampled_from([0, 1, 3, 128]), bytes_max=st.sampled_from([1, 200, 900, MANY])
    )
    def take(self, frames_max, bytes_max):
        self.taken = self.receiver.frames(frames_max, bytes_max)
        room = min(frames_max, 128 - len(self.answers))
        expected: list[tuple[object, ...]] = []
        size = 0
        for index in range(self.drained, len(self.sent)):
            if len(expected) == room or size >= bytes_max:
                break
            page, data, start, end, flags = self.sent[index]
            expected.append((page, index, 0, data, end, flags))
            size += end - start
        found = [(*frame[:3], bytes(frame.batch), frame.end, frame.flags) for frame in self.taken]
        assert found == expected
        assert self.receiver.has_frames == (self.drained < len(self.sent))

    def finished(self, share, stores):
        count = max(1, len(self.taken) * share // 100)
        frames, acks = self.taken[:count], [ack(frame) for frame in self.taken[:count]]
        self.receiver_memory.dies_after(stores)
        with suppress(Died):
            self.receiver.finish(frames, acks)
        self.receiver_memory.dies_after(None)
        return acks

    @precondition(lambda self: self.taken)
    @rule(share=st.integers(1, 100))
    def finish(self, share):
        acks = self.finished(share, None)
        self.answers += acks
        self.drained += len(acks)
        self.taken = self.taken[len(acks) :]
        assert self.receiver.head == self.head()

    @precondition(lambda self: self.drained < len(self.sent) and len(self.answers) < 128)
    @rule(share=st.integers(1, 100), stores=st.integers(0, 2))
    def receiver_dies_while_finishing(self, share, stores):
        """Acks become visible with their tail, the room with head: in between frames come again."""
        self.take(128, MANY)
        acks = self.finished(share, stores)
        if stores:
            self.answers += acks
        self.attach_receiver()

    @rule()
    def receiver_dies(self):
        self.attach_receiver()

    @rule(ticket=st.integers(0, 1 << 62))
    def sleep(self, ticket):
        self.receiver.publish_sleeping(ticket)
        self.sender.publish_sleeping(ticket + 1)
        assert self.sender.writer_ticket() == ticket
        assert self.receiver.producer_ticket() == ticket + 1

    @invariant()
    def invariant_8_holds(self):
        if not hasattr(self, "before"):
            return
        cursors = tuple(at(self.region, place) for place in (HEAD, TAIL, ACK_HEAD, ACK_TAIL))
        head, tail, ack_head, ack_tail = cursors
        assert (head, tail) == (self.head(), self.tail())
        assert head <= tail <= head + self.capacity
        assert undrained(self.region) == tail - head
        assert ack_tail - ack_head == len(self.answers) <= 128
        assert all(now >= before for now, before in zip(cursors, self.before, strict=True))
        self.before = cursors
        assert self.sender.head == head

    @invariant()
    def rule_1_what_is_held_or_not_drained_is_still_there(self):
        if not hasattr(self, "before"):
            return
        assert self.sender.free == self.capacity - (self.tail() - self.floor())
        assert self.sender.is_idle == (self.head() == self.tail())
        floor = self.floor()
        for _, data, start, *_ in self.sent:
            if start >= floor:
                assert self.sender.batch_at(start, len(data)) == data

    def drain_to_the_end(self):
        """However it went: every frame is drained once more or for the first time, in order, and
        every answer that was read came in order, again only where a writer had died."""
        self.attach_receiver()
        while frames := self.receiver.frames(50, MANY, discard_acks=True):
            for frame in frames:
                page, data, _, end, flags = self.sent[self.drained]
                assert (frame.page, frame.sequence, frame.end) == (page, self.drained, end)
                assert frame.flags == flags
                assert bytes(frame.batch) == data
                self.drained += 1
            self.receiver.finish(frames, [])
        assert self.drained == len(self.sent)
        assert undrained(self.region) == 0
        first = list(dict.fromkeys(answer.sequence for answer in self.answered))
        assert first == list(range(len(first)))

    def teardown(self):
        if hasattr(self, "before"):
            self.drain_to_the_end()


@pytest.mark.rule(1)
def test_rule_1_and_invariant_8_against_a_model_with_crashes_of_either_end():
    run_state_machine_as_test(
        LaneMachine,
        settings=settings(derandomize=True, max_examples=200, stateful_step_count=50),
    )


# --- two processes ------------------------------------------------------------------------------
RECEIVER = """
import os, sys
from penstock.ipc.lane import Ack, LaneReceiver
from penstock.ipc.shm import Region

lane, out, generation = map(int, sys.argv[1:])
receiver = LaneReceiver(Region.of_fd(lane), "lane", generation)
while True:
    closed = receiver.is_closed
    frames = receiver.frames(128, 1 << 20)
    if not frames:
        if closed and not receiver.has_frames:
            break
        os.sched_yield()
        continue
    for frame in frames:
        sequence = frame.sequence
        assert frame.page == sequence % 4096
        assert frame.batch == sequence.to_bytes(8, "little") * (sequence % 5)
    # What a log is to a writer: written first, then answered (rule 1).
    os.write(out, b"".join(frame.sequence.to_bytes(4, "little") for frame in frames))
    receiver.finish(frames, [Ack(frame.sequence, frame.sequence, 0, 0, 0) for frame in frames])
"""
STREAMED = 200_000


def start_receiver(lane_fd, out_fd, generation):
    return subprocess.Popen(
        [sys.executable, "-c", RECEIVER, str(lane_fd), str(out_fd), str(generation)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        pass_fds=(lane_fd, out_fd),
        stderr=subprocess.PIPE,
    )


@pytest.mark.rule(2)
@pytest.mark.crash
@pytest.mark.timeout(60)
def test_rule_2_a_receiver_killed_in_mid_stream_is_resumed_exactly(tmp_path):
    capacity = 64 << 10
    fd, region = memory(FRAMES_AT + capacity)
    format_lane(region, identity_of(capacity))
    sender = LaneSender(region, "lane")
    out = os.open(tmp_path / "seen", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    receiver = start_receiver(fd, out, 1)
    deadline = time.monotonic() + 50
    sent, answered, answers, killed = 0, 0, [], False
    while answered < STREAMED:
        for _ in range(64):
            if sent == STREAMED:
                break
            data = sent.to_bytes(8, "little") * (sent % 5)
            if sender.try_write(sent % 4096, [data], len(data)) is None:
                break
            sent += 1
        found = sender.acks()
        if found:
            answers += [answer.sequence for answer in found]
            answered = answers[-1] + 1
        else:
            os.sched_yield()
            assert time.monotonic() < deadline, f"stuck at {answered} of {sent}"
            assert receiver.poll() is None, receiver.communicate()[1].decode()
        if not killed and answered > STREAMED // 2:
            killed = True
            receiver.kill()
            receiver.communicate()
            receiver = start_receiver(fd, out, 2)
    sender.mark_closed()
    _, errors = receiver.communicate(timeout=30)
    assert (receiver.returncode, errors) == (0, b"")
    assert undrained(region) == 0
    assert at(region, GENERATION) == 2
    seen = memoryview((tmp_path / "seen").read_bytes()).cast("I").tolist()
    for drained in (seen, answers):
        assert list(dict.fromkeys(drained)) == list(range(STREAMED))
        assert len(drained) - STREAMED <= 128, "only what was not answered may come again"
        steps = [after - before for before, after in pairwise(drained)]
        assert sum(step != 1 for step in steps) <= 1
    os.close(fd)
    os.close(out)
