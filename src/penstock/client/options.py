"""The keyword options of `Client.producer` and `Client.consumer`: for type checkers and editors,
and for callers that mistype one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Required, TypedDict

from penstock.client.consumer.consumer import Start
from penstock.client.consumer.group.options import Guarantee
from penstock.client.consumer.group.rebalance import Listener
from penstock.client.consumer.latest import LatestOnly
from penstock.client.consumer.partition_cursor import Isolation
from penstock.client.producer.config import Acks, DeliveryHook, ErrorHook, OnFull, SendHook
from penstock.client.validation import check_names


class ProducerOptions(TypedDict, total=False):
    """See `penstock.client.producer.config` for meanings and units."""

    client_id: str
    linger: float
    batch_bytes: int
    compression: str
    acks: Acks
    durability: Literal["fsynced"] | None
    idempotent: bool
    buffer_bytes_max: int
    on_full: OnFull
    block_timeout: float
    delivery_timeout: float
    retry_backoff: float
    retry_backoff_max: float
    timeout: float
    on_send: SendHook | None
    on_delivery: DeliveryHook | None
    on_error: ErrorHook | None
    spread: Mapping[str, int] | Mapping[bytes, int] | None


class StageOptions(ProducerOptions, total=False):
    """See `penstock.client.transactions.stages.Stage`."""

    attempt: str
    transaction_durability: Literal["fsynced", "appended"]


class TransactionOptions(ProducerOptions, total=False):
    """See `penstock.client.transactions.producer.TransactionalProducer`."""

    transactional_id: Required[str]
    transaction_durability: Literal["fsynced", "appended"]
    transaction_timeout: float


class ConsumerOptions(TypedDict, total=False):
    """See `Consumer` for meanings and units."""

    client_id: str
    start: Start
    follow: bool
    isolation: Isolation
    on_out_of_range: Literal["error", "earliest", "latest"]
    prefetch_bytes: int
    latest_only: LatestOnly | None
    spin: float
    node_timeout: float
    timeout: float


class GroupOptions(ConsumerOptions, total=False):
    """See `penstock.client.consumer.group.consumer.GroupConsumer` for meanings and units."""

    group: Required[str]
    guarantee: Guarantee
    pattern: str | None
    instance_id: str | None
    commit_interval: float
    session_timeout: float
    processing_timeout: float | None
    on_assigned: Listener | None
    on_revoked: Listener | None
    on_lost: Listener | None


class AppShareOptions(TypedDict, total=False):
    """Those of a share consumer that an app does not decide itself; see `App.share_consumer`."""

    max_deliveries: int | None
    backoff: tuple[float, float]
    start: Literal["earliest", "latest"]
    max_lease: float | None
    dead_share: float | None
    order: Literal["key"] | None
    fair: str | None
    dedup_window: float | None
    max_records: int
    prefetch_bytes: int
    ack_interval: float
    dead_letters: str | None
    session_timeout: float
    node_timeout: float
    timeout: float


class ShareOptions(AppShareOptions, total=False):
    """See `penstock.client.share.consumer.ShareConsumer` for meanings and units."""

    client_id: str
    group: Required[str]


class AppOptions(ConsumerOptions, total=False):
    """Those of a group's consumer that an app does not decide itself; see `App.consumer`."""

    pattern: str | None
    session_timeout: float
    processing_timeout: float | None


SERIALIZERS: Final = ("value", "key")
"""Options of producers and consumers that their overloads name, for their types."""


def check_producer_names(options: Mapping[str, Any]) -> None:
    """Raises TypeError naming an option that such a producer has not."""
    _check("producer()", options, ProducerOptions, TransactionOptions, "transactional_id")


def check_consumer_names(options: Mapping[str, Any]) -> None:
    """Raises TypeError naming an option that such a consumer has not."""
    _check("consumer()", options, ConsumerOptions, GroupOptions, "group")


def check_share_names(options: Mapping[str, Any]) -> None:
    """Raises TypeError naming an option that a share consumer has not, or `group`, where it is
    missing."""
    check_names("share_consumer()", options, (*ShareOptions.__annotations__, *SERIALIZERS))
    if "group" not in options:
        raise TypeError("share_consumer() needs group=: the name that its workers share")


def _check(verb: str, options: Iterable[str], plain: type, more: type, by: str) -> None:
    if by not in options:
        for name in options:
            if name in more.__annotations__ and name not in plain.__annotations__:
                raise TypeError(f"{verb} takes {name}= only beside {by}=")
    check_names(verb, options, (*more.__annotations__, *SERIALIZERS))
