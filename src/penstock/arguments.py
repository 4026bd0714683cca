"""Checks and conversions of what callers hand in: clear errors first, plain types after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from penstock.core import errors as er
from penstock.core.encode import Headers

HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

HEADERS_MAX: Final = 64
SPIN_MAX: Final = 0.1
PREFETCH_MIN: Final = 4 << 10
ON_FULL: Final = ("block", "error", "drop_newest", "drop_oldest")


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise er.ConfigError(f"{name}={value!r} must lie between {low} and {high}")


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise er.ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")


def check_consumer_options(
    on_out_of_range: str, prefetch_bytes: int, latest_only: str | None, spin: float, isolation: str
) -> None:
    """The options of a consumer. Raises `ConfigError` naming option, value and what is allowed."""
    check_choice("on_out_of_range", on_out_of_range, ("error", "earliest", "latest"))
    check_range("prefetch_bytes", prefetch_bytes, PREFETCH_MIN, 1 << 34)
    check_choice("latest_only", latest_only, (None, "key", "partition"))
    check_range("spin", spin, 0.0, SPIN_MAX)
    check_choice("isolation", isolation, ("read_uncommitted", "read_committed"))


def check_columns(topic: str, count: int, **columns: Sequence[object] | None) -> None:
    """Columns beside the values are None or as long as these. ValueError otherwise."""
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"send_batch to {topic!r}: {count} values but {len(column)} {name}")


def as_bytes(what: str, value: Any) -> bytes | None:
    """bytes as they are, other buffers copied, None kept. TypeError for anything else."""
    if value is None or value.__class__ is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a record's {what} is bytes, not {type(value).__name__}; encode it first")


def as_headers(headers: HeadersLike | None) -> Headers | None:
    """Headers as a tuple of (name, value) pairs. Raises TypeError, or ValueError above 64."""
    if headers is None:
        return None
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    if len(pairs) > HEADERS_MAX:
        raise ValueError(f"a record takes at most {HEADERS_MAX} headers, {len(pairs)} were given")
    for name, value in pairs:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"header {name!r}: a name is str and a value bytes or None")
        if not name.isascii():
            name.encode()  # a lone surrogate fails here and now, not with a whole box later
    return pairs


def as_microseconds(timestamp: int | datetime | None) -> int | None:
    """Microseconds since the epoch of an int (as it is) or a datetime (naive = local time).

    Raises ValueError for an int that does not fit 64 bits.
    """
    if timestamp is None:
        return None
    if timestamp.__class__ is int:
        if not -(1 << 63) <= timestamp < 1 << 63:
            raise ValueError(f"timestamp {timestamp} is not in the range of 64-bit microseconds")
        return timestamp
    if isinstance(timestamp, datetime):
        return round(timestamp.timestamp() * 1e6)  # a float: 1.2 % would fall a microsecond short
    raise TypeError(
        f"a timestamp is int microseconds or a datetime, not {type(timestamp).__name__}"
    )
