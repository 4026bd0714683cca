"""Checks and conversions of what callers hand in: clear errors first, plain types after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from penstock.core import errors as er
from penstock.core.encode import Headers

HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

HEADERS_MAX: Final = 64


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise er.ConfigError(f"{name}={value!r} must lie between {low} and {high}")


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise er.ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")


def as_bytes(what: str, value: Any) -> bytes | None:
    """bytes as they are, other buffers copied, None kept. TypeError for anything else."""
    if value is None or value.__class__ is bytes:
        return value  # type: ignore[no-any-return]
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
    return pairs


def as_microseconds(timestamp: int | datetime | None) -> int | None:
    """Microseconds since the epoch of an int (as it is) or a datetime (naive = local time)."""
    if timestamp is None or timestamp.__class__ is int:
        return timestamp  # type: ignore[return-value]
    if isinstance(timestamp, datetime):
        return int(timestamp.timestamp() * 1e6)
    raise TypeError(
        f"a timestamp is int microseconds or a datetime, not {type(timestamp).__name__}"
    )
