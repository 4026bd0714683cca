"""An error of a partition or a batch stands until it is sought past, and costs no other record."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock import (
    Consumer,
    CorruptBatchError,
    OffsetOutOfRangeError,
    PenstockError,
    TopicConfig,
    UnknownTopicError,
)
from penstock.core.header import MAGIC

pytestmark = [pytest.mark.penstock(writers=1), pytest.mark.over_tcp]

WITHIN = 45.0


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def read_past(
    consumer: Consumer, count: int, max_records: int | None = None
) -> tuple[list[bytes | None], list[PenstockError]]:
    """The values that polls bring until there are `count`, and what they raise besides."""
    found: list[bytes | None] = []
    errors: list[PenstockError] = []
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        try:
            found += [record.value for record in consumer.poll(max_records, timeout=5)]
        except PenstockError as error:
            errors.append(error)
        if len(found) >= count and errors:
            break
    return found, errors


@pytest.mark.parametrize("max_records", [None, 3], ids=["all at once", "three at a time"])
@pytest.mark.parametrize("order", ["good-ill-fine", "ill-good-fine", "good-fine-ill"])
def test_what_others_gave_before_a_deleted_topic_raised_is_handed_out(node, order, max_records):
    sent = {
        topic: [b"%s %d" % (topic.encode(), n) for n in range(10)] for topic in ("good", "fine")
    }
    with node.connect() as client, client.producer() as producer:
        admin = client.admin()
        for topic in order.split("-"):
            admin.create_topic(topic)
        with client.consumer(*order.split("-")) as consumer:
            for topic, values in sent.items():
                producer.send_batch(topic, values, partition=0).result(45)
            admin.delete_topic("ill")
            found, errors = read_past(consumer, 20, max_records)
            assert errors
            assert all(isinstance(error, UnknownTopicError) for error in errors)
            for topic, values in sent.items():
                assert [value for value in found if value in values] == values
                assert consumer.position(topic, 0) == 10
            assert consumer.metrics()["records"] == len(found) == 20
            with pytest.raises(UnknownTopicError, match="'ill' was deleted"):
                consumer.poll()  # it stands, whoever was asked first
        for topic in sent:
            admin.delete_topic(topic)


def test_what_others_gave_before_an_overtaken_position_raised_is_handed_out(node):
    with node.connect() as client, client.producer() as producer:
        admin = client.admin()
        admin.create_topic("t", TopicConfig(partitions=2))
        with client.consumer("t") as consumer:
            for number in range(2):
                values = [b"%d %d" % (number, n) for n in range(10)]
                producer.send_batch("t", values, partition=number).result(45)
            admin.trim("t", 0, before=5)
            found, errors = read_past(consumer, 10)
            assert found == [b"1 %d" % n for n in range(10)]
            assert errors
            assert all(isinstance(error, OffsetOutOfRangeError) for error in errors)
            consumer.seek("t", 0, "earliest")
            rest = [record.value for record in consumer.poll(timeout=45)]
            assert rest == [b"0 %d" % n for n in range(5, 10)]
        admin.delete_topic("t")


@pytest.mark.local("on another host an error may overtake what is still on its way")
def test_iteration_hands_out_what_others_gave_before_it_raises(node):
    with node.connect() as client, client.producer() as producer:
        admin = client.admin()
        admin.create_topic("good")
        admin.create_topic("ill")
        values = [b"%d" % n for n in range(10)]
        producer.send_batch("good", values).result(45)
        with client.consumer("ill", "good") as consumer:  # the second one is asked first
            admin.delete_topic("ill")
            found = []
            with pytest.raises(UnknownTopicError):  # noqa: PT012
                for record in consumer:
                    found.append(record.value)
            assert found == values
        admin.delete_topic("good")


@pytest.mark.parametrize("damage", ["body", "header"])
@pytest.mark.parametrize("ill", [0, 5, 9])
def test_records_around_a_damaged_batch_are_not_passed_over(node, damage, ill):
    """What stands before it is brought, and the error stands until somebody seeks past it."""
    with node.connect() as client, client.producer() as producer:
        admin, topic = client.admin(), f"damaged-{damage}-{ill}"
        admin.create_topic(topic)
        values = [b"record %d" % n for n in range(10)]
        for value in values:
            producer.send_and_wait(topic, value, timeout=45)
        (log,) = (node.data / f"{admin.describe_topic(topic).topic_id}-0").glob("*.log")
        data = log.read_bytes()
        at = data.index(values[ill])
        flip(log, at if damage == "body" else data.rindex(MAGIC, 0, at) + 20)
        with client.consumer(topic) as consumer:
            found: list[bytes | None] = []
            while len(found) < ill:
                found += [record.value for record in consumer.poll(timeout=10)]
            assert found == values[:ill]
            for _ in range(3):
                with pytest.raises(CorruptBatchError, match=rf"{topic}-0: .*seek\(\)"):
                    consumer.poll(timeout=10)
                assert consumer.position(topic, 0) == ill
            if damage == "body":
                consumer.seek(topic, 0, ill + 1)
                while len(found) < 9:
                    found += [record.value for record in consumer.poll(timeout=10)]
                assert found == values[:ill] + values[ill + 1 :]
