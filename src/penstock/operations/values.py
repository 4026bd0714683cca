"""Reading what people type: sizes, durations, places in a log, headers, escapes.

Owns the spelling. Every refusal is a `ConfigError` that names what was given and what is allowed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.client.consumer.offsets import Offset

_SIZES: Final = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "kb": 10**3,
    "m": 1 << 20, "mib": 1 << 20, "mb": 10**6,
    "g": 1 << 30, "gib": 1 << 30, "gb": 10**9,
    "t": 1 << 40, "tib": 1 << 40, "tb": 10**12,
}  # fmt: skip
_DURATIONS: Final = {
    "": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0
}  # fmt: skip
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\", b"a": b"\a", b"e": b"\x1b"
}  # fmt: skip


def size(text: str) -> int:
    """Reads bytes: 1048576, 64KiB, 64k (binary), 64KB (decimal), 1.5GiB."""
    match = _NUMBER.fullmatch(text.strip())
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{text!r} is no size: write bytes, or a number with KiB, MiB, GiB")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def seconds(text: str) -> float:
    """Reads seconds: 30, 1.5, 250ms, 5m, 1h, 7d."""
    match = _NUMBER.fullmatch(text.strip())
    unit = _DURATIONS.get(match[2]) if match else None
    if match is None or unit is None:
        raise ConfigError(
            f"{text!r} is no duration: write seconds, or a number with ms, s, m, h, d or w"
        )
    return float(match[1]) * unit


def setting(key: str, value: object) -> str:
    """Returns a topic's setting as people type it: nothing for none, durations with their unit."""
    from penstock.client.admin.topic_config import DURATIONS

    if value is None:
        return ""
    return duration(value) if key in DURATIONS and isinstance(value, int | float) else str(value)


def duration(seconds: float) -> str:
    """Returns the text that reads as `seconds`, to the microsecond: 7d, 90s, 250ms."""
    left = round(seconds * 1e6)
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(left, round(_DURATIONS[unit] * 1e6))
        if count and not rest:
            return f"{count}{unit}"
    return f"{seconds:.6f}s"


def ratio(text: str) -> float:
    """Reads a share of a whole: 0.5, 50%."""
    number = text.strip().removesuffix("%").strip()
    try:
        found = float(number)
    except ValueError:
        raise ConfigError(f"{text!r} is no share: write 0.5 or 50%") from None
    return found / 100 if text.strip().endswith("%") else found


def place(text: str) -> Offset:
    """Reads a place: start, end, 47, +2, -3 or @TIME (ISO 8601 or seconds since the epoch)."""
    from penstock.client.consumer.offsets import Offset

    if text in ("start", "earliest"):
        return Offset.earliest()
    if text in ("end", "latest"):
        return Offset.latest()
    if text.startswith("@"):
        return Offset.at(_moment(text[1:], text))
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise ConfigError(
            f"{text!r} is no place in a log: use start, end, an offset (47), a distance from the "
            "start (+2) or the end (-3), or a time (@2013-07-04T12:00, @1372939200)"
        )
    number = int(digits)
    if text.startswith("+"):
        return Offset.from_start(number)
    return Offset.from_end(number) if text.startswith("-") else Offset.exact(number)


def moment_to_come(text: str) -> float:
    """Reads seconds since the epoch: a duration from now (90d), a day or a time (ISO 8601)."""
    match = _NUMBER.fullmatch(text.strip())
    if match is not None and match[2] in _DURATIONS and match[2]:
        return time.time() + seconds(text)
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"{text!r} is no time to come: write a duration (90d, 12h) or ISO 8601 (2027-01-31, "
            "2027-01-31T12:00+02:00; local time without an offset)"
        ) from None


def _moment(text: str, given: str) -> datetime | float:
    try:
        epoch = float(text)
    except ValueError:
        pass
    else:
        if 0 <= epoch < 1e11:
            return epoch
        raise ConfigError(f"{given!r} is no time: seconds since the epoch lie between 0 and 1e11")
    try:
        moment = datetime.fromisoformat(text)
        moment.timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"{given!r} is no time: write ISO 8601 (@2013-07-04T12:00+02:00; local time without an "
            "offset) or seconds since the epoch (@1372939200.5)"
        ) from error
    return moment


def headers(given: Iterable[str]) -> tuple[tuple[str, bytes | None], ...]:
    """Reads `name=value` each."""
    pairs: list[tuple[str, bytes | None]] = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"header {text!r}: write NAME=VALUE")
        if not name.isprintable():
            raise ConfigError(f"header {text!r}: a name is printable UTF-8 text")
        pairs.append((name, as_bytes(value)))
    return tuple(pairs)


def as_bytes(text: str) -> bytes:
    """Returns an argument as the bytes that the shell passed."""
    return text.encode("utf-8", "surrogateescape")


def unescape(text: str) -> bytes:
    r"""Returns an argument with \n \t \r \0 \e \\ and \xHH replaced. Raises on any other escape."""
    raw = as_bytes(text)
    if raw.endswith(b"\\") and len(raw) - len(raw.rstrip(b"\\")) & 1:
        raise ConfigError(f"{text!r} ends in a lone backslash: write \\\\ for one")

    def replace(match: re.Match[bytes]) -> bytes:
        found = match[1]
        if len(found) == 3:
            return bytes.fromhex(found[1:].decode())
        if found in _ESCAPES:
            return _ESCAPES[found]
        raise ConfigError(
            f"{text!r}: \\{found.decode('utf-8', 'replace')} is no escape; there are "
            "\\n \\t \\r \\0 \\a \\e \\\\ and \\xHH"
        )

    return _ESCAPE.sub(replace, raw)


def assignments(given: Iterable[str]) -> dict[str, str]:
    """Reads `key=value` each, as a dict; a dash in a key counts as an underscore."""
    found: dict[str, str] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"{text!r}: write KEY=VALUE")
        found[key.strip().replace("-", "_")] = value.strip()
    return found
