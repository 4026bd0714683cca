"""The cluster as a gateway was told of it."""

from __future__ import annotations

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.ipc import messages as ms
from penstock.server.gateway.membership import Membership

ID = bytes(range(16))


def cluster(version: int, leaders: dict[int, int]) -> ms.GatewayCluster:
    brokers = [(1, "tcp://a:1"), (2, "tcp://b:2")]
    return ms.GatewayCluster(ID, bytes(32), version, 1, brokers, [*leaders.items()], 2)


def test_a_node_that_stands_alone_leads_all_it_has() -> None:
    alone = Membership(None)
    assert alone.is_known
    assert alone.leads(17)
    assert (alone.cluster_id, alone.broker, alone.leaders) == (b"", fr.NOBODY, b"")


def test_clients_are_told_what_the_node_says() -> None:
    membership = Membership(1)
    assert not membership.is_known
    assert membership.told(cluster(7, {0: 1, 5: 2}))
    message, _ = codec.from_gateway([membership.leaders])
    assert message == fr.Leaders(7, [(1, "tcp://a:1"), (2, "tcp://b:2")], [(0, 1), (5, 2)], 2)
    assert [membership.leads(page) for page in (0, 5, 6)] == [True, False, False]
    assert membership.cluster_id == ID


def test_nobody_is_told_twice_or_of_what_is_over() -> None:
    membership = Membership(1)
    assert membership.told(cluster(7, {0: 1}))
    assert not membership.told(cluster(7, {0: 1}))
    assert not membership.told(cluster(6, {0: 2}))
    assert membership.leads(0)
    assert membership.told(cluster(8, {0: 2}))
    assert not membership.leads(0)


def test_who_came_to_the_wrong_broker_is_told_where_to_go() -> None:
    membership = Membership(1)
    membership.told(cluster(7, {0: 1, 5: 2, 6: 3}))
    assert "broker 2 (tcp://b:2)" in membership.why_not(5)
    assert "broker 3 (which is away)" in membership.why_not(6)
    assert "nobody leads" in membership.why_not(4)
