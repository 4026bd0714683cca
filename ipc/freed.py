"""What a cleaning came to: the answer of a partition's role to an order of the node."""

from __future__ import annotations

from typing import NamedTuple


class Freed(NamedTuple):
    """What a cleaning gave back: the log's start, segments that went, the bytes of their files;
    `done` false: it did not fit the log any more."""

    log_start: int
    segments: int
    nbytes: int
    done: bool = True
