"""A worker of an app: one thread, one member of a group, one handler.

The loop is that of its subscription: over records (`record_loop`), with retry topics
(`client.retry`), or over the jobs of a share group (`job_loop`).

Owns the thread, the handler's event loop and its producer. Never touches signals or other workers.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.client.app.record_loop import RecordLoop
from penstock.client.app.subscription import ShareSubscription, Subscription
from penstock.client.consumer.records import Record

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.client.consumer.group.consumer import GroupConsumer
    from penstock.client.producer.producer import Producer
    from penstock.client.share.jobs import Job
    from penstock.client.tracing import Tracing

logger = logging.getLogger("penstock.app")

FLUSH_TIMEOUT: Final = 30.0
"""Seconds for what handlers sent to be delivered, before a commit."""
COUNTS: Final = ("handled", "retried", "skipped", "dead_letters")


class Worker:
    """One thread that runs one handler. `begin` is called in its thread before all else, `end`
    after all else."""

    def __init__(
        self,
        subscription: Subscription | ShareSubscription,
        client: Client,
        stopping: threading.Event,
        begin: Callable[[Worker], None],
        end: Callable[[], None],
        tracing: Tracing | None = None,
    ) -> None:
        self.subscription = subscription
        self.counts = dict.fromkeys(COUNTS, 0)
        self.failure: BaseException | None = None
        self.is_done = False
        self.in_hand: Record | Job | None = None
        self._client = client
        self._stopping = stopping
        self._begin, self._end = begin, end
        self._tracing = tracing
        self._consumer: GroupConsumer | None = None
        self._producer: Producer | None = None
        self._runner: asyncio.Runner | None = None
        name = f"penstock-{subscription.group}-{subscription.handler.name}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def producer(self) -> Producer:
        """Of the handler's own records."""
        if self._producer is None:
            self._producer = producer_of(self._client, self._tracing)
        return self._producer

    def _run(self) -> None:
        try:
            self._begin(self)
            if self.subscription.handler.is_async:
                with asyncio.Runner() as self._runner:
                    self._work()
            else:
                self._work()
        except BaseException as error:
            self.failure = error
            told = self.subscription  # `run` and `close` raise it, which may be much later
            logger.error(
                "group %s: a worker of %s has stopped, by %r%s", told.group, told.handler.name,
                error, "".join(f"; {note}" for note in getattr(error, "__notes__", ())),
            )  # fmt: skip
        finally:
            self.is_done = True
            self._end()

    def _work(self) -> None:
        told = self.subscription
        try:
            if isinstance(told, ShareSubscription):
                self._work_on_jobs(told)
            elif told.retry is not None:
                self._work_with_retries(told)
            else:
                self._work_on_records(told)
        finally:
            if self._producer is not None:
                self._producer.close()

    def stop(self) -> None:
        """The app stops: a run ends that looks at its consumer alone. From another thread."""
        if (consumer := self._consumer) is not None:
            consumer.stop()

    def _call(self, record: Record | Job) -> None:
        """Calls the handler. Raises what it raises."""
        self.in_hand = record
        try:
            if self._tracing is None:
                self._handle(record)
            else:
                with self._tracing.process(record, self.subscription.group):
                    self._handle(record)
        finally:
            self.in_hand = None

    def _handle(self, record: Record | Job) -> None:
        called = self.subscription.handler(record)
        if self._runner is not None:
            context = None if self._tracing is None else contextvars.copy_context()
            self._runner.run(called, context=context)

    def flush(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Waits until what the handler sent is delivered. Raises what keeps it from that."""
        if self._producer is not None:
            self._producer.flush(timeout)

    def _work_on_jobs(self, told: ShareSubscription) -> None:
        from penstock.client.app.job_loop import JobLoop  # few do

        with self._client.share_consumer(*told.topics, group=told.group, **told.options) as jobs:
            JobLoop(
                jobs, told.handler.name, self._call, self.flush, self._stopping, self.counts
            ).run()

    def _work_with_retries(self, told: Subscription) -> None:
        from penstock.client.retry.blocking import drive  # few do

        with self._client.consumer(
            *told.topics, group=told.group, commit_interval=told.commit_interval, **told.options
        ) as consumer:
            self._consumer = consumer
            _, steps = consumer.running(told.handler.function, told.retry, self, self.counts)
            if self._stopping.is_set():
                consumer.stop()
            drive(self._call, steps)

    def _work_on_records(self, told: Subscription) -> None:
        RecordLoop(told, self._client, self._call, self.flush, self._stopping, self.counts).run()


def producer_of(client: Client, tracing: Tracing | None) -> Producer:
    """A producer of handlers' records, traced where handlers are."""
    return client.producer() if tracing is None else client.producer(on_send=tracing.on_send)
