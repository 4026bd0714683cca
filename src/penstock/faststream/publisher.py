"""`@broker.publisher`: where results of handlers go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from penstock.client.producer.delivery import Receipt
from penstock.client.producer.record_options import RecordOptions
from penstock.faststream.config import PenstockConfig
from penstock.faststream.producer import Headers, Key, PenstockCommand

if TYPE_CHECKING:
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.types import PublisherMiddleware


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    _outer_config: PenstockConfig
    topic: str
    key: Key
    headers: Headers
    reply_to: str


@dataclass(kw_only=True)
class PublisherNames(PublisherSpecificationConfig):
    topic: str


class PublisherSchema(PublisherSpecification[PenstockConfig, PublisherNames]):
    """Tells AsyncAPI of a publisher."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
        }


class Publisher(PublisherUsecase):
    """Sends what its handlers return, and what `publish` is given, to one topic."""

    _outer_config: PenstockConfig

    def __init__(self, config: PublisherConfig, specification: PublisherSchema) -> None:
        super().__init__(config, cast("PublisherSpecification[Any, Any]", specification))
        self._config = config

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._config.topic}"

    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        key: Key = None,
        partition: int | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[RecordOptions],
    ) -> Receipt:
        """As `PenstockBroker.publish`."""
        cmd = PenstockCommand(
            message, topic=topic, key=key, partition=partition, headers=headers, reply_to=reply_to,
            correlation_id=correlation_id or self._outer_config.id_generator(), options=options,
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        return await self._publish(cmd, _extra_middlewares=())

    async def _publish(  # type: ignore[override]
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> Receipt:
        cmd = PenstockCommand.from_cmd(cmd)
        cmd.destination = cmd.destination or self.topic
        cmd.key = self._config.key if cmd.key is None else cmd.key
        cmd.reply_to = cmd.reply_to or self._config.reply_to
        cmd.add_headers(self._config.headers, override=False)
        receipt: Receipt = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )
        return receipt

    async def request(self, message: SendableMessage, /, **_: Any) -> Any:
        """Raises `FeatureNotSupportedException`."""
        cmd = PenstockCommand(message, topic=self.topic, _publish_type=PublishType.REQUEST)
        return await self._outer_config.producer.request(cmd)


class ReplyPublisher(FakePublisher):
    """Sends an answer to the topic that a message names."""

    def __init__(self, config: PenstockConfig, topic: str) -> None:
        super().__init__(producer=config.producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> PenstockCommand:
        found = PenstockCommand.from_cmd(super().patch_command(cmd))
        found.destination = self._topic
        return found


def publisher_of(
    config: PenstockConfig,
    topic: str,
    key: Key,
    headers: Headers | None,
    reply_to: str,
    schema: Any,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> Publisher:
    names = PublisherNames(
        topic=topic, schema_=schema, title_=title, description_=description,
        include_in_schema=include_in_schema,
    )  # fmt: skip
    told = PublisherConfig(
        _outer_config=config, topic=topic, key=key, headers=headers or {}, reply_to=reply_to
    )
    return Publisher(told, PublisherSchema(config, names))
