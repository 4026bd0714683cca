"""Numbers, sizes and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def iso_time(timestamp: int) -> str:
    """Microseconds since the epoch as ISO 8601 in UTC; the bare number where no date fits it."""
    try:
        moment = datetime.fromtimestamp(timestamp // 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp % 1_000_000:06d}Z"


def human_bytes(count: float) -> str:
    """Returns a size for people: three digits that matter, binary units."""
    for unit in _UNITS:
        if abs(count) < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """Returns text like 1 record, 2 records."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def human_count(count: float) -> str:
    """Returns a number for people: 7, 950, 12.3k, 1.02M."""
    for unit in ("", "k", "M", "G"):
        if abs(count) < 999.5 or unit == "G":
            break
        count /= 1000
    if not unit:
        return f"{count:.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"
    return f"{count:.2f}{unit}" if abs(count) < 9.995 else f"{count:.1f}{unit}"


def human_age(seconds: float | None) -> str:
    """Returns a time that has passed, for people: 0.4s, 12s, 3m20s, 2h05m, 3d04h."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def human_seconds(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"
