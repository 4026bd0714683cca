"""What `penstock cluster health` counts as trouble."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cli_runner import call_cli
from msgspec.structs import replace

from penstock.cli import diagnosis
from penstock.ipc.clustering import BrokerInfo, ClusterDescription, QuorumMember
from penstock.operations.cluster_health import troubles


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


def test_a_broker_that_is_away_is_told_of_once() -> None:
    found = described((1, 2, 3), (1, 2, 3))
    found = replace(
        found,
        brokers=[*found.brokers[:2], replace(found.brokers[2], state="down")],
        quorum=[*found.quorum[:2], replace(found.quorum[2], trouble="silent for 9 s")],
        partitions=6, ill_partitions=6,
    )  # fmt: skip
    away, partitions = troubles(found)
    assert away == "broker 3 is down (tcp://h:3): silent for 9 s"
    assert partitions.startswith("6 partitions: 6 not well")
    admin: Any = SimpleNamespace(describe_cluster=lambda: found)
    [complaint] = diagnosis._cluster(admin)
    assert complaint.what == f"{away}; {partitions}"


def test_a_removal_asks() -> None:
    ran = call_cli("cluster", "remove", "3", url="shm:///nowhere")
    assert ran.code == 2
    assert "Take broker 3 out" in ran.err
    assert "add --yes" in ran.err
