"""The keyword options of `Client.producer` and `Client.consumer`, for type checkers and editors."""

from __future__ import annotations

from typing import Literal, TypedDict

from penstock.consumer import Start
from penstock.latest import LatestOnly
from penstock.pressure import OnFull


class ProducerOptions(TypedDict, total=False):
    """See `Producer` for meanings and units."""

    client_id: str
    linger: float
    batch_bytes: int
    compression: str
    acks: Literal[0, 1, "all"]
    durability: Literal["fsynced"] | None
    idempotent: bool
    buffer_bytes_max: int
    on_full: OnFull
    block_timeout: float
    delivery_timeout: float
    timeout: float


class ConsumerOptions(TypedDict, total=False):
    """See `Consumer` for meanings and units."""

    client_id: str
    start: Start
    follow: bool
    on_out_of_range: Literal["error", "earliest", "latest"]
    prefetch_bytes: int
    latest_only: LatestOnly | None
    spin: float
    node_timeout: float
    timeout: float
