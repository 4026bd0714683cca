"""Partitions that a writer was told of and does not have: what batches for them are answered.

Owns which those are, and why. The writer says when one comes, goes, or cannot be opened.
"""

from __future__ import annotations

from penstock.core.admission import refused
from penstock.core.errors import ErrorCode
from penstock.core.log import AppendResult


class Absent:
    """See the module."""

    def __init__(self) -> None:
        self._failed: dict[int, AppendResult] = {}
        self._gone: set[int] = set()
        self._moved: set[int] = set()

    def opened(self, page: int) -> None:
        """It is here."""
        self._failed.pop(page, None)
        self._gone.discard(page)
        self._moved.discard(page)

    def failed(self, page: int, reason: str, *, replicated: bool) -> None:
        """Its log cannot be opened. Of a replica, others take what comes for it."""
        code = ErrorCode.NOT_LEADER if replicated else ErrorCode.PARTITION_OFFLINE
        self._failed[page] = refused(code, reason)

    def closed(self, page: int, *, deleted: bool) -> None:
        self._failed.pop(page, None)
        (self._gone if deleted else self._moved).add(page)

    def answer(self, page: int) -> AppendResult:
        """What batches for it are answered."""
        if page in self._failed:
            return self._failed[page]
        if page in self._moved:
            return refused(ErrorCode.NOT_LEADER, f"partition page {page} is on other brokers now")
        state = "was deleted" if page in self._gone else "is not open here"
        return refused(ErrorCode.UNKNOWN_PARTITION, f"partition page {page} {state}")
