"""`@broker.subscriber`: records of a group, or jobs of a share group, on their way to handlers.

    group=         `GroupConsumer.run`: record by record in the order of each partition; one that a
                   handler fails at waits in a retry topic, and is a dead letter in the end
    ... ACK_FIRST  at most once: a record is committed before its handler is called
    share_group=   job by job, each with its own answer

A process has `max_workers` members. Each has one record in hand: what a dead process had in hand
is tried by members that have nothing else, one each.

Owns the members. Never decides what an answer means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from penstock.client.aio.group import GroupConsumer
from penstock.client.aio.share import ShareConsumer
from penstock.client.backoff import Retries
from penstock.client.consumer.group.run_length import RunPace
from penstock.client.consumer.records import Record
from penstock.client.retry.policy import Retry
from penstock.faststream.config import PenstockConfig
from penstock.faststream.message import (
    NO_ANSWER,
    PenstockMessage,
    Raw,
    RecordInHand,
    RejectedRecord,
    decode,
    parse_message,
)
from penstock.faststream.publisher import ReplyPublisher

if TYPE_CHECKING:
    from faststream.message import StreamMessage

Member: TypeAlias = GroupConsumer | ShareConsumer

POLL_SECONDS: Final = 0.2
"""Between two looks whether to stop, while nothing comes."""
JOIN_FIRST, JOIN_LAST = 0.1, 5.0
"""Bounds of the waits before a member that failed is replaced."""


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """`retry`: of a group; `is_share`: whether `group` is a share group."""

    _outer_config: PenstockConfig
    topics: tuple[str, ...]
    group: str
    is_share: bool
    max_workers: int
    retry: Retry
    options: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        given = self._outer_config.ack_policy if self._ack_policy is EMPTY else self._ack_policy
        return AckPolicy.NACK_ON_ERROR if given is EMPTY else given


@dataclass(kw_only=True)
class SubscriberNames(SubscriberSpecificationConfig):
    topics: tuple[str, ...]


class SubscriberSchema(SubscriberSpecification[PenstockConfig, SubscriberNames]):
    """Tells AsyncAPI of a subscriber."""

    @property
    def channel_labels(self) -> list[str]:
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        labels = self.channel_labels
        keys = {self._channel_key(topic, split=len(labels) > 1): topic for topic in labels}
        return {
            key: SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(
                    message=Message(title=f"{key}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
            for key, topic in keys.items()
        }


class Subscriber(SubscriberUsecase[Raw]):
    """Members of a group, or of a share group, and the handlers that they feed."""

    _outer_config: PenstockConfig

    def __init__(
        self, config: SubscriberConfig, specification: SubscriberSchema, calls: CallsCollection[Raw]
    ) -> None:
        config.parser, config.decoder = parse_message, decode
        super().__init__(config, cast("SubscriberSpecification[Any, Any]", specification), calls)
        self._config = config
        self._members: set[Member] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._one: Member | None = None
        """Of `get_one`."""
        self._stopping: asyncio.Task[None] | None = None
        self._is_leaving = False

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(f"{self._outer_config.prefix}{topic}" for topic in self._config.topics)

    @property
    def group(self) -> str:
        return self._config.group

    def get_log_context(self, message: StreamMessage[Raw] | None) -> dict[str, str]:
        topic = self.topics[0] if message is None else message.raw_message.record.topic
        return super().get_log_context(message) | {"topic": topic, "group": self.group}

    def _make_response_publisher(self, message: StreamMessage[Raw]) -> Sequence[ReplyPublisher]:
        return (ReplyPublisher(self._outer_config, message.reply_to),)

    # --- life ------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Joins the group. Raises what keeps it from that."""
        await super().start()
        self._is_leaving = False
        self._post_start()
        if self.calls:
            for _ in range(self._config.max_workers):
                self._serving.add(asyncio.create_task(self._serve(await self._join())))

    async def stop(self) -> None:
        """Begins with nothing more, waits for the handlers under way, for `graceful_timeout` at
        most, and leaves the group. Messages without an answer come again, here or elsewhere."""
        if asyncio.current_task() in self._serving:
            # By a handler, which would wait for itself.
            self._stopping = asyncio.create_task(self.stop())
            return
        self._is_leaving = True
        for member in self._members:
            if isinstance(member, GroupConsumer):
                member.stop()
        if serving := [*self._serving]:
            await asyncio.wait(serving, timeout=self._outer_config.graceful_timeout)
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)
            self._serving.difference_update(serving)
        await super().stop()
        one, self._one = self._one, None
        if one is not None:
            await one.close()

    async def _join(self) -> Member:
        told, client = self._config, self._outer_config.client
        if told.is_share:
            return await client.share_consumer(*self.topics, group=told.group, **told.options)
        at_most_once = self.ack_policy is AckPolicy.ACK_FIRST
        return await client.consumer(
            *self.topics, group=told.group, **told.options,
            guarantee="at-most-once" if at_most_once else "at-least-once",
        )  # fmt: skip

    async def _serve(self, member: Member) -> None:
        """Until it leaves. A member that fails is replaced."""
        pauses = Retries(JOIN_FIRST, JOIN_LAST)
        while True:
            self._members.add(member)
            try:
                async with member:
                    await self._work(member)
                return
            except Exception as error:
                self._log(logging.ERROR, f"group {self.group} is joined again: {error!r}")
            finally:
                self._members.discard(member)
            while True:
                await asyncio.sleep(pauses.next())
                if self._is_leaving:
                    return
                try:
                    member = await self._join()
                    break
                except Exception as error:
                    self._log(logging.ERROR, f"group {self.group} cannot be joined: {error!r}")

    async def _work(self, member: Member) -> None:
        if isinstance(member, ShareConsumer):
            await self._do_jobs(member)
        elif self.ack_policy is AckPolicy.ACK_FIRST:
            await self._read_claimed(member)
        elif not self._is_leaving:
            retry = self._config.retry
            await member.run(
                self._handle, retry=replace(retry, fatal=(*retry.fatal, RejectedRecord))
            )

    # --- groups ----------------------------------------------------------------------------------
    async def _handle(self, record: Record[Any, Any]) -> None:
        """Raises what the record is to be tried again for."""
        held = RecordInHand(record)
        await self.consume(held)
        if held.answer is not None:
            raise held.answer

    async def _read_claimed(self, consumer: GroupConsumer) -> None:
        pace = RunPace()
        while not self._is_leaving:
            batch = await consumer.poll(pace.records, POLL_SECONDS)
            since = time.monotonic()
            for record in batch:
                await self.consume(RecordInHand(record))
            if batch:
                pace.note(len(batch), time.monotonic() - since)

    # --- share groups ----------------------------------------------------------------------------
    async def _do_jobs(self, consumer: ShareConsumer) -> None:
        policy = self.ack_policy
        while not self._is_leaving:
            for job in await consumer.poll(1, POLL_SECONDS, is_exact=True):
                if policy is AckPolicy.ACK_FIRST:
                    job.ack()
                    await consumer.flush()
                await self.consume(job)
                if not job.is_answered and policy is not AckPolicy.MANUAL:
                    job.nack(reason=NO_ANSWER)

    # --- without handlers ------------------------------------------------------------------------
    async def get_one(self, *, timeout: float = 5.0) -> PenstockMessage | None:
        """The next message, for a subscriber without handlers, or None. One of a share group waits
        for its answer; one of a group is done once the next is asked for."""
        if self.calls:
            raise RuntimeError("get_one() is for a subscriber that has no handlers")
        if self._one is None:
            self._one = await self._join()
        consumer = self._one
        raw: Raw | None = None
        if isinstance(consumer, ShareConsumer):
            for job in await consumer.poll(1, timeout, is_exact=True):
                raw = job
        else:
            for record in await consumer.poll(1, timeout):
                raw = RecordInHand(record)
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        found: Any = await process_msg(
            msg=raw,
            middlewares=(made(raw, context=context) for made in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        message: PenstockMessage | None = found
        return message

    async def __aiter__(self) -> AsyncIterator[PenstockMessage]:
        while True:
            if (message := await self.get_one()) is not None:
                yield message


def subscriber_of(
    config: PenstockConfig,
    topics: tuple[str, ...],
    group: str,
    is_share: bool,
    max_workers: int,
    retry: Retry,
    options: dict[str, Any],
    ack_policy: AckPolicy,
    no_reply: bool,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> Subscriber:
    calls = CallsCollection[Raw]()
    names = SubscriberNames(
        topics=topics, title_=title, description_=description, include_in_schema=include_in_schema
    )
    told = SubscriberConfig(
        _outer_config=config, topics=topics, group=group, is_share=is_share,
        max_workers=max_workers, retry=retry, options=options, _ack_policy=ack_policy,
        no_reply=no_reply,
    )  # fmt: skip
    return Subscriber(told, SubscriberSchema(config, names, calls), calls)
