"""Cursors of a real gateway, spoken to by the wire protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fetch_fixture import heads_of
from wire import Dealer

import penstock
from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core.columns import decode
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.testing import Broker

WITHIN = 45.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=True) as broker:
        yield broker


@pytest.fixture
def dealer(broker: Broker) -> Iterator[Dealer]:
    with Dealer(broker.tcp_url) as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
        yield dealer


@pytest.fixture
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(f"shm://{broker.data}") as client:
        yield client


def fetch(
    dealer: Dealer, topic: ms.TopicInfo, cursor: int = 1, offset: int = 0, credit: int = 1 << 20,
    epoch: int = -1,
) -> None:  # fmt: skip
    dealer.say(fr.Fetch(1, cursor, topic.pages[0], topic.topic_id, 0, offset, epoch, False, credit))


def values(payload: codec.Piece | None) -> list[bytes | None]:
    view = memoryview(payload or b"")
    batches = (decode(view, at, head) for at, head in heads_of(view))
    return [value for batch in batches for value in batch.values.to_list()]


def test_what_is_there_and_what_comes(
    broker: Broker, dealer: Dealer, client: penstock.Client
) -> None:
    name = broker.create_topic()
    topic = dealer.find(1, name)
    with client.producer() as producer:
        producer.send_and_wait(name, b"0", timeout=WITHIN)
        fetch(dealer, topic)
        epoch = -1
        for number in range(1, 20):
            message = dealer.hear(fr.Fetched)
            assert (message.start, message.next_offset) == (number - 1, number)
            assert values(dealer.payload) == [b"%d" % (number - 1)]
            assert message.leader_epoch >= epoch
            epoch = message.leader_epoch
            producer.send_and_wait(name, b"%d" % number, timeout=WITHIN)
    dealer.hear(fr.Fetched)
    fetch(dealer, topic, 2, 15, epoch=epoch)
    assert values((dealer.hear(fr.Fetched), dealer.payload)[1]) == [
        b"%d" % n for n in range(15, 20)
    ]


def test_nothing_comes_beyond_the_credit(
    broker: Broker, dealer: Dealer, client: penstock.Client
) -> None:
    name = broker.create_topic()
    topic = dealer.find(1, name)
    with client.producer(linger=0) as producer:
        for number in range(50):
            producer.send_and_wait(name, b"%d" % number, timeout=WITHIN)
    fetch(dealer, topic, credit=600)
    first = dealer.hear(fr.Fetched)
    taken = len(dealer.payload or b"")
    assert 600 <= taken < 600 + 320
    fetch(dealer, topic, 2, 50 - 1)  # its answer stands behind whatever the first would send
    last = dealer.hear(fr.Fetched)
    assert (last.cursor, last.next_offset) == (2, 50)
    dealer.say(fr.More(1, 1, 1 << 20))
    rest = dealer.hear(fr.Fetched)
    assert (rest.start, rest.next_offset) == (first.next_offset, 50)


def test_a_deleted_topic_ends_its_cursors(
    broker: Broker, dealer: Dealer, client: penstock.Client
) -> None:
    name = broker.create_topic()
    topic = dealer.find(1, name)
    fetch(dealer, topic)
    client.admin().delete_topic(name)
    failed = dealer.hear(fr.CursorFailed)
    assert (failed.cursor, failed.error) == (1, "UnknownTopicError")
    fetch(dealer, topic, 2)
    again = dealer.hear(fr.CursorFailed)
    assert (again.cursor, again.error) == (2, "UnknownTopicError")


def test_thousands_of_cursors_of_one_consumer(
    broker: Broker, dealer: Dealer, client: penstock.Client
) -> None:
    """More than the gateway may have descriptors for."""
    name = broker.create_topic()
    topic = dealer.find(1, name)
    with client.producer() as producer:
        for number in range(3):
            producer.send_and_wait(name, b"%d" % number, timeout=WITHIN)
            if not number:
                for cursor in range(fr.CURSORS_MAX):
                    fetch(dealer, topic, cursor)
    stands = dict.fromkeys(range(fr.CURSORS_MAX), 0)
    deadline = time.monotonic() + WITHIN
    while min(stands.values()) < 3:
        assert time.monotonic() < deadline
        message = dealer.hear(fr.Fetched)
        assert message.start == stands[message.cursor]
        stands[message.cursor] = message.next_offset
    fetch(dealer, topic, fr.CURSORS_MAX)
    assert dealer.hear(fr.CursorFailed).error == "ResourceLimitError"
