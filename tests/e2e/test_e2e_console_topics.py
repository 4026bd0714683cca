"""The console's pages of topics: lists in pages, one topic, and actions that say first what they
change. Among them those that every action has in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_visitor import Visitor, visiting

from penstock.console.app import ACTIONS
from penstock.testing import Broker, produce


@pytest.fixture(scope="module")
def visitor(node: Broker) -> Iterator[Visitor]:
    with visiting(node.url) as found:
        yield found


@pytest.mark.parametrize("path", [action.path for action in ACTIONS])
def test_every_action_needs_the_token_of_its_page(visitor: Visitor, path: str) -> None:
    assert visitor.client.post(path, data={"step": "do"}).status_code == 403
    form = {"csrf": visitor.token(), "step": "do"}
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert visitor.client.post(path, data=form, headers=headers).status_code == 403
    plain = visitor.client.post(path, content="{}", headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415
    assert visitor.client.get(path).status_code == 405


def test_an_address_that_is_no_page_shows_the_way_back(visitor: Visitor) -> None:
    assert "/no<b>where: there is no such page" in visitor.get("/no<b>where", 404)
    assert "<b>" not in visitor.last
    assert 'href="/"' in visitor.last
    assert "takes forms of a page" in visitor.get("/topic/create", 405)


def test_a_form_has_its_bounds(visitor: Visitor) -> None:
    form = {"csrf": visitor.token(), "name": "x" * (4 << 20)}
    answer = visitor.client.post("/topic/create", data=form)
    assert answer.status_code == 413
    assert "BODY_BYTES_MAX" in answer.text
    many = {f"field{number}": "1" for number in range(300)}
    assert visitor.client.post("/topic/create", data=many).status_code == 400


def test_topics_come_in_pages_and_are_searched(node: Broker, visitor: Visitor) -> None:
    with node.connect() as client, client.admin() as admin:
        for number in range(120):
            admin.create_topic(f"many-{number:03}")
    first = visitor.get("/topics", q="MANY-")
    assert "many-000" in first
    assert "many-049" in first
    assert "many-050" not in first
    second = visitor.get("/topics", q="MANY-", after="many-049")
    assert "many-099" in second
    assert "Next page" in second
    last = visitor.get("/topics", q="MANY-", after="many-099")
    assert "many-119" in last
    assert "Next page" not in last
    assert "No topic has “nothing such” in its name." in visitor.get("/topics", q="nothing such")


def test_a_topic_is_created_changed_trimmed_and_deleted(node: Broker, visitor: Visitor) -> None:
    form = {"name": "bills", "partitions": "2", "retention": "7d", "settings": "cleanup=delete\n"}
    plan = visitor.plan("/topic/create", **form)
    assert "Nothing is done yet" in plan
    assert "penstock topic create bills -p 2 -c retention=7d -c cleanup=delete" in plan
    assert "bills" not in visitor.get("/topics", q="bills")[:60]
    assert "Topic bills is created." in visitor.do("/topic/create", **form)
    assert "exists with 2 partitions" in visitor.do("/topic/create", 409, **form)

    produce(node, "bills", [b"%d" % number for number in range(10)], partition=0)
    page = visitor.get("/topic", name="bills")
    assert "Offsets kept 10" in page

    changes = {"name": "bills", "settings": "retention=1d"}
    plan = visitor.plan("/topic/alter", **changes)
    assert "retention 7d 1d" in plan
    assert "Shorter retention removes records for ever" in plan
    assert "Changed retention." in visitor.do("/topic/alter", **changes)
    assert "retention 1d" in visitor.get("/topic", name="bills")
    plan = visitor.plan("/topic/alter", name="bills", partitions="3")
    assert "penstock topic add-partitions bills 3" in plan
    assert "KEY=VALUE" in visitor.post("/topic/alter", 400, name="bills")
    assert "no setting" in visitor.post("/topic/alter", 400, name="bills", settings="nothing=1")

    plan = visitor.plan("/topic/trim", name="bills", before="4", partition="0")
    assert "4 records before 4 in partition 0 of bills go for ever" in plan
    refused = visitor.do("/topic/trim", 400, name="bills", before="4", partition="0")
    assert "type bills" in refused
    done = visitor.do("/topic/trim", name="bills", before="4", partition="0", typed="bills")
    assert "4 records are removed." in done

    plan = visitor.plan("/topic/delete", name="bills")
    assert "2 partitions with 6 offsets go for ever" in plan
    visitor.do("/topic/delete", 400, name="bills", typed="Bills")
    assert "Topic bills is deleted." in visitor.do("/topic/delete", name="bills", typed="bills")
    assert "bills" in visitor.get("/topic", 404, name="bills")


def test_a_topic_tells_its_groups_and_when_retention_takes_what_they_have_not_read(
    node: Broker, visitor: Visitor
) -> None:
    node.create_topic("kept", retention=3600.0)
    produce(node, "kept", [b"1", b"2", b"3"])
    with node.connect() as client, client.admin() as admin:
        admin.report_offsets("slow", "kept", {0: (1, 1)})
    page = visitor.get("/topic", name="kept")
    assert "slow" in page
    assert "59m" in page


def test_a_hot_key_is_named(node: Broker, visitor: Visitor) -> None:
    node.create_topic("uneven", partitions=2)
    with node.connect() as client, client.producer() as producer:
        for number in range(400):
            producer.send("uneven", b"1", key=b"hot" if number % 4 else b"cold-%d" % number)
    page = visitor.get("/hot", topic="uneven")
    assert "penstock topic describe uneven --hot" in page
    assert " hot " in page
    assert "no topic 'none'" in visitor.get("/hot", 404, topic="none")


def test_many_partitions_come_in_pages(node: Broker, visitor: Visitor) -> None:
    node.create_topic("wide", partitions=150)
    page = visitor.get("/topic", name="wide")
    assert "Partitions 0 to 99 of 150" in page
    assert "Partitions 100 to 149 of 150" in visitor.get("/topic", name="wide", **{"from": 100})


def test_an_address_has_its_bounds_too(visitor: Visitor) -> None:
    assert "characters" in visitor.get("/topics", 414, q="x" * 9000)
    assert "whole number" in visitor.get("/topic", 400, name="orders", **{"from": "x"})
    assert "name is missing" in visitor.get("/topic", 400)


def test_a_name_is_no_script(visitor: Visitor) -> None:
    script = "<script>alert(1)</script>"
    visitor.get("/topics", q=script)
    assert "<script>alert" not in visitor.last
    visitor.get("/topic", 404, name=script)
    assert "<script>alert" not in visitor.last
    visitor.post("/topic/create", name=script, settings="")
    assert "<script>alert" not in visitor.last
