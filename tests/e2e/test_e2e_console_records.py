"""The console's pages of records: found by place, key, field and condition, shown as JSON, text and
hex, and sent again; whatever is in them is text and no script."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from console_visitor import Visitor, visiting

from penstock.client.consumer.records import Record
from penstock.console.browse import field_is
from penstock.console.config import ConsoleConfig
from penstock.console.pages.records import bytes_of, draft_of, preview, view_of
from penstock.console.server import ConsoleServer
from penstock.console.web.follow import FOLLOWERS_MAX
from penstock.core.errors import ConfigError
from penstock.testing import Broker, produce, wait_until

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def visitor(node: Broker) -> Iterator[Visitor]:
    node.create_topic("orders", partitions=3)
    node.create_topic("empty", partitions=2)
    with node.connect() as client, client.producer() as producer:
        for number in range(300):
            order = {"total": number, "customer": {"name": f"c{number % 7}"}, "items": [number]}
            producer.send("orders", msgspec.json.encode(order), key=b"c%d" % (number % 7))
    with visiting(node.url) as found:
        yield found


def test_the_newest_come_first_and_pages_go_on(visitor: Visitor) -> None:
    page = visitor.get("/records", topic="orders")
    assert '{"total":299,' in page
    assert "Next" not in page
    page = visitor.get("/records", topic="orders", start="start", partition="0")
    assert "50 records of 50 offsets" in page
    follow = visitor.last.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
    second = visitor.get(follow.replace("&amp;", "&"))
    assert " 0:50 " in second
    assert " 0:49 " not in second
    assert "penstock consume orders -p 0 -o start -n 50" in page


def test_a_few_browsers_follow_records_and_hear_what_is_wrong(node: Broker) -> None:
    server = ConsoleServer(ConsoleConfig(url=node.url, port=0))
    server.start()
    where = f"{server.url}/records/follow?topic=empty"
    heard = []
    try:
        for _ in range(FOLLOWERS_MAX):
            heard.append(urllib.request.urlopen(where, timeout=20))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(where, timeout=20)
        assert refused.value.code == 503
        assert b"FOLLOWERS_MAX" in refused.value.read()
        for each in heard:
            each.close()
        shell = server.app.state.shell
        wait_until(lambda: shell.followers == 0, what="room again")
        with pytest.raises(urllib.error.HTTPError) as unknown:
            urllib.request.urlopen(where.replace("empty", "none"), timeout=20)
        assert unknown.value.code == 404
        with urllib.request.urlopen(f"{where}&where=nothing+like+sql", timeout=20) as wrong:
            assert b"event: over" in wrong.read()
    finally:
        server.stop()


def test_msgpack_is_shown_as_json(node: Broker, visitor: Visitor) -> None:
    node.create_topic("packed")
    order = {"total": 7, "raw": b"\x00\xff", 3: [None, 1.5], "when": msgspec.msgpack.Ext(5, b"x")}
    values = [msgspec.msgpack.encode(order), b"\x93\x01", b"\x91" * 100_000]
    produce(node, "packed", values)
    place = {"topic": "packed", "partition": 0, "as": "msgpack"}
    page = visitor.get("/record", offset=0, **place)
    assert '"total": 7, "raw": "AP8=", "3": [ null, 1.5 ]' in page
    for offset in (1, 2):  # cut off; deeper than is read
        visitor.get("/record", offset=offset, **place)
        assert 'aria-current="true">text<' in visitor.last


def test_an_empty_topic_answers_at_once(visitor: Visitor) -> None:
    for query in ({}, {"key": "x"}, {"start": "end"}, {"start": "@2013-07-04T12:00"}):
        assert "0 records of 0 offsets" in visitor.get("/records", topic="empty", **query)


def test_places_are_those_of_the_command_line(visitor: Visitor) -> None:
    page = visitor.get("/records", topic="orders", partition="1", start="-2")
    assert "2 records of 2 offsets." in page
    assert (
        "2 records" in visitor.get("/records", topic="orders", partition="1", start="+1")[:0] + page
    )
    assert "0 records" in visitor.get("/records", topic="orders", start="2099-01-01T00:00")
    assert "no place in a log" in visitor.get("/records", 400, topic="orders", start="soon")
    assert "partitions 0 to 2, not 7" in visitor.get("/records", 404, topic="orders", partition="7")
    assert "no PARTITION:OFFSET" in visitor.get("/records", 400, topic="orders", at="1")


def test_a_record_is_found_by_key_field_and_condition(visitor: Visitor) -> None:
    page = visitor.get("/records", topic="orders", key="c3")
    assert "43 records of 300 offsets." in page
    assert '"name":"c2"' not in page
    page = visitor.get("/records", topic="orders", path="total", equals="123")
    assert "1 records of 300 offsets." in page
    page = visitor.get("/records", topic="orders", key="c3", path="customer.name", equals="c4")
    assert "Nothing fits in the 300 offsets" in page
    where = "text->>'$.customer.name' = 'c5' and (text->>'$.total')::int > 290"
    page = visitor.get("/records", topic="orders", where=where)
    ran = subprocess.run(
        shlex.split(page.partition("The same as a command ")[2].partition(" Penstock 0")[0]),
        capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert ran.stdout.count('"name":"c5"') == 2
    assert "2 records of" in page
    assert "cannot be asked" in visitor.get("/records", 400, topic="orders", where="nothing = 1")
    files = visitor.get("/records", 400, topic="orders", where="text = (select content from "
                        "read_text('/etc/passwd'))")  # fmt: skip
    assert "disabled by configuration" in files


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_elsewhere_asks_no_condition(visitor: Visitor, site: str) -> None:
    headers = {"Sec-Fetch-Site": site}
    asked = visitor.client.get("/records?topic=orders&where=true", headers=headers)
    assert (asked.status_code, "page of the console" in asked.text) == (403, True)
    assert visitor.client.get("/records?topic=orders", headers=headers).status_code == 200


def test_a_full_page_of_a_search_goes_on_behind_its_last_record(visitor: Visitor) -> None:
    page = visitor.get("/records", topic="orders", path="total", equals="*")
    offsets: list[str] = []
    for _ in range(10):
        offsets += [word for word in page.split() if word.count(":") == 1 and word[0] in "012"
                    and word.replace(":", "").isdigit()]  # fmt: skip
        if "Look on" not in page:
            break
        follow = visitor.last.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
        page = visitor.get(follow.replace("&amp;", "&"))
    assert len(offsets) == len(set(offsets)) == 300


def test_one_record_in_each_view(node: Broker, visitor: Visitor) -> None:
    topic = node.create_topic("views")
    with node.connect() as client, client.producer() as producer:
        producer.send(topic, b'{"a":[1,2]}', key=b"k", headers={"tenant": b"acme", "none": None})
        producer.send(topic, b"\x00\xffbinary")
        producer.send(topic, None, key=b"gone")
    page = visitor.get("/record", topic=topic, partition=0, offset=0)
    assert '{ "a": [ 1, 2 ] }' in page
    assert "tenant acme none null" in page
    assert f"penstock consume {topic} -p 0 -o 0 -n 1" in page
    assert "00000000 00 ff 62" in visitor.get("/record", topic=topic, partition=0, offset=1)
    assert "\\xffbinary" in visitor.get(
        "/record", topic=topic, partition=0, offset=1, **{"as": "text"}
    )
    assert "tombstone" in visitor.get("/record", topic=topic, partition=0, offset=2)
    assert "offsets 0 to 2, not 3" in visitor.get(
        "/record", 404, topic=topic, partition=0, offset=3
    )
    answer = visitor.client.get(f"/record/raw?topic={topic}&partition=0&offset=1")
    assert answer.content == b"\x00\xffbinary"
    assert "attachment" in answer.headers["content-disposition"]
    assert "sandbox" in answer.headers["content-security-policy"]


def test_what_is_in_a_record_is_text_on_every_page(node: Broker, visitor: Visitor) -> None:
    topic = node.create_topic("hostile")
    data = SCRIPT.encode()
    with node.connect() as client, client.producer() as producer:
        producer.send(topic, data, key=data, headers={"x" + SCRIPT: data})
    for path in (
        f"/records?topic={topic}",
        f"/record?topic={topic}&partition=0&offset=0",
        f"/record?topic={topic}&partition=0&offset=0&as=hex",
        f"/produce?topic={topic}&partition=0&offset=0",
        f"/records?topic={topic}&key={SCRIPT}&where={SCRIPT}",
    ):
        text = visitor.client.get(path).text
        assert "<script>alert" not in text, path
        assert "<img" not in text, path


def test_ten_megabytes_are_previewed() -> None:
    with Broker(options={"lane_capacity": 64 << 20}) as broker, visiting(broker.url) as visitor:
        topic = broker.create_topic("large", record_bytes_max=12 << 20)
        with broker.connect() as client, client.producer() as producer:
            producer.send_and_wait(topic, b"x" * (10 << 20), timeout=20.0)
        visitor.get("/records", topic=topic)
        assert len(visitor.last) < 20_000
        page = visitor.get("/record", topic=topic, partition=0, offset=0)
        assert "10,485,760 bytes" in page
        assert "more bytes are in the file" in page
        assert len(visitor.last) < 200_000
        refused = visitor.get("/produce", 400, topic=topic, partition=0, offset=0)
        assert "too large to be edited here" in refused


def test_a_record_is_edited_and_sent_again(node: Broker, visitor: Visitor) -> None:
    topic = node.create_topic("edited", partitions=2)
    with node.connect() as client, client.producer() as producer:
        producer.send_and_wait(topic, b"total: 1\n", key=b"ann", headers={"a": b"1"}, partition=1)
    page = visitor.get("/produce", topic=topic, partition=1, offset=0)
    assert "total: 1" in page
    form = {"topic": topic, "partition": "1", "key": "ann", "key_kind": "text",
            "value": "total: 2\r\n", "value_kind": "text", "headers": "a=1\r\nb=2\r\n"}  # fmt: skip
    plan = visitor.plan("/record/produce", **form)
    assert "One record is appended to edited; partition: 1." in plan
    assert "| penstock produce edited --ndjson -p 1" in plan
    assert "The record is at offset 1 of partition 1." in visitor.do("/record/produce", **form)
    with node.connect() as client, client.consumer(topic, follow=False) as consumer:
        first, second = consumer
    assert (first.value, second.value) == (b"total: 1\n", b"total: 2\n")
    assert second.headers == (("a", b"1"), ("b", b"2"))
    assert second.key == b"ann"
    assert "hexadecimal" in visitor.post("/record/produce", 400, **(form | {"value_kind": "hex"}))
    assert "NAME=VALUE" in visitor.post("/record/produce", 400, **(form | {"headers": "none"}))


def test_a_page_of_many_partitions_reads_some_of_them(node: Broker, visitor: Visitor) -> None:
    topic = node.create_topic("broad", partitions=70)
    assert "The first 64 of 70 partitions" in visitor.get("/records", topic=topic)
    assert "0 records" in visitor.get("/records", topic=topic, partition=69)


# --- without a node -------------------------------------------------------------------------------
def record(value: bytes | None, **more: object) -> Record:
    return Record("t", 0, 0, 0, more.get("key"), value, more.get("headers", ()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "equals", "fits"),
    [
        ("a", "1", True), ("a", "01", False), ("b.c", "x", True), ("b.d.1", "true", True),
        ("b.d.9", "*", False), ("b.none", "*", False), ("n", "null", True), ("b", "*", True),
        ("b.d.٣", "*", False), ("a.b", "*", False),
    ],
)  # fmt: skip
def test_a_field_is_compared_as_its_text(path: str, equals: str, fits: bool) -> None:
    value = b'{"a":1,"b":{"c":"x","d":[1,true]},"n":null}'
    assert field_is(value, path, equals) is fits
    assert not field_is(None, path, equals)
    assert not field_is(b"{broken", path, equals)
    assert not field_is(b'{"a":' + b"[" * 100_000, path, equals)


def test_bytes_that_a_form_would_change_are_edited_as_hex() -> None:
    assert draft_of(record(b"a\nb")).value_kind == "text"
    for value in (b"a\r\nb", b"\xff", b"a\0"):
        draft = draft_of(record(value))
        assert draft.value_kind == "hex"
        assert bytes_of(draft.value, "hex", "value") == value
    assert draft_of(record(None)).value_kind == "null"
    headers = (("good", b"1"), ("bad", b"\xff"), ("two", b"a\nb"))
    assert draft_of(record(b"", headers=headers)).lost == "bad, two"
    with pytest.raises(ConfigError, match="EDITED_MAX"):
        draft_of(record(b"x" * (2 << 20)))


def test_a_preview_is_one_short_line() -> None:
    assert preview(None) is None
    assert preview(b"a\nb\x1b[31m") == "a b [31m"
    assert len(preview(b"x" * (10 << 20)) or "") < 400
    assert view_of(record(b"{}"), "", 1, "shm://").view == "json"
    assert view_of(record(b"[" * 5000), "json", 1, "shm://").value == "[" * 5000
