"""Cursors on partitions that another broker leads, or that one is about to."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest
from fetch_fixture import Gateway, folder_in
from partition_fixture import Partition
from unit.core.log_helpers import TOPIC

from penstock.core.errors import NotLeaderError
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage
from penstock.server.gateway import lookups
from penstock.server.gateway.fetch import BELT
from penstock.server.gateway.membership import Membership


def told(membership: Membership, leaders: dict[int, int], version: int = 7) -> None:
    brokers = [(1, "tcp://a:1"), (2, "tcp://b:2")]
    said = ms.GatewayCluster(bytes(16), bytes(32), version, 1, brokers, [*leaders.items()], 2)
    membership.told(said)


@pytest.fixture
def at(tmp_path) -> Partition:
    return Partition(20_000, Storage(), folder_in(tmp_path))


@pytest.fixture
def membership(at) -> Membership:
    membership = Membership(1)
    told(membership, {at.page.index: 1})
    return membership


@pytest.fixture
def gateway(at, membership) -> Gateway:
    return Gateway(at, membership=membership)


def failed(gateway: Gateway, *readings: Any) -> None:
    """All of them end with an error that is worth another try at another broker."""
    for _ in range(20):
        gateway.turn(BELT / 10)
    assert [reading.failed.error for reading in readings] == ["NotLeaderError"] * len(readings)
    assert gateway.counts.cursors == 0


def test_a_cursor_on_a_page_that_follows_fails_at_once(at, gateway, caplog):
    caplog.set_level(logging.INFO)
    at.write(1, 5)
    at.page.publish_status(lo.STATUS_FOLLOWING)
    reading = gateway.fetch(gateway.client())
    assert reading.failed is not None
    assert reading.failed.error == "NotLeaderError"
    assert gateway.counts.refusals == {"NotLeaderError": 1}
    assert not caplog.messages, "all of a broker's consumers come with a failover"


def test_cursors_end_when_their_page_begins_to_follow(at, gateway):
    """Those that wait, those without credit, and those that would go on."""
    at.write(1, 5)
    waits, poor, behind = (gateway.client() for _ in range(3))
    readings = [gateway.fetch(waits), gateway.fetch(poor, credit=1)]
    gateway.turn()
    at.page.publish_status(lo.STATUS_FOLLOWING)
    readings.append(gateway.fetch(behind))
    failed(gateway, *readings)
    assert len(readings[0].records) == 5, "what came before counts"


def test_cursors_go_on_where_the_same_broker_leads_in_another_epoch(at, gateway):
    client = gateway.client()
    at.write(1, 5)
    reading = gateway.fetch(client)
    gateway.settle(client)
    at.page.publish_status(lo.STATUS_FOLLOWING)
    at.page.publish_status(lo.STATUS_ONLINE)
    at.write(1, 5)
    gateway.fetching.rung(client)
    gateway.settle(client)
    assert reading.failed is None
    assert len(reading.records) == 10


def test_a_page_that_is_not_here_is_read_where_it_is_led(at, gateway, membership):
    elsewhere = at.page.index + 1
    client = gateway.client()
    told(membership, {at.page.index: 1, elsewhere: 2}, 8)
    reading = gateway.fetch(client, page=elsewhere)
    assert reading.failed is not None
    assert reading.failed.error == "NotLeaderError"
    assert "broker 2 (tcp://b:2)" in reading.failed.message


def test_a_page_that_is_about_to_be_opened_here_is_waited_for_until_others_lead_it(
    at, gateway, membership
):
    client = gateway.client()
    soon = at.page.index + 1
    told(membership, {soon: 1}, 8)
    reading = gateway.fetch(client, page=soon)
    gateway.settle(client)
    assert reading.failed is None
    told(membership, {soon: 2}, 9)
    failed(gateway, reading)


def test_lookups_about_what_is_led_elsewhere_are_refused(at, gateway, membership, tmp_path):
    at.write(1, 5)
    session: Any = SimpleNamespace(
        page=lambda index: StatePage(at.region, index), data_folder=os.fspath(tmp_path)
    )
    place = lk.LogPlace(at.page.index, TOPIC, 0, 0)
    questions: list[lk.Request] = [
        lk.LookUpTime(at.page.index, TOPIC, 0, 1),
        lk.LookUpAppends([place]),
        lk.LookUpSegments(place),
    ]
    at.page.publish_status(lo.STATUS_FOLLOWING)
    for question in questions:
        with pytest.raises(NotLeaderError):
            lookups.answer(session, membership, question)
