"""A client of a cluster where a partition has too few replicas in sync: what its leader has taken
goes back to the producer meanwhile, and is there once, in order, when it is committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cluster import FIRST_PAGE, TOPIC, ClusterDouble
from fake_gateway import WITHIN

import penstock
from penstock.client.client import Client
from penstock.client.producer import sender
from penstock.core import errors as er
from penstock.testing.waiting import wait_until

POOR = FIRST_PAGE + 1
"""The page of partition 1."""


@pytest.fixture
def cluster() -> Iterator[ClusterDouble]:
    with ClusterDouble() as made:
        made.uncommitted.add(POOR)
        yield made


@pytest.fixture
def client(cluster: ClusterDouble) -> Iterator[Client]:
    with penstock.connect(cluster.url, timeout=WITHIN) as made:
        yield made


@contextlib.contextmanager
def producing(client: Client, **options: Any) -> Iterator[Any]:
    made = client.producer(**{"linger": 0, "delivery_timeout": WITHIN, "acks": "all", **options})
    try:
        yield made
    finally:
        with contextlib.suppress(er.PenstockError):
            made.close(timeout=0.1)


def in_log(client: Client, count: int) -> list[int]:
    with client.consumer(TOPIC, follow=False) as consumer:
        found = [int(record.value or b"") for record in consumer]
    assert len(found) == count
    return found


def test_it_comes_once_and_in_order_when_there_are_enough(
    cluster: ClusterDouble, client: Client
) -> None:
    with producing(client) as producer:
        sent = [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(10)]
        wait_until(lambda: client.metrics()["batches_sent_back"] >= 2, timeout=WITHIN)
        sent += [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(10, 20)]
        other = producer.send_and_wait(TOPIC, b"20", partition=0, timeout=WITHIN)
        assert other.durability == "committed"
        assert not any(one.done() for one in sent)
        cluster.uncommitted.clear()
        assert [one.result(WITHIN).offset for one in sent] == list(range(20))
        assert producer.metrics()["reconnects"] == 0
    assert sorted(in_log(client, 21)) == list(range(21))


def test_what_is_not_committed_in_time_says_so_and_is_not_there_twice(
    cluster: ClusterDouble, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ASK_EVERY", 3.0)
    with producing(client, delivery_timeout=2.0) as producer:
        lost = [producer.send(TOPIC, b"%d" % at, partition=1) for at in range(2)]
        for one in lost:
            with pytest.raises(er.DeliveryTimeout, match="were on too few replicas within"):
                one.result(WITHIN)
        monkeypatch.setattr(sender, "ASK_EVERY", 0.1)
        cluster.uncommitted.clear()
        kept = cluster.values(POOR)
        assert producer.send_and_wait(TOPIC, b"2", partition=1, timeout=WITHIN).offset == kept
    assert in_log(client, kept + 1) == [*range(kept), 2]


@pytest.mark.setting("producer.idempotent")
def test_a_producer_that_does_not_repeat_is_told(cluster: ClusterDouble, client: Client) -> None:
    with producing(client, idempotent=False) as producer:
        with pytest.raises(er.ProduceError, match="on too few replicas for now") as caught:
            producer.send(TOPIC, b"0", partition=1).result(WITHIN)
        assert caught.value.code is er.ErrorCode.NOT_COMMITTED
        cluster.uncommitted.clear()
        assert producer.send(TOPIC, b"1", partition=1).result(WITHIN).offset == 1
