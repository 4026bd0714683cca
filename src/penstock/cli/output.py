"""Writing results and narration: JSON lines, aligned columns, numbers for people.

Owns stdout and stderr of a command. Data goes to stdout, everything else to stderr, so that a
pipe sees only data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import BinaryIO, Final, TextIO

from penstock.core.errors import PenstockError

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def binary() -> BinaryIO:
    """Returns stdout as bytes. Raises `PenstockError` where the caller was started without one."""
    if sys.stdout is None:
        raise PenstockError("standard output is closed: redirect it to a file, or to /dev/null")
    return sys.stdout.buffer


def write_json(fields: object) -> None:
    """Writes one object on one line."""
    import msgspec

    binary().write(msgspec.json.encode(fields) + b"\n")


def write_line(text: str) -> None:
    binary().write(text.encode("utf-8", "surrogateescape") + b"\n")


def write_columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under a head, columns aligned, numbers to the right; never cut to a terminal's width."""
    for line in columns(head, rows):
        write_line(line)


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of such a table, the head first."""
    texts = [[_cell(item) for item in row] for row in rows]
    is_number = [
        all(cell[:1].isdigit() or cell == "-" for cell in column)
        for column in zip(*texts, strict=True)
    ] or [False] * len(head)
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    lines = []
    for row in [list(head), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cell(item: object) -> str:
    if item is None:
        return "-"
    return str(item) or "-"


def flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def abandon() -> None:
    """Drops the buffered output that no reader takes, so that the interpreter's last flush
    succeeds."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def narrate(text: str) -> None:
    """Writes a line on stderr; none where that is closed."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        return


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


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
