"""An action before it is done: sentences that say what it changes, and the same as a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ROWS_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class PageTable:
    """Rows under heads. `more`: rows that are not shown."""

    heads: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    more: int = 0


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> PageTable:
    """The first rows as a table."""
    return PageTable(heads, tuple(rows[:ROWS_SHOWN]), max(0, len(rows) - ROWS_SHOWN))


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """`back`: the page that one came from. `is_empty`: there is nothing to do."""

    title: str
    says: tuple[str, ...]
    command: str
    button: str
    back: str
    table: PageTable | None = None
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class ActionDone:
    """The result of an action, told on the next page."""

    note: str
    page: str
