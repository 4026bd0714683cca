"""Calls a handler for each record of a group, and sees that one that fails holds up no other.

    the handler returns            the record is done
    it raises                      a copy goes to the retry topic of the next level
    ... and retries are used up,   it goes to the topic of dead letters
        or the error is fatal
    a retry topic's next record    its partition is sought back to it and paused until then: those
    is not due                     behind it are due later still
    a commit is near               copies are acknowledged first

Exactly once, a batch and the copies of its failed records are one transaction. Records that a
handler sent before it failed must not count. So the transaction is aborted, records before it are
handled again, and of the failed one the copy alone is sent.

Owns that order, as steps that others carry out: in a thread, or in an event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

from penstock.client.admin.admin import Admin
from penstock.client.app.handler import Handler
from penstock.client.consumer.group.consumed import Committed, GroupBatch
from penstock.client.consumer.group.run_length import RunPace
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk, Record
from penstock.client.remote.address import Place
from penstock.client.retry.forwarder import WRITE_TIMEOUT, FailedRecord, Forwarder
from penstock.client.retry.policy import Retry
from penstock.client.retry.steps import BlockStep, HandleStep, ProducerStep, Steps, WaitStep
from penstock.client.retry.story import as_it_was, begun, told
from penstock.client.retry.topics import RetryTopics
from penstock.client.share.jobs import said, told_of
from penstock.core import errors as er
from penstock.ipc.sharing import FailureInfo
from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.consumer")

POLL_SECONDS: Final = 0.2
"""Between two looks whether to stop, while nothing comes."""
COUNTS: Final = ("handled", "retried", "dead_letters", "retry_pauses", "foreign_retries")


class RetryingConsumer(Protocol):
    """The consumer of a group, as far as this needs it."""

    group: str
    stopping: bool

    @property
    def guarantee(self) -> str: ...
    @property
    def member_id(self) -> str: ...
    def ending(self) -> Waits[bool]: ...
    def polling(
        self, max_records: int | None, timeout: float | None
    ) -> Waits[GroupBatch[Any, Any]]: ...
    def brought(self) -> None: ...
    def runs(self, batch: GroupBatch[Any, Any]) -> Iterator[Iterator[Record[Any, Any]] | None]: ...
    def attending(self) -> Waits[None]: ...
    def committing(self, what: Committed | None = None) -> Waits[None]: ...
    def rewinding(self, batch: GroupBatch[Any, Any] | None = None) -> Waits[None]: ...
    def seeking(self, topic: str, partition: int, to: int) -> Waits[int]: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...
    def reads(self, name: TopicPartition) -> bool: ...
    def reading_also(self, topics: list[str]) -> Waits[None]: ...


class RetryLoop:
    """The steps of a run. `producer`: the handler's own; exactly once it has transactions."""

    def __init__(
        self,
        consumer: RetryingConsumer,
        handler: Handler,
        retry: Retry,
        topics: RetryTopics,
        producer: Any,
        counts: dict[str, int],
    ) -> None:
        self._consumer = consumer
        self._retry = retry
        self._topics = topics
        self._producer = producer
        self._counts = counts
        for name in COUNTS:
            counts.setdefault(name, 0)
        self._forwarder = Forwarder(retry, topics, consumer.group, handler.name, counts)
        self._waits: dict[TopicPartition, float] = {}
        """Partitions that are paused, and until when (monotonic seconds)."""
        self._waited: dict[TopicPartition, int] = {}
        """The offset that each was paused for: it is due then, whatever the clock says."""
        self._in_hand: Record[Any, Any] | None = None
        """The record that is not done yet."""
        self._pace = RunPace()

    def steps(self, place: Place, client_id: str) -> Steps[None]:
        """All of it, until a stop is wanted, an end is reached, or something other than the handler
        fails."""
        yield BlockStep(lambda: self._open(place, client_id))
        consumer = self._consumer
        try:
            yield WaitStep(consumer.reading_also(list(self._topics.partitions)))
            exactly_once = consumer.guarantee == "exactly-once"
            yield from self._transactions() if exactly_once else self._records()
        finally:
            consumer.stopping = False
            consumer.resume(*(name for name in self._waits if consumer.reads(name)))
            yield BlockStep(self._forwarder.close)

    def _open(self, place: Place, client_id: str) -> None:
        with Admin(place, client_id=client_id) as admin:
            self._topics.make(admin)
        if self._consumer.guarantee != "exactly-once":
            self._forwarder.open(place, client_id)

    def _goes_on(self) -> Steps[bool]:
        now, consumer = time.monotonic(), self._consumer
        for name in [name for name, until in self._waits.items() if until <= now]:
            del self._waits[name]
            if consumer.reads(name):
                consumer.resume(name)
        if consumer.stopping:
            return False
        return not (yield WaitStep(consumer.ending()))

    @property
    def _bound(self) -> float:
        """Seconds that a poll may take."""
        if not self._waits:
            return POLL_SECONDS
        return min(POLL_SECONDS, max(0.0, min(self._waits.values()) - time.monotonic()))

    # --- one record ------------------------------------------------------------------------------
    def _attempt(self, at: Record[Any, Any]) -> Steps[FailedRecord | None]:
        """Handle it; what failed, if it did."""
        level = self._topics.levels.get(at.topic)
        story, record = None if level is None else told(at), at
        if story is None:
            story = begun(at, self._consumer.group)
        elif story.group != self._consumer.group:
            self._counts["foreign_retries"] += 1
            return None
        else:
            record = as_it_was(at, story)
        try:
            yield HandleStep(record)
        except Exception as error:
            reason = said(told_of(error))
            failure = FailureInfo(self._consumer.member_id, time.time_ns() // 1000, reason)
            source = at.topic if level is None else level.source
            return FailedRecord(record, at, source, story.failed(failure), error)
        self._counts["handled"] += 1
        return None

    def _wait_of(self, at: Record[Any, Any]) -> float:
        """Seconds until it is due; 0 where it is."""
        if at.topic not in self._topics.levels or at.due is None:
            return 0.0
        if self._waited.get((at.topic, at.partition)) == at.offset:
            return 0.0
        longest = self._retry.levels[-1]
        return min(max(0.0, at.due / 1e6 - time.time()), longest)

    def _later(self, at: Record[Any, Any], seconds: float) -> Steps[None]:
        """Goes on with its partition then."""
        name = at.topic, at.partition
        yield WaitStep(self._consumer.seeking(at.topic, at.partition, at.offset))
        if self._consumer.reads(name):
            self._consumer.pause(name)
            self._waits[name], self._waited[name] = time.monotonic() + seconds, at.offset
            self._counts["retry_pauses"] += 1

    # --- at least once ---------------------------------------------------------------------------
    def _records(self) -> Steps[None]:
        consumer = self._consumer
        while (yield from self._goes_on()):
            batch = yield WaitStep(consumer.polling(None, self._bound))
            try:
                for rows in consumer.runs(batch):
                    if rows is None:
                        yield from self._flush(batch)
                        yield WaitStep(consumer.attending())
                    elif not (yield from self._run(batch, rows)):
                        break
            except BaseException as error:
                yield from self._leave()
                yield from self._flush(batch, error)
                raise
            yield from self._flush(batch)
        yield from self._commit()

    def _run(self, batch: GroupBatch[Any, Any], rows: Iterator[Record[Any, Any]]) -> Steps[bool]:
        """Whether the batch goes on after it."""
        for at in rows:
            wait = self._wait_of(at)
            if wait:
                yield from self._later(at, wait)
                return False
            self._in_hand = at
            failed = yield from self._attempt(at)
            if failed is not None:
                if self._forwarder.is_full:
                    yield from self._flush(batch)
                yield BlockStep(partial(self._forwarder.put, failed))
            self._in_hand = None
            if self._consumer.stopping:
                return False
        return True

    def _leave(self) -> Steps[None]:
        """The record in hand comes again, also where this consumer goes on."""
        at, self._in_hand = self._in_hand, None
        if at is not None and self._consumer.reads((at.topic, at.partition)):
            yield WaitStep(self._consumer.seeking(at.topic, at.partition, at.offset))

    def _flush(
        self, batch: GroupBatch[Any, Any], cause: BaseException | None = None
    ) -> Steps[None]:
        """Have acknowledged what was copied of a batch, and what its handler sent. Else the batch
        comes again, and what is wrong is raised, unless something else is on its way: `cause`."""
        failure: Exception | None = None
        if self._forwarder.is_waiting:
            failure = yield BlockStep(self._forwarder.flush)
        if self._producer is not None:
            try:
                yield ProducerStep(partial(self._producer.flush, WRITE_TIMEOUT))
            except er.PenstockError as error:
                failure = failure or error
        if failure is None:
            return
        yield WaitStep(self._consumer.rewinding(batch))
        if cause is None:
            raise failure
        logger.error("group %s: what was not kept comes again: %s", self._consumer.group, failure)

    def _commit(self) -> Steps[None]:
        """The last one of a run. At worst records come again."""
        try:
            yield WaitStep(self._consumer.committing())
        except er.PenstockError as error:
            if not (error.retriable or isinstance(error, er.StaleGenerationError)):
                raise
            logger.warning("group %s: the last commit failed: %s", self._consumer.group, error)

    # --- exactly once ----------------------------------------------------------------------------
    def _transactions(self) -> Steps[None]:
        consumer = self._consumer
        while (yield from self._goes_on()):
            batch = yield WaitStep(consumer.polling(self._pace.records, self._bound))
            consumer.brought()
            batch = yield from self._due_part(batch)
            since = time.monotonic()
            done = 0
            try:
                while done < len(batch) and not consumer.stopping:
                    done += yield from self._transaction(batch[done:])
            except er.StaleGenerationError as error:
                logger.warning("group %s: %s", consumer.group, error)
            except (er.PenstockTimeout, er.NotConnectedError):
                raise  # whether it was committed nobody knows
            except BaseException:
                yield WaitStep(consumer.rewinding(batch[done:]))
                raise
            if done < len(batch):
                yield WaitStep(consumer.rewinding(batch[done:]))
            if batch:
                self._pace.note(len(batch), time.monotonic() - since)

    def _due_part(self, batch: GroupBatch[Any, Any]) -> Steps[GroupBatch[Any, Any]]:
        """Without what is not due yet."""
        chunks: list[Chunk] = []
        for chunk in batch.chunks:
            if (chunk.topic, chunk.partition) in self._waits:
                continue  # behind one that is not due
            if chunk.topic in self._topics.levels:
                for row, at in enumerate(chunk.records(), chunk.start):
                    if wait := self._wait_of(at):
                        yield from self._later(at, wait)
                        chunk = chunk.cut(chunk.start, row)
                        break
            if len(chunk):
                chunks.append(chunk)
        return GroupBatch(chunks, batch.ownership, batch.source)

    def _transaction(self, batch: GroupBatch[Any, Any]) -> Steps[int]:
        """Work off the first of these records and commit them; how many."""
        failures: dict[int, FailedRecord] = {}
        records, upto = list(batch), len(batch)
        while True:
            yield ProducerStep(self._producer.begin_transaction)
            try:
                again = None
                for row, at in enumerate(records[:upto]):
                    failed = failures.get(row)
                    if failed is not None:
                        copy = partial(self._forwarder.send, failed, self._producer.send)
                        yield ProducerStep(copy)
                        continue
                    failed = yield from self._attempt(at)
                    if failed is not None:
                        failures[row], again = failed, row
                        break
                    if self._consumer.stopping:
                        upto = row + 1
                        break
                if again is None:
                    yield ProducerStep(
                        partial(self._producer.commit_transaction, consumed=batch[:upto])
                    )
                    return upto
            except BaseException:
                yield from self._abort()
                raise
            yield ProducerStep(self._producer.abort_transaction)
            upto = again + 1

    def _abort(self) -> Steps[None]:
        """Where an error is on its way already."""
        try:
            yield ProducerStep(self._producer.abort_transaction)
        except er.PenstockError as error:
            logger.warning("group %s: %s", self._consumer.group, error)


def steps_of(
    consumer: RetryingConsumer,
    function: Callable[..., object],
    retry: Retry,
    producer: Any,
    made_with: Mapping[str, Any],
    counts: dict[str, int],
) -> tuple[Handler, Steps[None]]:
    """A run of a consumer that was made with these options. Raises `ConfigError` for what cannot
    be."""
    handler = Handler(function, is_decoded=made_with.get("value") is not None)
    if not isinstance(retry, Retry):
        raise TypeError(f"retry={retry!r} must be a penstock.Retry, not {type(retry).__name__}")
    _check(consumer, producer, made_with)
    topics = RetryTopics(retry, consumer.group, made_with["topics"])
    loop = RetryLoop(consumer, handler, retry, topics, producer, counts)
    return handler, loop.steps(made_with["place"], made_with.get("client_id", ""))


def _check(consumer: RetryingConsumer, producer: Any, made_with: Mapping[str, Any]) -> None:
    who = f"run(): group {consumer.group!r}"
    if consumer.guarantee == "at-most-once":
        raise er.ConfigError(
            f"{who} is at-most-once: a retry would handle a record again, which may have been "
            'handled before it failed; read with guarantee="at-least-once" or "exactly-once", or '
            "loop over the consumer without retries"
        )
    if consumer.guarantee == "manual":
        raise er.ConfigError(
            f"{who} is manual: run() commits by itself, a record once it is handled or its copy is "
            'kept; read with guarantee="at-least-once"'
        )
    if made_with["pattern"] is not None:
        raise er.ConfigError(
            f"{who} reads by a pattern: retry topics are made for topics that are named; name them"
        )
    if made_with.get("latest_only") is not None:
        raise er.ConfigError(
            f"{who} has latest_only={made_with['latest_only']!r}, by which records that wait for "
            "their retry would be passed over: leave it out"
        )
    has_transactions = hasattr(producer, "commit_transaction")
    if consumer.guarantee == "exactly-once" and not has_transactions:
        raise er.ConfigError(
            f"{who} is exactly-once: give by producer= the transactional producer that the handler "
            "sends by; each batch and the copies of its failed records are one transaction of it"
        )
    if consumer.guarantee != "exactly-once" and has_transactions:
        raise er.ConfigError(
            f"{who} is {consumer.guarantee}, and producer= has transactions: read with "
            'guarantee="exactly-once", or give a producer without a transactional_id'
        )
