"""The questions of a client on another host to the gateway: answers from files and shared memory.

A client on the node's host reads all of it there by itself, so the node refuses these. A partition
is named by its state page and by its topic's id and number, which that page has to carry. Lists are
bounded.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.ipc.layout import CLIENTS_MAX, PAGES_MAX

PLACES_AT_ONCE: Final = 1000
PAGES_AT_ONCE: Final = 200
CLIENTS_AT_ONCE: Final = 12
"""The items of one message: its answer has to fit into one, too."""

TopicId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 63) - 1)]
Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Page = Annotated[int, msgspec.Meta(ge=0, lt=PAGES_MAX)]
Slot = Annotated[int, msgspec.Meta(ge=0, lt=CLIENTS_MAX)]


class LookUpTime(msgspec.Struct, frozen=True, tag="look_up_time"):
    """The first offset from `start` on whose record has a time of `timestamp` (microseconds) or
    later. `committed`: below the last stable offset, not the high watermark, and not aborted."""

    page: Page
    topic_id: TopicId
    partition: Small
    timestamp: Number
    committed: bool = False
    start: Number = 0


class LogPlace(msgspec.Struct, frozen=True, array_like=True):
    """An offset in a partition."""

    page: Page
    topic_id: TopicId
    partition: Small
    offset: Number


class LookUpAppends(msgspec.Struct, frozen=True, tag="look_up_appends"):
    """When were the records at these places appended?"""

    places: Annotated[list[LogPlace], msgspec.Meta(max_length=PLACES_AT_ONCE)]


class LookUpSegments(msgspec.Struct, frozen=True, tag="look_up_segments"):
    """Asks which segments would go if the log started at this place."""

    place: LogPlace


class LookUpPages(msgspec.Struct, frozen=True, tag="look_up_pages"):
    """Asks for the state of these partitions. The answer's frame has the pages, with their
    counters; the answer itself has the room on the node's disk."""

    pages: Annotated[list[Page], msgspec.Meta(max_length=PAGES_AT_ONCE)]


class LookUpPositions(msgspec.Struct, frozen=True, tag="look_up_positions"):
    """Asks for the positions of the clients in these slots, each by slot and pid."""

    clients: Annotated[list[tuple[Slot, Small]], msgspec.Meta(max_length=CLIENTS_AT_ONCE)]


Request = LookUpTime | LookUpAppends | LookUpSegments | LookUpPages | LookUpPositions


class TimeLookedUp(msgspec.Struct, frozen=True, tag="time_looked_up"):
    """None: all records are older. `again`: below that offset they are, and the look-up took long
    enough for one request; the next one goes on there."""

    offset: int | None
    again: bool = False


class AppendsLookedUp(msgspec.Struct, frozen=True, tag="appends_looked_up"):
    """Seconds since the epoch, in the order of the request; None where it is not known, or time ran
    out."""

    times: list[float | None]


class SegmentsLookedUp(msgspec.Struct, frozen=True, tag="segments_looked_up"):
    """Segments that would go, and the bytes of their files."""

    segments: int
    nbytes: int


class PagesLookedUp(msgspec.Struct, frozen=True, tag="pages_looked_up"):
    """`disk` as `ipc.hostslots.Disk` has it."""

    pages: list[int]
    disk: list[int]


class PositionsLookedUp(msgspec.Struct, frozen=True, tag="positions_looked_up", omit_defaults=True):
    """(page, next offset) of what each client reads, in the order of the request; nothing of one
    that is not there any more. `poll_ages`: microseconds since each last polled; None: not known.
    """

    positions: list[list[tuple[int, int]]]
    poll_ages: list[int | None] = []


Reply = TimeLookedUp | AppendsLookedUp | SegmentsLookedUp | PagesLookedUp | PositionsLookedUp
