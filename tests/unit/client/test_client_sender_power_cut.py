"""A producer of another host whose node lost its power: the log ends earlier, in another leader
epoch, while lane and producer live on (rules 1, 2 and 15)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lane_bytes import MANY
from sender_fixture import TOPIC, World

from penstock.client.backoff import Retries
from penstock.core.errors import ErrorCode
from penstock.core.log import Log, LogConfig
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import Ack

STEPS = 60


class FarWorld(World):
    """A world whose log is on a host that loses its power. `synced`: what its disk has."""

    def __init__(self, chance: random.Random, folder: Path, level: str) -> None:
        self.boot = 0
        self.kept = LogConfig().producer_batches_kept
        self.synced = folder.with_name("synced")
        super().__init__(chance, folder, Retries(0.001, 0.01))
        self.sender.level = level
        self.sync()

    def _recovered(self, generation: int) -> Log:
        return Log.open(
            self.storage, str(self.folder),
            LogConfig(preallocate_bytes=4096, producer_batches_kept=self.kept), topic_id=TOPIC,
            partition=0, generation=generation, now_us=1, boot_id=f"b{self.boot}", node_clean=False,
        )[0]  # fmt: skip

    def _publish(self) -> None:
        end = self.log.log_end
        self.page.publish_epoch(self.log.leader_epoch)
        self.page.publish_ends(end, end, end)

    def sync(self) -> None:
        self.log.sync()
        self._keep()

    def _keep(self) -> None:
        shutil.rmtree(self.synced, ignore_errors=True)
        shutil.copytree(self.folder, self.synced)
        self._publish()
        self.page.publish_durable(self.log.log_end)

    def drain(self, *, answers: bool = True, most: int = 8) -> None:
        taken = [] if self.receiver is None else self.receiver.frames(most, MANY)
        if self.receiver is None or not taken:
            return
        results = self.log.append([frame.batch for frame in taken], 5)
        self._publish()
        if answers:
            self.receiver.finish(taken, [
                Ack(frame.sequence, result.base_offset, 5, result.error, self.log.leader_epoch)
                for frame, result in zip(taken, results, strict=True)
            ])  # fmt: skip

    def lose_power(self) -> None:
        self.log.close(clean=False)
        shutil.rmtree(self.folder)
        shutil.copytree(self.synced, self.folder)
        self.boot += 1
        self.log = self._recovered(1)
        self._keep()  # a new leader epoch is on the device before the first append

    def come_back(self) -> None:
        """As the carrier does: the lane is the producer's again, and is drained from its head."""
        resumed = {link.sender.name: Doorbell() for link in self.sender.links.values()}
        self.doorbells += resumed.values()
        session: Any = SimpleNamespace(
            far=object(), resumed=resumed, page=lambda _: self.page, writers=1
        )
        self.sender.resume(session, same=True)

    def settle(self) -> None:
        for _ in range(4 * len(self.sent) + 20):
            self.sender.pump(self.route)
            self.drain()
            self.sync()
            self.sender.reap()

    def step(self) -> None:
        chance = self.chance
        match chance.randrange(8):
            case 0 | 1 | 2:
                self.post(chance.randint(1, 3))
            case 3 | 4:
                self.drain(most=chance.randint(1, 8))
            case 5:
                self.sender.reap()
            case 6:
                self.sync()
            case 7 if chance.random() < 0.4:
                self.drain(answers=False, most=chance.randint(0, 8) or 1)
                self.lose_power()
                if chance.random() < 0.5:
                    self.drain(most=chance.randint(1, 8))
                self.come_back()


@pytest.mark.rule(15)
@pytest.mark.parametrize("level", ["appended", "fsynced"])
@pytest.mark.parametrize("seed", range(8))
def test_rule_15_over_power_cuts_nothing_is_refused_repeated_or_out_of_order(
    tmp_path: Path, seed: int, level: str
) -> None:
    world = FarWorld(random.Random(seed), tmp_path / "log", level)
    for _ in range(STEPS):
        world.step()
    world.settle()
    assert [batch.error for batch in world.sent if batch.error is not None] == []
    assert all(batch.done for batch in world.sent)
    numbers = [number for _, number in world.numbers()]
    assert numbers == sorted(set(numbers))
    if level == "fsynced":
        assert numbers == list(range(len(world.sent)))
    world.close()


@pytest.mark.rule(15)
@pytest.mark.parametrize("seed", [1, 29, 40, 44, 61, 66, 79, 138, 195, 201, 220, 254, 287])
def test_rule_15_refusals_between_power_cuts_double_nothing_and_keep_the_order(
    tmp_path: Path, seed: int
) -> None:
    """What waits for the device is of an epoch before that of what flies. Each of these seeds had
    records twice, out of order, or never done with."""
    world = FarWorld(random.Random(seed), tmp_path / "log", "fsynced")
    for _ in range(80):
        if world.chance.random() < 0.12:
            world.post(1, spoilt=True)
        world.step()
    world.settle()
    assert all(batch.done for batch in world.sent)
    numbers = [number for _, number in world.numbers()]
    assert numbers == sorted(set(numbers))
    assert {at for at, batch in enumerate(world.sent) if batch.error is None} <= set(numbers)
    refused = {getattr(one.error, "code", None) for one in world.sent} - {None}
    assert refused <= {ErrorCode.CORRUPT_BATCH, ErrorCode.STALE_PRODUCER_EPOCH}
    assert world.sender.buffered == 0
    assert not any(link.held or link.flights for link in world.sender.links.values())
    world.close()


@pytest.mark.rule(15)
def test_rule_15_what_the_log_before_had_on_the_device_is_no_receipt_of_this_one(
    tmp_path: Path,
) -> None:
    """The answer of the log before stands in the lane while the next one is synced past it."""
    world = FarWorld(random.Random(1), tmp_path / "log", "appended")
    world.post(1)
    world.drain()
    world.lose_power()
    end = world.sent[0].count
    world.page.publish_ends(end, end, end)
    world.page.publish_durable(end)  # of others' records
    world.sender.reap()
    assert world.sent[0].durability == "appended"
    world.close()


def test_what_only_waits_to_be_durable_is_asked_for_by_a_new_connection(tmp_path: Path) -> None:
    world = FarWorld(random.Random(1), tmp_path / "log", "fsynced")
    world.post(3)
    world.drain()
    world.sender.reap()
    assert not any(batch.done for batch in world.sent)
    world.come_back()
    assert world.receiver is not None
    assert world.receiver.has_frames
    world.settle()
    assert [batch.durability for batch in world.sent] == ["fsynced"] * 3
    assert [number for _, number in world.numbers()] == [0, 1, 2]
    world.close()


def test_what_the_log_kept_but_does_not_remember_is_no_failure(tmp_path: Path) -> None:
    """More waits to be durable than the log remembers of a producer, and the cut takes none."""
    world = FarWorld(random.Random(1), tmp_path / "log", "fsynced")
    world.log.close(clean=False)
    world.kept = 2
    world.log = world._recovered(2)
    for _ in range(6):
        world.post(1)
        world.drain()
        world.sender.reap()
    world.log.sync()
    shutil.rmtree(world.synced)
    shutil.copytree(world.folder, world.synced)
    assert not any(batch.done for batch in world.sent)
    world.lose_power()
    world.come_back()
    world.settle()
    assert [batch.error for batch in world.sent] == [None] * 6
    assert [batch.durability for batch in world.sent] == ["fsynced"] * 6
    assert [number for _, number in world.numbers()] == list(range(6))
    world.close()
