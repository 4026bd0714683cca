"""Partitions that a writer knows and does not have open, with the answers to batches for them.

Owns these pages and the reasons. The writer reports each that comes, goes, or cannot be opened.
"""

from __future__ import annotations

from penstock.core.admission import refused
from penstock.core.errors import ErrorCode
from penstock.core.log import AppendResult


class Absent:
    """The pages of partitions that this writer does not have open, and the reason for each."""

    def __init__(self) -> None:
        self._failed: dict[int, AppendResult] = {}
        self._gone: set[int] = set()
        self._moved: set[int] = set()

    def opened(self, page: int) -> None:
        """The page is open here now."""
        self._failed.pop(page, None)
        self._gone.discard(page)
        self._moved.discard(page)

    def failed(self, page: int, reason: str, *, replicated: bool) -> None:
        """The page's log cannot be opened. Other brokers take batches for a replica."""
        code = ErrorCode.NOT_LEADER if replicated else ErrorCode.PARTITION_OFFLINE
        self._failed[page] = refused(code, reason)

    def closed(self, page: int, *, deleted: bool) -> None:
        self._failed.pop(page, None)
        (self._gone if deleted else self._moved).add(page)

    def answer(self, page: int) -> AppendResult:
        """Returns the answer to batches for this page."""
        if page in self._failed:
            return self._failed[page]
        if page in self._moved:
            return refused(ErrorCode.NOT_LEADER, f"partition page {page} is on other brokers now")
        state = "was deleted" if page in self._gone else "is not open here"
        return refused(ErrorCode.UNKNOWN_PARTITION, f"partition page {page} {state}")
