"""Hooks of a producer: what is sent, delivered, and not."""

from __future__ import annotations

from typing import Any

import pytest
from event_loops import run

from penstock import DeliveryError, aio
from penstock.testing import drain


def traced(topic, value, key, headers):
    return {**dict(headers or ()), "trace": b"%b of %b" % (value, key or b"nobody")}


@pytest.mark.setting("producer.on_send")
def test_a_hook_adds_headers_to_what_is_sent(node):
    topic = node.create_topic()
    with node.connect() as client, client.producer(on_send=traced) as producer:
        producer.send(topic, b"1", key=b"ann", headers={"a": b"b"})
        producer.send_and_wait(topic, b"2")
    assert [dict(record.headers) for record in drain(node, topic)] == [
        {"a": b"b", "trace": b"1 of ann"},
        {"trace": b"2 of nobody"},
    ]


def test_asyncio_has_them_too(node):
    topic = node.create_topic()
    told: list[Any] = []

    async def main():
        async with (
            aio.connect(node.url) as client,
            client.producer(on_send=traced, on_delivery=told.append) as producer,
        ):
            await producer.send_and_wait(topic, b"1")

    run(main())
    assert [dict(record.headers) for record in drain(node, topic)] == [{"trace": b"1 of nobody"}]
    assert [each.count for each in told] == [1]


@pytest.mark.setting("producer.on_delivery")
def test_deliveries_are_told_before_a_flush_returns(node):
    topic = node.create_topic()
    told: list[Any] = []
    with node.connect() as client, client.producer(on_delivery=told.append) as producer:
        producer.send_batch(topic, [b"1", b"2"])
        producer.send(topic, b"3")
        producer.flush(20.0)
        assert sum(each.count for each in told) == 3
        assert {(each.topic, each.base_offset is None) for each in told} == {(topic, False)}


@pytest.mark.setting("producer.on_error")
def test_failures_are_told(node):
    topic = node.create_topic()
    told: list[Any] = []
    with node.connect() as client:
        producer = client.producer(on_error=lambda *failure: told.append(failure))
        producer.send_and_wait(topic, b"1")
        assert told == []
        client.admin().delete_topic(topic)
        producer.send(topic, b"2")
        with pytest.raises(DeliveryError):
            producer.close()
    [(name, _, count, error)] = told
    assert (name, count) == (topic, 1)
    assert topic in str(error)


def test_a_hook_that_raises_is_logged_and_one_that_is_none_refused(node, caplog):
    topic = node.create_topic()

    def fail(receipt):
        raise RuntimeError("no such backend")

    with node.connect() as client:
        with client.producer(on_delivery=fail) as producer:
            producer.send_and_wait(topic, b"1")
        with pytest.raises(TypeError, match="on_error='log' must be a function"):
            client.producer(on_error="log")
    assert "no such backend" in caplog.text
