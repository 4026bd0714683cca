"""A client of a cluster where some partitions have no leader: others do not wait for those, and
what was sent back to its producer comes in order, once, as soon as there is a leader."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cluster import FIRST_PAGE, TOPIC, ClusterDouble
from fake_gateway import WITHIN
from seeds import seed_of, tell

import penstock
from penstock.client.client import Client
from penstock.client.producer import sender
from penstock.client.producer.accumulator import GATHER_MAX
from penstock.client.producer.pace import EAGER_MAX
from penstock.client.remote import failover, produce
from penstock.core import errors as er
from penstock.ipc import lookups as lk
from penstock.testing.waiting import wait_until

DARK = FIRST_PAGE + 1
"""The page of partition 1."""


@pytest.fixture
def cluster() -> Iterator[ClusterDouble]:
    with ClusterDouble() as made:
        yield made


@pytest.fixture
def client(cluster: ClusterDouble) -> Iterator[Client]:
    with penstock.connect(cluster.url, timeout=WITHIN) as made:
        yield made
        for broker in cluster.brokers.values():
            broker.holds_back = False
            broker.let_go()


@contextlib.contextmanager
def producing(client: Client, **options: Any) -> Iterator[Any]:
    made = client.producer(**{"linger": 0, "delivery_timeout": WITHIN, **options})
    try:
        yield made
    finally:
        with contextlib.suppress(er.PenstockError):
            made.close(timeout=0.1)


def by_partition(client: Client, count: int) -> list[list[int]]:
    """So many values, as they are read."""
    found: list[list[int]] = [[], [], []]
    deadline = time.monotonic() + WITHIN
    with client.consumer(TOPIC) as consumer:
        while sum(map(len, found)) < count:
            assert time.monotonic() < deadline, found
            for record in consumer.unpack(consumer.poll(timeout=0.2)):
                found[record.partition].append(int(record.value or b"-1"))
    return found


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_others_do_not_wait_for_a_partition_without_a_leader(
    cluster: ClusterDouble, client: Client, acks: Any
) -> None:
    with producing(client, acks=acks) as producer:
        producer.send_and_wait(TOPIC, b"0", partition=1)
        wait_until(lambda: cluster.values(DARK) == 1, timeout=WITHIN)
        cluster.move(DARK, -1)
        waiting = [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(1, 6)]
        others = [producer.send(TOPIC, b"%d" % at, partition=2 * (at % 2)) for at in range(30)]
        wait_until(lambda: cluster.values(FIRST_PAGE) == 15, timeout=WITHIN)
        wait_until(lambda: cluster.values(FIRST_PAGE + 2) == 15, timeout=WITHIN)
        assert all(one.result(WITHIN) for one in others)
        assert acks == 0 or not any(one.done() for one in waiting)
        waiting += [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(6, 11)]
        assert client.metrics()["batches_sent_back"] >= 1
        assert producer.metrics()["reconnects"] <= 1  # what the old leader had is adrift
        cluster.move(DARK, 3)
        assert all(one.result(WITHIN) for one in waiting)
        wait_until(lambda: cluster.values(DARK) == 11, timeout=WITHIN)
        assert by_partition(client, 41)[1] == list(range(11))


def test_what_a_leader_had_without_an_answer_is_not_sent_back_before_it_is_known_to_be_gone(
    cluster: ClusterDouble, client: Client
) -> None:
    with producing(client) as producer:
        for partition in range(3):
            producer.send_and_wait(TOPIC, b"0", partition=partition)
        cluster.brokers[2].holds_back = True
        waiting = [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(1, 6)]
        wait_until(lambda: cluster.values(DARK) >= 2, timeout=WITHIN)
        cluster.kill(2)
        cluster.bury(2, heir=-1)
        others = [producer.send(TOPIC, b"%d" % at, partition=0) for at in range(1, 10)]
        assert all(one.result(WITHIN) for one in others)
        assert not any(one.done() for one in waiting)
        cluster.move(DARK, 3)
        assert [one.result(WITHIN).offset for one in waiting] == list(range(1, 6))
        assert by_partition(client, 17) == [list(range(10)), list(range(6)), [0]]


def test_a_producer_that_does_not_repeat_is_told_and_goes_on_when_there_is_a_leader(
    cluster: ClusterDouble, client: Client
) -> None:
    with producing(client, idempotent=False) as producer:
        cluster.move(DARK, -1)
        waiting = [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(3)]
        for one in waiting:
            with pytest.raises(er.ProduceError, match="no broker leads it"):
                one.result(WITHIN)
        cluster.move(DARK, 3)
        assert producer.send(TOPIC, b"3", partition=1).result(WITHIN).offset == 0
        assert producer.send(TOPIC, b"4", partition=1).result(WITHIN).offset == 1


def test_what_finds_no_leader_in_time_says_so_and_the_next_is_taken(
    cluster: ClusterDouble, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "ADRIFT_MAX", 0.1)
    with producing(client, delivery_timeout=3.0) as producer:
        producer.send_and_wait(TOPIC, b"0", partition=1)
        cluster.move(DARK, -1)
        waiting = [producer.send(TOPIC, b"lost", partition=1) for _ in range(3)]
        for one in waiting:
            with pytest.raises(er.DeliveryTimeout, match="orders-1"):
                one.result(WITHIN)
        with pytest.raises(er.DeliveryTimeout, match="found no leader within"):
            waiting[-1].result(WITHIN)
        cluster.move(DARK, 3)
        offset = producer.send(TOPIC, b"1", partition=1).result(WITHIN).offset
        assert offset in (1, 2), "at most one was just being sent again"


def test_records_for_a_partition_without_a_leader_gather(
    cluster: ClusterDouble, client: Client
) -> None:
    """Without a linger, too: or there were as many batches to send at once as there are records."""
    with producing(client) as producer:
        cluster.move(DARK, -1)
        sent = [producer.send(TOPIC, b"0", partition=1)]
        wait_until(lambda: client.metrics()["batches_sent_back"] >= 1, timeout=WITHIN)
        before, began = producer.metrics()["batches"], time.monotonic()
        sent += [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(1, 2000)]
        most = 2 * EAGER_MAX + (time.monotonic() - began) / GATHER_MAX
        assert producer.metrics()["batches"] - before <= most
        other = producer.send(TOPIC, b"0", partition=0)
        assert other.result(WITHIN).offset == 0
        cluster.move(DARK, 3)
        assert [one.result(WITHIN).offset for one in sent] == list(range(2000))
        assert by_partition(client, 2001)[1] == list(range(2000))


@pytest.mark.rule(24)
def test_order_holds_however_leaders_come_and_go(
    cluster: ClusterDouble, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "SEND_BACK_AFTER", 0.02)
    monkeypatch.setattr(sender, "ASK_EVERY", 0.02)
    monkeypatch.setattr(failover, "ADRIFT_MAX", 0.1)
    seed = seed_of("leaderless partitions")
    tell(f"leaders that come and go: seed {seed}")
    rng = random.Random(seed)
    counts = [0, 0, 0]
    sent = []
    with producing(client) as producer:
        for _ in range(150):
            if rng.random() < 0.3:
                cluster.move(rng.choice(cluster.pages), rng.choice([-1, 1, 2, 3]))
            for _ in range(rng.randrange(6)):
                partition = rng.randrange(3)
                value = b"%d" % counts[partition]
                sent.append(producer.send(TOPIC, value, partition=partition))
                counts[partition] += 1
            time.sleep(rng.choice([0.0, 0.005, 0.03]))
        for page in cluster.pages:
            cluster.move(page, rng.choice([1, 2, 3]))
        assert all(one.result(WITHIN) for one in sent), seed
    assert by_partition(client, len(sent)) == [list(range(count)) for count in counts], seed


def test_who_waits_no_longer_for_an_answer_is_told_why_there_is_none(
    cluster: ClusterDouble, client: Client
) -> None:
    with producing(client) as producer:
        producer.send_and_wait(TOPIC, b"0", partition=1)
    with client.admin() as admin:
        cluster.move(DARK, -1)
        page = f"no broker answers for the partition on page {DARK} now"
        with pytest.raises(er.PenstockTimeout, match=f"look up pages within 0.5 s: {page}"):
            admin._session.request(lk.LookUpPages(cluster.pages), lk.PagesLookedUp, 0.5)
        cluster.move(DARK, 2)
        looked = admin._session.request(lk.LookUpPages(cluster.pages), lk.PagesLookedUp, WITHIN)
        assert looked.pages == cluster.pages
