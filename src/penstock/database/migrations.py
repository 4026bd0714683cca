"""Versioned schemas: steps that are made one after the other, each with its number.

    penstock_schema     part | version      one row for each table of ours that there is

All steps that are missing run in one transaction with the number, so a migration that fails leaves
nothing behind. Two that run at once take turns. Owns that table. Steps are never changed once they
are released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.errors import ConfigError
from penstock.database.statements import Dialect, check_table, dialect_of, execute

VERSIONS: Final = "penstock_schema"
_MAKE: Final = f"""CREATE TABLE IF NOT EXISTS {VERSIONS} (
    part VARCHAR(200) PRIMARY KEY,
    version INTEGER NOT NULL
)"""
_TURN: Final = 0x70656E73
"""The number of the advisory lock that migrations take turns by."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of ours. `steps`: by dialect, the statements of each version. `{table}` in a
    statement is the name of the table, `{name}` the same with no dot."""

    part: str
    steps: Mapping[Dialect, Sequence[Sequence[str]]]

    def latest(self, dialect: Dialect) -> int:
        return len(self.steps[dialect])

    def statements(self, dialect: Dialect, table: str, version: int = 0) -> list[str]:
        """Returns all statements that lead on from this version."""
        check_table(table)
        name = table.replace(".", "_")
        steps = self.steps[dialect][version:]
        return [each.format(table=table, name=name) for step in steps for each in step]


@dataclass(frozen=True, slots=True)
class Migrated:
    """The versions of a schema before and after a migration. 0: there was none."""

    before: int
    after: int


def version_of(connection: Any, schema: Schema, table: str) -> int:
    """Returns the version that is there; 0 for none."""
    if dialect_of(connection) == "postgresql":
        asked = f"SELECT to_regclass('{VERSIONS}') IS NOT NULL"
    else:
        asked = f"SELECT count(*) FROM sqlite_master WHERE name = '{VERSIONS}'"
    if not execute(connection, asked, {}).fetchall()[0][0]:
        return 0
    found = execute(
        connection,
        f"SELECT version FROM {VERSIONS} WHERE part = :part",
        {"part": _named(schema, table)},
    ).fetchall()
    return int(found[0][0]) if found else 0


def migrate(connection: Any, schema: Schema, table: str) -> Migrated:
    """Makes the steps that are missing, and commits. Raises `ConfigError` for a newer schema."""
    check_table(table)
    dialect = dialect_of(connection)
    try:
        if dialect == "postgresql":
            execute(connection, f"SELECT pg_advisory_xact_lock({_TURN})", {})
        else:
            execute(connection, "BEGIN IMMEDIATE", {})
        execute(connection, _MAKE, {})
        before = version_of(connection, schema, table)
        after = schema.latest(dialect)
        if before > after:
            raise ConfigError(
                f"table {table!r} has version {before} of its schema, and this program knows "
                f"{after}: a newer Penstock made it; install that here, too"
            )
        for statement in schema.statements(dialect, table, before):
            execute(connection, statement, {})
        if before < after:
            execute(
                connection,
                f"INSERT INTO {VERSIONS} (part, version) VALUES (:part, :version) "
                "ON CONFLICT (part) DO UPDATE SET version = excluded.version",
                {"part": _named(schema, table), "version": after},
            )
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return Migrated(before, after)


def check_version(connection: Any, schema: Schema, table: str, advice: str) -> None:
    """Raises `ConfigError` unless the schema is there, as new as this program knows it."""
    found, known = version_of(connection, schema, table), schema.latest(dialect_of(connection))
    if found != known:
        there = f"has version {found} of its schema, not {known}" if found else "is not there"
        raise ConfigError(f"table {table!r} {there}: {advice}")


def _named(schema: Schema, table: str) -> str:
    return f"{schema.part}:{table}"
