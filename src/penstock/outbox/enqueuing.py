"""Writes records into an outbox, in the transaction of the caller.

Never begins, commits or rolls back: what the caller does with his transaction decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Unpack

from penstock.client.producer.record_options import RecordOptions
from penstock.client.validation import HeadersLike, check_columns
from penstock.database.statements import check_table, execute, execute_many, percent_style
from penstock.outbox.rows import parameters
from penstock.outbox.schema import TABLE

_INSERT: Final = (
    "INSERT INTO {table} (topic, key, value, headers, options) "
    "VALUES (:topic, :key, :value, :headers, :options)"
)


def enqueue(
    connection: Any,
    topic: str,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: HeadersLike | None = None,
    partition: int | None = None,
    table: str = TABLE,
    **options: Unpack[RecordOptions],
) -> None:
    """Writes one record into the outbox: it is sent if the caller's transaction commits.

    Args:
        connection: of sqlite3, psycopg, psycopg2 or pg8000, or a Connection or Session of
            SQLAlchemy. An AsyncConnection: `await connection.run_sync(enqueue, ...)`, or
            `enqueue_async`.
        key, headers, partition, options: as for `Producer.send`. `delay` and `ttl` count from this
            call.
        table: the outbox, as `penstock.outbox.migrate` made it.

    Raises TypeError and ValueError as `send` does. Whether the topic is there, and has room for the
    record, is found by the relay.
    """
    row = parameters(topic, value, key, headers, partition, options)
    execute(connection, _INSERT.format(table=check_table(table)), row)


def enqueue_many(
    connection: Any,
    topic: str,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[HeadersLike | None] | None = None,
    table: str = TABLE,
) -> None:
    """Writes many records of one topic, in order, at less cost than one by one."""
    check_columns(topic, len(values), keys=keys, headers=headers)
    rows = [
        parameters(
            topic, value, None if keys is None else keys[place],
            None if headers is None else headers[place], None, {},
        )
        for place, value in enumerate(values)
    ]  # fmt: skip
    execute_many(connection, _INSERT.format(table=check_table(table)), rows)


async def enqueue_async(
    connection: Any,
    topic: str,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: HeadersLike | None = None,
    partition: int | None = None,
    table: str = TABLE,
    **options: Unpack[RecordOptions],
) -> None:
    """`enqueue` by a connection of asyncio: an AsyncConnection or AsyncSession of SQLAlchemy, an
    AsyncConnection of psycopg, or one of aiosqlite."""
    row = parameters(topic, value, key, headers, partition, options)
    statement = _INSERT.format(table=check_table(table))
    if hasattr(connection, "run_sync"):
        await connection.run_sync(execute, statement, row)
        return
    library = type(connection).__module__.partition(".")[0]
    if library not in ("psycopg", "aiosqlite"):
        raise TypeError(
            f"{type(connection).__module__}.{type(connection).__name__} is no connection that is "
            "known here: pass an AsyncConnection of SQLAlchemy or psycopg, or one of aiosqlite"
        )
    cursor = await connection.execute(
        statement if library == "aiosqlite" else percent_style(statement), row
    )
    await cursor.close()
