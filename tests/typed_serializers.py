"""Types of producers, consumers and records with serializers, as checkers see them. Never run.

`make check` has mypy look at it, `tests/test_typed_serializers.py` pyright. Each refuses the lines
with an ignore, and no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import penstock
from penstock import Consumer, GroupConsumer, Job, Producer, Record, ShareConsumer, aio
from penstock.serializers import Json, Msgpack, Serializer, Text, optional


@dataclass
class Order:
    who: str
    cents: int


def blocking(client: penstock.Client) -> None:
    plain = client.consumer("orders", start="earliest")
    assert_type(plain, Consumer[bytes | None, bytes | None])
    typed = client.consumer("orders", value=Json(Order), start="earliest")
    assert_type(typed, Consumer[Order, bytes | None])
    group = client.consumer("orders", group="billing", value=Json(Order), key=Text())
    assert_type(group, GroupConsumer[Order, str])
    for record in group:
        assert_type(record, Record[Order, str])
        assert_type(record.value.cents, int)
        assert_type(record.raw_value, bytes | None)
    assert_type(group.poll().decode(), list[Order])
    assert_type(group.poll()[0].key, str)
    jobs = client.share_consumer("orders", group="mail", value=Msgpack(dict[str, int]))
    assert_type(jobs, ShareConsumer[dict[str, int], bytes | None])
    for job in jobs:
        with job:
            assert_type(job.value["cents"], int)
    compacted = client.consumer("names", value=optional(Text()))
    assert_type(next(iter(compacted)).value, str | None)


def sending(client: penstock.Client) -> None:
    producer = client.producer(value=Json(Order), key=Text(), linger=0.0)
    assert_type(producer, Producer[Order, str])
    producer.send("orders", Order("ann", 42), key="ann")
    producer.send("orders", None, key="ann")
    producer.send_batch("orders", [Order("ann", 1)], keys=["ann"])
    producer.send("orders", b"42")  # type: ignore[arg-type]
    producer.send("orders", Order("ann", 42), key=b"ann")  # type: ignore[arg-type]
    client.producer().send("orders", b"42")
    client.producer().send("orders", Order("ann", 42))  # type: ignore[arg-type]
    billing = client.producer(transactional_id="billing", value=Json(Order))
    with billing.transaction():
        billing.send("orders", Order("ann", 42))


async def asynchronous(client: aio.Client) -> None:
    async with client.producer(value=Json(Order)) as producer:
        await producer.send_and_wait("orders", Order("ann", 42))
        await producer.send("orders", b"42")  # type: ignore[arg-type]
    async with client.consumer("orders", group="billing", value=Json(Order)) as consumer:
        async for record in consumer:
            assert_type(record, Record[Order])
    async with client.share_consumer("orders", group="mail", value=Json(Order)) as jobs:
        async for job in jobs:
            assert_type(job, Job[Order])


def handler(record: Record[Order]) -> int:
    return record.value.cents


def anything(record: Record[object]) -> object:
    return record.value


def plain_handler(record: Record) -> bytes | None:
    return record.value if anything(record) else None


def own() -> Serializer[Order]:
    return Json(Order)
