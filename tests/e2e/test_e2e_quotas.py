"""Quotas of remote clients: the rate that is set is the rate that is had, and others are free."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from wire import Dealer, batch_of

import penstock
from penstock.client.admin.access import AccessEntry, QuotaSetting
from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.security import keys
from penstock.testing import Broker

RATE = 1 << 20
PIECE = 64 << 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quotas")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Broker]:
    with Broker(listen=True) as broker:
        for name in ("slow", "free", "reader"):
            keys.create_key(broker.data, name, folder / name)
        with broker.connect() as client, client.admin() as admin:
            admin.add_access(AccessEntry("*", "allow", "all", "topic", "*"))
            admin.set_quota(QuotaSetting("slow", produce_bytes=RATE))
            admin.set_quota(QuotaSetting("reader", consume_bytes=RATE))
            admin.set_quota(QuotaSetting("free", "greedy", produce_bytes=RATE))
        yield broker


def connect(broker: Broker, file: Path, **options: str) -> penstock.Client:
    """Once the gateway has seen that keys are in use, and which."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return penstock.connect(
                broker.tcp_url, keys=file, transport="tcp", timeout=2, **options
            )
        except penstock.NotConnectedError:
            if time.monotonic() > deadline:
                raise


def send(client: penstock.Client, topic: str, nbytes: int) -> float:
    """Seconds until so much is acknowledged."""
    with client.producer(linger=0.0, batch_bytes=PIECE, delivery_timeout=60) as producer:
        producer.send(topic, b"first").result(45)
        began = time.monotonic()
        for _ in range(nbytes // PIECE):
            producer.send(topic, bytes(PIECE - 256))
        producer.flush(60)
        return time.monotonic() - began


def test_a_producer_has_its_rate_and_another_principal_is_not_held_up(
    broker: Broker, folder: Path
) -> None:
    topic, other = broker.create_topic(), broker.create_topic()
    took: list[float] = []
    with connect(broker, folder / "slow") as slow, connect(broker, folder / "free") as free:
        thread = threading.Thread(target=lambda: took.append(send(slow, topic, 4 * RATE)))
        thread.start()
        rounds = 0
        while thread.is_alive():
            send(free, other, RATE)
            rounds += 1
        thread.join()
    # One second's worth is saved up at first; the rest comes at the rate.
    assert 3.0 * 0.8 <= took[0] <= 3.0 * 2
    assert rounds >= 6, "another principal sent no more than twice the rate meanwhile"


def test_a_consumer_has_its_rate(broker: Broker, folder: Path) -> None:
    topic = broker.create_topic()
    with broker.connect() as local:
        send(local, topic, 4 * RATE)
    with (
        connect(broker, folder / "reader") as client,
        client.consumer(topic, start="earliest") as consumer,
    ):
        began, got = time.monotonic(), 0
        while got < 4 * RATE * 0.95:
            got += sum(len(record.value or b"") for record in consumer.poll(timeout=10))
        took = time.monotonic() - began
    # The last piece is counted after it was sent.
    assert 3.0 * 0.8 - 0.5 <= took <= 3.0 * 2


@pytest.mark.setting("producer.client_id")
def test_a_client_id_has_its_own(broker: Broker, folder: Path) -> None:
    topic = broker.create_topic()
    with connect(broker, folder / "free", client_id="greedy") as client:
        assert send(client, topic, 3 * RATE) >= 2.0 * 0.8
    with connect(broker, folder / "free", client_id="modest") as client:
        assert send(client, topic, 3 * RATE) <= 2.0 * 0.8


def test_a_client_is_told_how_long_it_is_held_back(broker: Broker, folder: Path) -> None:
    topic = broker.create_topic()
    key = keys.load_client_key(folder / "slow")
    with Dealer(
        broker.tcp_url,
        curve_serverkey=key.server.encode(),
        curve_publickey=key.public.encode(),
        curve_secretkey=key.secret.encode(),
    ) as dealer:
        attached = dealer.attach(1, lo.KIND_PRODUCER)
        info = dealer.find(1, topic)
        page, writer = info.pages[0], info.pages[0] % attached.writers
        told, sent = None, 0
        while told is None:
            batch = batch_of([bytes(PIECE)], info, attached.producer_id, sent)
            dealer.say(fr.Produce(1, writer, sent, page), batch)
            sent += 1
            dealer.acks(1)
            told = next((one for one, _ in dealer.heard if isinstance(one, fr.Throttled)), None)
        assert told.what == "produce"
        assert 0 < told.seconds < 2
        assert sent <= 2 * RATE // PIECE
    with broker.connect() as client, client.admin() as admin:
        admin.set_quota(QuotaSetting("slow"))
        assert [one.principal for one in admin.list_quotas()] == ["free", "reader"]


def test_quotas_that_are_taken_away_hold_nobody_up(broker: Broker, folder: Path) -> None:
    with broker.connect() as local, local.admin() as admin:
        admin.set_quota(QuotaSetting("slow", produce_bytes=1))
        topic = broker.create_topic()
        with connect(broker, folder / "slow") as client, client.producer() as producer:
            producer.send(topic, b"x")
            held = producer.send(topic, b"y")
            admin.set_quota(QuotaSetting("slow"))
            with connect(broker, folder / "slow") as again:
                send(again, topic, RATE)
            del held


def test_a_consumer_that_is_held_goes_on_when_its_quota_goes(broker: Broker, folder: Path) -> None:
    topic = broker.create_topic()
    with broker.connect() as local, local.admin() as admin:
        send(local, topic, RATE)
        admin.set_quota(QuotaSetting("reader", consume_bytes=1000))
        with (
            connect(broker, folder / "reader") as client,
            client.consumer(topic, start="earliest", prefetch_bytes=2 * PIECE) as consumer,
        ):
            got = len(consumer.poll(timeout=10))
            admin.set_quota(QuotaSetting("reader"))
            while got < RATE // PIECE + 1:
                records = consumer.poll(timeout=45)
                assert records, "nothing came for 10 s after the quota was taken away"
                got += len(records)
