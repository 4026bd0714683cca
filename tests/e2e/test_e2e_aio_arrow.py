"""Arrow streams from an event loop: whole, in order, and the loop goes on."""

# ruff: noqa: PT012 - what stands in a transaction is what fails it

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from event_loops import WITHIN, Ticker, run

from penstock import aio
from penstock.core.errors import ClosedError, PenstockError, TransactionError, UnknownTopicError
from penstock.testing import Broker, assert_records

pytestmark = pytest.mark.over_tcp

pa = pytest.importorskip("pyarrow")

SMALL: dict[str, Any] = {"batch_bytes": 1024, "buffer_bytes_max": 4096}


def table(count: int) -> Any:
    return pa.table({"value": [b"%06d" % number for number in range(count)]})


async def seen(client: aio.Client, topic: str) -> list[bytes | None]:
    async with client.consumer(topic, isolation="read_committed", follow=False) as consumer:
        return [record.value async for record in consumer]


def test_a_stream_larger_than_the_buffer_is_taken_in_order(node: Broker):
    topic = node.create_topic()
    wanted = [b"first", *table(5000)["value"].to_pylist(), b"last"]

    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.producer(**SMALL) as producer,
            Ticker() as ticker,
        ):
            producer.send(topic, b"first")
            before = ticker.count
            sent = producer.send_arrow(topic, table(5000))
            last = producer.send(topic, b"last")
            receipts = await sent
            assert sum(receipt.count for receipt in receipts) == 5000
            assert ticker.count > before
            assert (await last).offset == 5001
            with pytest.raises(UnknownTopicError):
                await producer.send_arrow("no-such-topic", table(1))
            with pytest.raises(ValueError, match="fare"):
                await producer.send_arrow(topic, table(1), value_column="fare")
            with pytest.raises(UnknownTopicError, match="not 4"):
                await producer.send_arrow(topic, table(1), partition=4)

    run(main())
    assert_records(node, topic, wanted)


def test_a_stream_is_in_its_transaction_as_a_whole_or_not_at_all(node: Broker):
    topic = node.create_topic()

    def endless() -> Iterator[Any]:
        while True:
            asked.append(True)
            yield pa.record_batch({"value": [b"never"] * 100})

    def broken() -> Iterator[Any]:
        yield pa.record_batch({"value": [b"never"]})
        raise ValueError("the source is gone")

    def stream(batches: Iterator[Any]) -> Any:
        return pa.RecordBatchReader.from_batches(pa.schema({"value": pa.binary()}), batches)

    asked: list[bool] = []

    async def main() -> None:
        async with aio.connect(node.url) as client, Ticker() as ticker:
            producer = await client.producer(transactional_id=topic, **SMALL)
            async with producer.transaction():
                producer.send_arrow(topic, table(3000))  # a commit waits for it
            with pytest.raises(TransactionError, match="the source is gone"):
                async with producer.transaction():
                    producer.send_arrow(topic, stream(broken()))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), producer.transaction():
                    given_up = producer.send_arrow(topic, stream(endless()))
                    await asyncio.Event().wait()
            with pytest.raises(TransactionError, match="aborted"):
                await given_up
            read = len(asked)
            await ticker.more(10)
            assert len(asked) <= read + 1, "nobody reads on"
            async with producer.transaction():
                producer.send(topic, b"good")
            assert await seen(client, topic) == [*table(3000)["value"].to_pylist(), b"good"]
            await producer.close()

            plain = await client.producer(**SMALL)
            left = plain.send_arrow(topic, stream(endless()))
            await ticker.more(5)
            with pytest.raises(PenstockError):
                await plain.close(timeout=0.1)
            with pytest.raises(ClosedError):
                async with asyncio.timeout(WITHIN):
                    await left

    run(main())
