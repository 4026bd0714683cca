"""Serializers of producers and consumers: typed records, and what becomes of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from event_loops import run

from penstock import (
    App,
    DeadLetter,
    DecodeError,
    EncodeError,
    Job,
    Record,
    Retry,
    UnknownTopicError,
    aio,
)
from penstock.serializers import Custom, Json, Text, optional
from penstock.testing import Broker, drain, produce, wait_until

pytestmark = pytest.mark.over_tcp


@dataclass
class Order:
    who: str
    cents: int


ANN, BOB = Order("ann", 42), Order("bob", 7)
BAD = b"no json"
wrong: Any = {object()}


def letter(node: Broker, topic: str, work: Callable[[], object] = bool) -> tuple[bytes | None, str]:
    """The first dead letter of a topic, once it is there: value and reason. `work` goes on until
    then."""
    found: list[DeadLetter] = []

    def is_there() -> bool:
        work()
        with suppress(UnknownTopicError):
            found.extend(client.dead_letters(topic))
        return bool(found)

    with node.connect() as client:
        wait_until(is_there)
    return found[0].value, found[0].reason


@pytest.mark.setting("producer.value")
@pytest.mark.setting("producer.key")
def test_a_producer_encodes_what_it_sends(node):
    topic = node.create_topic(partitions=1)
    with node.connect() as client, client.producer(value=Json(Order), key=Text()) as producer:
        producer.send(topic, ANN, key="ann", headers={"a": b"b"})
        producer.send_batch(topic, [BOB, None], keys=["bob", "bob"])
        producer.send_and_wait(topic, ANN)
        with pytest.raises(EncodeError, match=f"the value for topic '{topic}'.*Json.Order.*object"):
            producer.send(topic, wrong)
    found = [(record.key, record.value) for record in drain(node, topic)]
    bob = b'{"who":"bob","cents":7}'
    ann = b'{"who":"ann","cents":42}'
    assert found == [(b"ann", ann), (b"bob", bob), (b"bob", None), (None, ann)]


def test_a_consumer_decodes_a_value_once_it_is_asked_for(node):
    topic, calls = node.create_topic(partitions=1), []

    def decode(data: bytes) -> Any:
        calls.append(data)
        return json.loads(data)

    produce(node, topic, [b"[1]", BAD, b"[3]"])
    with node.connect() as client:
        consumer = client.consumer(topic, value=Custom(msgspec.json.encode, decode), follow=False)
        batch = consumer.poll(timeout=5.0)
        first, bad, last = batch
        assert not calls
        assert (first.value, first.value, calls) == ([1], [1], [b"[1]"])
        assert (first.raw_value, bad.raw_value, last.value) == (b"[1]", BAD, [3])
        with pytest.raises(DecodeError, match=rf"value of {topic}-0 offset 1 cannot.*b'no json'"):
            print(bad.value)
        with pytest.raises(DecodeError, match="offset 1"):
            batch.decode()
        assert batch[2:].decode() == [[3]]
        assert batch[0] == first
        assert len({*batch, first}) == 3
        assert isinstance(first, Record)
        consumer.seek(topic, 0, 0)
        assert [record.offset for record in consumer] == [0, 1, 2]


def test_tombstones_and_records_without_a_key_need_optional(node):
    topic = node.create_topic(partitions=1)
    produce(node, topic, [None])
    with node.connect() as client:
        [record] = client.consumer(topic, value=Text(), key=Text(), follow=False)
        with pytest.raises(DecodeError, match=r"no value \(a tombstone\).*value=optional\(Text"):
            print(record.value)
        with pytest.raises(DecodeError, match=r"no key.*key=optional\(Text\(\)\)"):
            print(record.key)
        loose = client.consumer(
            topic, value=optional(Text()), key=optional(Text()), follow=False
        ).poll(timeout=5.0)
        assert loose[0].value is loose[0].key is None
        assert loose.decode() == [None]


def test_a_bad_record_in_a_loop_can_be_passed_over(node):
    """Its error leaves the loop where nobody catches it, and it is not committed then."""
    topic = node.create_topic(partitions=1)
    produce(node, topic, [b'{"who":"ann","cents":42}', BAD, b'{"who":"bob","cents":7}'])
    options: Any = {"group": topic, "value": Json(Order), "follow": False}
    found = []
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        records = (record.value for record in consumer)
        found.append(next(records))
        with pytest.raises(DecodeError):
            next(records)
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        for record in consumer:
            try:
                found.append(record.value)
            except DecodeError:
                found.append(record.offset)
    assert found == [ANN, 1, BOB]
    with node.connect() as client, client.admin() as admin:
        assert admin.describe_group(topic).partitions[0].committed == 3


def test_a_share_group_makes_a_dead_letter_of_it(node):
    topic = node.create_topic(partitions=1)
    produce(node, topic, [BAD, b'{"who":"ann","cents":42}'])
    options: Any = {"group": topic, "value": Json(Order)}
    with node.connect() as client, client.share_consumer(topic, **options) as jobs:
        bad, good = jobs.poll(timeout=5.0)
        with pytest.raises(DecodeError), bad:
            print(bad.value)
        with good:
            assert good.value == ANN
        value, reason = letter(node, topic, jobs.poll)
    assert value == BAD
    assert reason.startswith(f"DecodeError: the value of {topic}-0 offset 0 cannot be decoded")


def test_a_run_with_retries_makes_a_dead_letter_of_it(node):
    """Other failures are tried again, with the same value."""
    topic, found = node.create_topic(partitions=1), []
    with node.connect() as client, client.producer(value=Json(Order), key=Text()) as producer:
        producer.send(topic, ANN, key="ann")
    produce(node, topic, [BAD])

    def handle(order: Order, record: Record[Order, str]) -> None:
        found.append((order, record.topic, record.key))
        if len(found) == 1:
            raise ValueError("again")
        consumer.stop()

    options: Any = {"group": topic, "value": Json(Order), "key": Text()}
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        consumer.run(handle, retry=Retry(max=2, backoff=(0.0,)))
    assert found == [(ANN, topic, "ann")] * 2
    value, reason = letter(node, topic)
    assert (value, reason.partition(":")[0]) == (BAD, "DecodeError")


def test_handlers_of_an_app_get_decoded_values(node):
    topic, found = node.create_topic(partitions=1), []
    app = App(node.url)

    @app.consumer(topic, group="records", value=Json(Order), on_error="skip")
    def handle(order: Order) -> None:
        found.append(order)

    @app.share_consumer(topic, group="jobs", value=Json(Order))
    def work(job: Job[Order]) -> None:
        found.append(job.value)

    produce(node, topic, [BAD, b'{"who":"ann","cents":42}'])
    with app:
        wait_until(lambda: len(found) == 2)
        value, _ = letter(node, topic)
    assert (found, value) == ([ANN, ANN], BAD)
    assert (app.metrics()["skipped"], app.metrics()["dead_letters"]) == (1, 1)


def test_asyncio_has_them_too(node):
    topic = node.create_topic(partitions=1)

    async def main():
        async with aio.connect(node.url) as client:
            async with client.producer(value=Json(Order), key=Text()) as producer:
                await producer.send_and_wait(topic, ANN, key="ann")
                await producer.send_batch(topic, [BOB], keys=["bob"])
                await producer.send(topic, BOB, key="bob")
                with pytest.raises(EncodeError):
                    producer.send(topic, wrong)
            async with client.consumer(topic, value=Json(Order), follow=False) as consumer:
                assert [record.value async for record in consumer] == [ANN, BOB, BOB]
            async with client.share_consumer(topic, group=topic, value=Json(Order)) as jobs:
                assert [job.value for job in await jobs.poll(timeout=5.0)] == [ANN, BOB, BOB]
            async with (
                client.producer(transactional_id=topic, value=Json(Order)) as transacting,
                transacting.transaction(),
            ):
                transacting.send(topic, ANN)
            async with client.consumer(topic, group=f"{topic}-keys", key=Text()) as group:
                assert (await group.poll(3, timeout=5.0))[0].key == "ann"

    run(main())
    assert [record.key for record in drain(node, topic)] == [b"ann", b"bob", b"bob", None]


@pytest.mark.parametrize("given", [Json, Order, "json"])
def test_what_is_no_serializer_is_refused(node, given):
    topic = node.create_topic()
    with node.connect() as client:
        for make in (client.producer, client.consumer):
            with pytest.raises(TypeError, match=r"must be a serializer, such as .*Json\(Order\)"):
                make(value=given)
        with pytest.raises(TypeError, match="must be a serializer"):
            client.share_consumer(topic, group=topic, key=given)
