"""Dedup ids: of the records of one id and key a share group gets one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from event_loops import run

import penstock
from penstock import aio
from penstock.core import errors as er
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 25.0
MINUTE = 60_000_000


@pytest.fixture
def client(node: Broker):
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node: Broker) -> str:
    return node.create_topic()


def worked(client: penstock.Client, topic: str, count: int, **options: Any) -> list[bytes]:
    """The values of so many jobs, all done, and nothing left."""
    values: list[bytes] = []
    with client.share_consumer(topic, **{"group": topic, **options}) as jobs:

        def came() -> bool:
            for job in jobs.poll(timeout=0.1):
                values.append(job.value or b"")
                job.ack()
            return len(values) >= count and lag(client, topic) == 0

        wait_until(came, WITHIN, lambda: f"{values}, {jobs.metrics()}")
    return sorted(values)


def lag(client: penstock.Client, group: str) -> int:
    with client.admin() as admin:
        found = admin.describe_share_group(group)
        return found.lag


def duplicates(client: penstock.Client, group: str) -> int:
    with client.admin() as admin:
        return admin.describe_share_group(group).counts.get("duplicates", 0)


def test_of_one_id_and_key_the_first_comes_also_without_a_key_in_any_partition(
    node: Broker, client: penstock.Client
) -> None:
    topic = node.create_topic(partitions=5)
    with client.producer(linger=0.0) as one, client.producer() as many:
        for sending in (one, many):
            for number in range(40):
                sending.send(topic, b"%d" % number, dedup_id=f"id-{number}")
                sending.send(topic, b"k%d" % number, key=b"k%d" % (number % 3), dedup_id="same")
            sending.send(topic, b"plain")
            sending.flush()
        many.send_batch(topic, [b"0", b"x"], dedup_ids=["id-0", "id-x"])
    expected = [b"%d" % number for number in range(40)]
    values = worked(client, topic, 46)
    assert values == sorted([*expected, b"k0", b"k1", b"k2", b"plain", b"plain", b"x"])
    assert duplicates(client, topic) == 40 + 2 * 40 - 3 + 1


def test_the_window_goes_by_timestamps_and_may_be_another_or_none(
    client: penstock.Client, topic: str
) -> None:
    now = time.time_ns() // 1000
    with client.producer() as producer:
        for minutes in (30, 21, 19, 9, 0):
            producer.send(topic, b"%d" % minutes, dedup_id="a", timestamp=now - minutes * MINUTE)
        producer.flush()
    assert worked(client, topic, 3) == [b"0", b"19", b"30"]
    one_day = worked(client, topic, 1, group=f"{topic}-day", dedup_window=86_400.0)
    assert one_day == [b"30"]
    assert len(worked(client, topic, 5, group=f"{topic}-none", dedup_window=None)) == 5
    with client.admin() as admin:
        assert admin.describe_share_group(topic).dedup_window == 600.0
        assert admin.describe_share_group(f"{topic}-none").dedup_window is None
    for window in (0.5, 8 * 86_400.0):
        with pytest.raises(er.ConfigError, match="dedup_window"):
            client.share_consumer(topic, group="g", dedup_window=window)


def test_a_failed_job_comes_again_and_its_dead_letter_is_replayed_though_others_are_withheld(
    client: penstock.Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_and_wait(topic, b"first", dedup_id="a")
    with client.share_consumer(topic, group=topic, max_deliveries=2, backoff=(0.0, 0.0)) as jobs:
        for delivery in (1, 2):
            [job] = jobs.poll(timeout=WITHIN)
            assert (job.value, job.deliveries) == (b"first", delivery)
            job.nack(reason="no")

        def buried() -> bool:
            assert jobs.poll(timeout=0.05) == []
            return jobs.metrics()["buried"] == 1

        wait_until(buried, WITHIN, lambda: str(jobs.metrics()))
        with client.producer() as producer:
            producer.send_and_wait(topic, b"second", dedup_id="a")
        wait_until(lambda: jobs.poll(timeout=0.05) or jobs.metrics()["duplicates"], WITHIN)
        assert jobs.metrics()["duplicates"] == 1
        assert client.dead_letters(topic).replay().sent == 1
        [job] = jobs.poll(timeout=WITHIN)
        assert (job.value, job.record.dedup_id) == (b"first", None)
        job.ack()


def test_what_waits_for_its_time_counts_and_what_expired_or_was_aborted_never_does(
    client: penstock.Client, topic: str
) -> None:
    now = time.time_ns() // 1000
    with client.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted", dedup_id="a")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"a", dedup_id="a")
            producer.send(topic, b"gone", dedup_id="b", ttl=0.001)
    wait_until(lambda: time.time_ns() // 1000 > now + 2_000)
    with client.producer() as producer:
        producer.send(topic, b"b", dedup_id="b")
        producer.send(topic, b"late", dedup_id="c", delay=0.3)
        producer.send(topic, b"never", dedup_id="c")
        producer.flush()
    assert worked(client, topic, 3) == [b"a", b"b", b"late"]
    assert duplicates(client, topic) == 1


def test_of_a_seek_back_each_comes_again_once(client: penstock.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send_batch(topic, [b"1", b"2", b"3"], dedup_ids=["a", "b", "a"])
    assert worked(client, topic, 2) == [b"1", b"2"]
    with client.admin() as admin:
        admin.reset_offsets(topic, topic, to="earliest")
    assert worked(client, topic, 2) == [b"1", b"2"]


def test_ids_outlive_the_node_and_workers_that_are_killed(transport: str) -> None:
    """Records in flight: some leased and claimed, some acknowledged, and duplicates of them."""
    count = 300
    with Broker(writers=1) as broker, broker.connect() as client:
        topic = broker.create_topic(partitions=2)
        ids = [f"id-{number % count}" for number in range(2 * count)]
        values = [b"%d" % number for number in range(2 * count)]
        with client.producer() as producer:
            producer.send_batch(topic, values, dedup_ids=ids)
        done: list[int] = []
        with client.share_consumer(topic, group="g") as jobs:
            while len(done) < 40:
                for job in jobs.poll(20, timeout=0.2):
                    done.append(int(job.value or b"") % count)
                    job.ack()
            jobs.flush()
            broker.kill()
            broker.start()

            def came() -> bool:
                for job in jobs.poll(50, timeout=0.1):
                    done.append(int(job.value or b"") % count)
                    job.ack()
                return len(done) >= count

            wait_until(came, WITHIN, lambda: f"{len(done)}, {jobs.metrics()}")
            with client.producer() as producer:
                producer.send_batch(topic, values[:count], dedup_ids=ids[:count])
            wait_until(lambda: jobs.poll(timeout=0.05) or lag(client, "g") == 0, WITHIN)
            assert jobs.metrics()["stale"] == 0
        assert sorted(done) == list(range(count))


def test_in_an_event_loop_and_with_two_workers(node: Broker, topic: str) -> None:
    async def main() -> None:
        async with aio.connect(node.url) as client, client.producer() as producer:
            await producer.send_batch(
                topic, [b"%d" % number for number in range(1000)],
                dedup_ids=[f"{number % 300}" for number in range(1000)],
            )  # fmt: skip
            done: list[int] = []
            async with (
                client.share_consumer(topic, group=topic) as one,
                client.share_consumer(topic, group=topic) as two,
            ):
                counted = 0
                while len(done) < 300 or counted < 700:
                    for jobs in (one, two):
                        for job in await jobs.poll(37, timeout=0.05):
                            done.append(int(job.value or b"") % 300)
                            job.ack()
                    counted = sum(jobs.metrics()["duplicates"] for jobs in (one, two))
            assert sorted(done) == list(range(300))

    run(main())
