"""The headers of a dead letter, as they are written and read.

    penstock.dlq.*        the story: which record it is, of which group, why; not the record's own
    penstock.dlq.earlier  JSON: the story that the record itself had, as a dead letter of elsewhere
    penstock.replays      a header of the record's own: how often it was sent again

Owns these names. Reads and writes no topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.client.consumer.records import Record
    from penstock.core.columns import HeaderList

PREFIX: Final = "penstock.dlq."
EARLIER: Final = f"{PREFIX}earlier"
REPLAYS: Final = "penstock.replays"
SUFFIX: Final = ".dlq"
"""Behind the name of a topic: the topic with its dead letters, unless a worker names another."""
NAMED_BY_ERROR: Final = re.compile(r"((?:\w+\.)*[A-Z]\w*)(?::|$)")
NUMBER_MAX: Final = (1 << 63) - 1

LetterPlace = tuple[int, int]
"""Where a dead letter is: a partition of the topic of dead letters, and an offset."""


class LetterFailure(msgspec.Struct, frozen=True):
    """A failed delivery. `at`: seconds since the epoch."""

    member: str = ""
    at: float = 0.0
    reason: str = ""


_history: Final = msgspec.json.Decoder(list[LetterFailure])
_earlier: Final = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a group gave up, and its story.

    `topic`, `partition`, `offset` and `timestamp` (microseconds since the epoch; None: damaged)
    are those of the record that died; `place` is where its copy is. `deliveries`: how often it was
    tried. `history`: the newest failures, oldest first. `replays`: how often it was sent again
    before. `is_damaged`: nobody could read the record, so the copy has no content.
    `headers_left_out`: own headers of the record for which the copy had no room. `is_replayed`:
    sent again since it is here. `record`: the copy as it is in the log, with all headers;
    `leader_epoch`: that of its batch.
    """

    record: Record
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    group: str
    deliveries: int
    reason: str
    history: tuple[LetterFailure, ...] = ()
    replays: int = 0
    is_damaged: bool = False
    headers_left_out: int = 0
    is_replayed: bool = False
    leader_epoch: int = 0

    @property
    def place(self) -> LetterPlace:
        """Partition and offset in the topic of dead letters."""
        return self.record.partition, self.record.offset

    @property
    def mark(self) -> tuple[int, int, int]:
        """Its place, and the epoch between: another letter that gets its offset has another."""
        return self.record.partition, self.leader_epoch, self.record.offset

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> HeaderList:
        """The record's own, as it had them when it died."""
        return tuple(pair for pair in self.record.headers if not pair[0].startswith(PREFIX))

    @property
    def died_at(self) -> datetime:
        """When the copy was written (UTC)."""
        return self.record.datetime

    @property
    def exception(self) -> str | None:
        """The name of the exception that the last reason begins with, such as "ValueError"."""
        found = NAMED_BY_ERROR.match(self.reason)
        return found[1] if found else None

    @property
    def worker(self) -> str | None:
        """The member of the group whose delivery failed last."""
        return self.history[-1].member if self.history else None

    def headers_again(self) -> HeaderList:
        """Those with which it is sent again: its own, the story that it had before it died here,
        and how often it was sent again."""
        own = tuple(pair for pair in self.headers if pair[0] != REPLAYS)
        return (*own, *self._earlier(), (REPLAYS, b"%d" % (self.replays + 1)))

    def _earlier(self) -> HeaderList:
        text = dict(self.record.headers).get(EARLIER)
        try:
            told = _earlier.decode(text or b"{}")
        except msgspec.MsgspecError:
            return ()
        return tuple((PREFIX + name, value.encode()) for name, value in told.items())


def letter_of(
    record: Record, leader_epoch: int = 0, *, is_replayed: bool = False
) -> DeadLetter | None:
    """The dead letter in a record of their topic; None: it is none of ours."""
    told = {
        name[len(PREFIX) :]: value or b""
        for name, value in record.headers
        if name.startswith(PREFIX)
    }
    try:
        stamp = told.get("timestamp")
        return DeadLetter(
            record,
            topic=told["topic"].decode(),
            partition=_number(told["partition"]),
            offset=_number(told["offset"]),
            timestamp=None if stamp is None else _number(stamp, low=-NUMBER_MAX),
            group=told["group"].decode(),
            deliveries=_number(told["deliveries"]),
            reason=told.get("reason", b"").decode(errors="replace"),
            history=_failures(told.get("history")),
            replays=replays_of(record),
            is_damaged="damaged" in told,
            headers_left_out=_number(told.get("headers_left_out", b"0")),
            is_replayed=is_replayed,
            leader_epoch=leader_epoch,
        )
    except (KeyError, ValueError):
        return None


def replays_of(record: Record) -> int:
    """How often it was sent again; what cannot be read counts as never."""
    for name, value in record.headers:
        if name == REPLAYS:
            try:
                return _number(value or b"")
            except ValueError:
                return 0
    return 0


def earlier_story(own: HeaderList, story: HeaderList) -> HeaderList:
    """The header that keeps the story among a record's own headers, beside the new one: of a record
    that dies as a dead letter of another topic. None where it was brought back to its topic."""
    told = _texts(pair for pair in own if pair[0] != EARLIER)
    if told.get("topic") in (None, _texts(story).get("topic")):
        return ()
    return ((EARLIER, msgspec.json.encode(told)),)


def _texts(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    return {
        name[len(PREFIX) :]: (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(PREFIX)
    }


def _number(text: bytes, low: int = 0) -> int:
    found = int(text)
    if not low <= found <= NUMBER_MAX:
        raise ValueError(f"{found} is out of range")
    return found


def _failures(text: bytes | None) -> tuple[LetterFailure, ...]:
    try:
        return tuple(_history.decode(text or b"[]"))
    except msgspec.MsgspecError:
        return ()
