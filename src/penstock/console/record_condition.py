"""The columns of records for conditions in SQL. Needs DuckDB and pyarrow.

| column | type | |
|---|---|---|
| text | VARCHAR | the value, where it is UTF-8: `text->>'$.customer.name' = 'Ann'` for JSON |
| value, key | BLOB | `decode(key)` is the text |
| header | MAP(VARCHAR, VARCHAR) | `header['tenant'] = 'acme'` |
| partition, "offset", timestamp | | |
"""

from __future__ import annotations

from typing import Final

from penstock.client.consumer.records import Record

try:
    import pyarrow as pa

    from penstock.client.sql_condition import Columns, SqlCondition, header_of, text_of
except ImportError as error:
    raise ImportError(
        "a condition in SQL needs DuckDB and pyarrow: pip install 'penstock[sql]'; keys and fields "
        "of JSON are searched without"
    ) from error


COLUMNS: Final[Columns[Record]] = {
    "text": (pa.string(), lambda one: text_of(one.value)),
    "value": (pa.binary(), lambda one: one.value),
    "key": (pa.binary(), lambda one: one.key),
    "header": (pa.map_(pa.string(), pa.string()), lambda one: header_of(one.headers)),
    "partition": (pa.int64(), lambda one: one.partition),
    "offset": (pa.int64(), lambda one: one.offset),
    "timestamp": (pa.timestamp("us", "UTC"), lambda one: one.timestamp),
}


class RecordCondition(SqlCondition[Record]):
    """A condition over records. Raises `ConfigError` for a wrong one."""

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(where, COLUMNS, words=("offset",), seconds=seconds)
