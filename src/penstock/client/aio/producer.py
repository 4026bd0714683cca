"""The producer in an event loop: sending as `penstock.Producer` sends, waiting as a loop waits.

The blocking producer and its one thread do the work. Here is only what would block: room and
look-ups are waited for in lines (`penstock.client.aio.send_queue`), outcomes by futures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from penstock.client import fork_safety
from penstock.client.aio.delivery import BatchDelivery, Delivery, News
from penstock.client.aio.send_queue import Lines
from penstock.client.aio.waits import Turns, going_on, in_thread
from penstock.client.arrow.intake import Wanted
from penstock.client.options import ProducerOptions, StageOptions, TransactionOptions
from penstock.client.producer.delivery import Receipt
from penstock.client.producer.encoding import Encoders, encoders_of
from penstock.client.producer.producer import PlainProducer
from penstock.client.producer.producer import Producer as BlockingProducer
from penstock.client.producer.record_options import (
    RecordOptions,
    WorkOptions,
    record_fields,
    work_of_rows,
)
from penstock.client.public_view import Shown
from penstock.client.remote.address import Place
from penstock.client.typed import K, Typed, V
from penstock.client.validation import (
    HeadersLike,
    as_bytes,
    check_columns,
)
from penstock.core import errors as er
from penstock.serializers.serializer import check_serializer

logger = logging.getLogger("penstock.producer")


class Producer(Typed[V, K], Shown):
    """Sends records from an event loop. Made by `Client.producer`; options and errors are those of
    `penstock.Producer`. For the tasks of one loop.

    `send` never waits. A record waits in line, in order, for up to `block_timeout` while the
    buffer is full and `on_full` is "block", and before its topic is looked up. A line holds as
    much as the buffer, and `BufferFullError` is raised beyond. A program that sends much without
    awaiting it awaits `drain` now and then.
    """

    def __init__(
        self, core: BlockingProducer[Any, Any], *, waits: bool, encoders: Encoders | None = None
    ) -> None:
        self._core = core
        if encoders is not None:
            self.send = encoders.sending(self.send)  # type: ignore[method-assign]
            self.send_and_wait = encoders.sending(self.send_and_wait)  # type: ignore[method-assign]
            self.send_batch = encoders.sending_batch(self.send_batch)  # type: ignore[method-assign]
        core.unthreaded.front = self
        self._waits = waits
        self._news = News(asyncio.get_running_loop())
        self._lines = Lines(
            core,
            self._news,
            bytes_max=core.config.buffer_bytes_max,
            waits=waits,
            timeout=core.config.block_timeout,
        )
        self._turns = Turns()
        self._send: Callable[..., Any] = core.send
        self._knows = core.unthreaded.knows
        self._closed = False
        self._leaving: asyncio.Task[None] | None = None
        self._forked = False
        fork_safety.remember(self)

    @classmethod
    async def make(cls, socket: Place, options: ProducerOptions) -> Self:
        """Attaches, in a thread of the loop's."""
        options, waits, encoders = in_line(options)
        core = await in_thread(lambda: PlainProducer(socket, **options), discard=leave)
        return cls(core, waits=waits, encoders=encoders)

    # --- sending ---------------------------------------------------------------------------------
    def send(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        **options: Unpack[RecordOptions],
    ) -> Delivery:
        """Hands over one record; awaiting what it returns gives the receipt, or raises what became
        of it. Arguments and errors as of `penstock.Producer.send`; `UnknownTopicError` comes with
        the delivery where the topic has to be looked up first."""
        if self._knows(topic) and topic not in self._lines:
            try:
                return Delivery(
                    self._news,
                    self._send(
                        topic, value, key=key, headers=headers, partition=partition, **options
                    ),
                )
            except er.BufferFullError:
                if not self._waits:
                    raise
        return self._queue(self._send, topic, value, key, headers, partition, options)

    def _queue(
        self, send: Callable[..., Any], topic: str, value: Any, key: Any,
        headers: HeadersLike | None, partition: int | None, options: RecordOptions,
    ) -> Delivery:  # fmt: skip
        self._check_may_send()
        value, key = as_bytes("value", value), as_bytes("key", key)
        fields = record_fields(
            headers, partition, options
        )._asdict()  # times count from now, not from its turn
        call = partial(send, topic, value, key=key, **fields)
        delivery = Delivery(self._news)
        self._lines.add(topic, delivery, call, 1, len(value or b"") + len(key or b""))
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timeout: float | None = None,
        **options: Unpack[RecordOptions],
    ) -> Receipt:
        """Sends one record without lingering and waits for its receipt, up to `timeout` seconds
        (`PenstockTimeout`; the record stays on its way)."""

        hand_over = self._send

        def send(topic: str, value: bytes | None, **rest: Any) -> Any:
            taken = hand_over(topic, value, **rest)
            self._core.unthreaded.hurry(topic)
            return taken

        if self._knows(topic) and topic not in self._lines:
            delivery = Producer.send(
                self, topic, value, key=key, headers=headers, partition=partition, **options
            )
            self._core.unthreaded.hurry(topic)
        else:
            delivery = self._queue(send, topic, value, key, headers, partition, options)
        try:
            async with asyncio.timeout(timeout):
                return await delivery
        except er.PenstockError:
            raise
        except TimeoutError:
            raise er.PenstockTimeout(
                f"no acknowledgement for {topic!r} within {timeout} s; the record is still on its "
                "way"
            ) from None

    def send_batch(
        self,
        topic: str,
        values: Sequence[V | None],
        *,
        keys: Sequence[K | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Sequence[int] | None = None,
        partition: int | None = None,
        **work: Unpack[WorkOptions],
    ) -> BatchDelivery:
        """Hands over many records with one call (see `penstock.Producer.send_batch`); awaiting what
        it returns gives their receipts."""
        self._check_may_send()
        check_columns(topic, len(values), keys=keys, headers=headers, timestamps=timestamps)
        told = work_of_rows(topic, len(values), work)  # times count from now, not from its turn
        call = partial(
            self._core.send_batch, topic, values, keys=keys, headers=headers,
            timestamps=timestamps, partition=partition, work=told,
        )  # fmt: skip
        if self._knows(topic) and topic not in self._lines:
            try:
                return BatchDelivery(self._news, call())
            except er.BufferFullError:
                if not self._waits:
                    raise
        delivery = BatchDelivery(self._news)
        columns: list[Any] = [*values, *(keys or ())]  # bytes, by now
        size = sum(map(len, filter(None, columns)))
        self._lines.add(topic, delivery, call, len(values), size)
        return delivery

    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        value_column: str = "value",
        key_column: str | None = None,
        timestamp_column: str | None = None,
        headers_column: str | None = None,
        partition: int | None = None,
    ) -> BatchDelivery:
        """Hands over every row of an Arrow stream (see `penstock.Producer.send_arrow`). It is read
        by threads of the loop's as it is taken; what is sent to the topic after it waits in line.
        Awaiting what this returns gives the receipts, or raises what became of the stream."""
        self._check_may_send()
        delivery = BatchDelivery(self._news)
        call = partial(
            self._core.unthreaded.sending, topic, data,
            Wanted(value_column, key_column, timestamp_column, headers_column), partition,
            self._core.config.block_timeout if self._waits else 0.0,
        )  # fmt: skip
        self._lines.add(topic, delivery, call, 1, 0, streams=True)
        return delivery

    # --- waiting ---------------------------------------------------------------------------------
    async def drain(self) -> None:
        """Waits until nothing is in line and the buffer has room: what `send` hands over next is
        taken at once. Lets other tasks run now and then."""
        self._check_usable()
        await self._turns.share()
        while self._lines or not self._core.unthreaded.has_room():
            await self._lines.empty()
            await self._called(self._core.unthreaded.call_when_room)

    async def flush(self, timeout: float | None = None) -> None:
        """Sends what is open and waits until everything sent so far is acknowledged.

        Raises `PenstockTimeout` (nothing is given up by it), or `DeliveryError` for failed
        deliveries that nobody looked at.
        """
        self._check_usable()
        try:
            async with asyncio.timeout(timeout):
                await self._lines.empty()
                await self._called(self._core.unthreaded.begin_flush)
        except er.PenstockError:
            raise
        except TimeoutError:
            raise self._core.unthreaded.flush_timeout(timeout) from None
        self._core.unthreaded.raise_unseen()

    async def _called(self, ask: Callable[[Callable[[], object]], None]) -> None:
        """Waits for the call back that was asked for."""
        future = self._news.future()
        callback = partial(self._news.tell, future)
        ask(callback)
        try:
            await asyncio.wait([future])
        finally:
            self._core.unthreaded.forget(callback)

    # --- life ------------------------------------------------------------------------------------
    def metrics(self) -> dict[str, int]:
        """Counters since the producer was made, and `buffered_bytes` now."""
        return self._core.metrics()

    @property
    def producer_id(self) -> int:
        """The id under which this producer's batches are in the log."""
        return self._core.producer_id

    def _described(self) -> str:
        return self._core._described()

    async def close(self, timeout: float | None = 30.0) -> None:
        """Flush, then leave. Raises what `flush` raises; the producer is closed in any case. Where
        this is cancelled while it leaves, the next `close` waits for the end of that."""
        if self._leaving is None:
            flushed = False
            try:
                await self.flush(timeout)
                flushed = True
            finally:
                await self._end(
                    er.ClosedError("the producer was closed before these records were taken"),
                    partial(self._leave, flushed=flushed),
                )
        elif not self._leaving.done():
            await asyncio.shield(self._leaving)

    async def _end(self, error: Exception, leave: Callable[[], Awaitable[object]]) -> None:
        """Nothing is sent any more. Cancelled, it goes on."""
        self._closed = True
        fork_safety.forget(self)

        async def leaving() -> None:
            try:
                await self._lines.give_up(error)
            finally:
                await leave()

        if self._leaving is None:
            self._leaving = going_on(leaving(), "penstock: end of a producer")
        await asyncio.shield(self._leaving)

    async def _leave(self, *, flushed: bool) -> None:
        await in_thread(self._core.leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close(timeout=5.0)
        except er.PenstockError as other:
            logger.warning("while leaving after %r: %s", error, other)

    def after_fork_in_child(self) -> None:
        """Refuses to send: the loop and the tasks that wait there are the parent's (rule 7)."""
        self._forked = True
        self._send = self._refuse

    def _refuse(self, *_args: object, **_options: object) -> None:
        self._check_may_send()

    def _check_may_send(self) -> None:
        self._check_usable()

    def _check_usable(self) -> None:
        if self._forked:
            raise er.ForkedClientError(
                "this producer was made before fork(); make a new one in the child process"
            )
        if self._closed:
            raise er.ClosedError("this producer is closed")


Options = TypeVar("Options", ProducerOptions, TransactionOptions, StageOptions)


def in_line(options: Options) -> tuple[Options, bool, Encoders | None]:
    """The options of a producer in a loop, whether records wait for room, and what encodes them:
    before they wait."""
    options = options.copy()
    given: dict[str, Any] = options  # type: ignore[assignment]
    encoders = encoders_of(
        check_serializer("value", given.pop("value", None)),
        check_serializer("key", given.pop("key", None)),
    )
    waits = options.get("on_full", "block") == "block"
    if waits:
        options["on_full"] = "error"  # a refused record waits in line
    return options, waits, encoders


def leave(core: BlockingProducer) -> None:
    core.leave()
