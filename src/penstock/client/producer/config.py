"""The options of a producer: what each means, its default, its bounds.

Owns their validation. Knows nothing of how they are obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.client.validation import (
    HeadersLike,
    as_spelt,
    as_spread,
    check_callable,
    check_choice,
    check_flag,
    check_range,
    check_text,
)
from penstock.core import errors as er
from penstock.core.codecs import CODECS, require
from penstock.ipc import layout as lo
from penstock.serializers.serializer import Serializer, check_serializer

Acks = Literal[0, 1, "all"]
OnFull = Literal["block", "error", "drop-newest", "drop-oldest", "drop_newest", "drop_oldest"]
ON_FULL: Final[tuple[OnFull, ...]] = ("block", "error", "drop-newest", "drop-oldest")
SendHook = Callable[[str, bytes | None, bytes | None, HeadersLike | None], HeadersLike | None]
DeliveryHook = Callable[[Any], object]
"""With a `BatchReceipt`."""
ErrorHook = Callable[[str, int, int, Exception], object]

BACKOFF_MAX: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Durations are in seconds. Raises `ConfigError` naming option, value and what is allowed.

    Attributes:
        linger: how long a record may wait for company. 0 sends at once while few batches wait for
            their answers; else with the next answer, 5 ms later at most.
        batch_bytes: a batch of a partition is sealed at this size. At most a quarter of the lane.
        compression: "none", "lz4" or "zstd" (the extra `zstd`), per batch.
        acks: 0 = accepted into shared memory ("ring"), 1 = appended by the partition's leader,
            "all" = on every in-sync replica ("committed"): whichever broker dies, and leads then,
            has it. At a node that is alone, with its one copy, the same as 1.
        durability: "fsynced" makes deliveries wait until their records are on stable storage.
        idempotent: False means: a batch whose outcome is unknown is failed, not sent again.
        buffer_bytes_max: bound of unacknowledged bytes in this producer.
        on_full: what to do then. "block" waits up to `block_timeout`, "error" raises
            `BufferFullError`. "drop-newest" gives back a delivery that fails with `DroppedError`,
            "drop-oldest" fails so what has waited longest (see
            `penstock.client.producer.backpressure`); what is dropped so is counted and logged, and
            `flush` and `close` do not raise it.
        delivery_timeout: after so long an unacknowledged delivery fails, whatever was tried.
        retry_backoff: what could not be done (a node that is gone, a lane that is refused) is tried
            again after a time drawn from 0 to this, to twice this, and so on (full jitter) ...
        retry_backoff_max: ... and never from more than this. Order is kept meanwhile: a partition's
            batches leave only behind those before them, with the same sequences.
        timeout: bound of each request to the node.
        on_send: called by each `send`, in its thread, as on_send(topic, value, key, headers); the
            headers that it returns are sent, so that a trace can be put there. Not by `send_batch`
            and `send_arrow`. `send` raises its exceptions.
        on_delivery: called with the `BatchReceipt` of each batch that is delivered, by the thread
            that learns of it. Its exceptions are logged, as with `on_error`.
        on_error: called as on_error(topic, partition, count, error) for records that failed, and
            partition -1 where they had none yet. Not for what `on_full` dropped.
        spread: partitions that a key's records take by turns, by key, such as {"ann": 4}: its own
            and those behind it. For a key that is too much for one partition; its records are in
            order within each partition alone. Keys as text are UTF-8.
        value, key: serializers of `penstock.serializers`, for `send`, `send_and_wait` and
            `send_batch`. The hook `on_send` gets bytes. None: values and keys are bytes.
    """

    client_id: str = ""
    linger: float = 0.002
    batch_bytes: int = 512 << 10
    compression: str = "none"
    acks: Acks = 1
    durability: Literal["fsynced"] | None = None
    idempotent: bool = True
    buffer_bytes_max: int = 32 << 20
    on_full: OnFull = "block"
    block_timeout: float = 30.0
    delivery_timeout: float = 30.0
    retry_backoff: float = 0.05
    retry_backoff_max: float = 1.0
    timeout: float = 5.0
    on_send: SendHook | None = None
    on_delivery: DeliveryHook | None = None
    on_error: ErrorHook | None = None
    spread: Mapping[str, int] | Mapping[bytes, int] | None = None
    value: Serializer[Any] | None = None
    key: Serializer[Any] | None = None

    def __post_init__(self) -> None:
        check_text("client_id", self.client_id)
        check_flag("idempotent", self.idempotent)
        check_callable("on_send", self.on_send)
        check_callable("on_delivery", self.on_delivery)
        check_callable("on_error", self.on_error)
        as_spread(self.spread)
        check_serializer("value", self.value)
        check_serializer("key", self.key)
        check_range("linger", self.linger, 0.0, 60.0)
        check_range(
            "batch_bytes", self.batch_bytes, 1 << 10, lo.LANE_CAPACITY_MAX // lo.FRAME_SHARE
        )
        check_range("buffer_bytes_max", self.buffer_bytes_max, self.batch_bytes, 1 << 34)
        check_range("delivery_timeout", self.delivery_timeout, 0.01, 86400.0)
        check_range("block_timeout", self.block_timeout, 0.0, 86400.0)
        check_range("retry_backoff", self.retry_backoff, 0.001, BACKOFF_MAX)
        check_range("retry_backoff_max", self.retry_backoff_max, self.retry_backoff, BACKOFF_MAX)
        check_choice("compression", self.compression, tuple(CODECS))
        require(CODECS[self.compression])
        check_choice("acks", self.acks, (0, 1, "all"))
        check_choice("durability", self.durability, (None, "fsynced"))
        object.__setattr__(self, "on_full", as_spelt("on_full", self.on_full, ON_FULL))
        if self.acks == 0 and self.durability is not None:
            raise er.ConfigError("acks=0 waits for no writer, so durability='fsynced' needs acks=1")

    def level(self, *, remote: bool) -> str:
        """Returns the durability at which a delivery is done. A lane to another host is this
        process's own memory: a record in it is on no host yet, so "ring" is not available there."""
        return self.durability or ("ring" if self.acks == 0 and not remote else "appended")
