"""Clients of a real cluster: one way to it, and what they notice of brokers that go."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Unpack

import pytest
from cli_runner import call_cli
from dead_letter_fixture import bury, came, once

import penstock
from penstock import aio
from penstock.client.options import ShareOptions
from penstock.client.remote.connection import CONNECT_WITHIN
from penstock.core import errors as er
from penstock.testing import Cluster, wait_until

WITHIN = 30.0
KEYS = 60
pytestmark = [pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    with Cluster(3, options={"cleaner_interval": 0.2}) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    """All its brokers, up and in sync."""
    yield made
    for broker in made.brokers:
        broker.resume()
    made.start()
    wait_until(lambda: not made.ailing(), timeout=WITHIN)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[penstock.Client]:
    with penstock.connect(cluster.url, timeout=WITHIN) as made:
        yield made


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class Reading(threading.Thread):
    """Reads on until it has seen as much as is waited for."""

    def __init__(self, consumer: Any) -> None:
        super().__init__()
        self._consumer = consumer
        self._stopping = False
        self.seen: Counter[bytes | None] = Counter()
        self.errors: list[Exception] = []
        self.start()

    def run(self) -> None:
        while not self._stopping:
            try:
                batch = self._consumer.poll(timeout=0.2)
            except er.PenstockError as error:
                self.errors.append(error)
                return
            self.seen.update(record.value for record in batch)

    def stop(self) -> None:
        self._stopping = True
        self.join(WITHIN)
        self._consumer.close()


@contextmanager
def reading(consumer: Any, count: int) -> Iterator[Reading]:
    """Reads beside the block, and then until it has so many."""
    reader = Reading(consumer)
    try:
        yield reader
        wait_until(
            lambda: reader.errors or len(reader.seen) >= count, timeout=WITHIN,
            what=lambda: f"{len(reader.seen)} of {count}",
        )  # fmt: skip
    finally:
        reader.stop()
    assert not reader.errors
    assert set(reader.seen.values()) == {1}


# --- who is attached ---
def test_clients_of_all_brokers_are_listed_and_kicked(
    cluster: Cluster, client: penstock.Client
) -> None:
    topic = cluster.create_topic(partitions=3)
    with client.admin() as admin, client.producer(client_id="everywhere", acks="all") as producer:

        def attached() -> dict[str, str]:
            found = admin.list_clients()
            return {one.id.split("-")[0]: one.id for one in found if one.client_id == "everywhere"}

        def is_everywhere() -> bool:
            """On a busy machine, a first replica leads only once it is in sync."""
            admin.elect_leaders(topic)
            for partition in range(3):
                producer.send_and_wait(topic, b"x", partition=partition, timeout=WITHIN)
            return set(attached()) == {"1", "2", "3"}

        wait_until(is_everywhere, timeout=WITHIN)
        assert {each.transport for each in admin.list_clients()} == {"tcp"}  # no gateway's own
        for broker in ("1", "2", "3"):
            kicked = attached()[broker]
            assert kicked in [one.id for one in admin.list_clients(int(broker))]
            admin.kick_client(kicked)
            for partition in range(3):
                producer.send_and_wait(topic, b"y", partition=partition, timeout=WITHIN)
            assert attached()[broker] != kicked


def test_settings_are_those_of_each_broker(cluster: Cluster, client: penstock.Client) -> None:
    with client.admin() as admin:
        [changed] = admin.alter_settings({"topics_max": 500}, broker=2)
        assert (changed.value, changed.source) == (500, "live")
        found = {
            broker: next(o.value for o in admin.list_settings(broker) if o.name == "topics_max")
            for broker in (1, 2, 3)
        }
        assert found == {1: 1000, 2: 500, 3: 1000}
        admin.alter_settings({"topics_max": None}, broker=2)


def test_offsets_of_a_group_are_exported_and_imported(
    cluster: Cluster, client: penstock.Client
) -> None:
    topic = cluster.create_topic(partitions=3)
    with client.admin() as admin, client.producer(acks="all") as producer:
        for partition in range(3):
            for _ in range(partition + 1):
                producer.send_and_wait(topic, b"x", partition=partition, timeout=WITHIN)
        seen = 0
        with client.consumer(topic, group=f"{topic}.g", start="earliest") as member:
            while seen < 6:
                seen += len(member.poll(timeout=WITHIN))
            member.commit()
        exported = admin.export_offsets(f"{topic}.g")
        admin.import_offsets(f"{topic}.again", exported)
        again = admin.describe_group(f"{topic}.again").partitions
        assert [(one.partition, one.committed, one.lag) for one in again] == [
            (0, 1, 0), (1, 2, 0), (2, 3, 0),
        ]  # fmt: skip


# --- maintenance ---
def leads(admin: penstock.Admin, broker: int) -> int:
    [found] = [each for each in admin.describe_cluster().brokers if each.broker == broker]
    return found.leads


def test_a_drained_broker_leads_nothing_until_it_is_back(
    cluster: Cluster, client: penstock.Client
) -> None:
    topic = cluster.create_topic(partitions=6)
    with client.admin() as admin, client.producer(acks="all") as producer:
        with reading(client.consumer(topic, start="earliest"), 120):
            said = [producer.send(topic, value) for value in numbers(60)]
            ran = call_cli("cluster", "drain", "2", url=cluster.url)
            assert (ran.code, ran.err) == (0, "broker 2 leads nothing: stop it, or --undo\n")
            said += [producer.send(topic, b"again " + value) for value in numbers(60)]
            assert {one.result(WITHIN).durability for one in said} == {"committed"}
        places = admin.describe_partitions(topic)
        assert {place.leader for place in places} == {1, 3}
        assert {tuple(sorted(place.isr)) for place in places} == {(1, 2, 3)}
        assert admin.elect_leaders() == 0
        described = call_cli("cluster", "describe", url=cluster.url).lines
        assert any(line.split()[:2] == ["2", "drained"] for line in described)
        health = call_cli("cluster", "health", url=cluster.url)
        assert (health.code, "broker 2 is drained for maintenance" in health.lines[-1]) == (0, True)
        cluster.broker(2).restart()
        wait_until(lambda: not admin.describe_drain(2).is_drained, timeout=WITHIN)

        def is_back() -> bool:
            """Of some partitions the broker may be in sync later than of others."""
            admin.elect_leaders()
            return leads(admin, 2) > 1

        wait_until(is_back, timeout=WITHIN)


def test_what_nobody_else_could_lead_stays_and_is_named(
    cluster: Cluster, client: penstock.Client
) -> None:
    topic = cluster.create_topic(partitions=3, replication_factor=1)
    with client.admin() as admin:
        [number] = [one.partition for one in admin.describe_partitions(topic) if one.leader == 3]
        ran = call_cli("cluster", "drain", "3", url=cluster.url)
        assert ran.code == 4
        assert ran.lines == [
            f"{topic}-{number} has no other replica: `penstock cluster reassign {topic} {number} "
            "--replication-factor 2`, or it is away with its broker"
        ]
        assert "broker 3 still leads 1 partition, of which nobody else could lead 1" in ran.err
        admin.reassign_topic(topic, replication_factor=2)
        wait_until(lambda: not admin.describe_drain(3).leads, timeout=WITHIN)
        admin.reassign_topic(topic, replication_factor=1)
        assert call_cli("cluster", "drain", "3", "--undo", url=cluster.url).code == 0
        assert not admin.describe_drain(3).is_drained
        for broker in ("0", "9", "x"):
            assert call_cli("cluster", "drain", broker, url=cluster.url).code == 2
        assert call_cli("cluster", "drain", "3", "--wait", "soon", url=cluster.url).code == 2


# --- one way to it ---
@pytest.mark.rule(25)
def test_shm_urls_of_a_broker_lead_to_its_tcp_address(cluster: Cluster) -> None:
    topic = cluster.create_topic(partitions=3)
    url = cluster.broker(2).node.url
    assert url.startswith("shm://")
    with penstock.connect(url) as client:
        assert client.transport == "tcp"
        with client.producer(acks="all") as producer:
            said = [producer.send(topic, value, partition=0) for value in numbers(3)]
            assert {one.result(WITHIN).durability for one in said} == {"committed"}


def test_an_event_loop_goes_by_the_same_carrier(cluster: Cluster) -> None:
    topic = cluster.create_topic(partitions=3)

    async def work() -> list[bytes | None]:
        async with await aio.connect(cluster.url) as client:
            async with client.producer(acks="all") as producer:
                for at, value in enumerate(numbers(9)):
                    await producer.send(topic, value, partition=at % 3)
            found: list[bytes | None] = []
            async with client.consumer(topic) as consumer:
                while len(found) < 9:
                    found += [record.value for record in await consumer.poll(timeout=WITHIN)]
            return found

    assert set(asyncio.run(work())) == set(numbers(9))


def test_a_broker_that_is_stopped_keeps_no_newcomer_waiting(cluster: Cluster) -> None:
    """Its kernel takes their connections, and nobody answers."""
    topic = cluster.create_topic(partitions=3)
    stopped = cluster.broker(1)
    assert cluster.url.startswith(f"{stopped.tcp_url},"), "the first that a client tries"
    stopped.pause()
    within = 0.9 * CONNECT_WITHIN
    with penstock.connect(cluster.url, timeout=within) as client:
        assert topic in client.admin(timeout=WITHIN).list_topics()

    async def come() -> str:
        async with await aio.connect(cluster.url, timeout=within) as client:
            return client.transport

    assert asyncio.run(come()) == "tcp"


def test_an_admin_reaches_every_partition(cluster: Cluster, client: penstock.Client) -> None:
    topic = cluster.create_topic(partitions=6)
    with client.producer(acks="all") as producer:
        for at, value in enumerate(numbers(12)):
            producer.send(topic, value, partition=at % 6)
    with client.admin() as admin:
        assert [each.log_start for each in admin.trim(topic, before=1)] == [1] * 6
        described = admin.describe_topic(topic).partitions
        assert [(each.log_start, each.high_watermark) for each in described] == [(1, 2)] * 6
        assert {each.status for each in described} == {"online"}
        with client.consumer(topic, group="far") as consumer:
            seen: list[bytes | None] = []
            while len(seen) < 6:
                seen += [record.value for record in consumer.poll(timeout=WITHIN)]
            consumer.commit()
            lags = admin.describe_group("far").partitions
        assert [each.lag for each in lags] == [0] * 6


def test_a_topic_that_is_deleted_is_told_to_who_still_sends(
    cluster: Cluster, client: penstock.Client
) -> None:
    topic = cluster.create_topic(partitions=3)
    producer = client.producer(acks="all", delivery_timeout=WITHIN)
    producer.send_and_wait(topic, b"0", partition=1)
    with client.admin() as admin:
        admin.delete_topic(topic)
    with pytest.raises((er.ProduceError, er.UnknownTopicError)):
        producer.send_and_wait(topic, b"1", partition=1)
    with pytest.raises(er.UnknownTopicError):
        producer.send_and_wait(topic, b"2", partition=1)
    producer.close()


@pytest.mark.setting("topic.min_insync_replicas")
def test_a_partition_with_too_few_replicas_in_the_isr_holds_up_no_other(
    cluster: Cluster, client: penstock.Client
) -> None:
    admin = client.admin()
    three = penstock.TopicConfig(partitions=6, replication_factor=3)
    admin.create_topic("strict", replace(three, min_insync_replicas=3))
    admin.create_topic("usual", replace(three, min_insync_replicas=2))
    with client.producer(linger=0, acks="all", delivery_timeout=4 * WITHIN) as producer:
        for topic in ("strict", "usual"):
            for partition in range(6):
                producer.send_and_wait(topic, b"before", partition=partition, timeout=WITHIN)
        cluster.kill([2])
        waiting = [producer.send("strict", b"%d" % at, partition=at % 6) for at in range(60)]
        others = [producer.send("usual", b"%d" % at, partition=at % 6) for at in range(60)]
        for one in others:
            assert one.result(WITHIN).durability == "committed"
        assert not any(one.done() for one in waiting)
        cluster.start()
        for one in waiting:
            assert one.result(2 * WITHIN).durability == "committed"
    found: list[list[bytes | None]] = [[] for _ in range(6)]
    for record in client.consumer("strict", follow=False):
        found[record.partition].append(record.value)
    assert found == [[b"before", *numbers(60)[at::6]] for at in range(6)]


# --- brokers that go ---
@pytest.mark.parametrize("how", ["kill", "pause", "stop"])
def test_what_is_under_way_to_a_broker_that_goes_is_there_once(
    cluster: Cluster, client: penstock.Client, how: str
) -> None:
    topic = cluster.create_topic(partitions=6)
    count = 1500
    with (
        reading(client.consumer(topic), count) as reader,
        client.producer(acks="all", delivery_timeout=WITHIN) as producer,
    ):
        sent = []
        for at, value in enumerate(numbers(count)):
            sent.append(producer.send(topic, value, partition=at % 6))
            if at == count // 3:
                getattr(cluster.broker(cluster.leader_of(topic, 1)), how)()
            time.sleep(0.001)
        assert {one.result(WITHIN).durability for one in sent} == {"committed"}
    assert len(reader.seen) == count


def send_while_each_broker_dies(
    cluster: Cluster, client: penstock.Client, topic: str, partitions: int, count: int
) -> None:
    """One broker after the other is killed in the midst of it, and is back before the next."""
    share = count // 3
    with client.producer(acks="all", delivery_timeout=WITHIN) as producer:
        for at, value in enumerate(numbers(count)):
            key = b"%d" % (at % KEYS)
            producer.send(topic, value, key=key, partition=at % partitions, dedup_id=value)
            if at % share == share // 2:
                number = 1 + at // share
                cluster.kill([number])
                producer.flush(WITHIN)
                cluster.start([number])
                wait_until(lambda: not cluster.ailing(), timeout=WITHIN)


def test_a_member_stays_one_when_a_broker_dies(cluster: Cluster, client: penstock.Client) -> None:
    """Whichever it is: its home, the coordinator's, or one that leads what it reads."""
    topic = cluster.create_topic(partitions=6)
    count = 900
    consumer = client.consumer(topic, group="staying")
    with reading(consumer, count):
        send_while_each_broker_dies(cluster, client, topic, 6, count)
    metrics = consumer.metrics()
    assert (metrics["rebalances"], metrics["lost"]) == (1, 0)


class Working(threading.Thread):
    """Works on a share group; `done` has what the coordinator has confirmed. `got`: everything
    that the workers of its group got, by key."""

    def __init__(
        self, client: penstock.Client, topic: str, got: dict[bytes | None, list[int]],
        **options: Unpack[ShareOptions],
    ) -> None:  # fmt: skip
        super().__init__()
        self._jobs = client.share_consumer(topic, **options)
        self._got = got
        self._stopping = False
        self.done: list[bytes | None] = []
        self.errors: list[Exception] = []
        self.start()

    def run(self) -> None:
        try:
            while not self._stopping:
                batch = self._jobs.poll(40, timeout=0.1)
                for job in batch:
                    self._got[job.key].append(job.offset)
                    job.ack()
                if batch:
                    self._jobs.flush(WITHIN)
                    self.done += [job.value for job in batch]
        except er.PenstockError as error:
            self.errors.append(error)
        self._jobs.close()

    def stop(self) -> None:
        self._stopping = True
        self.join(WITHIN)


def test_workers_do_each_job_once_when_any_broker_dies(
    cluster: Cluster, client: penstock.Client
) -> None:
    """Whichever it is: a worker's home, the coordinator's, or one that leads what it reads."""
    topic = cluster.create_topic(partitions=3)
    count = 900
    got: dict[bytes | None, list[int]] = defaultdict(list)
    in_order: dict[bytes | None, list[int]] = defaultdict(list)
    plain = [Working(client, topic, got, group="working") for _ in range(2)]
    ordered = [Working(client, topic, in_order, group="ordered", order="key") for _ in range(2)]
    workers = plain + ordered
    try:
        send_while_each_broker_dies(cluster, client, topic, 3, count)
        wait_until(
            lambda: (
                all(sum(len(one.done) for one in two) >= count for two in (plain, ordered))
                or any(one.errors for one in workers)
            ),
            timeout=WITHIN,
            what=lambda: f"{[len(one.done) for one in workers]} of {count}",
        )
        with client.producer() as producer, client.admin() as admin:
            for at, value in enumerate(numbers(count)):  # their ids are known still
                key = b"%d" % (at % KEYS)
                producer.send(topic, b"again", key=key, partition=at % 3, dedup_id=value)
            producer.flush(WITHIN)
            wait_until(
                lambda: all(
                    admin.describe_share_group(group).counts.get("duplicates", 0) >= count
                    for group in ("working", "ordered")
                ),
                timeout=WITHIN,
            )
    finally:
        for one in workers:
            one.stop()
    assert [one.errors for one in workers] == [[], [], [], []]
    for two in (plain, ordered):
        done = Counter(value for one in two for value in one.done)
        assert done == Counter(numbers(count)), "none is lost, none confirmed comes again"
    assert len(in_order) == KEYS
    assert all(offsets == sorted(offsets) for offsets in in_order.values())
    with client.admin() as admin:
        assert admin.describe_share_group("working").lag == 0
        assert admin.describe_share_group("ordered").lag == 0
        with client.producer() as producer:
            producer.send_and_wait(topic, b"next", partition=1)
        [job] = admin.peek_share_group("working", topic)
        assert (job.partition, job.state, job.record and job.record.value) == (1, "new", b"next")


def test_retention_waits_for_groups_wherever_the_coordinator_is(
    cluster: Cluster, client: penstock.Client
) -> None:
    """Each of the partitions has another leader, and one broker coordinates."""
    with client.admin() as admin, client.producer() as producer:
        topic = "held"
        admin.create_topic(
            topic, partitions=3, replication_factor=3, segment_bytes=4096, retention_bytes=4096,
            hold_for="groups",
        )  # fmt: skip

        def starts() -> list[int]:
            return [one.log_start for one in admin.describe_topic(topic).partitions]

        with client.share_consumer(topic, group=topic) as jobs:
            for number in range(3):
                producer.send_batch(topic, [b"x" * 1000] * 4, partition=number)
            producer.flush(WITHIN)
            held: list[penstock.Job] = []
            while len(held) < 12:
                held += jobs.poll(12 - len(held), timeout=1.0)
            for number in range(3):
                for _ in range(10):
                    producer.send_batch(topic, [b"x" * 1000] * 4, partition=number)
            producer.flush(WITHIN)
            told = re.compile(rf"{topic}-(\d): \d+ bytes are held")
            wait_until(
                lambda: len(set(told.findall(cluster.log_tail(5000)))) == 3,
                timeout=WITHIN,
            )
            assert starts() == [0, 0, 0]
            jobs.ack_many(held)
            jobs.flush(WITHIN)
            wait_until(lambda: min(starts()) > 0, timeout=WITHIN, what=lambda: str(starts()))
            assert max(starts()) <= 4


def test_retries_and_dead_letters_are_kept_when_a_broker_dies(
    cluster: Cluster, client: penstock.Client
) -> None:
    topic = cluster.create_topic(partitions=3)
    done: set[int] = set()
    killed = threading.Event()

    def handle(record: penstock.Record) -> None:
        number = int(record.value or b"")
        if number == 150 and not killed.is_set():
            killed.set()
            cluster.kill([2])
        tries = int(dict(record.headers).get("penstock.retry.deliveries") or b"1")
        if number % 100 == 7 or (number % 10 == 3 and tries == 1):
            raise RuntimeError("no such customer")
        done.add(number)

    with client.producer(acks="all") as producer:
        producer.send_batch(topic, numbers(300))
    consumer = client.consumer(topic, group=topic)
    dead = {7, 107, 207}

    def stop() -> None:
        try:
            wait_until(lambda: len(done) == 297 and consumer.metrics()["dead_letters"] >= 3, 60.0)
        finally:
            consumer.stop()

    waiter = threading.Thread(target=stop)
    waiter.start()
    consumer.run(handle, retry=penstock.Retry(max=2, backoff=(0.0, 0.05)))
    waiter.join()
    consumer.close()
    assert done == {*range(300)} - dead
    cluster.start([2])
    with client.consumer(f"{topic}.dlq", follow=False) as letters:
        assert {int(letter.value or b"") for letter in letters} == dead


def test_a_transaction_goes_on_over_the_death_of_its_coordinator(
    cluster: Cluster, client: penstock.Client
) -> None:
    source, target = cluster.create_topic(partitions=3), cluster.create_topic(partitions=3)
    count = 600
    with client.producer(acks="all") as producer:
        for at, value in enumerate(numbers(count)):
            producer.send(source, value, partition=at % 3)
    copied = 0
    with (
        client.consumer(source, group="copying", guarantee="exactly-once") as consumer,
        client.producer(transactional_id="copying", delivery_timeout=WITHIN) as producer,
    ):
        while copied < count:
            batch = consumer.poll(max_records=50, timeout=WITHIN)
            values = [record.value for record in batch]
            try:
                with producer.transaction(consumed=batch):
                    for each in values:
                        producer.send(target, each)
            except er.TransactionError:
                continue  # aborted, and its input comes again
            if copied < count // 2 <= copied + len(values):
                cluster.broker(cluster.leader_of("__coordinator")).kill()
            copied += len(values)
    with reading(client.consumer(target, isolation="read_committed"), count) as reader:
        pass
    assert len(reader.seen) == count


def test_dead_letters_are_sent_again_once_when_the_coordinator_dies(
    cluster: Cluster, client: penstock.Client
) -> None:
    topic = cluster.create_topic(partitions=3)
    bury(client, topic, numbers(400))
    queue = client.dead_letters(topic, timeout=WITHIN)

    def kill(result: penstock.ReplayResult) -> None:
        if result.sent == 100:
            cluster.broker(cluster.leader_of("__coordinator")).kill()

    with suppress(er.PenstockError):  # whatever it met meanwhile: run again it goes on
        queue.replay(rate=400.0, on_progress=kill)
    queue.replay()
    assert came(client, topic) == once(400)
    assert queue.stats().replayed == 400
