"""The last commits of a partition of a group, and what they tell: OK, WARN, REWIND or STOP.

After Burrow: a bound of lag says nothing of a group that reads in batches, and too late that one
has stopped. The commits of a time say both, for every group alike.

| status | condition, in this order |
|---|---|
| OK | nothing is left to read |
| STOP | a record waits, and nothing came, for longer than the window spans and `STOP_AFTER` |
| REWIND | an offset of the window is above the newest one: the group went back |
| WARN | it commits, and is further behind in the middle of the window, and again at its end |
| OK | else |

How far a commit was behind is the age that the record at its offset had then. So no high watermark
is remembered, which a broker may not have, and a quiet topic's old commit is not taken for a stop.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

OK: Final = "OK"
WARN: Final = "WARN"
REWIND: Final = "REWIND"
STOP: Final = "STOP"
SEVERITY: Final = {OK: 0, WARN: 1, REWIND: 2, STOP: 3}
"""Values of the metric."""

COMMITS_MAX: Final = 10
"""Commits that a window has."""
SPACING: Final = 1_000_000
"""Microseconds: of commits that come faster the window has one in this time, and the newest."""
STOP_AFTER: Final = 30.0
"""Seconds without progress, at least, that count as a stop."""
POINTS_MIN: Final = 3
"""Commits from which on a window tells that a group falls behind."""
BEHIND_MIN: Final = 1.0
"""Seconds behind below which nobody is warned."""
GROWTH_MIN: Final = 0.02
"""Part of the window's time by which lag has grown before somebody is warned."""


class CommitWindow:
    """`COMMITS_MAX` pairs of time (microseconds since the epoch) and offset, the oldest first."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs = array("q")

    def note(self, at: int, offset: int) -> None:
        """Adds a commit. A clock that went back counts as one that stood."""
        pairs = self._pairs
        if pairs and at <= pairs[-2]:
            pairs[-1] = offset
            return
        if len(pairs) > 2 and at - pairs[-4] < SPACING and offset >= pairs[-1]:
            del pairs[-2:]
        pairs.extend((at, offset))
        if len(pairs) > 2 * COMMITS_MAX:
            del pairs[:2]

    def pairs(self) -> list[int]:
        """Time, offset, time, offset, ..., as `judge` takes them."""
        return self._pairs.tolist()


class PartitionOwner(NamedTuple):
    """The owner of the partition: the member, seconds since it polled, records that it has in hand.
    None where that is not known; `member_id` is empty where nobody has it."""

    member_id: str = ""
    poll_seconds: float | None = None
    in_hand: int | None = None


class Verdict(NamedTuple):
    """`reason` is a sentence without a full stop."""

    status: str
    reason: str


def places(commits: Sequence[int]) -> tuple[int, ...]:
    """Returns the offsets whose append times `judge` asks for: of the oldest commit, of the one in
    the middle, and of the newest."""
    offsets = commits[1::2]
    if len(offsets) < POINTS_MIN:
        return tuple(offsets[-1:])
    return offsets[0], offsets[len(offsets) // 2], offsets[-1]


def judge(
    commits: Sequence[int],
    now: float,
    lag: int,
    appended: Mapping[int, float],
    owner: PartitionOwner | None = None,
) -> Verdict:
    """Judges a partition with something committed. `appended`: append times, in seconds since the
    epoch, of those of `places` that are known. `owner`: None where nobody was asked."""
    times, offsets = [at / 1e6 for at in commits[::2]], commits[1::2]
    if lag <= 0:
        return Verdict(OK, "nothing is left to read")
    waits = now - max(times[-1], appended.get(offsets[-1], 0.0))
    if waits > max(STOP_AFTER, times[-1] - times[0]):
        return Verdict(STOP, f"{_records(lag)} wait, and {_stopped(now - times[-1], owner)}")
    if max(offsets) > offsets[-1]:
        before = max(range(len(offsets)), key=offsets.__getitem__)
        ago = _seconds(now - times[before + 1])
        return Verdict(
            REWIND, f"it went back from {offsets[before]} to {min(offsets[before + 1 :])} {ago} ago"
        )
    behind = _behind(times, offsets, appended)
    if behind is not None and _falls(behind, times[-1] - times[0]):
        return Verdict(
            WARN,
            f"it falls behind: {behind[-1]:.1f} s at its last commit, {behind[0]:.1f} s "
            f"{_seconds(times[-1] - times[0])} before",
        )
    return Verdict(OK, "it moves on")


def _behind(
    times: Sequence[float], offsets: Sequence[int], appended: Mapping[int, float]
) -> list[float] | None:
    """How old the next record was at three commits; None where that is not known."""
    if len(offsets) < POINTS_MIN:
        return None
    points = (0, len(offsets) // 2, -1)
    if any(offsets[point] not in appended for point in points):
        return None
    return [max(0.0, times[point] - appended[offsets[point]]) for point in points]


def _falls(behind: Sequence[float], span: float) -> bool:
    first, middle, last = behind
    return last >= BEHIND_MIN and first < middle < last and last - first > GROWTH_MIN * span


def _stopped(since: float, owner: PartitionOwner | None) -> str:
    idle = f"nothing was committed for {_seconds(since)}"
    if owner is None:
        return idle
    if not owner.member_id:
        return f"{idle}: no member has the partition"
    if owner.poll_seconds is not None and owner.poll_seconds > STOP_AFTER:
        return f"{idle}: {owner.member_id} has not polled for {_seconds(owner.poll_seconds)}"
    if owner.in_hand:
        return f"{idle}: {owner.member_id} has {_records(owner.in_hand)} in hand"
    return f"{idle}: {owner.member_id} has it"


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s"
