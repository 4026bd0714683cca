"""Callbacks of deliveries that use their producer: they run on its own thread, which works on."""

from __future__ import annotations

import threading

import pytest

from penstock.client.producer.delivery import Delivery
from penstock.core import errors as er
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 45.0


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(letter for letter in request.node.name if letter.isalnum())
    with node.connect() as client:
        client.admin().create_topic(name)
    return name


def test_a_callback_may_send_and_wait_for_the_receipt(node: Broker, topic: str) -> None:
    """Its record lingers, and is sealed by the thread that the callback is on."""
    got: list[int | None] = []
    with node.connect() as client, client.producer(linger=0.05) as producer:

        def send_another(_: Delivery) -> None:
            got.append(producer.send(topic, b"second").result(WITHIN).offset)

        producer.send(topic, b"first").add_done_callback(send_another)
        wait_until(lambda: got == [1], timeout=WITHIN)


def test_every_callback_may_flush(node: Broker, topic: str) -> None:
    """Others wait behind each of them, and none of them waits for those."""
    ended: list[er.PenstockError | None] = []
    with node.connect() as client, client.producer(linger=0.05) as producer:

        def flush(_: Delivery) -> None:
            try:
                producer.flush(WITHIN / 3)
                ended.append(None)
            except er.PenstockError as error:
                ended.append(error)

        for _ in range(5):
            producer.send(topic, b"x").add_done_callback(flush)
        wait_until(lambda: len(ended) == 5, timeout=WITHIN)
        assert ended == [None] * 5


def test_a_flush_ends_when_all_callbacks_have_returned(node: Broker, topic: str) -> None:
    told: list[Delivery] = []
    may_end, flushed = threading.Event(), threading.Event()
    with node.connect() as client, client.producer(linger=0.01) as producer:

        def tell(delivery: Delivery) -> None:
            assert may_end.wait(WITHIN)
            told.append(delivery)

        def flush() -> None:
            producer.flush(WITHIN)
            flushed.set()

        producer.send(topic, b"x").add_done_callback(tell)
        waiter = threading.Thread(target=flush)
        waiter.start()
        parts = producer._pipeline
        wait_until(lambda: not (parts.sender.buffered or parts.outcomes.callbacks), timeout=WITHIN)
        assert not flushed.wait(0.3)
        may_end.set()
        waiter.join(WITHIN)
        assert flushed.is_set()
        assert len(told) == 1


@pytest.mark.over_tcp(False)
def test_a_callback_may_wait_for_a_node_that_comes_back() -> None:
    """Nobody but the thread that it is on looks for the node."""
    got: list[int | None] = []
    is_down = threading.Event()
    with Broker(writers=1) as node, node.connect(timeout=WITHIN) as client:
        client.admin().create_topic("t")
        with client.producer(linger=0.01, delivery_timeout=WITHIN) as producer:

            def send_another(_: Delivery) -> None:
                assert is_down.wait(WITHIN)
                got.append(producer.send("t", b"second").result(WITHIN).offset)

            producer.send("t", b"first").add_done_callback(send_another)
            wait_until(lambda: producer.metrics()["acknowledged"] == 1, timeout=WITHIN)
            node.kill()
            is_down.set()
            node.start()
            wait_until(lambda: got == [1], timeout=WITHIN)


@pytest.mark.over_tcp(False)
def test_what_a_callback_waits_for_ends_with_its_delivery_timeout() -> None:
    got: list[Exception | None] = []
    is_down = threading.Event()
    with Broker(writers=1) as node, node.connect() as client:
        client.admin().create_topic("t")
        producer = client.producer(linger=0.01, delivery_timeout=2.0)

        def send_another(_: Delivery) -> None:
            assert is_down.wait(WITHIN)
            got.append(producer.send("t", b"second").exception())

        producer.send("t", b"first").add_done_callback(send_another)
        wait_until(lambda: producer.metrics()["acknowledged"] == 1, timeout=WITHIN)
        node.kill()
        is_down.set()
        wait_until(lambda: bool(got), timeout=WITHIN)
        assert isinstance(got[0], er.DeliveryTimeout)
        producer.close(1.0)
