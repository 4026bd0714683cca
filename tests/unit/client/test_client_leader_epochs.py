"""A reader of one partition whose leaders change: which epoch it has read in, and what is lost."""

from __future__ import annotations

import pytest
from partition_fixture import Partition

from penstock.client.consumer.partition_cursor import AssignedPartition
from penstock.core.epochs import EpochCache, save_epochs
from penstock.core.errors import LogTruncatedError


@pytest.fixture
def at() -> Partition:
    """Of a broker that led in epoch 1, and has not heard yet that another one leads."""
    made = Partition(20_000)
    made.write(1, 5)
    lead(made, (1, 0))
    return made


@pytest.fixture
def reader(at: Partition) -> AssignedPartition:
    """Has read up to offset 5 at that other one, whose epoch 2 began at offset 3."""
    made = at.reader("read_uncommitted")
    made.jump(5, 2)
    made.check()
    return made


def lead(at: Partition, *epochs: tuple[int, int]) -> None:
    save_epochs(at.storage, at.folder, EpochCache(list(epochs)))
    at.page.publish_epoch(epochs[-1][0])


@pytest.mark.rule(15)
def test_rule_15_what_was_read_in_an_epoch_that_a_leader_learns_of_later_is_not_lost(
    at: Partition, reader: AssignedPartition
) -> None:
    assert reader.leader_epoch == 2
    lead(at, (1, 0), (2, 3), (3, 8))
    reader.check()
    assert reader.leader_epoch == 3


@pytest.mark.rule(15)
def test_rule_15_what_was_read_in_an_epoch_that_ended_earlier_is(
    at: Partition, reader: AssignedPartition
) -> None:
    lead(at, (1, 0), (2, 3), (3, 4))
    with pytest.raises(LogTruncatedError) as caught:
        reader.check()
    assert caught.value.divergence == 4
