"""The tables of a dedup store, in versions, and what operators do with them.

penstock_dedup        one row for each group, topic and partition: the offset that comes next
penstock_dedup_ids    one row for each record that is known by an id, until `vacuum`
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from penstock.client.validation import check_text
from penstock.core.errors import ConfigError
from penstock.database import migrations
from penstock.database.migrations import Migrated, Schema
from penstock.database.statements import check_table, dialect_of, execute

TABLE: Final = "penstock_dedup"
NOW: Final = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)",
    "sqlite": "CAST(strftime('%s', 'now') AS INTEGER)",
}
"""The time in SQL, in seconds since the epoch."""


def _tables(blob: str) -> tuple[str, ...]:
    return (
        """CREATE TABLE {table} (
    consumer_group VARCHAR(255) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    partition_number INTEGER NOT NULL,
    topic_id VARCHAR(32),
    next_offset BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition_number)
)""",
        f"""CREATE TABLE {{table}}_ids (
    consumer_group VARCHAR(255) NOT NULL,
    record_id {blob} NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (consumer_group, record_id)
)""",
        "CREATE INDEX {name}_ids_seen_at ON {table}_ids (seen_at)",
    )


SCHEMA: Final = Schema("dedup", {"postgresql": (_tables("BYTEA"),), "sqlite": (_tables("BLOB"),)})


def migrate(connection: Any, *, table: str = TABLE) -> Migrated:
    """Makes the tables of a dedup store, or brings them to this version, and commits. Safe to call
    at each start. Raises `ConfigError` where a newer version made them."""
    return migrations.migrate(connection, SCHEMA, table)


def positions(connection: Any, group: str, *, table: str = TABLE) -> dict[tuple[str, int], int]:
    """Returns the next offset of each topic and partition that a group has handled."""
    found = execute(
        connection,
        f"SELECT topic, partition_number, next_offset FROM {check_table(table)} "
        "WHERE consumer_group = :name ORDER BY topic, partition_number",
        {"name": group},
    ).fetchall()
    return {(topic, partition): offset for topic, partition, offset in found}


def forget(connection: Any, group: str, *, topic: str | None = None, table: str = TABLE) -> int:
    """Forgets the positions of a group, of one topic or of all, in the caller's transaction: its
    records count as new. Returns how many partitions that were."""
    check_text("group", group)
    but = "" if topic is None else " AND topic = :topic"
    given = {"name": group} if topic is None else {"name": group, "topic": topic}
    done = execute(
        connection, f"DELETE FROM {check_table(table)} WHERE consumer_group = :name{but}", given
    )
    return int(done.rowcount)


def vacuum(connection: Any, *, ttl: float | timedelta, table: str = TABLE) -> int:
    """Forgets ids that are older than `ttl` (seconds), in the caller's transaction: a record that
    comes again later counts as new. Positions stay. Returns how many ids went."""
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else float(ttl)
    if not 0 <= seconds < 1e12:
        raise ConfigError(f"ttl={ttl!r} must be 0 or more seconds")
    done = execute(
        connection,
        f"DELETE FROM {check_table(table)}_ids "
        f"WHERE seen_at <= {NOW[dialect_of(connection)]} - :ttl",
        {"ttl": int(seconds)},
    )
    return int(done.rowcount)
