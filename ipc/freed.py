"""The result of a cleaning: the answer of a partition's role to an order of the node."""

from __future__ import annotations

from typing import NamedTuple


class Freed(NamedTuple):
    """The result of a cleaning: the log's start, the removed segments, the bytes of their files.
    `done` false: the order did not fit the log any more."""

    log_start: int
    segments: int
    nbytes: int
    done: bool = True
