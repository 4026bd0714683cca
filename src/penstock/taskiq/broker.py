"""`PenstockBroker`: tasks of taskiq are records of a topic, and jobs of a share group.

    kick                         a record, acknowledged by all in-sync replicas; labels `delay`,
                                 `ttl`, `priority`, `key` and `dedup_id` are options of the record
    taskiq has room for a task   one job is asked for, or `prefetch` of them
    taskiq acknowledges          the job is done, which the coordinator hears of at once
    the worker dies              its jobs go to others at once, however long they have run

Owns the client, the consumer and the jobs that taskiq has in hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Unpack

from taskiq import (
    AckableMessage,
    AsyncBroker,
    BrokerMessage,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
)
from taskiq.exceptions import NoResultError

from penstock.client.admin.topic_config import TopicConfig
from penstock.client.aio.client import Client, connect
from penstock.client.aio.producer import Producer
from penstock.client.aio.share import ShareConsumer
from penstock.client.consumer.records import place_of
from penstock.client.options import AppShareOptions
from penstock.client.producer.record_options import RecordOptions
from penstock.client.share.jobs import Job, told_of
from penstock.client.transport import Keys, Transport
from penstock.client.validation import check_integer, check_range
from penstock.core import errors as er
from penstock.ipc.sharing import RECORDS_MAX

logger = logging.getLogger("penstock.taskiq")

POLL_SECONDS: Final = 5.0
CLIENT_ID: Final = "taskiq"

_job: ContextVar[Job | None] = ContextVar("penstock_taskiq_job", default=None)
"""The job of the task that runs."""


class PenstockBroker(AsyncBroker):
    """A broker of one topic and one share group.

    Args:
        url: the node, as `penstock.connect` takes it.
        topic: made at the start, where it is missing and the client may.
        group: workers of one name share the tasks; each group gets all of them.
        topic_config: how the topic is made; default: 4 partitions.
        prefetch: tasks that a worker asks for at once. Those that it has no room for wait
            in it, and priority is their order; with 1 none waits there, and no task has to wait for
            a long one.
        kick_timeout: seconds for a task to be acknowledged by the node.
        options: of `Client.share_consumer`: `max_deliveries`, `backoff`, `order`, `fair`, ... A
            delivery that counts is one that ended with its worker's refusal, not with its death.

    `client_id`, `transport` and `keys` are those of `penstock.connect`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        topic_config: TopicConfig | None = None,
        prefetch: int = 1,
        kick_timeout: float = 30.0,
        client_id: str = CLIENT_ID,
        transport: Transport = "auto",
        keys: Keys = None,
        **options: Unpack[AppShareOptions],
    ) -> None:
        super().__init__()
        check_integer("prefetch", prefetch)
        check_range("prefetch", prefetch, 1, RECORDS_MAX)
        self.topic = topic
        self.group = group
        self._topic_config = topic_config or TopicConfig(partitions=4)
        self._prefetch = prefetch
        self._kick_timeout = kick_timeout
        self._connecting = partial(
            connect, url, client_id=client_id, transport=transport, keys=keys
        )
        self._options = options
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._consumer: ShareConsumer | None = None
        self._is_polling = False
        self._sender: asyncio.Task[None] | None = None
        self._waiting: dict[str, deque[Job]] = {}
        """Jobs that taskiq has and has not begun with, by the ids of their tasks."""
        self.add_middlewares(_Jobs(self._waiting))

    # --- life ---
    async def startup(self) -> None:
        """Connects, and joins the group in a worker. Raises what `penstock.connect` raises."""
        self._client = await self._connecting()
        async with self._client.admin() as admin:
            with suppress(er.AccessDeniedError):  # else the topic has to be there
                await admin.create_topic(self.topic, self._topic_config, if_not_exists=True)
        self._producer = await self._client.producer(
            acks="all", linger=0.0, delivery_timeout=self._kick_timeout
        )
        if self.is_worker_process:
            self._consumer = await self._client.share_consumer(
                self.topic, group=self.group, **self._options
            )
        await super().startup()

    async def shutdown(self) -> None:
        """Sends the answers, gives the other jobs back, and closes the client."""
        try:
            await super().shutdown()
        finally:
            client, self._client = self._client, None
            self._producer = self._consumer = None
            if client is not None:
                await client.close()

    # --- sending ---
    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task, and waits until the node has it."""
        if self._producer is None:
            raise er.ClosedError("the broker is not started: await broker.startup() first")
        key, options = _options_of(message.labels)
        await self._producer.send_and_wait(
            self.topic, message.message, key=key, timeout=self._kick_timeout + 1.0, **options
        )

    # --- receiving ---
    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yields tasks, one by one, each once taskiq has room for it."""
        consumer = self._consumer
        if consumer is None:
            raise er.ClosedError("the broker is not started as that of a worker")
        while True:
            for job in await self._poll(consumer):
                if (task_id := self._task_of(job)) is None:
                    self._send_answers(consumer)
                    continue
                self._waiting.setdefault(task_id, deque()).append(job)
                yield AckableMessage(data=job.value or b"", ack=self._acknowledging(consumer, job))

    async def _poll(self, consumer: ShareConsumer) -> list[Job]:
        """Answers are sent meanwhile."""
        while self._sender is not None:
            await asyncio.wait([self._sender])
        self._is_polling = True
        try:
            return await consumer.poll(self._prefetch, POLL_SECONDS, is_exact=True)
        finally:
            self._is_polling = False

    def _task_of(self, job: Job) -> str | None:
        """Returns the id of its task. One that taskiq would drop is answered for here: it may be
        another worker's, or is a dead letter."""
        try:
            message = self.formatter.loads(job.value or b"")
        except Exception as error:
            logger.error("%s is no task, and is a dead letter now: %r", place_of(job), error)
            job.reject(reason=told_of(error))
            return None
        if self.find_task(message.task_name) is None:
            logger.error("%s: no task %r is known here", place_of(job), message.task_name)
            job.nack(reason=f"no task {message.task_name!r} is known to this worker")
            return None
        return message.task_id

    def _acknowledging(self, consumer: ShareConsumer, job: Job) -> Callable[[], None]:
        def acknowledge() -> None:
            job.ack()
            self._send_answers(consumer)

        return acknowledge

    def _send_answers(self, consumer: ShareConsumer) -> None:
        """Has answers sent now: by the poll under way, or by a task."""
        if not self._is_polling and self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._flush(consumer))

    async def _flush(self, consumer: ShareConsumer) -> None:
        try:
            await consumer.flush()
        except er.PenstockError as error:
            logger.info("group %s: answers are sent again later: %s", self.group, error)
        finally:
            self._sender = None


class _Jobs(TaskiqMiddleware):
    """Tells the code that runs a task which job it is."""

    def __init__(self, waiting: dict[str, deque[Job]]) -> None:
        super().__init__()
        self._waiting = waiting

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        if jobs := self._waiting.get(message.task_id):
            _job.set(jobs.popleft())
            if not jobs:
                del self._waiting[message.task_id]
        return message


class DeadLetterMiddleware(TaskiqMiddleware):
    """Makes a dead letter of a task that failed, with the error as its reason, unless a retry was
    sent for it. For `PenstockBroker`.

    Tasks with `ack_type="when_received"` or `"when_executed"` are done before that, and stay so.
    """

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        job = _job.get()
        if job is not None and result.is_err and not isinstance(result.error, NoResultError):
            job.reject(reason=told_of(result.error))


def _options_of(labels: dict[str, Any]) -> tuple[bytes | None, RecordOptions]:
    """Returns key and options of a task's record. Raises `ConfigError` for a label that is none."""
    options: RecordOptions = {}
    name = ""
    try:
        if (given := labels.get(name := "delay")) is not None:
            options["delay"] = float(given)
        if (given := labels.get(name := "ttl")) is not None:
            options["ttl"] = float(given)
        if (given := labels.get(name := "priority")) is not None:
            options["priority"] = int(given)
    except ValueError:
        raise er.ConfigError(f"label {name}={given!r} must be a number") from None
    if (given := labels.get("dedup_id")) is not None:
        options["dedup_id"] = str(given).encode()
    key = labels.get("key")
    return None if key is None else str(key).encode(), options
