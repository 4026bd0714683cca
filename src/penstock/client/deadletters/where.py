"""Chooses dead letters by a condition in SQL, page by page, by DuckDB.

| column | type | |
|---|---|---|
| value, key | BLOB | `decode(value)` is the text |
| text | VARCHAR | the value, where it is UTF-8 |
| header | MAP(VARCHAR, VARCHAR) | the record's own headers: `header['tenant'] = 'acme'` |
| topic, partition, "offset", timestamp | | of the record that died |
| "group", worker | VARCHAR | who gave it up, and whose delivery failed last |
| reason, exception | VARCHAR | of the last failure |
| deliveries, replays | BIGINT | |
| died_at | TIMESTAMPTZ | |
| letter_partition, letter_offset | BIGINT | where the dead letter is |

The condition reads no files and reaches no network. Imported where somebody gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.client.deadletters.story import DeadLetter
from penstock.core.errors import ConfigError

try:
    import duckdb
    import pyarrow as pa
except ImportError as error:
    raise ImportError(
        "where= needs DuckDB and pyarrow: pip install 'penstock[sql]'; dead letters are chosen by "
        "partition and offset without"
    ) from error

Getter = Callable[[DeadLetter], Any]


def _text(letter: DeadLetter) -> str | None:
    try:
        return None if letter.value is None else letter.value.decode()
    except UnicodeDecodeError:
        return None


def _header(letter: DeadLetter) -> list[tuple[str, str | None]]:
    """The first of each name; SQL has no map with two."""
    found: dict[str, str | None] = {}
    for name, value in letter.headers:
        found.setdefault(name, None if value is None else value.decode(errors="replace"))
    return [*found.items()]


_TIME: Final = pa.timestamp("us", "UTC")
COLUMNS: Final[dict[str, tuple[Any, Getter]]] = {
    "value": (pa.binary(), lambda one: one.value),
    "key": (pa.binary(), lambda one: one.key),
    "text": (pa.string(), _text),
    "header": (pa.map_(pa.string(), pa.string()), _header),
    "topic": (pa.string(), lambda one: one.topic),
    "partition": (pa.int64(), lambda one: one.partition),
    "offset": (pa.int64(), lambda one: one.offset),
    "timestamp": (_TIME, lambda one: one.timestamp),
    "group": (pa.string(), lambda one: one.group),
    "worker": (pa.string(), lambda one: one.worker),
    "reason": (pa.string(), lambda one: one.reason),
    "exception": (pa.string(), lambda one: one.exception),
    "deliveries": (pa.int64(), lambda one: one.deliveries),
    "replays": (pa.int64(), lambda one: one.replays),
    "died_at": (_TIME, lambda one: one.record.timestamp),
    "letter_partition": (pa.int64(), lambda one: one.record.partition),
    "letter_offset": (pa.int64(), lambda one: one.record.offset),
}
_ROW: Final = "_row"
_SCHEMA: Final = pa.schema(
    [(_ROW, pa.int64()), *((name, kind) for name, (kind, _) in COLUMNS.items())]
)


class LetterFilter:
    """A condition, tried once on nothing, so that a wrong one is told before anything is read.
    Raises `ConfigError`."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._query = f"SELECT {_ROW} FROM letters WHERE (\n{where}\n)"
        self._duckdb = duckdb.connect(
            config={"enable_external_access": "false", "python_enable_replacements": False}
        )
        self.matching([])

    def matching(self, letters: Sequence[DeadLetter]) -> set[int]:
        """The indices of those for which it is true."""
        columns = [pa.array(range(len(letters)), pa.int64())]
        columns += [pa.array([get(one) for one in letters], kind) for kind, get in COLUMNS.values()]
        self._duckdb.register("letters", pa.Table.from_arrays(columns, schema=_SCHEMA))
        try:
            return {row for (row,) in self._duckdb.execute(self._query).fetchall()}
        except duckdb.Error as error:
            first, *_ = str(error).splitlines() or [""]
            raise ConfigError(
                f"where={self._where!r} cannot be asked: {first}{_hint(first)}"
            ) from error


def _hint(message: str) -> str:
    """Advice beside a message of DuckDB."""
    for word in ("offset", "group"):
        if f'at or near "{word}"' in message:
            return f' ({word} is a word of SQL: write the column as "{word}", in double quotes)'
    if message.startswith("Binder Error: Referenced column"):
        return f" There are {', '.join(COLUMNS)}."
    if message.startswith("Conversion Error"):
        return " (TRY_CAST gives NULL for what cannot be converted)"
    return ""
