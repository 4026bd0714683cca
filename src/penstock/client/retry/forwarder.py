"""Writes copies of records whose handler failed: to a retry topic, or as dead letters.

A copy counts once it is acknowledged, by all in-sync replicas: `flush` waits for that. The headers
of a dead letter are those of share groups.

Owns what is under way. In a transaction its producer does, and the commit waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.client.app.known_errors import KnownErrors
from penstock.client.consumer.records import Record, place_of
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.producer import PlainProducer, Producer
from penstock.client.remote.address import Place
from penstock.client.retry.policy import Retry
from penstock.client.retry.story import RetryStory, copied_headers, own_headers
from penstock.client.retry.topics import RetryTopics
from penstock.client.share.dead_letters import DeadRecord, with_story
from penstock.client.share.jobs import told_of
from penstock.core import errors as er
from penstock.core.work import WorkFields
from penstock.ipc.sharing import CondemnedRecord
from penstock.serializers.serializer import DecodeError

logger = logging.getLogger("penstock.consumer")

WRITE_TIMEOUT: Final = 30.0
"""Seconds for a copy to be acknowledged."""
COPIES_MAX: Final = 500
"""Copies under way; then they are waited for."""

Send = Callable[..., Any]
"""`send` of a producer."""


class FailedRecord(NamedTuple):
    """A record whose handler failed. `at`: where it was read; `source`: which topic it belongs to;
    `story`: with this failure."""

    record: Record[Any, Any]
    at: Record[Any, Any]
    source: str
    story: RetryStory
    error: Exception


class Forwarder:
    """Writes copies and dead letters. `name`: the handler's, for the log."""

    def __init__(
        self, retry: Retry, topics: RetryTopics, group: str, name: str, counts: dict[str, int]
    ) -> None:
        self._retry = retry
        self._topics = topics
        self._group = group
        self._name = name
        self._counts = counts
        self._producer: Producer | None = None
        self._waiting: list[Delivery] = []
        self._told = KnownErrors()

    def open(self, place: Place, client_id: str) -> None:
        """With a producer of its own."""
        self._producer = PlainProducer(
            place, client_id=client_id, acks="all", linger=0.002, delivery_timeout=WRITE_TIMEOUT
        )

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= COPIES_MAX

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def put(self, failed: FailedRecord) -> None:
        """Writes its copy. Raises what `Producer.send` raises, with nothing written."""
        assert self._producer is not None
        delivery = self.send(failed, self._producer.send)
        if delivery is not None:
            self._waiting.append(delivery)

    def send(self, failed: FailedRecord, send: Send) -> Any:
        """The same by `send`; None where no copy is kept."""
        tries, error = failed.story.deliveries, failed.error
        where = place_of(failed.record)
        is_fatal = isinstance(error, (DecodeError, *self._retry.fatal))
        if tries <= self._retry.max and not is_fatal:
            level = self._retry.level_of(tries)
            delay = self._retry.levels[level - 1]
            sent = self._retried(failed, level, delay, send)
            self._counts["retried"] += 1
            logger.warning(
                "group %s: %s failed at %s, try %d of %d, and again in %g s: %s",
                self._group, self._name, where, tries, self._retry.max + 1, delay, told_of(error),
            )  # fmt: skip
            return sent
        to = None if self._topics.letters is None else self._topics.letters[failed.source]
        sent = None if to is None else self._dead(failed, to, send)
        self._counts["dead_letters"] += 1
        shows = self._told.is_new(error) or logger.isEnabledFor(logging.INFO)
        logger.error(
            "group %s: %s failed at %s, try %d%s: %s",
            self._group, self._name, where, tries,
            ", and nothing is kept of it" if to is None else f", a dead letter in {to} now",
            told_of(error), exc_info=error if shows else None,
        )  # fmt: skip
        return sent

    def _retried(self, failed: FailedRecord, level: int, delay: float, send: Send) -> Any:
        record, story = failed.at, failed.story
        to = self._topics.name(failed.source, level)
        own = own_headers(failed.record)
        work = record.work or WorkFields()
        work = work._replace(due=time.time_ns() // 1000 + round(delay * 1e6))
        partition = failed.record.partition % self._topics.partitions[to]
        options = {"key": record.raw_key, "partition": partition, "work": work}
        try:
            return send(to, record.raw_value, headers=copied_headers(own, story), **options)
        except er.RecordTooLargeError:
            least = copied_headers(own, story.shortened())
            return send(to, record.raw_value, headers=least, **options)

    def _dead(self, failed: FailedRecord, to: str, send: Send) -> Any:
        record, own = failed.record, own_headers(failed.record)

        def sent(story: RetryStory) -> Any:
            told = CondemnedRecord(
                b"", story.partition, story.offset, story.deliveries, story.failures
            )
            letter = DeadRecord(story.topic, told)
            headers = with_story(own, letter, self._group, story.timestamp)
            return send(
                to, record.raw_value, key=record.raw_key, headers=headers, priority=record.priority
            )

        try:
            return sent(failed.story)
        except er.RecordTooLargeError:
            return sent(failed.story.shortened())

    # --- what is under way ---
    def flush(self) -> Exception | None:
        """Waits until all copies are acknowledged; the first error. Nothing is under way then."""
        deadline = time.monotonic() + WRITE_TIMEOUT + 1.0
        failure: Exception | None = None
        for delivery in self._waiting:
            try:
                error = delivery.exception(max(0.0, deadline - time.monotonic()))
            except er.PenstockTimeout as late:
                error = late
            failure = failure or error
        self._waiting = []
        return failure

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
