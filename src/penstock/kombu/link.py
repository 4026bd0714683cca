"""A connection of kombu to a node: its client, what was made from that, and topics of queues.

Owns what channels of one connection share, and closes it. Knows no consumers and no callbacks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Final

from penstock.client.admin.admin import Admin
from penstock.client.admin.share_groups import SharedPartition
from penstock.client.admin.topic_config import TopicConfig
from penstock.client.client import connect
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.producer import Producer
from penstock.core import errors as er
from penstock.kombu.messages import Raw, record_of
from penstock.kombu.names import exchange_topic, queue_topic
from penstock.kombu.options import EXCHANGE_SETTINGS, TransportOptions
from penstock.kombu.sources import ExchangeSource, QueueSource, Source
from penstock.kombu.wait_poll import WaitPoll

logger = logging.getLogger("penstock.kombu")

CLIENT_ID: Final = "kombu"
ABSENT_FOR: Final = 1.0
"""Seconds for which a topic that was not there is not looked for again: an exchange that nobody
listens to costs its senders nothing."""
ABSENT_MAX: Final = 1000


class KombuLink:
    """For one thread, but for `publish`."""

    def __init__(self, url: str, options: TransportOptions, timeout: float | None) -> None:
        self.options = options
        self._client = connect(
            url, client_id=CLIENT_ID, timeout=timeout, transport=options.transport,
            keys=options.keys,
        )  # fmt: skip
        self.waits: WaitPoll[Source] = WaitPoll()
        self.subscriptions: dict[str, dict[str, ExchangeSource]] = {}
        """Of queues that end with their consumer, by exchange."""
        self._made: set[str] = set()
        self._absent: dict[str, float] = {}
        """Until when (monotonic) a topic counts as missing."""

    @property
    def is_open(self) -> bool:
        return not self.waits.is_closed

    @property
    def is_far(self) -> bool:
        """Whether it reaches its node by tcp."""
        return self._client.transport == "tcp"

    @cached_property
    def admin(self) -> Admin:
        return self._client.admin()

    @cached_property
    def _producer(self) -> Producer:
        return self._client.producer(
            acks="all", linger=0.0, delivery_timeout=self.options.publish_timeout
        )

    # --- sending ---
    def publish(self, topics: Iterable[str], message: Raw, work: dict[str, Any]) -> list[str]:
        """Sends a message to each of these topics, and waits until they are there. Returns which
        topics do not exist."""
        value, headers = record_of(message)
        now = time.monotonic()
        missing, sent = [], []
        for topic in topics:
            send = partial(self._send, topic, value, headers, work)
            try:
                if self._absent.get(topic, 0.0) > now:
                    missing.append(topic)
                else:
                    sent.append((topic, send, send()))
            except er.UnknownTopicError:
                self._is_absent(topic, now)
                missing.append(topic)
        for topic, send, delivery in sent:
            try:
                self._await(delivery, send)
            except er.UnknownTopicError:
                self._is_absent(topic, now)
                missing.append(topic)
        return missing

    def _await(self, delivery: Delivery, again: Callable[[], Delivery]) -> None:
        """Waits for a delivery. A message to a deleted topic is sent once more: the topic may be
        there again."""
        try:
            delivery.result(self.options.publish_timeout + 1.0)
        except er.ProduceError as error:
            if error.code != er.ErrorCode.UNKNOWN_PARTITION:
                raise
            again().result(self.options.publish_timeout + 1.0)

    def _is_absent(self, topic: str, now: float) -> None:
        if len(self._absent) >= ABSENT_MAX:
            self._absent.clear()
        self._absent[topic] = now + ABSENT_FOR

    def _send(
        self, topic: str, value: bytes, headers: list[tuple[str, bytes]], work: dict[str, Any]
    ) -> Delivery:
        delivery = self._producer.send(topic, value, headers=headers, **work)
        self._producer.hurry(topic)
        return delivery

    # --- topics ---
    def queue_topic(self, queue: str) -> str:
        return queue_topic(self.options.prefix, queue)

    def exchange_topic(self, exchange: str) -> str:
        return exchange_topic(self.options.prefix, exchange)

    def make_queue(self, queue: str) -> None:
        self._make(self.queue_topic(queue), self.options.queue_config)

    def make_exchange(self, exchange: str) -> str:
        topic = self.exchange_topic(exchange)
        self._make(topic, lambda: TopicConfig(**EXCHANGE_SETTINGS))
        return topic

    def _make(self, topic: str, config: Callable[[], TopicConfig]) -> None:
        if topic not in self._made:
            # A client without that right uses the topics that exist. A missing one shows in use.
            with suppress(er.AccessDeniedError):
                self.admin.create_topic(topic, config(), if_not_exists=True)
            self._made.add(topic)
            self._absent.pop(topic, None)

    def has_queue(self, queue: str) -> bool:
        if queue in self.subscriptions:
            return True
        try:
            self.admin.describe_topic(self.queue_topic(queue))
        except er.UnknownTopicError:
            return False
        return True

    def size(self, queue: str) -> int:
        """Returns the number of messages of a queue that wait for a worker."""
        return self._count(queue, lambda part: part.ready)

    def _count(self, queue: str, seen: Callable[[SharedPartition], int]) -> int:
        """Messages that no worker has looked at yet, and of the others as many as `seen` says."""
        topic = self.queue_topic(queue)
        try:
            ends = {
                part.partition: part.last_stable - part.log_start
                for part in self.admin.describe_topic(topic).partitions
            }
        except er.UnknownTopicError:
            return 0
        for part in self.admin.describe_share_group(topic).partitions:
            ends[part.partition] = seen(part) + part.end - part.frontier
        return sum(ends.values())

    def purge(self, queue: str) -> int:
        """Drops the messages of a queue, also those that are not due, and returns their number.
        Workers finish the messages that they have."""
        size = self._count(queue, lambda part: part.ready + part.waiting)
        topic = self.queue_topic(queue)
        if self.has_queue(queue) and queue not in self.subscriptions:
            self._join(queue).close()  # so that there is a group
            self.admin.reset_offsets(topic, topic, to="latest")
        return size

    def delete(self, queue: str, *, if_unused: bool) -> None:
        """Deletes a queue and its messages. `if_unused`: not while it has workers."""
        if queue in self.subscriptions:
            for source in self.subscriptions.pop(queue).values():
                self.waits.give_up(source)
                source.close()
            return
        topic = self.queue_topic(queue)
        self._made.discard(topic)
        if if_unused:
            members = [one for one in self.admin.list_groups() if one.group == topic]
            if members and members[0].members:
                return
        with suppress(er.UnknownTopicError):
            self.admin.delete_topic(topic)
        with suppress(er.GroupError):
            self.admin.delete_group(topic)

    # --- what is consumed ---
    def _join(self, queue: str) -> Any:
        options = self.options
        topic = self.queue_topic(queue)
        return self._client.share_consumer(
            topic, group=topic, max_deliveries=options.max_deliveries, max_lease=options.max_lease,
            dead_letters=options.dead_letters, dedup_window=None, ack_interval=0.0, max_records=1,
            session_timeout=options.session_timeout, node_timeout=options.node_timeout,
        )  # fmt: skip

    def queue_source(self, queue: str) -> QueueSource:
        """A worker of a queue's group."""
        return QueueSource(queue, self._join(queue))

    def subscribe(self, queue: str, exchange: str, matches: Callable[[str], bool]) -> None:
        """Lets a queue have what is sent to an exchange from now on."""
        known = self.subscriptions.setdefault(queue, {})
        if exchange in known:
            known[exchange].matches = matches
            return
        reader = self._client.consumer(
            self.make_exchange(exchange), start="latest", on_out_of_range="latest",
            isolation="read-committed", node_timeout=self.options.node_timeout,
        )  # fmt: skip
        known[exchange] = ExchangeSource(queue, reader, matches)

    def close(self) -> None:
        self.waits.close()
        self.subscriptions.clear()
        try:
            self._client.close()
        except er.PenstockError as error:
            logger.warning("closing a connection: %s", error)
