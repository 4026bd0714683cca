"""When a replica takes its role, whose word it heeds, and what of it counts."""

from __future__ import annotations

import os
from typing import Any

import pytest
from store_crash import memory
from unit.core.log_helpers import MemoryStorage

from penstock.cluster.replica import PartitionAssignment, ReplicaConfig
from penstock.core.errors import DataFolderError
from penstock.ipc import layout as lo
from penstock.ipc import roles as ro
from penstock.ipc.lane import Ack
from penstock.ipc.state import StatePage, format_table
from penstock.server.replicator.messages import Assign
from penstock.server.replicator.partition import ReplicatedPartition

TOPIC = bytes(range(16))
ME, OTHER = 1, 2


def word(leader: int, epoch: int, partition_epoch: int = 1) -> PartitionAssignment:
    return PartitionAssignment(leader, epoch, partition_epoch, (ME, OTHER), (leader,))


class Told:
    """What a partition needs of its process; its writer answers when the test says so."""

    number = ME
    config = ReplicaConfig()
    now = 1.0

    def __init__(self, first: PartitionAssignment, *, synced: bool = False) -> None:
        fd, region = memory(lo.state_table_bytes(1))
        os.close(fd)
        format_table(region, bytes(16), 1)
        self.page = StatePage(region, 0)
        self.page.claim(TOPIC, 0, 1)
        self.page.publish_status(lo.STATUS_FOLLOWING)
        self.storage = MemoryStorage()
        self.lanes: Any = self
        self.living = {ME: 11, OTHER: 12}
        self.orders: list[Any] = []
        self.written: list[Any] = []
        self.it = ReplicatedPartition(self, self.assign(first, synced=synced), self.page)  # type: ignore[arg-type]
        self.it.opened()

    def assign(self, said: PartitionAssignment, *, synced: bool = False) -> Assign:
        return Assign(0, TOPIC, 0, "t-0", "log", synced, said)

    def order(self, _: ReplicatedPartition, order: Any, done: Any) -> None:
        self.orders.append(order)
        self.written.append(done)

    note = order

    def answer(self, end: int) -> None:
        self.page.publish_ends(end, 0, 0)
        self.written.pop(0)(Ack(0, end, 0, 0, 5))

    def high_watermark(self, topic_id: bytes, partition: int) -> int:
        return 0

    def turns(self, partition: ReplicatedPartition) -> None:
        pass

    def turned(self, partition: ReplicatedPartition) -> None:
        pass

    def moved(self, partition: ReplicatedPartition) -> None:
        pass


def test_a_replica_takes_its_role_once_its_writer_has_answered() -> None:
    made = Told(word(OTHER, 4))
    assert made.orders == [ro.Follow(4)]
    made.it.hear(made.assign(word(ME, 5)))
    assert made.orders == [ro.Follow(4)]  # one at a time
    assert made.it.replica is None
    made.answer(7)
    assert made.it.follower is not None
    assert made.orders == [ro.Follow(4), ro.Lead(5)]
    assert made.it.leader is None
    made.answer(7)
    assert made.it.leader is not None


@pytest.mark.rule(15)
@pytest.mark.parametrize("older", [word(OTHER, 4, 9), word(OTHER, 5, 2)])
def test_rule_15_an_older_word_of_the_controller_is_not_heeded(older: PartitionAssignment) -> None:
    made = Told(word(ME, 5, 3))
    made.answer(7)
    made.it.hear(made.assign(older))
    assert made.orders == [ro.Lead(5)]
    assert made.it.leader is not None
    assert made.it.word == word(ME, 5, 3)


def test_with_durability_fsync_only_what_is_synced_counts() -> None:
    made = Told(word(ME, 5), synced=True)
    made.page.publish_durable(3)
    made.answer(7)
    assert made.it.log.high_watermark == 3
    made.page.publish_durable(6)
    made.it.look()
    assert made.it.log.high_watermark == 6


def test_without_it_what_is_appended_counts() -> None:
    made = Told(word(ME, 5))
    made.answer(7)
    assert made.it.log.high_watermark == 7


def test_a_leader_whose_log_is_shorter_than_others_were_told_of_ends() -> None:
    made = Told(word(ME, 5))
    made.answer(7)
    made.it.opened()  # by another life of the writer
    with pytest.raises(DataFolderError, match="ends at 6, and ended at 7"):
        made.answer(6)
