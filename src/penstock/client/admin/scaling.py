"""Estimates how many members a group needs: pure arithmetic over two looks at it.

    needed rate = what comes + (lag - what may stay) / time to drain
    members     = needed rate / what one member gets done

Owns the estimate and its bounds. Never starts or stops anything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client.admin.groups import SHARED
from penstock.client.validation import check_range

if TYPE_CHECKING:
    from penstock.client.admin.groups import GroupDescription
    from penstock.client.admin.share_groups import ShareGroupDescription

MEMBERS_MAX: Final = 10_000
IDLE_LAG: Final = 1.0
"""Seconds: members that are behind by less wait for records, and could do more than they do."""


@dataclass(frozen=True, slots=True)
class GroupLook:
    """A group at one moment: `done` and `came` count records since any fixed moment. `useful_max`:
    members that can have work at once, its partitions; None for a share group."""

    at: float
    members: int
    lag: int
    done: int
    came: int
    useful_max: int | None


@dataclass(frozen=True, slots=True)
class GroupScale:
    """How many members a lag target needs.

    `members` is None where nobody knows what one gets done: none worked during the sample. `rate`
    and `member_rate` are records a second that came and that one member did. `reason` says by which
    figures, in a sentence; `is_bound` whether partitions bound it.
    """

    group: str
    members_now: int
    members: int | None
    lag: int
    rate: float
    member_rate: float | None
    is_bound: bool
    reason: str


def estimate(
    group: str, before: GroupLook, now: GroupLook, lag_seconds: float, within: float
) -> GroupScale:
    """`lag_seconds`: lag that may stay, as seconds of what comes; `within`: seconds in which the
    rest is to be gone."""
    seconds = max(now.at - before.at, 1e-6)
    rate = max(0, now.came - before.came) / seconds
    done = max(0, now.done - before.done) / seconds
    excess = max(0.0, now.lag - rate * lag_seconds)
    needed = rate + excess / within
    if needed == 0:
        return GroupScale(
            group, now.members, min(1, now.members), now.lag, rate, None, False,
            "nothing comes, and nothing is left",
        )  # fmt: skip
    if not done or not now.members:
        why = "it has no members" if not now.members else "its members did nothing"
        return GroupScale(
            group, now.members, None, now.lag, rate, None, False,
            f"{why} during the sample: how much one gets done is not known",
        )  # fmt: skip
    workers = min(now.members, now.useful_max or now.members)
    each = done / workers
    wanted = min(max(1, math.ceil(needed / each - 1e-9)), MEMBERS_MAX)
    is_idle = now.lag <= done * IDLE_LAG
    if is_idle:
        wanted = min(wanted, now.members)
    is_bound = now.useful_max is not None and wanted > now.useful_max
    reason = (
        f"{rate:.0f} records/s come, {now.lag} wait, and a member does {each:.0f}/s"
        + (" or more" if is_idle else "")
        + (f"; it has {now.useful_max} partitions, and more members would wait" if is_bound else "")
    )
    members = min(wanted, now.useful_max) if now.useful_max is not None else wanted
    return GroupScale(group, now.members, members, now.lag, rate, each, is_bound, reason)


def watch(
    describe: Callable[[str], GroupDescription],
    describe_share: Callable[[str], ShareGroupDescription],
    group: str,
    *,
    lag_seconds: float,
    within: float,
    sample: float,
) -> GroupScale:
    """Looks at a group twice, `sample` seconds apart. Raises what describing it raises."""
    check_range("lag_seconds", lag_seconds, 0.0, 1e9)
    check_range("within", within, 1.0, 1e9)
    check_range("sample", sample, 0.01, 3600.0)

    def look() -> GroupLook:
        found = describe(group)
        shares = describe_share(group) if found.guarantee == SHARED else None
        return _look(found, shares)

    before = look()
    time.sleep(sample)
    return estimate(group, before, look(), lag_seconds, within)


def _look(found: GroupDescription, shares: ShareGroupDescription | None) -> GroupLook:
    now, members = time.monotonic(), len(found.members)
    if shares is not None:
        came = sum(one.end for one in shares.partitions)
        return GroupLook(now, members, shares.lag, came - shares.lag, came, None)
    lag = came = 0
    for one in found.partitions:
        place = one.committed if one.position is None else one.position
        if place is not None:
            came += one.high_watermark
            lag += max(0, one.high_watermark - place)
    return GroupLook(now, members, lag, came - lag, came, len(found.partitions))
