"""`PenstockBroker`: messages of FastStream are records of topics.

    publish            a record, acknowledged by all in-sync replicas
    a subscriber       a member of a group, or a worker of a share group
    the process dies   what it had not answered for goes to others at once

Owns the client and its producer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from fast_depends import Provider, dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from penstock.client.admin.topic_config import TopicConfig
from penstock.client.aio.client import Client, connect
from penstock.client.producer.delivery import Receipt
from penstock.client.producer.record_options import RecordOptions
from penstock.client.session import default_url
from penstock.client.transport import Keys, Transport
from penstock.core import errors as er
from penstock.faststream.config import PenstockConfig
from penstock.faststream.message import Raw
from penstock.faststream.producer import Headers, Key, PenstockCommand, PenstockProducer
from penstock.faststream.publisher import Publisher
from penstock.faststream.registrator import PenstockRegistrator
from penstock.faststream.subscriber import Subscriber

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto, SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.specification.schema.extra import Tag, TagDict


class PenstockBroker(PenstockRegistrator, BrokerUsecase[Raw, Client, PenstockConfig]):
    """A broker of FastStream.

    Args:
        url: the node, as `penstock.connect` takes it.
        topic_config: how topics of subscribers and publishers are made, where they are missing and
            the client may; default: 4 partitions.
        publish_timeout: seconds for a message to be acknowledged.
        graceful_timeout: seconds that handlers have left once the application stops.

    `client_id`, `transport` and `keys` are those of `penstock.connect`, all others those of
    FastStream's own brokers.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        topic_config: TopicConfig | None = None,
        publish_timeout: float = 30.0,
        client_id: str = "faststream",
        transport: Transport = "auto",
        keys: Keys = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[PenstockRegistrator] = (),
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        self._connecting = partial(
            connect, url, client_id=client_id, transport=transport, keys=keys
        )
        self._topic_config = topic_config or TopicConfig(partitions=4)
        self._publish_timeout = publish_timeout
        super().__init__(
            routers=routers,
            config=PenstockConfig(
                producer=PenstockProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger_state(
                    logger=logger, log_level=log_level, default_storage_cls=_Logging
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[specification_url or url or default_url()],
                protocol="penstock",
                protocol_version=None,
                description=description,
                tags=tags,
                security=None,
            ),
        )

    # --- life ------------------------------------------------------------------------------------
    async def _connect(self) -> Client:
        client = await self._connecting()
        try:
            producer = await client.producer(
                acks="all", linger=0.0, delivery_timeout=self._publish_timeout
            )
        except BaseException:
            await client.close()
            raise
        config = self.config.broker_config
        config.opened = client
        config.producer.connect(
            producer.send_and_wait, self._publish_timeout + 1.0, config.fd_config._serializer,
            self.config.broker_codec,
        )  # fmt: skip
        return client

    async def start(self) -> None:
        """Connects, makes the topics that are missing, and joins the groups."""
        await self._make_topics(await self.connect())
        await super().start()

    async def _make_topics(self, client: Client) -> None:
        names: dict[str, None] = {}
        for subscriber in self.subscribers:
            assert isinstance(subscriber, Subscriber)
            names |= dict.fromkeys(subscriber.topics)
        for publisher in self.publishers:
            assert isinstance(publisher, Publisher)
            names[publisher.topic] = None
        async with client.admin() as admin:
            for name in names:
                with suppress(er.AccessDeniedError):  # else the topic has to be there
                    await admin.create_topic(name, self._topic_config, if_not_exists=True)

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stops the subscribers, and closes the client."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            client, self._connection = self._connection, None
            config = self.config.broker_config
            config.opened = None
            config.producer.disconnect()
            if client is not None:
                await client.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether the node answers within `timeout` seconds (None: 5)."""
        client = self._connection
        if client is None:
            return False
        try:
            async with client.admin(timeout=5.0 if timeout is None else timeout) as admin:
                await admin.list_topics()
        except er.AccessDeniedError:
            return True
        except er.PenstockError:
            return False
        return True

    # --- sending ---------------------------------------------------------------------------------
    async def publish(
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        key: Key = None,
        partition: int | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[RecordOptions],
    ) -> Receipt:
        """Sends a message, and waits until the node has it. `options`: of `Producer.send`, as
        `delay`, `ttl`, `priority` and `dedup_id`. `reply_to`: where its handler's result goes."""
        cmd = PenstockCommand(
            message, topic=topic, key=key, partition=partition, headers=headers, reply_to=reply_to,
            correlation_id=correlation_id or self.config.id_generator(), options=options,
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        receipt: Receipt = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: SendableMessage,
        topic: str,
        key: Key = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> list[Receipt]:
        """Sends messages, and waits until the node has all of them."""
        cmd = PenstockCommand(
            None, bodies=messages, topic=topic, key=key, headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        receipts: list[Receipt] = await self._basic_publish_batch(
            cmd, producer=self.config.producer
        )
        return receipts

    async def request(self, message: SendableMessage, topic: str, /, *_: Any, **__: Any) -> Any:
        """Raises `FeatureNotSupportedException`."""
        cmd = PenstockCommand(message, topic=topic, _publish_type=PublishType.REQUEST)
        return await self.config.producer.request(cmd)


class _Logging(DefaultLoggerStorage):
    """Lines of a subscriber begin with its topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 5, "group": 5}
        self._level = logging.INFO

    def set_level(self, level: int) -> None:
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        if (found := self._get_logger_ref()) is None:
            topic, group = self._widths["topic"], self._widths["group"]
            found = get_broker_logger(
                name="penstock", default_context={"topic": "", "group": ""}, message_id_ln=12,
                fmt=f"%(asctime)s %(levelname)-8s - %(topic)-{topic}s | %(group)-{group}s | "
                "%(message_id)-12s - %(message)s",
                context=context, log_level=self._level,
            )  # fmt: skip
            self._logger_ref.add(found)
        return found
