"""A bound on log lines that strangers can bring about.

Lines are told apart by their format, of which there are few. Those above the bound are left out,
and the next line of that kind says how many; the counters have counted them all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from penstock.cluster.quotas import Bucket

LINES_PER_SECOND: Final = 50
"""Of one kind, at WARNING and below."""


class LogRateLimit(logging.Filter):
    """For a logger. `only`: the formats that are bounded; None: all."""

    def __init__(
        self,
        only: Collection[str] | None = None,
        *,
        rate: int = LINES_PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._only = only
        self._rate = rate
        self._clock = clock
        self._kinds: dict[str, tuple[Bucket, list[int]]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.msg
        if record.levelno > logging.WARNING or not isinstance(kind, str):
            return True
        if self._only is not None and kind not in self._only:
            return True
        now = self._clock()
        if kind not in self._kinds:
            self._kinds[kind] = Bucket(now, self._rate), [0]
        bucket, left_out = self._kinds[kind]
        if bucket.delay(now):
            left_out[0] += 1
            return False
        bucket.take(now, 1)
        if left_out[0]:
            record.msg = f"{kind} ({left_out[0]} lines like it were left out)"
            record.left_out, left_out[0] = left_out[0], 0
        return True
