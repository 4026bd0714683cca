"""A replica of a compacted topic that was away for longer than its leader keeps tombstones."""

from __future__ import annotations

from typing import Any

import pytest
from replica_fixture import ReplicaPartition
from unit.core.compacting import compact, keyed, records

from penstock.core.errors import ErrorCode
from penstock.ipc.roles import Follow, Lead

NONE, BEYOND = ErrorCode.NONE, ErrorCode.BEYOND_LOG_END
HOUR = 3_600_000_000
KEPT = 3600.0
"""Seconds for which tombstones are kept."""


def made(**settings: Any) -> ReplicaPartition:
    return ReplicaPartition(cleanup="compact", **{"delete_retention": KEPT, **settings})


def newest(of: ReplicaPartition) -> dict[bytes | None, bytes]:
    """What a reader of the whole log ends with."""
    found = {key: value for _, (key, value) in sorted(records(of.role._log).items())}
    return {key: value for key, value in found.items() if value is not None}


def compacted(leader: ReplicaPartition) -> None:
    log = leader.role._log
    log.roll(leader.clock)
    log.sync()
    compact(leader.storage, log, now_us=leader.clock, delete_retention_us=int(KEPT * 1e6))


def copied(leader: ReplicaPartition, replica: ReplicaPartition) -> int:
    """Follow until nothing is missing; how often it had to be told to."""
    for times in range(6):
        replica.obey(Follow(5))
        end = replica.role.log_end
        if end == leader.role.log_end:
            return times
        for batch in leader.batches(end):
            if replica.follow(5, batch) != [NONE]:
                break
    raise AssertionError(f"it comes to {replica.role.log_end}, and not to {leader.role.log_end}")


@pytest.fixture
def pair() -> tuple[ReplicaPartition, ReplicaPartition]:
    """A leader, and a replica that has all of its log: k, x and y."""
    leader, replica = made(), made()
    assert leader.obey(Lead(5)) == [NONE]
    leader.append(*(keyed([(key, b"1")], at) for at, key in enumerate((b"k", b"x", b"y"))))
    copied(leader, replica)
    return leader, replica


def goes_on(leader: ReplicaPartition, hours: int) -> None:
    """k is deleted, and other keys come; compaction runs now, and when so many hours are over."""
    leader.append(keyed([(b"k", None)], 3), keyed([(b"x", b"2")], 4))
    compacted(leader)
    leader.clock += hours * HOUR
    leader.append(keyed([(b"y", b"2")], 5))
    compacted(leader)
    leader.append(keyed([(b"z", b"1")], 6))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_it_copies_all_of_the_log_again(pair, is_restarted):
    leader, replica = pair
    goes_on(leader, 2)
    assert (b"k", None) not in records(leader.role._log).values(), "the tombstone is gone"
    replica.clock = leader.clock
    if is_restarted:
        replica.killed()
    copied(leader, replica)
    assert newest(replica) == newest(leader) == {b"x": b"2", b"y": b"2", b"z": b"1"}


def test_one_that_was_away_for_a_shorter_time_goes_on_where_it_was(pair):
    leader, replica = pair
    start = replica.batches()[:1]
    goes_on(leader, 0)
    replica.clock = leader.clock + HOUR // 2
    assert copied(leader, replica) == 1
    assert replica.batches()[:1] == start, "what it had is there still"
    assert newest(replica) == newest(leader) == {b"x": b"2", b"y": b"2", b"z": b"1"}


def test_one_whose_leader_compacted_nothing_goes_on_where_it_was(pair):
    leader, replica = pair
    leader.append(keyed([(b"k", None)], 3))
    leader.clock += 9 * HOUR
    leader.append(keyed([(b"z", b"1")], 4))
    replica.clock = leader.clock
    assert copied(leader, replica) == 1
    assert newest(replica) == {b"x": b"1", b"y": b"1", b"z": b"1"}


@pytest.mark.parametrize("kept", [KEPT, 0.0])
def test_a_new_replica_copies_what_is_old_once(pair, kept):
    leader, _ = pair
    goes_on(leader, 30)
    leader.clock += 30 * HOUR
    replica = made(delete_retention=kept)
    replica.clock = leader.clock
    assert copied(leader, replica) == 1
    assert newest(replica) == newest(leader)


def test_a_topic_that_is_not_compacted_is_not_copied_again(pair):
    leader, _ = pair
    replica = ReplicaPartition()
    copied(leader, replica)
    goes_on(leader, 2)
    replica.clock = leader.clock
    assert copied(leader, replica) == 1
