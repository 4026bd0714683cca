"""The console's pages of dead letters: counted by reason, one with its story, replayed and removed
with a dry run before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_visitor import Visitor, visiting
from dead_letter_fixture import bury, came, numbers, once

import penstock
from penstock.testing import Broker


@pytest.fixture(scope="module")
def client(node: Broker) -> Iterator[penstock.Client]:
    with node.connect() as found:
        yield found


@pytest.fixture(scope="module")
def visitor(node: Broker) -> Iterator[Visitor]:
    with visiting(node.url) as found:
        yield found


def test_dead_letters_are_counted_by_reason_and_each_has_a_story(
    node: Broker, client: penstock.Client, visitor: Visitor
) -> None:
    topic = node.create_topic("orders")
    bury(client, topic, numbers(3), reason="TimeoutError: too slow")
    bury(client, topic, numbers(2), start=3, reason="<script>alert(1)</script>")
    assert "orders.dlq 5" in visitor.get("/letters")
    page = visitor.get("/letters", topic="orders.dlq")
    assert "5 dead letters" in page
    assert "TimeoutError: too slow 3" in page
    assert "<script>alert" not in visitor.last
    assert "TimeoutError 3" in page
    page = visitor.get("/letters", topic="orders.dlq", where="exception = 'TimeoutError'")
    assert " 0:2 " in page
    assert " 0:3 " not in page
    page = visitor.get("/letter", topic="orders.dlq", partition=0, offset=4)
    assert "orders-0 at 4" in page
    assert "<script>alert" not in visitor.last
    assert "penstock dlq show orders.dlq 0:4 --exact" in page
    assert "no dead letter at offset 99" in visitor.get(
        "/letter", 404, topic="orders.dlq", partition=0, offset=99
    )
    assert "cannot be asked" in visitor.get("/letters", 400, topic="orders.dlq", where="nothing=1")
    assert "no topic 'none.dlq'" in visitor.get("/letters", 404, topic="none.dlq")


def test_a_replay_is_foretold_and_sends_each_once(
    node: Broker, client: penstock.Client, visitor: Visitor
) -> None:
    topic = node.create_topic("bills")
    bury(client, topic, numbers(4), reason="TimeoutError: x")
    bury(client, topic, numbers(2), start=4, reason="ValueError: y")
    before = came(client, topic)
    form = {"topic": "bills.dlq", "where": "exception = 'TimeoutError'"}
    plan = visitor.plan("/letters/replay", **form)
    assert "4 dead letters would be sent again (4 to bills)." in plan
    assert "2 did not match." in plan
    assert "penstock dlq replay bills.dlq --where 'exception = '" in plan
    assert came(client, topic) == before
    done = visitor.do("/letters/replay", **form)
    assert "4 dead letters sent again (4 to bills)." in done
    assert came(client, topic) - before == once(4)
    plan = visitor.plan("/letters/replay", **form)
    assert "0 dead letters would be sent again" in plan
    assert "Send them again" not in plan
    done = visitor.do("/letters/replay", topic="bills.dlq", places="0:4")
    assert "1 dead letter sent again" in done
    assert "no number" in visitor.post("/letters/replay", 400, topic="bills.dlq", rate="fast")
    assert "no place" in visitor.post("/letters/replay", 400, topic="bills.dlq", places="x")


def test_a_purge_is_foretold_and_wants_the_name(
    node: Broker, client: penstock.Client, visitor: Visitor
) -> None:
    topic = node.create_topic("mails")
    bury(client, topic, numbers(3))
    form = {"topic": "mails.dlq", "before": "replayed"}
    assert "0 records before replayed" in visitor.plan("/letters/purge", **form)
    form["before"] = "2"
    assert "2 records before 2 in all partitions of mails.dlq" in visitor.plan(
        "/letters/purge", **form
    )
    assert "type mails.dlq" in visitor.do("/letters/purge", 400, **form)
    assert "2 records are removed" in visitor.do("/letters/purge", **form, typed="mails.dlq")
    assert "1 dead letter" in visitor.get("/letters", topic="mails.dlq")
