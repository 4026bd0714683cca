"""Chooses items by a condition in SQL, page by page, by DuckDB.

The condition sees the columns that its owner names, reads no files and reaches no network. Imported
where somebody gives one; needs DuckDB and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Timer
from typing import Any, Final, Generic, TypeVar

import duckdb
import pyarrow as pa

from penstock.core.columns import HeaderList
from penstock.core.errors import ConfigError, PenstockTimeout

_ROW: Final = "_row"
MEMORY_MAX: Final = "256MiB"
"""For a condition, as DuckDB counts: not the one list or text that an expression makes."""

T = TypeVar("T")
Columns = Mapping[str, tuple[Any, Callable[[T], Any]]]
"""By name the type, and the function that gets it from an item."""


def text_of(value: bytes | None) -> str | None:
    """Returns a value that is UTF-8 as its text."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def header_of(headers: HeaderList) -> list[tuple[str, str | None]]:
    """The first of each name; SQL has no map with two."""
    found: dict[str, str | None] = {}
    for name, value in headers:
        found.setdefault(name, None if value is None else value.decode(errors="replace"))
    return [*found.items()]


class SqlCondition(Generic[T]):
    """A condition, tried once on nothing, so that a wrong one is told before anything is read.

    `words`: of the names of columns, those that are words of SQL. `seconds`: how long one page may
    take; None: as long as it takes. Raises `ConfigError`, and
    `PenstockTimeout` after that time."""

    def __init__(
        self,
        where: str,
        columns: Columns[T],
        *,
        words: Sequence[str] = (),
        seconds: float | None = None,
    ) -> None:
        self._where = where
        self._columns = columns
        self._words = words
        self._seconds = seconds
        self._schema = pa.schema(
            [(_ROW, pa.int64()), *((name, kind) for name, (kind, _) in columns.items())]
        )
        self._query = f"SELECT {_ROW} FROM items WHERE (\n{where}\n)"
        self._duckdb = duckdb.connect(
            config={
                "enable_external_access": "false", "python_enable_replacements": False,
                "memory_limit": MEMORY_MAX, "threads": 1,
            }
        )  # fmt: skip
        self.matching([])

    def matching(self, items: Sequence[T]) -> set[int]:
        """The indices of those for which it is true."""
        columns = [pa.array(range(len(items)), pa.int64())]
        columns += [
            pa.array([get(one) for one in items], kind) for kind, get in self._columns.values()
        ]
        self._duckdb.register("items", pa.Table.from_arrays(columns, schema=self._schema))
        watch = None if self._seconds is None else Timer(self._seconds, self._duckdb.interrupt)
        if watch is not None:
            watch.start()
        try:
            return {row for (row,) in self._duckdb.execute(self._query).fetchall()}
        except duckdb.InterruptException as error:
            raise PenstockTimeout(
                f"where={self._where!r:.200} took more than {self._seconds:g} s for a page"
            ) from error
        except duckdb.Error as error:
            first, *_ = str(error).splitlines() or [""]
            raise ConfigError(
                f"where={self._where!r} cannot be asked: {first}{self._hint(first)}"
            ) from error
        finally:
            if watch is not None:
                watch.cancel()

    def _hint(self, message: str) -> str:
        """Advice beside a message of DuckDB."""
        for word in self._words:
            if f'at or near "{word}"' in message:
                return f' ({word} is a word of SQL: write the column as "{word}", in double quotes)'
        if message.startswith("Binder Error: Referenced column"):
            return f" There are {', '.join(self._columns)}."
        if message.startswith("Conversion Error"):
            return " (TRY_CAST gives NULL for what cannot be converted)"
        return ""
