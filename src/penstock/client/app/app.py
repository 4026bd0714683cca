"""`App`: a service made of handlers. It starts their workers, and stops them by signals.

    app = penstock.App("shm://")

    @app.consumer("orders", group="billing", concurrency=3, retries=5, on_error="skip")
    def bill(order: Order) -> None:
        app.send("invoices", invoice(order))

    app.run()

At least once, unless told otherwise: a record is committed after its handler has returned and what
that sent is delivered.
SIGTERM and SIGINT end it in order: no further records, what is in hand is finished and committed.

Owns the workers' life. Reading and committing are in `worker`, decoding in `handler`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from penstock.client.app.handler import Handler
from penstock.client.app.subscription import (
    AppGuarantee,
    OnError,
    ShareSubscription,
    Subscription,
)
from penstock.client.app.worker import COUNTS, Worker, producer_of
from penstock.client.client import Client, connect
from penstock.client.closing import Closing
from penstock.client.consumer.records import place_of
from penstock.client.options import AppOptions, AppShareOptions
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.producer import Producer
from penstock.client.share.jobs import Job
from penstock.client.stop_signals import stopped_by_signals
from penstock.client.transport import Keys, Transport
from penstock.client.validation import as_spelt, check_names, check_range, telling_options
from penstock.core import errors as er
from penstock.serializers.serializer import Serializer

if TYPE_CHECKING:
    from penstock.client.retry.policy import Retry
    from penstock.client.tracing import Tracing

logger = logging.getLogger("penstock.app")

Function = TypeVar("Function", bound=Callable[..., Any])

GUARANTEES: Final = ("at-least-once", "at-most-once")
STOP_TIMEOUT: Final = 25.0
"""Below the 30 s that Kubernetes waits before it kills."""


class App(Closing):
    """Handlers of records, and the threads that run them.

    Args:
        url: the node, as `penstock.connect` takes it, when the app starts.
        stop_timeout: seconds that handlers get to finish what they have in hand.
        tracing: spans of what handlers do and send, see `penstock.otel.Tracing`.

    `client_id`, `transport` and `keys` are those of `penstock.connect`.
    """

    @telling_options("App()")
    def __init__(
        self,
        url: str | None = None,
        *,
        client_id: str = "",
        transport: Transport = "auto",
        keys: Keys = None,
        stop_timeout: float = STOP_TIMEOUT,
        tracing: Tracing | None = None,
    ) -> None:
        check_range("stop_timeout", stop_timeout, 0.0, 86_400.0)
        self.url = url
        self._reached: dict[str, Any] = {
            "client_id": client_id, "transport": transport, "keys": keys,
        }  # fmt: skip
        self._stop_timeout = stop_timeout
        self._tracing = tracing
        self._subscriptions: list[Subscription | ShareSubscription] = []
        self._workers: list[Worker] = []
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._local = threading.local()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._events: queue.SimpleQueue[bool] = queue.SimpleQueue()  # a stop is wanted; an end

    def consumer(
        self,
        *topics: str,
        group: str,
        concurrency: int = 1,
        on_error: OnError = "stop",
        retries: int = 0,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 10.0,
        retry: Retry | None = None,
        commit_interval: float = 1.0,
        guarantee: AppGuarantee = "at-least-once",
        value: Serializer[Any] | None = None,
        key: Serializer[Any] | None = None,
        **options: Unpack[AppOptions],
    ) -> Callable[[Function], Function]:
        """Registers a handler of these topics' records, which stays the function it is.

        Args:
            group: its workers are members of it, here and in other processes.
            concurrency: how many workers this process has for it. More than the topics have
                partitions wait.
            on_error: once a handler has failed and its retries are used up: "stop" ends the app
                with the error, and the record comes again; "skip" logs it and goes on, but
                stops, too, at an error of Penstock that is no record's fault: no such topic, ...
            retries: how often it is tried again. A value that cannot be decoded is not.
            retry_backoff, retry_backoff_max: seconds of the first wait, doubled up to the latter;
                the wait is a random part of that.
            retry: in place of these, retry topics: a record whose handler fails waits there while
                the others go on, and becomes a dead letter in the end; see `GroupConsumer.run`.
            commit_interval: seconds between commits, at most.
            guarantee: "at-most-once": no record is handled twice, whatever fails; those in hand
                when a process dies are lost, as is one whose handler fails. It has no retries.
            value, key: serializers of `penstock.serializers`. A handler then takes the decoded
                value, whatever its annotation is.
            options: further ones of a group's consumer: `start`, `pattern`, ...

        The handler's annotations say what it takes: see `penstock.client.app.handler`. It may be
        `async`; a worker has an event loop of its own, and handles one record after the other.
        """
        check_names("App.consumer()", options, OPTIONS)

        def register(function: Function) -> Function:
            told = Subscription(
                Handler(function, is_decoded=value is not None),
                topics, group, concurrency, on_error, retries, retry_backoff,
                retry_backoff_max, retry, commit_interval,
                as_spelt("guarantee", guarantee, GUARANTEES),
                {**options, "value": value, "key": key},
            )  # fmt: skip
            self._register(told)
            return function

        return register

    def share_consumer(
        self,
        *topics: str,
        group: str,
        concurrency: int = 1,
        value: Serializer[Any] | None = None,
        key: Serializer[Any] | None = None,
        **options: Unpack[AppShareOptions],
    ) -> Callable[[Function], Function]:
        """Registers a handler of a share group's jobs, which stays the function it is.

        Args:
            group: many workers, here and in other processes, share each partition.
            concurrency: how many workers this process has for it.
            value, key: as of `consumer`.
            options: further ones of `Client.share_consumer`: `max_deliveries`, `backoff`, ...

        The handler takes what that of `consumer` takes, with `Job` in place of `Record`. A job is
        done once its handler has returned, and what that sent is delivered; one that it raises for
        comes again, and becomes a dead letter in the end. One that cannot be decoded is one at
        once. The app answers; an answer that the handler gave counts.
        """
        check_names("App.share_consumer()", options, SHARE_OPTIONS)

        def register(function: Function) -> Function:
            handler = Handler(function, Job, is_decoded=value is not None)
            given = {**options, "value": value, "key": key}
            self._register(ShareSubscription(handler, topics, group, concurrency, given))
            return function

        return register

    def _register(self, told: Subscription | ShareSubscription) -> None:
        if self._client is not None:
            raise er.ConfigError("the app runs: register handlers before it starts")
        self._subscriptions.append(told)

    @property
    def client(self) -> Client | None:
        """Returns the client of its node; None while it does not run."""
        return self._client

    # --- sending ---------------------------------------------------------------------------------
    @property
    def producer(self) -> Producer:
        """Returns, within a handler, the producer of its worker, which delivers before the commit.
        Elsewhere it is one for all threads."""
        worker: Worker | None = getattr(self._local, "worker", None)
        if worker is not None:
            return worker.producer
        with self._lock:
            if self._client is None:
                raise er.ClosedError("the app is not running: start it, or use it by `with`")
            if self._producer is None:
                self._producer = producer_of(self._client, self._tracing)
            return self._producer

    def send(self, topic: str, value: bytes | None, **fields: Any) -> Delivery:
        """Sends as `Producer.send` of `producer`."""
        return self.producer.send(topic, value, **fields)

    # --- life ------------------------------------------------------------------------------------
    def run(self) -> None:
        """Starts, and stays until SIGTERM, SIGINT, `stop`, a failure, or the end of all workers.

        Raises the error of a handler whose policy is "stop", and what `close` raises. A second
        signal is a KeyboardInterrupt: nothing more is waited for. Signals are the main thread's.
        """
        with stopped_by_signals(self.stop):
            try:
                self.start()
                while self._events.get() is False and not self._is_over():
                    pass
            finally:
                self.close()

    def start(self) -> None:
        """Connects, and starts the workers. Raises what `penstock.connect` raises."""
        if self._client is not None:
            raise er.ConfigError("the app runs already")
        if not self._subscriptions:
            raise er.ConfigError("the app has no handlers: register one by @app.consumer(...)")
        self._client = client = connect(self.url, **self._reached)
        self._stopping.clear()
        self._workers = [
            Worker(
                told,
                client,
                self._stopping,
                self._begun,
                lambda: self._events.put(False),
                self._tracing,
            )
            for told in self._subscriptions
            for _ in range(told.concurrency)
        ]
        for worker in self._workers:
            worker.thread.start()
        for told in self._subscriptions:
            logger.info(
                "group %s: %d workers run %s", told.group, told.concurrency, told.handler.name
            )

    def stop(self) -> None:
        """Makes `run` end in order. Returns at once; from any thread, handler or signal handler."""
        self._events.put(True)

    def close(self) -> None:
        """Stops the workers, once they have finished and committed what they have in hand.

        Raises the first failure of a worker; `PenstockTimeout` after `stop_timeout`, naming what a
        handler still has in hand: that comes again.
        """
        client, self._client = self._client, None
        if client is None:
            return
        self._stopping.set()
        for worker in self._workers:
            worker.stop()
        until = time.monotonic() + self._stop_timeout
        for worker in self._workers:
            worker.thread.join(max(0.0, until - time.monotonic()))
        late = [worker for worker in self._workers if worker.thread.is_alive()]
        self._events = queue.SimpleQueue()
        with self._lock:
            producer, self._producer = self._producer, None
        try:
            if producer is not None:
                producer.close()
        finally:
            if not late:  # else their members would commit what is not done
                client.close()
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure
        if late:
            raise er.PenstockTimeout(
                f"after {self._stop_timeout:g} s (stop_timeout) handlers still work: "
                + ", ".join(_works(worker) for worker in late)
            )

    @asynccontextmanager
    async def lifespan(self, _web: object) -> AsyncIterator[None]:
        """Starts and closes it with a web application: `FastAPI(lifespan=app.lifespan)`, and so of
        Starlette. The event loop goes on meanwhile, so requests under way are answered."""
        await asyncio.to_thread(self.start)
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def metrics(self) -> dict[str, int]:
        """Returns the counts `handled`, `retried`, `skipped` and `dead_letters` of all workers
        since the last start. `retried` counts tries, the others records; `dead_letters` those of
        `retry`, and jobs that could not be decoded."""
        workers = self._workers
        return {name: sum(worker.counts[name] for worker in workers) for name in COUNTS}

    def __enter__(self) -> App:
        self.start()
        return self

    def _begun(self, worker: Worker) -> None:
        self._local.worker = worker

    def _is_over(self) -> bool:
        return any(worker.failure is not None for worker in self._workers) or all(
            worker.is_done for worker in self._workers
        )


def _works(worker: Worker) -> str:
    record, told = worker.in_hand, worker.subscription
    where = "its last commit" if record is None else place_of(record)
    return f"{told.handler.name} of group {told.group} at {where}"


OPTIONS: Final = (
    "group", *(App.consumer.__kwdefaults__ or ()), *AppOptions.__annotations__,
)  # fmt: skip
"""All options of `App.consumer`. Its own named parameters are listed for hints only."""
SHARE_OPTIONS: Final = (
    *(App.share_consumer.__kwdefaults__ or ()), "group", *AppShareOptions.__annotations__,
)  # fmt: skip
