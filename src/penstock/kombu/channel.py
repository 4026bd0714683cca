"""A channel of kombu: declares queues, routes messages to their topics, delivers what comes.

Queues and exchanges are known to the connection that declares them, as with other virtual
transports. The exception are queues of a single consumer that have an exchange: their consumer
reads that exchange's topic, so who sends to it need not know them.

Owns the consumers of the channel. The connection decides when to look, by `pull`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from amqp.protocol import queue_declare_ok_t
from kombu.transport import base, virtual
from kombu.utils.uuid import uuid

from penstock.core.errors import AccessDeniedError, PenstockError
from penstock.kombu.link import KombuLink
from penstock.kombu.messages import Raw, work_options
from penstock.kombu.sources import Source
from penstock.kombu.unacked import Unacked

logger = logging.getLogger("penstock.kombu")

NO_QUEUE: Final = "a message went nowhere: there is no queue {!r}; declare it first"


class _Consumer(NamedTuple):
    queue: str
    no_ack: bool
    callback: Callable[[Any], object]


class KombuChannel(virtual.Channel):
    """For one thread, but for answers."""

    QoS = Unacked
    supports_fanout = True
    body_encoding = None
    do_restore = False
    from_transport_options = ("deadletter_queue",)
    closed: bool

    def __init__(self, connection: Any, **options: Any) -> None:
        self.link: KombuLink = connection.link
        self._tags = itertools.count(1)
        self._by_queue: dict[str, _Consumer] = {}
        self._workers: dict[str, Source] = {}
        """Of queues with a topic, also without a consumer: they answer for what they have got."""
        self._undecided: set[str] = set()
        """Queues of `_ending` that are not bound yet."""
        self._ending: set[str] = set()
        """Queues that go with their last consumer."""
        self._own: set[str] = set()
        """Of those, the ones of a single consumer: they are exclusive, or nobody waits for them."""
        self._ttls: dict[str, float] = {}
        self._delivering = 0
        self._thread = 0
        super().__init__(connection, **options)

    # --- queues and exchanges ---
    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        return base.to_rabbitmq_queue_arguments(arguments, **options)

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **options: Any
    ) -> queue_declare_ok_t:
        self._decide()
        queue = queue or f"amq.gen-{uuid()}"
        try:
            return super().queue_declare(queue, passive=passive, **options)
        except AccessDeniedError:
            if passive:
                raise
            return queue_declare_ok_t(queue, 0, 0)  # who only sends may not count

    def _new_queue(self, queue: str, **options: Any) -> None:
        ttl = (options.get("arguments") or {}).get("x-message-ttl")
        if ttl is not None:
            self._ttls[queue] = float(ttl) / 1000
        if options.get("auto_delete") or options.get("exclusive"):
            self._ending.add(queue)
            is_own = options.get("exclusive") or "x-expires" in (options.get("arguments") or {})
            (self._own.add if is_own else self._own.discard)(queue)
            if queue not in self.link.subscriptions and queue not in self._workers:
                self._undecided.add(queue)
            return
        self.link.make_queue(queue)

    def _decide(self) -> None:
        """Queues that were not bound when the next thing is asked for have a topic."""
        while self._undecided:
            self.link.make_queue(self._undecided.pop())

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return queue in self._undecided or self.link.has_queue(queue)

    def _size(self, queue: str) -> int:
        if queue in self._undecided or queue in self.link.subscriptions:
            return 0
        return self.link.size(queue)

    def _purge(self, queue: str) -> int:
        return self.link.purge(queue)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "",
        arguments: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange)
        is_open = queue in self._undecided and (queue in self._own or kind.type == "fanout")
        if is_open or queue in self.link.subscriptions:
            self._undecided.discard(queue)
            super().queue_bind(queue, exchange, routing_key, arguments, **options)
            rows = [row for row in self.get_table(exchange) if row[2] == queue]
            self.link.subscribe(
                queue, exchange,
                lambda key: bool(kind.lookup(rows, exchange, key, None)),
            )  # fmt: skip
            return
        super().queue_bind(queue, exchange, routing_key, arguments, **options)

    def _queue_bind(self, exchange: str, *row: Any) -> None:
        """A binding of a fanout exchange is as any other."""

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        if if_empty and self._size(queue):
            return
        for binding in [*self.state.queue_bindings(queue)]:
            self.queue_unbind(queue, binding.exchange, binding.routing_key)
        self.state.queue_bindings_delete(queue)
        self._undecided.discard(queue)
        self._leave(queue)
        self.link.delete(queue, if_unused=if_unused)

    def after_reply_message_received(self, queue: str) -> None:
        """A queue of replies stays until its consumer ends: it costs nobody anything."""

    # --- sending ---
    def basic_publish(self, message: Raw, exchange: str, routing_key: str, **options: Any) -> None:
        self._decide()
        message["properties"].pop("delivery_tag", None)
        message["properties"]["delivery_info"] = {
            "exchange": exchange, "routing_key": routing_key,
        }  # fmt: skip
        queues = self._lookup(exchange, routing_key)
        readers = self.link.subscriptions
        topics = [self.link.queue_topic(queue) for queue in queues if queue not in readers]
        if exchange:
            is_fanout = self.typeof(exchange).type == "fanout"
            name = self.link.make_exchange if is_fanout else self.link.exchange_topic
            topics.append(name(exchange))
        ttls = [self._ttls[queue] for queue in queues if queue in self._ttls]
        missing = self.link.publish(topics, message, work_options(message, min(ttls, default=None)))
        if not exchange and (missing or not topics):
            warnings.warn(virtual.UndeliverableWarning(NO_QUEUE.format(routing_key)), stacklevel=2)

    # --- consuming ---
    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        self.qos.prefetch_count = prefetch_count
        self._look_again(self._sources())

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str,
        **options: Any,
    ) -> None:  # fmt: skip
        self._decide()
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._by_queue[queue] = _Consumer(queue, no_ack, callback)
        self._look_again(self._sources_of(queue))

    def basic_cancel(self, consumer_tag: str) -> None:
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue in self._active_queues:
            return
        del self._by_queue[queue]
        if queue in self._ending:
            self._ending.discard(queue)
            self.queue_delete(queue, if_unused=True)
            return
        for source in self._sources_of(queue):
            source.give_back()
            self._look_again([source])

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        self._decide()
        for source in self._sources_of(queue):
            self.link.waits.give_up(source)
            if not source.pending:
                source.bring_one(is_far=self.link.is_far)
            self._look_again([source])
            if source.pending:
                return self._received(source, no_ack)
        return None

    def _sources_of(self, queue: str) -> list[Source]:
        if queue in self.link.subscriptions:
            return [*self.link.subscriptions[queue].values()]
        if queue not in self._workers:
            self.link.make_queue(queue)
            self._workers[queue] = self.link.queue_source(queue)
        return [self._workers[queue]]

    def _sources(self) -> list[Source]:
        """All that it consumes from, or answers for."""
        readers = [
            source for queue in self._by_queue if queue in self.link.subscriptions
            for source in self.link.subscriptions[queue].values()
        ]  # fmt: skip
        return [*readers, *self._workers.values()]

    def pull(self) -> bool:
        """Delivers messages that are there, as many as the channel takes. Whether there were any.
        Sources that had none are waited for."""
        self._thread = threading.get_ident()
        found = False
        for source in self._sources():
            if source.is_due:
                found = self._pull(source) or found
            if self.closed:
                break
        return found

    def _pull(self, source: Source) -> bool:
        waits = self.link.waits
        waits.give_up(source)
        consumer = self._by_queue.get(source.queue)
        room = self.qos.room if consumer is not None else 0
        if room <= 0:
            source.is_due = False  # first: an answer of another thread makes it due again
            source.answer()
            waits.suspend(source, source.idling())
            return False
        if not source.pending and source.is_early and self.qos.tags:
            source.is_due = False  # as above
            waits.suspend(source, source.gathering())
            return False
        if not source.pending:
            source.look(room)
        if not source.pending:
            source.is_due = False  # first: an answer of another thread makes it due again
            if not waits.suspend(source, source.watching()):
                self._look_again([source])
            return False
        self._look_again([source])
        while source.pending and self._by_queue.get(source.queue) is consumer and room > 0:
            assert consumer is not None
            message = self._received(source, consumer.no_ack)
            self._delivering += 1
            try:
                consumer.callback(message)
            finally:
                self._delivering -= 1
            room = self.qos.room
        return True

    def _received(self, source: Source, no_ack: bool) -> Any:
        arrival = source.pending.popleft()
        raw = {**arrival.message, "properties": {**arrival.message["properties"]}}
        tag = raw["properties"]["delivery_tag"] = next(self._tags)
        message = self.Message(raw, channel=self)
        if not no_ack:
            self.qos.hold(tag, source, arrival)
        elif arrival.job is not None:
            arrival.job.ack()
        return message

    def answered(self, source: Source) -> None:
        """An answer is to be sent, and there may be room for more messages. A consumer that answers
        before it begins, and may take long, has it sent at once."""
        if self._delivering and threading.get_ident() == self._thread:
            self.link.waits.give_up(source)
            source.answer_now()
        self._look_again([source] if self.qos.room > 1 else self._sources())

    def _look_again(self, sources: Iterable[Source]) -> None:
        for source in sources:
            source.is_due = True
        if self.link.is_open:
            self.link.waits.bell.ring()

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        tags = [tag for tag in self.qos.tags if tag <= delivery_tag] if multiple else [delivery_tag]
        for tag in tags:
            self.qos.ack(tag)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> Any:
        return self.connection.drain_events(self.connection, timeout=timeout)

    # --- life ---
    def _leave(self, queue: str) -> None:
        source = self._workers.pop(queue, None)
        if source is not None:
            self.link.waits.give_up(source)
            source.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            if self.link.is_open:  # not in a forked child, whose parent still consumes
                for tag in [*self._consumers]:
                    self.basic_cancel(tag)
        except PenstockError as error:
            logger.warning("closing a channel: %s", error)
        for queue in [*self._workers]:
            self._leave(queue)
        if self.connection is not None:
            self.connection.close_channel(self)
        self.exchange_types = None
