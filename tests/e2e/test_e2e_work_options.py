"""Due and expiry times, priorities and dedup ids, from producers to consumers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from event_loops import run

import penstock
from penstock import aio
from penstock.testing import Broker, drain

pytestmark = pytest.mark.over_tcp

OPTIONS: dict[str, Any] = {"delay": 3600, "ttl": 36_000, "priority": 7, "dedup_id": "invoice-4711"}
COLUMNS: dict[str, Any] = {
    "delays": [None, 7200.0, None],
    "ttls": [None, None, 3 * 3600],
    "priorities": [1, 2, None],
    "dedup_ids": [None, "b", b"c"],
}


def told(record: penstock.Record, sent: float) -> tuple[Any, ...]:
    """Times in whole hours from the send."""
    hours = [
        None if at is None else round((at / 1e6 - sent) / 3600)
        for at in (record.due, record.expires)
    ]
    return (record.value, *hours, record.priority, record.dedup_id)


@pytest.mark.parametrize("linger", [0.0, 0.02])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_consumers_see_what_producers_said_and_get_it_at_once(
    node: Broker, linger: float, compression: str
) -> None:
    topic, sent = node.create_topic(), time.time()
    long = b"x" * 500
    with (
        node.connect() as client,
        client.producer(linger=linger, compression=compression) as producer,
    ):
        producer.send(topic, b"plain", headers=None, timestamp=None, delay=None)
        producer.send(topic, b"at", at=1_000_000)
        producer.send(topic, long, key=b"k", headers={"a": b"b"}, **OPTIONS)
        producer.flush(20.0)
        producer.send_batch(topic, [b"a", b"b", b"c"], **COLUMNS)
    records = drain(node, topic, count=6)
    assert [told(record, sent) for record in records] == [
        (b"plain", None, None, None, None),
        (b"at", round((1 - sent) / 3600), None, None, None),
        (long, 1, 10, 7, b"invoice-4711"),
        (b"a", None, None, 1, None),
        (b"b", 2, None, 2, b"b"),
        (b"c", None, 3, None, b"c"),
    ]
    assert (records[1].due, records[2].key, records[2].headers) == (
        1_000_000, b"k", (("a", b"b"),),
    )  # fmt: skip


def test_a_loop_sends_them_too_also_what_waits_for_its_topic(node: Broker) -> None:
    topics = [node.create_topic() for _ in range(3)]
    sent = time.time()

    async def main() -> None:
        async with aio.connect(node.url) as client, client.producer() as producer:
            for topic in topics:  # not known yet: it waits in line
                first = producer.send(topic, b"1", **OPTIONS)
                await first
                await producer.send_and_wait(topic, b"2", priority=3)
                await producer.send_batch(topic, [b"a", b"b", b"c"], **COLUMNS)
            with pytest.raises(ValueError, match="delay=-1"):
                producer.send(topics[0], b"no", delay=-1)
            with pytest.raises(ValueError, match="priority=11"):
                producer.send_batch(topics[0], [b"no"], priorities=[11])

    run(main())
    for topic in topics:
        assert [told(record, sent) for record in drain(node, topic, count=5)] == [
            (b"1", 1, 10, 7, b"invoice-4711"),
            (b"2", None, None, 3, None),
            (b"a", None, None, 1, None),
            (b"b", 2, None, 2, b"b"),
            (b"c", None, 3, None, b"c"),
        ]


def test_bad_options_are_refused_before_anything_is_sent(node: Broker) -> None:
    topic = node.create_topic()
    with node.connect() as client, client.producer() as producer:
        for options in ({"delay": -1}, {"ttl": 0}, {"priority": 10}, {"dedup_id": "x" * 129}):
            with pytest.raises(ValueError, match=r" must | has "):
                producer.send(topic, b"v", **options)
        with pytest.raises(TypeError, match="did you mean delay"):
            producer.send(topic, b"v", dealy=1)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="ttl"):
            producer.send_batch(topic, [b"1", b"2"], ttls=[1, -1])
        producer.send_and_wait(topic, b"good", priority=9)
    assert [(record.offset, record.priority) for record in drain(node, topic)] == [(0, 9)]
