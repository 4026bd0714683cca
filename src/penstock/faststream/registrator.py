"""`subscriber` and `publisher`, of brokers and routers; and the routers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack, cast, overload

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from penstock.client.app.subscription import CONCURRENCY_MAX
from penstock.client.consumer.group.options import check_group_name
from penstock.client.options import AppOptions, AppShareOptions
from penstock.client.retry.policy import Retry
from penstock.client.session import as_topic
from penstock.client.validation import check_integer, check_names, check_range
from penstock.core.errors import ConfigError
from penstock.faststream.config import PenstockConfig
from penstock.faststream.message import Raw
from penstock.faststream.producer import Headers, Key
from penstock.faststream.publisher import Publisher, publisher_of
from penstock.faststream.subscriber import Subscriber, subscriber_of

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable

RETRY: Final = Retry()


class PenstockRegistrator(Registrator[Raw, PenstockConfig]):
    """Subscribers and publishers of a broker or a router."""

    @overload  # type: ignore[override]
    def subscriber(
        self,
        *topics: str,
        group: str,
        max_workers: int = 1,
        retry: Retry = RETRY,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[AppOptions],
    ) -> Subscriber: ...
    @overload
    def subscriber(
        self,
        *topics: str,
        share_group: str,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[AppShareOptions],
    ) -> Subscriber: ...
    def subscriber(
        self,
        *topics: str,
        group: str | None = None,
        share_group: str | None = None,
        max_workers: int = 1,
        retry: Retry = RETRY,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> Subscriber:
        """A handler of the records of these topics.

        Args:
            group: its members share the partitions, and read each in order.
            share_group: its workers share the records, as jobs of a work queue.
            max_workers: members that this process has, each with a handler at a time.
            retry: of a group: how often and when a record is tried again that its handler failed
                at, and where it ends. See `penstock.Retry`.
            ack_policy: what becomes of a record whose handler raises; default: it is tried again.
            options: of `Client.consumer` with a group, or of `Client.share_consumer`.

        All others are those of FastStream's own brokers.
        """
        name = _checked(topics, group, share_group, max_workers, retry, options)
        made = subscriber_of(
            cast(PenstockConfig, self.config), topics, name, share_group is not None, max_workers,
            retry, options, ack_policy, no_reply, title, description, include_in_schema,
        )  # fmt: skip
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            dependencies_=dependencies,
            codec_=codec,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        key: Key = None,
        headers: Headers | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> Publisher:
        """Sends what handlers return to this topic; see `PenstockBroker.publish`."""
        made = publisher_of(
            cast(PenstockConfig, self.config), as_topic(topic), key, headers, reply_to, schema,
            title, description, include_in_schema,
        )  # fmt: skip
        super().publisher(made, persistent=persistent)
        return made


def _checked(
    topics: tuple[str, ...],
    group: str | None,
    share_group: str | None,
    max_workers: int,
    retry: Retry,
    options: dict[str, Any],
) -> str:
    """Returns the group's name. Raises `ConfigError` and TypeError."""
    if not topics:
        raise ConfigError("subscriber(): name topics")
    for topic in topics:
        as_topic(topic)
    if (group is None) == (share_group is None):
        raise ConfigError(
            f"subscriber() of {topics[0]!r}: give group= for the records of each partition in "
            "order, or share_group= for a work queue"
        )
    check_integer("max_workers", max_workers)
    check_range("max_workers", max_workers, 1, CONCURRENCY_MAX)
    if not isinstance(retry, Retry):
        raise TypeError(f"retry={retry!r} must be a penstock.Retry, not {type(retry).__name__}")
    if share_group is not None and retry is not RETRY:
        raise ConfigError(
            f"subscriber() of {topics[0]!r}: retry= is for groups; a share group has "
            "max_deliveries= and backoff="
        )
    kind = AppOptions if group is not None else AppShareOptions
    check_names("subscriber()", options, kind.__annotations__)
    name = group if group is not None else share_group
    assert name is not None
    check_group_name(name)
    return name


class PenstockPublisher(ArgsContainer):
    """The arguments of `publisher`, for a `PenstockRoute`."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic, **options)


class PenstockRoute(SubscriberRoute):
    """A handler, and the arguments of `subscriber`, for a `PenstockRouter`."""

    def __init__(
        self,
        call: Callable[..., SendableMessage] | Callable[..., Awaitable[SendableMessage]],
        *topics: str,
        publishers: Iterable[PenstockPublisher] = (),
        **options: Any,
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, **options)


class PenstockRouter(PenstockRegistrator, BrokerRouter[Raw, PenstockConfig]):
    """Subscribers and publishers that a broker includes, with a `prefix` of their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[PenstockRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[PenstockRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=PenstockConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
