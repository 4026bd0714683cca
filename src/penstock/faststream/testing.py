"""`TestPenstockBroker`: handlers without a node, for tests of applications.

Each group gets each message once, as it does from a node; answers, delays and retries count for
nothing here. `penstock.testing.Broker` has real ones.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer

from penstock.client.consumer.records import Record
from penstock.client.producer.delivery import Receipt
from penstock.core.columns import HeaderList
from penstock.faststream.broker import PenstockBroker
from penstock.faststream.message import RecordInHand
from penstock.faststream.producer import PenstockProducer
from penstock.faststream.publisher import Publisher
from penstock.faststream.subscriber import Subscriber


class TestPenstockBroker(TestBroker[PenstockBroker, EnterType], broker=PenstockBroker):
    """`async with TestPenstockBroker(broker) as broker: await broker.publish(...)`."""

    def create_publisher_fake_subscriber(
        self, broker: PenstockBroker, publisher: Publisher
    ) -> tuple[Subscriber, bool]:
        for each in _subscribers(self.brokers):
            if publisher.topic in each.topics:
                return each, True
        return broker.subscriber(publisher.topic, group="test", persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: PenstockBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        producer = PenstockProducer(broker._parser, broker._decoder)
        serializer = config.fd_config._serializer
        producer.connect(_Handlers(self.brokers).send, 1.0, serializer, broker.config.broker_codec)
        with change_producer(config, producer):
            yield

    async def _fake_connect(self, broker: PenstockBroker, *_: Any, **__: Any) -> AsyncMock:  # type: ignore[override]
        return AsyncMock()


def _subscribers(brokers: Sequence[PenstockBroker]) -> Iterator[Subscriber]:
    for broker in brokers:
        for each in broker.subscribers:
            assert isinstance(each, Subscriber)
            yield each


class _Handlers:
    """Takes the place of a producer: records go to the handlers."""

    def __init__(self, brokers: Sequence[PenstockBroker]) -> None:
        self._brokers = brokers
        self._offsets = itertools.count()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeaderList = (),
        partition: int | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> Receipt:
        at, now = next(self._offsets), time.time_ns() // 1000
        record: Record = Record(topic, partition or 0, at, now, key, value, headers)
        groups = set()
        for each in _subscribers(self._brokers):
            if topic in each.topics and each.group not in groups:
                groups.add(each.group)
                await each.process_message(RecordInHand(record))
        return Receipt(topic, record.partition, at, "appended", now)
