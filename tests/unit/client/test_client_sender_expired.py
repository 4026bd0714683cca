"""Batches that expire while others of their partition were in a lane: what a log may know keeps its
number until it was refused, so that nothing is there twice, and nothing that flies is forgotten."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lane_bytes import MANY, made
from sender_fixture import TOPIC, World

from penstock.client.backoff import Retries
from penstock.client.producer import sender as sender
from penstock.client.producer.routes import Batch, LaneLink
from penstock.client.producer.sender import ASK_EVERY
from penstock.core import errors as er
from penstock.core.encode import encode_batch
from penstock.core.header import BatchIdentity
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import Ack

STEPS = 120


class Slow(World):
    """A world whose writer answers some batches at a time, sends them back, or is offline; and a
    carrier that sends back what follows one that was, up to the mark."""

    def __init__(self, folder: Path, seed: int = 0, level: str = "appended") -> None:
        self.capacity = 64 * 64
        self.behind_one_sent_back = False
        super().__init__(random.Random(seed), folder, Retries(0.001, 0.01))
        self.sender.level = level

    def _open_lane(self, _writer: int) -> LaneLink:
        _, sender, self.receiver = made(self.capacity)
        self.doorbells.append(Doorbell())
        self.behind_one_sent_back = False
        link = self.sender.links[0] = LaneLink(sender, self.doorbells[-1])
        return link

    def send(self, size: int) -> Batch:
        route = self.route
        encoded = encode_batch(
            [b"%08d" % len(self.sent), b"x" * size],
            BatchIdentity(TOPIC, 0, 1, route.epoch, route.next_sequence),
            base_timestamp=0,
        )
        box: Any = SimpleNamespace(deadline=time.monotonic() + 1e6)
        self.sent.append(Batch(box, route, encoded, 2, route.next_sequence))
        route.next_sequence += 2
        self.sender.post([self.sent[-1]])
        return self.sent[-1]

    def answer(self, most: int, error: int = 0, *, reap: bool = True) -> None:
        """So many of the lane: what it says of them, or `error`."""
        taken = [] if self.receiver is None else self.receiver.frames(most, MANY)
        if self.receiver is None or not taken:
            return
        acks = []
        for frame in taken:
            is_behind = self.behind_one_sent_back and not frame.flags & lo.FRAME_AGAIN
            code, base = er.ErrorCode.NOT_LEADER if is_behind else error, -1
            if code in (0, er.ErrorCode.NOT_COMMITTED):
                result = self.log.append([frame.batch], 5)[0]
                code, base = result.error or code, result.base_offset
            self.behind_one_sent_back = code in er.SENT_BACK
            acks.append(Ack(frame.sequence, base, 5, code, self.log.leader_epoch))
        self.receiver.finish(taken, acks)
        if reap:
            self.sender.reap()

    def sync(self) -> None:
        self.page.publish_epoch(self.log.leader_epoch)
        self.page.publish_ends(self.log.log_end, self.log.log_end, self.log.log_end)
        self.page.publish_durable(self.log.log_end)
        self.sender.reap()

    def expire(self, *batches: Batch) -> None:
        for batch in batches:
            batch.deadline = 0.0
        self.sender.expire(time.monotonic())

    def may_ask(self) -> None:
        if self.route.ask_at is not None:
            self.route.ask_at -= ASK_EVERY

    def heal(self) -> None:
        for _ in range(4 * len(self.sent) + 20):
            self.sender.pump(self.route)
            self.answer(8)
            self.sync()

    def step(self) -> None:
        chance = self.chance
        most = chance.randint(1, 6)
        match chance.randrange(13):
            case 0 | 1 | 2 | 3:
                self.send(chance.choice([8, 8, 300, 700]))
            case 4 | 5:
                self.answer(most)
            case 6:
                self.answer(most, er.ErrorCode.NOT_LEADER, reap=chance.random() < 0.5)
            case 12:
                self.answer(most, er.ErrorCode.NOT_COMMITTED, reap=chance.random() < 0.5)
            case 7 if chance.random() < 0.3:
                self.answer(most, er.ErrorCode.PARTITION_OFFLINE)
            case 8:
                self.sync()
            case 9:
                waiting = [one for one in self.sent if not one.done or one.encoded]
                self.expire(*waiting[: chance.randint(1, 4)])
            case 10 | 11 if chance.random() < 0.5:
                if chance.random() < 0.7:
                    self.drain(answers=False)
                self.capacity = 64 * chance.randint(44, 64)
                self.lane_is_lost()


@pytest.fixture
def world(tmp_path: Path) -> Any:
    slow = Slow(tmp_path / "log")
    yield slow
    slow.close()


def test_what_was_written_is_not_numbered_anew_for_one_before_it_that_expired(world: Slow) -> None:
    """All are in the log, their answers are lost, and the next lane is too small for them."""
    old = [world.send(700) for _ in range(4)]
    assert all(one.flew for one in old)
    world.drain(answers=False)
    world.capacity = 44 * 64
    world.lane_is_lost()
    waiting = [one for one in old if one.flight is None]
    assert 0 < len(waiting) < len(old)
    world.expire(waiting[0])
    young = world.send(8)
    world.heal()
    assert [number for _, number in world.numbers()] == list(range(5))
    assert isinstance(waiting[0].error, er.DeliveryTimeout)
    assert all(one.error is None for one in [*old, young] if one is not waiting[0])


def test_what_follows_some_that_expired_in_the_lane_and_out_of_it_arrives(world: Slow) -> None:
    """Nothing is in the log, and the lane is lost once more."""
    old = [world.send(700) for _ in range(4)]
    world.capacity = 44 * 64
    world.lane_is_lost()
    flying = [one for one in old if one.flight is not None]
    assert 1 < len(flying) < len(old), "and others that have flown wait for room"
    world.expire(*old)
    young = [world.send(8) for _ in range(4)]
    world.answer(1)
    assert young[0].flight is not None
    assert flying[1].flight is not None
    world.lane_is_lost()
    world.heal()
    assert all(isinstance(one.error, er.DeliveryTimeout) for one in old)
    assert all(one.done and one.error is None for one in young)
    assert [number for _, number in world.numbers()] == [0, 4, 5, 6, 7]
    assert world.sender.buffered == 0


def test_only_what_goes_again_counts_as_sent_again(world: Slow) -> None:
    sent = [world.send(8) for _ in range(3)]
    world.expire(sent[0])
    world.lane_is_lost()
    assert world.sender.counts()["resent"] == 2


def test_what_waits_is_not_numbered_anew_before_it_flies(world: Slow) -> None:
    """With a partition that is dark for long, the oldest expires again and again."""
    asked = world.send(8)
    world.answer(1, er.ErrorCode.NOT_LEADER)
    waiting = [world.send(8) for number in range(1, 50)]
    sealed = [batch.encoded for batch in waiting]
    world.expire(asked)
    assert isinstance(asked.error, er.DeliveryTimeout)
    assert all(one.encoded is before for one, before in zip(waiting, sealed, strict=True))
    assert world.route.epoch == 1
    assert world.route.ask_at is not None
    world.may_ask()
    world.heal()
    assert [number for _, number in world.numbers()] == list(range(1, 50))
    assert all(batch.done and batch.error is None for batch in waiting)
    assert world.route.next_sequence == world.route.next_to_fly == 98


def test_what_is_sealed_while_others_wait_for_a_new_epoch_is_not_sealed_twice(world: Slow) -> None:
    asked = world.send(8)
    world.answer(1, er.ErrorCode.NOT_LEADER)
    world.send(8)
    world.expire(asked)
    young = world.send(8)
    assert (young.epoch, young.sequence) == (1, 2)


def test_batches_of_two_epochs_give_their_room_back(tmp_path: Path) -> None:
    """What waits to be durable has the sequences of what flies in the next epoch."""
    world = Slow(tmp_path / "log", level="fsynced")
    world.sync()
    for _ in range(3):
        world.send(8)
    world.answer(2)
    assert len(world.route.waiting_durable) == 2
    world.answer(1, er.ErrorCode.BATCH_TOO_LARGE)
    young = [world.send(8) for _ in range(2)]
    assert [(one.epoch, one.sequence) for one in young] == [(1, 0), (1, 2)]
    assert [one.sequence for one in world.route.waiting_durable] == [0, 2]
    world.sync()
    assert [one.durability for one in world.sent[:2]] == ["fsynced"] * 2
    assert list(world.sender.links[0].held.values()) == young
    world.heal()
    assert not world.sender.links[0].held
    world.close()


@pytest.mark.parametrize("level", ["ring", "appended", "fsynced"])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_expires_the_rest_is_in_the_log_once_and_in_order(
    tmp_path: Path, seed: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ASK_EVERY", 0.0)
    world = Slow(tmp_path / "log", seed, level)
    try:
        for _ in range(STEPS):
            world.step()
        world.heal()
        assert all(batch.done for batch in world.sent)
        assert len(world.finished) == len(world.sent)
        numbers = [number for _, number in world.numbers()]
        assert numbers == sorted(set(numbers))
        good = {at for at, batch in enumerate(world.sent) if batch.error is None}
        assert good <= set(numbers)
        kinds = {type(one.error) for one in world.sent} - {type(None)}
        assert kinds <= {er.DeliveryTimeout, er.ProduceError}
        refused = [one.error for one in world.sent if isinstance(one.error, er.ProduceError)]
        assert {one.code for one in refused} <= {er.ErrorCode.PARTITION_OFFLINE}
        assert world.sender.buffered == 0
        assert world.route.is_idle
        for link in world.sender.links.values():
            assert not link.held
            assert not link.flights
    finally:
        world.close()
