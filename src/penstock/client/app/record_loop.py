"""Calls a handler for each record of a group, in the order of its partitions.

    poll -> decode -> handle -> (retry) -> next      commit: what is handled, once its own records
                                                     are delivered

A commit covers the handled records alone. The worker first goes back to a record whose handler
failed, or that a stop overtook while it waited for its next try. It flushes what the handler sent
before it commits, so that a commit never covers records that are nowhere.

With "at-most-once" a record is committed before its handler is called, which has no second try. It
claims as few at a time as a tenth of a second of work takes, since those are lost with their
process; a stop works them off.

Owns that order. Never touches threads, signals or other workers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.client.app.known_errors import KnownErrors
from penstock.client.app.subscription import Subscription
from penstock.client.backoff import Retries
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Record, place_of
from penstock.core import errors as er
from penstock.serializers.serializer import DecodeError

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.client.consumer.group.consumer import GroupConsumer

logger = logging.getLogger("penstock.app")

POLL_SECONDS: Final = 0.2
"""Between two looks whether to stop, while nothing comes."""
CLAIM_SECONDS: Final = 0.1
"""Of work that is claimed at a time at most once."""
CLAIM_RECORDS_MAX: Final = 10_000
OF_RECORDS: Final = (DecodeError, er.RecordTooLargeError, er.OffsetOutOfRangeError)
"""Errors of Penstock that a record may cause. All others are the app's or its node's: by them each
record would fail, and skipped they would be lost."""
REFUSED_BATCHES: Final = (er.ErrorCode.BATCH_TOO_LARGE, er.ErrorCode.INVALID_TIMESTAMP)


class RecordLoop:
    """`call` the handler; `flush` what it sent."""

    def __init__(
        self,
        subscription: Subscription,
        client: Client,
        call: Callable[[Record], None],
        flush: Callable[[], None],
        stopping: threading.Event,
        counts: dict[str, int],
    ) -> None:
        self._subscription = subscription
        self._client = client
        self._call = call
        self._flush = flush
        self._stopping = stopping
        self._counts = counts
        self._consumer: GroupConsumer
        self._is_committing = True
        self._told = KnownErrors()
        self._commit_at = 0.0
        self._claim = 1
        """Records to claim next, at most once."""

    def run(self) -> None:
        """Until a stop, or an end that is reached. Raises what is to stop the app."""
        told = self._subscription
        self._commit_at = time.monotonic() + told.commit_interval
        self._consumer = consumer = self._client.consumer(
            *told.topics, group=told.group,
            guarantee="at-most-once" if told.is_at_most_once else "manual",
            on_assigned=self._on_change, on_revoked=self._on_change, **told.options,
        )  # fmt: skip
        try:
            if told.is_at_most_once:
                self._read_claimed(consumer)
            else:
                self._read(consumer)
        finally:
            try:
                self._commit()  # closing would only log what it raises
            finally:
                consumer.close()

    def _read(self, consumer: GroupConsumer) -> None:
        stopping = self._stopping
        while not stopping.is_set() and not consumer.is_at_end():
            for record in consumer.unpack(consumer.poll(timeout=POLL_SECONDS)):
                self._handle(record)
                if stopping.is_set():
                    break
                if time.monotonic() >= self._commit_at:
                    self._commit()
            if time.monotonic() >= self._commit_at:
                self._commit()

    def _read_claimed(self, consumer: GroupConsumer) -> None:
        """Reads at most once: a stop waits for the claimed records, for they do not come again."""
        while not self._stopping.is_set() and not consumer.is_at_end():
            batch = consumer.poll(self._claim, POLL_SECONDS)
            left, begun = len(batch), time.monotonic()
            for record in batch:
                left -= 1
                try:
                    self._handle(record)
                except BaseException:
                    self._lose(left)
                    raise
            if batch:
                each = max((time.monotonic() - begun) / len(batch), 1e-9)
                self._claim = max(1, min(int(CLAIM_SECONDS / each), CLAIM_RECORDS_MAX))
            if time.monotonic() >= self._commit_at:
                self._commit()

    def _lose(self, left: int) -> None:
        """Counts the records that were claimed with one that ends the app."""
        self._counts["skipped"] += left
        if left:
            logger.error(
                "group %s: %d records that were claimed with it are lost",
                self._subscription.group, left,
            )  # fmt: skip

    # --- one record ------------------------------------------------------------------------------
    def _handle(self, record: Record) -> None:
        """Handles it, or skips it, or leaves it to come again: with an error, or because of
        a stop."""
        told = self._subscription
        pauses = Retries(told.retry_backoff, told.retry_backoff_max)
        try:
            while not self._tries(record, pauses):
                if self._stopping.wait(pauses.next()):
                    self._leave(record)
                    return
        except BaseException as error:
            error.add_note(f"handler {told.handler.name} of group {told.group}: {place_of(record)}")
            if told.on_error == "skip" and not _is_records(error):
                error.add_note("the record is not skipped, for it is not at fault")
            self._leave(record)
            raise

    def _tries(self, record: Record, pauses: Retries) -> bool:
        """Tries once; returns whether the record is done. Raises what is to stop the app."""
        told = self._subscription
        try:
            self._call(record)
        except Exception as error:
            if not isinstance(error, DecodeError) and pauses.tries < told.retries:
                self._counts["retried"] += 1
                logger.warning(
                    "group %s: %s failed at %s, try %d of %d: %r",
                    told.group, told.handler.name, place_of(record), pauses.tries + 1,
                    told.retries + 1, error,
                )  # fmt: skip
                return False
            if told.on_error == "stop" or not _is_records(error):
                raise
            self._counts["skipped"] += 1
            shows = self._told.is_new(error) or logger.isEnabledFor(logging.INFO)
            logger.error(
                "group %s: %s failed at %s, which is skipped: %r",
                told.group, told.handler.name, place_of(record), error,
                exc_info=error if shows else None,
            )  # fmt: skip
            return True
        self._counts["handled"] += 1
        return True

    def _leave(self, record: Record) -> None:
        """Goes back to the record, so that later commits do not cover it."""
        if self._subscription.is_at_most_once:
            return  # it is committed
        try:
            self._consumer.seek(record.topic, record.partition, record.offset)
        except er.PenstockError:
            self._is_committing = False  # the others come again, too
            logger.exception("group %s: nothing more is committed", self._subscription.group)

    # --- commits ---------------------------------------------------------------------------------
    def _on_change(self, partitions: list[TopicPartition]) -> None:
        """Commits before partitions go. After they came it commits where they begin, so that a
        crash does not move "latest" on."""
        self._commit()

    def _commit(self) -> None:
        """Commits what is handled, unless it is committed. Without an answer it tries again; at
        worst records come again. Raises `DeliveryError` where what was sent is lost."""
        self._commit_at = time.monotonic() + self._subscription.commit_interval
        if not self._is_committing:
            return
        try:
            self._flush()
            if not self._subscription.is_at_most_once:
                self._consumer.commit()
        except er.StaleGenerationError as error:
            logger.warning("%s", error)
        except er.DeliveryError:
            self._is_committing = False
            raise
        except er.PenstockError as error:
            if not error.retriable:
                raise
            logger.warning("group %s: a commit failed: %s", self._subscription.group, error)


def _is_records(error: BaseException) -> bool:
    """Returns whether a handler failed by its own code or by the record, and not by the app or its
    node."""
    if isinstance(error, er.ProduceError):
        return error.code in REFUSED_BATCHES
    return not isinstance(error, er.PenstockError) or isinstance(error, OF_RECORDS)
