"""Writing results and narration: JSON lines, aligned columns.

Owns stdout and stderr of a command. Data goes to stdout, everything else to stderr, so that a
pipe sees only data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import BinaryIO, TextIO

from penstock.core.errors import PenstockError


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
