"""A message of FastStream: a job of a share group, or a record of a group with its answer.

Owns what `ack`, `nack` and `reject` mean. Never sends an answer: consumers do.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

from faststream.exceptions import HandlerException
from faststream.message import StreamMessage, decode_message

from penstock.client.consumer.records import Record, place_of
from penstock.client.retry.story import DELIVERIES
from penstock.client.share.jobs import Job, told_of
from penstock.core import errors as er
from penstock.serializers.serializer import DecodeError

CONTENT_TYPE, CORRELATION_ID, REPLY_TO = "content-type", "correlation_id", "reply_to"
"""Headers, named as those of FastStream's broker for Kafka are."""

NO_ANSWER = "its handler gave no answer"


class RejectedRecord(Exception):
    """A handler rejected a record of a group."""


class NackedRecord(Exception):
    """A handler gave a record of a group back, or no answer for it."""


class RecordInHand:
    """A record of a group while its handler has it, and the handler's answer: None is none."""

    __slots__ = ("answer", "is_answered", "record")

    def __init__(self, record: Record[Any, Any]) -> None:
        self.record = record
        self.is_answered = False
        self.answer: Exception | None = NackedRecord(NO_ANSWER)

    @property
    def deliveries(self) -> int:
        """How often its handler got it by now, as its retry topic tells; 1 for the first time."""
        told = dict(self.record.headers).get(DELIVERIES)
        return int(told) if told is not None and told.isdigit() else 1

    def _say(self, answer: Exception | None) -> None:
        """Only the first one counts."""
        if not self.is_answered:
            self.answer, self.is_answered = answer, True

    def ack(self) -> None:
        self._say(None)

    def nack(self, delay: float | None = None, reason: str = "") -> None:
        if delay is not None:
            raise er.ConfigError(
                f"nack(delay={delay!r}) is for share groups: a group tries again when the backoff "
                "of its retry= says"
            )
        error = sys.exception()
        failed = isinstance(error, Exception) and not isinstance(error, HandlerException)
        self._say(error if failed else NackedRecord(reason))  # type: ignore[arg-type]

    def reject(self, reason: str = "") -> None:
        self._say(RejectedRecord(reason))


Raw: TypeAlias = "Job[Any, Any] | RecordInHand"


class PenstockMessage(StreamMessage[Raw]):
    """A message. `raw_message` is the job of a share group, which has `extend`; of a group it is
    a `RecordInHand`. Both tell `deliveries`. Only the first answer counts."""

    @property
    def record(self) -> Record[Any, Any]:
        """The record as it is in the log."""
        return self.raw_message.record

    async def ack(self) -> None:
        """It is done."""
        self.raw_message.ack()
        await super().ack()

    async def nack(self, delay: float | None = None, reason: str = "") -> None:
        """It comes again, after `delay` seconds where a share group has it. One that cannot be
        decoded is rejected: no further delivery would help."""
        if isinstance(sys.exception(), DecodeError):
            await self.reject(reason)
            return
        self.raw_message.nack(delay, reason or told_of_handler())
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """It becomes a dead letter."""
        self.raw_message.reject(reason or told_of_handler())
        await super().reject()


def told_of_handler() -> str:
    """The error that a handler failed with, as a reason."""
    error = sys.exception()
    return "" if error is None or isinstance(error, HandlerException) else told_of(error)


async def parse_message(raw: Raw) -> PenstockMessage:
    record = raw.record
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    return PenstockMessage(
        raw,
        record.value or b"",
        headers=headers,
        reply_to=headers.get(REPLY_TO, ""),
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION_ID),
        message_id=f"{record.topic}-{record.partition}-{record.offset}",
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Raises `DecodeError`."""
    try:
        return decode_message(message)
    except ValueError as error:
        place = place_of(message.raw_message.record)
        raise DecodeError(f"{place} is no {message.content_type}: {error}") from error
