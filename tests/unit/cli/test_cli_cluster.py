"""What `penstock cluster health` counts as trouble."""

from __future__ import annotations

from penstock.cli.cluster import troubles
from penstock.ipc.clustering import BrokerInfo, ClusterDescription, QuorumMember


def described(brokers: tuple[int, ...], members: tuple[int, ...]) -> ClusterDescription:
    return ClusterDescription(
        cluster_id=bytes(16), broker=1, controller=1, term=1,
        brokers=[BrokerInfo(each, 1, f"tcp://h:{each}", "", "up", 0, 0, 0) for each in brokers],
        quorum=[QuorumMember(each, "follower", 0) for each in members],
        topics=0, partitions=0, leaderless=0, below_min_insync=0, ill_partitions=0, ill=[],
    )  # fmt: skip


def test_brokers_that_are_all_registered_are_well() -> None:
    assert troubles(described((1, 2, 3, 4), (1, 2, 3, 4))) == []


def test_a_member_of_the_quorum_that_is_no_broker_yet_is_not_well() -> None:
    [trouble] = troubles(described((1, 2), (1, 2, 3)))
    assert "broker 3 is not registered" in trouble
