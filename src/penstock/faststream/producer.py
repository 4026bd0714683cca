"""Messages on their way out: what a handler or a program publishes, and what sends it.

Owns the records that messages become. Never looks at what came in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.response import PublishCommand, Response
from faststream.response.publish_type import PublishType

from penstock.client.producer.delivery import Receipt
from penstock.client.producer.record_options import RecordOptions
from penstock.core.columns import HeaderList
from penstock.faststream.message import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REPLY_TO,
    decode,
    parse_message,
)

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

Send = Callable[..., Awaitable[Receipt]]
"""As `send_and_wait` of a producer."""
Headers = dict[str, str]
Key = bytes | str | None


class PenstockResponse(Response):
    """The result of a handler whose record needs more than a value: a key, or options of records
    as `delay` and `priority`."""

    def __init__(
        self,
        body: SendableMessage,
        *,
        key: Key = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
        **options: Unpack[RecordOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.key = key
        self.options = options

    def as_publish_command(self) -> PenstockCommand:
        return PenstockCommand(
            self.body, key=self.key, headers=self.headers, correlation_id=self.correlation_id,
            options=self.options, _publish_type=PublishType.PUBLISH,
        )  # fmt: skip

    def get_publish_key(self) -> Key:
        return self.key


class PenstockCommand(PublishCommand):
    """A message, or `bodies` of a batch, and where they go."""

    def __init__(
        self,
        body: Any,
        *,
        topic: str = "",
        key: Key = None,
        partition: int | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        options: RecordOptions | None = None,
        bodies: tuple[Any, ...] = (),
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body, destination=topic, headers=headers, correlation_id=correlation_id,
            reply_to=reply_to, _publish_type=_publish_type,
        )  # fmt: skip
        self.key = key
        self.partition = partition
        self.options: RecordOptions = options or {}
        self.bodies = bodies

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        return self.bodies

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> PenstockCommand:
        """The same, of a handler that returned a value or another broker's response."""
        if isinstance(cmd, PenstockCommand):
            return cmd
        return cls(
            cmd.body, topic=cmd.destination, headers=cmd.headers,
            correlation_id=cmd.correlation_id, reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )  # fmt: skip

    def record_headers(self, content_type: str | None) -> HeaderList:
        """Those of its record."""
        told = {
            CONTENT_TYPE: content_type, CORRELATION_ID: self.correlation_id, REPLY_TO: self.reply_to
        }  # fmt: skip
        given = {name: value for name, value in told.items() if value} | self.headers
        return tuple((name, str(value).encode()) for name, value in given.items())


class PenstockProducer(ProducerProto[PenstockCommand]):
    """Sends messages, each until all in-sync replicas have it."""

    def __init__(
        self, parser: CustomCallable | None = None, decoder: CustomCallable | None = None
    ) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._send_and_wait: Send | None = None
        self._timeout: float | None = None

    def connect(
        self,
        send: Send,
        timeout: float,
        serializer: SerializerProto | None,
        codec: CodecProto | None,
    ) -> None:
        self._send_and_wait, self._timeout = send, timeout
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        self._send_and_wait = None

    async def publish(self, cmd: PenstockCommand) -> Receipt:
        """Raises what keeps it from being acknowledged."""
        return await self._send(cmd, cmd.body)

    async def publish_batch(self, cmd: PenstockCommand) -> list[Receipt]:
        """All of them, or raises what became of the first that failed; others may be sent."""
        return await asyncio.gather(*(self._send(cmd, body) for body in cmd.batch_bodies))

    async def _send(self, cmd: PenstockCommand, body: Any) -> Receipt:
        if self._send_and_wait is None:
            raise IncorrectState("the broker is not connected: await broker.connect() first")
        if body is None and cmd.key is not None:
            value, content_type = None, None  # a tombstone
        else:
            value, content_type = await self.codec.encode(body, self.serializer)
        key = cmd.key.encode() if isinstance(cmd.key, str) else cmd.key
        headers = cmd.record_headers(content_type)
        return await self._send_and_wait(
            cmd.destination, value, key=key, headers=headers, partition=cmd.partition,
            timeout=self._timeout, **cmd.options,
        )  # fmt: skip

    async def request(self, cmd: PenstockCommand) -> Any:
        raise FeatureNotSupportedException(
            "Penstock has no requests with an answer: publish(..., reply_to=topic), and subscribe "
            "to that topic"
        )
