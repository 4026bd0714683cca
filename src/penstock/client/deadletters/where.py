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

from typing import Final

from penstock.client.deadletters.story import DeadLetter

try:
    import pyarrow as pa

    from penstock.client.sql_condition import Columns, SqlCondition, header_of, text_of
except ImportError as error:
    raise ImportError(
        "where= needs DuckDB and pyarrow: pip install 'penstock[sql]'; dead letters are chosen by "
        "partition and offset without"
    ) from error

_TIME: Final = pa.timestamp("us", "UTC")
COLUMNS: Final[Columns[DeadLetter]] = {
    "value": (pa.binary(), lambda one: one.value),
    "key": (pa.binary(), lambda one: one.key),
    "text": (pa.string(), lambda one: text_of(one.value)),
    "header": (pa.map_(pa.string(), pa.string()), lambda one: header_of(one.headers)),
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


class LetterFilter(SqlCondition[DeadLetter]):
    """A condition over dead letters. Raises `ConfigError` for a wrong one."""

    def __init__(self, where: str) -> None:
        super().__init__(where, COLUMNS, words=("offset", "group"))
