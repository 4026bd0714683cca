"""The frames of a replication lane, partition by partition, each in the order of the lane.

Owns nothing but the order: roles and answers are its caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.core.log import AppendResult, Writeback
from penstock.ipc.drained import RETRY_MIN, DrainedLane
from penstock.ipc.lane import Frame
from penstock.ipc.partitionrole import PartitionRole


def replicate(
    lane: DrainedLane,
    frames: list[Frame],
    answers: dict[int, AppendResult],
    *,
    find: Callable[[int], PartitionRole | None],
    not_here: Callable[[int], AppendResult],
    begin: Callable[[Writeback], None],
) -> set[int]:
    """Have roles do what these frames say; the pages that something was done to. A frame without an
    answer afterwards is to be tried again, and the lane waits for it a little."""
    by_page: dict[int, list[Frame]] = {}
    for frame in frames:
        by_page.setdefault(frame.page, []).append(frame)
    changed = set()
    now_us = time.time_ns() // 1000
    for page, mine in by_page.items():
        role = find(page)
        if role is None:
            answers.update((id(frame), not_here(page)) for frame in mine)
            continue
        results = role.replicate(mine, now_us)
        answers.update(zip(map(id, mine), results, strict=False))
        if len(results) < len(mine):
            lane.blocked_until = time.monotonic() + RETRY_MIN
        changed.add(page)
        if (writeback := role.writeback()) is not None:
            begin(writeback)
    return changed
