"""Consumers that want less: bounded polls in fair turns, only the newest records, pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from cli_runner import call_cli

from penstock import TopicConfig
from penstock.client.client import Client
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.records import RecordBatch
from penstock.core.errors import ConfigError
from penstock.ipc.clients import ClientSlot
from penstock.testing import Broker

pytestmark = pytest.mark.over_tcp

WITHIN = 45.0


@pytest.fixture(scope="module")
def node(transport: str) -> Iterator[Broker]:
    with Broker(writers=1) as node:
        yield node


@pytest.fixture
def client(node: Broker) -> Iterator[Client]:
    with node.connect() as client:
        yield client


def filled(client: Client, topic: str, partitions: int, batches: int, **options: Any) -> None:
    """`batches` batches of 100 records of 100 bytes in each partition; keys repeat after ten."""
    client.admin().create_topic(topic, TopicConfig(partitions=partitions))
    with client.producer(**options) as producer:
        for number in range(batches):
            for partition in range(partitions):
                producer.send_batch(
                    topic, [b"%06d" % (number * 100 + row) + bytes(94) for row in range(100)],
                    keys=[b"%d" % (row % 10) for row in range(100)], partition=partition,
                )  # fmt: skip
        producer.flush(WITHIN)


def polls(
    consumer: Consumer, end: int, max_records: int | None = None, *, paused: int | None = None
) -> Iterator[RecordBatch]:
    """All that is there: each partition but that one to its end, and then nothing."""
    names = [(topic, part) for topic, part in consumer.assignment() if part != paused]
    while any(consumer.position(*name) < end for name in names):
        batch = consumer.poll(max_records, timeout=WITHIN)
        assert batch, [consumer.position(*name) for name in names]
        yield batch
    assert not consumer.poll(max_records)


@pytest.mark.local("on another host turns are fair among what has come")
@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.setting("consumer.prefetch_bytes")
def test_a_poll_is_bounded_over_all_partitions_and_turns_are_fair(
    client: Client, compression: str
) -> None:
    topic = f"turns-{compression}"
    filled(client, topic, 8, 20, compression=compression)
    consumer = client.consumer(topic, prefetch_bytes=30_000)
    seen: Counter[int] = Counter()
    for batch in polls(consumer, 2000):
        assert len(batch) <= 400, "three batches of 11 kB, and one that was begun"
        seen.update(batch.partitions.tolist())
        assert max(seen.values()) - min(seen[number] for number in range(8)) <= 800
    assert set(seen.values()) == {2000}
    consumer.close()


def test_what_max_records_leaves_counts_against_the_bound(client: Client) -> None:
    filled(client, "held", 8, 20)
    with client.consumer("held", prefetch_bytes=30_000) as consumer:
        seen: dict[int, list[int]] = {}
        for batch in polls(consumer, 2000, 7):
            assert len(batch) <= 7
            for record in batch:
                seen.setdefault(record.partition, []).append(record.offset)
            held = sum(partition.held for partition in consumer._assigned.values())
            assert held <= 60_000
        assert seen == {number: list(range(2000)) for number in range(8)}


@pytest.mark.parametrize("bound", [4096, 16 << 20])
@pytest.mark.setting("consumer.latest_only")
def test_only_the_newest_of_each_key(client: Client, bound: int) -> None:
    topic = f"keys-{bound}"
    filled(client, topic, 2, 30)
    with client.consumer(topic, latest_only="key", prefetch_bytes=bound) as consumer:
        records = [record for batch in polls(consumer, 3000) for record in batch]
        newest = {(record.partition, record.key): record.offset for record in records}
        assert newest == {
            (partition, b"%d" % key): 2990 + key for partition in range(2) for key in range(10)
        }
        assert consumer.metrics()["skipped"] == 6000 - len(records)
        assert {consumer.position(topic, number) for number in range(2)} == {3000}
        assert sum(consumer.lag().values()) == 0
        if bound > 4096:
            assert len(records) == 20
        with client.producer() as producer:
            producer.send_and_wait(topic, b"new", key=b"3", partition=1, timeout=WITHIN)
        [record] = consumer.poll(timeout=WITHIN)
        assert (record.partition, record.offset, record.value) == (1, 3000, b"new")


def test_the_newest_of_each_key_a_few_at_a_time_and_by_iteration(client: Client) -> None:
    filled(client, "few", 1, 30)
    with client.consumer("few", latest_only="key") as consumer:
        offsets = []
        for batch in polls(consumer, 3000, 3):
            assert len(batch) <= 3
            offsets += batch.offsets.tolist()
            assert consumer.position("few", 0) == offsets[-1] + 1
        assert offsets == list(range(2990, 3000))
    with client.consumer("few", latest_only="key", follow=False) as consumer:
        for record in consumer:
            if record.offset == 2994:
                break
        assert consumer.position("few", 0) == 2995
        assert [record.offset for record in consumer] == list(range(2995, 3000))


def test_only_the_newest_of_each_partition_without_decoding_the_rest(
    node: Broker, client: Client, transport: str
) -> None:
    filled(client, "parts", 3, 100)
    with client.consumer("parts", latest_only="partition") as consumer:
        found = list(consumer.poll(timeout=WITHIN))
        while transport == "tcp" and len(found) < 3:  # whichever came first
            found += consumer.poll(timeout=WITHIN)
        assert sorted((record.partition, record.offset) for record in found) == [
            (0, 9999), (1, 9999), (2, 9999),
        ]  # fmt: skip
        assert consumer.metrics()["skipped"] == 3 * 9999
        assert not consumer.poll()
        if transport == "shm":
            shown = call_cli("top", "--once", "-i", "0.1", "--format", "wide", url=node.url)
            [row] = [line for line in shown.out.decode().splitlines() if " parts/3 " in line]
            assert f" {3 * 9999} " in row
        with client.producer() as producer:
            for number in range(5):
                producer.send_and_wait("parts", b"%d" % number, partition=2, timeout=WITHIN)
        assert [record.value for record in consumer.poll(timeout=WITHIN)] == [b"4"]
        assert sum(consumer.lag().values()) == 0


def watched(consumer: Consumer, topic: str) -> list[int]:
    """The partitions whose new records would wake it, as the writers see it."""
    session = consumer._session
    assert session.slot is not None
    slot = ClientSlot(session.clients, session.slot.index)
    pages = session.find_topic(topic, WITHIN).pages
    return [number for number, page in enumerate(pages) if slot.watches(page)]


def test_a_paused_partition_is_not_watched_not_read_and_goes_on_where_it_was(
    client: Client,
) -> None:
    filled(client, "pauses", 3, 2)
    with client.consumer("pauses") as consumer:
        assert watched(consumer, "pauses") == [0, 1, 2]
        while consumer.position("pauses", 1) == 0:
            consumer.poll(50)
        at = consumer.position("pauses", 1)
        consumer.pause(("pauses", 1))
        consumer.pause(("pauses", 1))
        assert consumer.metrics()["paused"] == 1
        assert watched(consumer, "pauses") == [0, 2]
        brought = [record for batch in polls(consumer, 200, paused=1) for record in batch]
        assert {record.partition for record in brought} <= {0, 2}
        assert consumer.lag() == {("pauses", 0): 0, ("pauses", 1): 200 - at, ("pauses", 2): 0}
        assert consumer.position("pauses", 1) == at

        consumer.pause()
        assert consumer.metrics()["paused"] == 3
        assert watched(consumer, "pauses") == []
        assert not consumer.poll(timeout=0.05)

        consumer.resume(("pauses", 1))
        assert watched(consumer, "pauses") == [1]
        rest = [record.offset for batch in polls(consumer, 200) for record in batch]
        assert rest == list(range(at, 200))
        consumer.resume()
        assert watched(consumer, "pauses") == [0, 1, 2]


def test_a_pause_within_iteration_brings_nothing_twice_and_loses_nothing(client: Client) -> None:
    filled(client, "within", 2, 30)
    seen: Counter[tuple[int, int]] = Counter()
    with client.consumer("within", follow=False, prefetch_bytes=30_000) as consumer:
        for number, record in enumerate(consumer):
            seen[record.partition, record.offset] += 1
            if number % 500 == 250:
                consumer.pause(("within", record.partition))
            elif number % 500 == 400:
                consumer.resume()
        consumer.resume()
        for record in consumer:
            seen[record.partition, record.offset] += 1
    assert seen == Counter((partition, offset) for partition in range(2) for offset in range(3000))


@pytest.mark.parametrize(
    "options",
    [{"prefetch_bytes": 1}, {"latest_only": "topic"}, {"on_out_of_range": "x"}, {"spin": 1.0}],
)
def test_options_of_a_consumer_are_checked_at_once(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        client.consumer(**options)
