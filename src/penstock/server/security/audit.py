"""The audit: counters, and lines through the logger `penstock.audit` for each refusal and each
allowed administrative action.

A principal that is refused, or acts, again and again gets a bounded number of lines. Its next line
gives the number of those left out. Everything is counted.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from penstock.cluster.quotas import Bucket

logger: Final = logging.getLogger("penstock.audit")

LINES_PER_SECOND: Final = 10
ACTIONS_PER_SECOND: Final = 100
"""The same of actions that were allowed."""
LINES_IN_ALL: Final = 100
"""The same of all principals: those who are not let in have as many names as addresses."""
PRINCIPALS_MAX: Final = 1000
NAME_SHOWN: Final = 200
DETAILS_SHOWN: Final = 500


class _Book:
    __slots__ = ("bucket", "left_out")

    def __init__(self, now: float, lines: int) -> None:
        self.bucket = Bucket(now, lines)
        self.left_out = 0


class AuditLog:
    """Of refusals or, with another level, of what was allowed: one does not crowd the other out."""

    def __init__(self, level: int = logging.WARNING, lines: int = LINES_PER_SECOND) -> None:
        self._level = level
        self._lines = lines
        self._books: OrderedDict[str, _Book] = OrderedDict()
        self._all: Bucket | None = None
        self.count = 0
        """All that was noted."""

    def refused(self, now: float, principal: str, operation: str, kind: str, name: str) -> None:
        """Someone may not do this."""
        self.note(
            now, principal, "refused", f"may not {operation} {kind} {name[:NAME_SHOWN]!r}",
            operation=operation, kind=kind, resource=name[:NAME_SHOWN],
        )  # fmt: skip

    def allowed(
        self,
        now: float,
        principal: str,
        operation: str,
        kind: str,
        name: str,
        request: str,
        details: str = "",
    ) -> None:
        """Someone may do this, which changes what others have, and is about to. `details`: what
        the request names."""
        details = details[:DETAILS_SHOWN]
        asked = f"{request} {details}".rstrip()
        self.note(
            now, principal, "allowed", f"to {operation} {kind} {name[:NAME_SHOWN]!r} ({asked})",
            operation=operation, kind=kind, resource=name[:NAME_SHOWN], request=request,
            details=details,
        )  # fmt: skip

    def note(self, now: float, principal: str, event: str, text: str, **fields: object) -> None:
        """One line, unless this principal has had too many; counted in any case."""
        self.count += 1
        book = self._books.get(principal)
        if book is None:
            book = self._books[principal] = _Book(now, self._lines)
            if len(self._books) > PRINCIPALS_MAX:
                self._books.popitem(last=False)
        self._books.move_to_end(principal)
        if self._all is None:
            self._all = Bucket(now, LINES_IN_ALL)
        if book.bucket.delay(now) or self._all.delay(now):
            book.left_out += 1
            return
        book.bucket.take(now, 1)
        self._all.take(now, 1)
        more = f" ({book.left_out} more of it were not logged)" if book.left_out else ""
        logger.log(
            self._level, "%s: %s %s%s", event, principal, text, more,
            extra={"event": event, "principal": principal, "left_out": book.left_out, **fields},
        )  # fmt: skip
        book.left_out = 0
