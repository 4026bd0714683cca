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


def test_records_of_many_keys_fill_a_batch_of_each_partition(node):
    topic = node.create_topic(partitions=8)
    told: list[Any] = []
    options: dict[str, Any] = {"linger": 30.0, "batch_bytes": 16 << 10, "on_delivery": told.append}
    with node.connect() as client, client.producer(**options) as producer:
        for number in range(2_000):
            producer.send(topic, bytes(1_000), key=b"%d" % number)
        producer.flush(20.0)
        assert len(told) < 2_000 / 6, "a box is cut into a part of a batch for each partition"
        assert {each.partition for each in told} == set(range(8))
        for key in (b"one", None):  # all into one partition: no batch is larger for that
            for _ in range(300):
                producer.send(topic, bytes(1_000), key=key)
            producer.flush(20.0)
    assert sum(each.count for each in told) == 2_600
    assert max(each.count for each in told) <= 16


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
