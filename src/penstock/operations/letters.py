"""Dead letters in words: where they are, why they are left, and their texts in one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core import errors as er
from penstock.operations.wording import iso_time

if TYPE_CHECKING:
    from penstock.client.deadletters.story import DeadLetter

SHOWN: Final = 80
"""Characters of a reason, key or value in a row."""
_SPOT: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})(?:-([0-9]{1,18}))?")
LEFT: Final = {
    "max_replays": "were sent again too often before (--max-replays allows more)",
    "damaged": "have no content, since their record was damaged",
    "no_topic": "are of a topic that is not there any more (--to sends them elsewhere)",
    "other_topic": "are of a topic that was not named (--topic names one)",
    "refused": "do not fit into their topic any more (record_bytes_max)",
}
"""Why dead letters are left, as a sentence goes on."""


def spots(places: list[str] | None) -> list[tuple[int, range]] | None:
    """Places as `only` takes them; None: all."""
    return [spot(each) for each in places] if places else None


def spot(text: str) -> tuple[int, range]:
    """0:17, or 0:17-30."""
    match = _SPOT.fullmatch(text)
    if match is None:
        raise er.ConfigError(
            f"{text!r} is no place of a dead letter: write PARTITION:OFFSET, such as 0:17, or "
            "PARTITION:FIRST-LAST"
        )
    first = int(match[2])
    return int(match[1]), range(first, int(match[3] or first) + 1)


def place_text(letter: DeadLetter) -> str:
    return f"{letter.record.partition}:{letter.record.offset}"


def time_text(seconds: float) -> str:
    """Of a header that anybody may have written."""
    return iso_time(int(seconds * 1e6)) if abs(seconds) < 1e12 else str(seconds)


def text_of(data: bytes | None) -> str:
    return "(null)" if data is None else data.decode(errors="backslashreplace")


def printable(text: str | bytes | None, most: int | None = SHOWN) -> str:
    """As a row has it: one line, without signs that a terminal obeys, cut to `most`."""
    if text is None:
        return ""
    shown = text_of(text) if isinstance(text, bytes) else text
    cut = shown if most is None or len(shown) <= most else shown[: most - 3] + "..."
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in cut)
