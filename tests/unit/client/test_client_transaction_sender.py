"""The sender of a transaction over a real lane; the test plays the node and the writer."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from lane_bytes import MANY
from sender_fixture import World

from penstock.client.backoff import Retries
from penstock.client.producer.routes import PartitionRoute
from penstock.client.transactions.gate import TransactionGate
from penstock.core import header as hd
from penstock.core.errors import ErrorCode, TransactionError
from penstock.ipc import layout as lo
from penstock.ipc.lane import Ack


class Transaction(World):
    """`wants`: how often partitions were asked for."""

    def __init__(self) -> None:
        self.wants = 0
        self.gate = TransactionGate(Path("/nowhere"), self._want)
        super().__init__(random.Random(7), None, Retries(1e-9, 1e-9), gate=self.gate)
        self.begin(4)

    def begin(self, epoch: int) -> None:
        self.gate.begin(epoch, self.sender.routes())

    def end(self, error: Exception) -> None:
        self.gate.end(error)
        self.sender.lose_all(error)

    def _want(self) -> None:
        self.wants += 1

    def register(self) -> None:
        self.admit(self.gate.take_wanted(1000), self.gate.epoch)

    def admit(self, routes: list[PartitionRoute], epoch: int) -> None:
        for route in self.gate.admit(routes, epoch):
            self.sender.pump(route)

    def take(self, error: ErrorCode = ErrorCode.NONE) -> list[hd.BatchHeader]:
        """What is in the lane, answered alike."""
        if self.receiver is None:
            return []
        taken = self.receiver.frames(128, MANY)
        heads = [hd.checked(memoryview(bytes(frame.batch)), 0) for frame in taken]
        if taken:
            answers = [Ack(frame.sequence, 1000, 5, int(error), 0) for frame in taken]
            self.receiver.finish(taken, answers)
        return heads

    def outcomes(self) -> list[str]:
        return [type(batch.error).__name__ if batch.done else "waits" for batch in self.sent]


@pytest.fixture
def world():
    made = Transaction()
    yield made
    for doorbell in made.doorbells:
        doorbell.close()


def test_nothing_leaves_for_a_partition_before_it_is_registered(world):
    world.post(3)
    world.sender.reap()
    assert world.take() == []
    assert world.wants
    assert world.gate.take_wanted(1000) == [world.route]
    world.post(2)
    world.sender.reap()
    assert world.gate.take_wanted(1000) == []  # asked for once
    assert world.take() == []
    world.admit([world.route], 3)  # an answer for a transaction of before
    assert world.take() == []
    world.admit([world.route], 4)
    heads = world.take()
    assert [head.producer_epoch for head in heads] == [4] * 5
    assert [head.base_sequence for head in heads] == [batch.sequence for batch in world.sent]
    world.sender.reap()
    assert world.outcomes() == ["NoneType"] * 5


def test_a_registered_partition_is_remembered_until_the_next_transaction(world):
    world.post(1)
    world.register()
    world.take()
    world.sender.reap()
    world.post(1)
    assert len(world.take()) == 1
    world.sender.reap()
    world.end(TransactionError("over"))
    world.begin(5)
    world.post(1)
    assert world.take() == []
    world.register()
    (head,) = world.take()
    assert (head.producer_epoch, head.base_sequence) == (5, 0)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.TRANSACTION_NOT_OPEN, ErrorCode.STALE_PRODUCER_EPOCH, ErrorCode.CORRUPT_BATCH],
)
def test_a_refused_batch_fails_the_transaction_and_nothing_more_leaves(world, code):
    world.post(2)
    world.register()
    world.take(code)
    world.post(1)
    world.sender.reap()
    assert isinstance(world.gate.failure, Exception)
    world.post(1)
    world.sender.reap()
    assert "waits" not in world.outcomes()
    assert "NoneType" not in world.outcomes()
    assert len(world.take()) == 1  # what was in the lane before the refusal was read
    assert world.sender.buffered == 0
    assert world.route.epoch == 4  # never raised within a transaction


def test_a_delivery_timeout_fails_the_transaction(world):
    world.post(1)
    world.register()
    world.sent[0].deadline = 0.0
    world.post(1)
    world.sender.expire(time.monotonic())
    assert world.outcomes() == ["DeliveryTimeout", "TransactionError"]


def test_late_answers_to_an_aborted_transaction_do_not_touch_the_next(world):
    """Both have batches of the same sequences in the same lane."""
    world.post(3)
    world.register()
    world.end(TransactionError("aborted"))
    assert world.outcomes() == ["TransactionError"] * 3
    assert world.gate.is_touched  # or an abort whose answer was lost would not be repeated
    world.begin(5)
    assert not world.gate.is_touched
    world.post(3)
    world.register()
    taken = world.receiver.frames(128, MANY)
    assert len(taken) == 6
    late = [Ack(f.sequence, -1, 5, int(ErrorCode.STALE_PRODUCER_EPOCH), 0) for f in taken[:3]]
    world.receiver.finish(taken[:3], late)
    world.sender.reap()
    assert world.gate.failure is None
    assert world.outcomes()[3:] == ["waits"] * 3
    assert len(world.take()) == 3
    world.sender.reap()
    assert world.outcomes()[3:] == ["NoneType"] * 3


def test_a_lane_that_is_lost_is_sent_again_in_the_same_epoch(world):
    world.post(3)
    world.register()
    world.lane_is_lost()
    world.sender.reap()
    heads = world.take()
    assert [(head.producer_epoch, head.base_sequence) for head in heads] == [
        (4, batch.sequence) for batch in world.sent
    ]
    world.sender.reap()
    assert world.outcomes() == ["NoneType"] * 3


def test_without_a_transaction_nothing_leaves(world):
    world.end(TransactionError("over"))
    world.post(1)
    world.sender.reap()
    assert world.outcomes() == ["TransactionError"]
    assert world.gate.take_wanted(10) == []


def test_what_was_sent_back_is_asked_for_and_also_by_the_next_transaction(world):
    """The carrier keeps what follows in that partition until it sees the mark, whoever sends it."""
    world.post(3)
    world.register()
    assert len(world.take(ErrorCode.NOT_LEADER)) == 3
    world.sender.reap()
    assert world.outcomes() == ["waits"] * 3
    assert world.gate.failure is None
    world.end(TransactionError("aborted meanwhile"))
    world.begin(5)
    world.post(3)
    world.register()
    assert world.take() == [], "it is not time to ask yet"
    world.route.ask_at = 0.0
    world.sender.reap()
    [frame] = world.receiver.frames(8, MANY)
    assert frame.flags & lo.FRAME_AGAIN
    [head] = world.take()
    assert (head.producer_epoch, head.base_sequence) == (5, 0)
    world.sender.reap()
    heads = world.take()
    assert [head.base_sequence for head in heads] == [one.sequence for one in world.sent[4:]]
    world.sender.reap()
    assert world.outcomes()[3:] == ["NoneType"] * 3
    assert world.sender.buffered == 0


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER, ErrorCode.NOT_COMMITTED])
def test_what_was_sent_back_within_a_transaction_keeps_its_epoch_when_it_expires(world, code):
    world.post(3)
    world.register()
    world.take(code)
    world.sender.reap()
    for batch in world.sent:
        batch.deadline = 0.0
    world.sender.expire(time.monotonic())
    assert world.outcomes() == ["DeliveryTimeout"] * 3
    assert isinstance(world.gate.failure, Exception)
    assert world.route.epoch == 4
    world.end(TransactionError("aborted"))
    world.begin(5)
    world.post(1)
    world.route.ask_at = 0.0
    world.register()
    assert [head.producer_epoch for head in world.take()] == [5]
