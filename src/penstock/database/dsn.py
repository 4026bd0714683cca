"""Connections by a DSN, for commands that bring none of their own."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigError, NotConnectedError
from penstock.database.statements import Dialect

if TYPE_CHECKING:
    import psycopg

BUSY_MAX: Final = 5.0
"""Seconds that a statement waits for another writer of an SQLite file."""
CONNECT_MAX: Final = 10
"""Seconds that PostgreSQL has to answer a connection that begins."""
_SQLITE: Final = ("sqlite:///", "sqlite://")
_POSTGRESQL: Final = ("postgresql://", "postgres://", "postgresql+psycopg://")


def dialect_of_dsn(dsn: str) -> Dialect:
    """Raises `ConfigError` for a DSN of another database."""
    if dsn.startswith(_POSTGRESQL):
        return "postgresql"
    if dsn.startswith(_SQLITE) and path_of(dsn).name:
        return "sqlite"
    raise ConfigError(
        f"dsn={shown(dsn)!r} names no database that is known here: write "
        "postgresql://USER@HOST/DATABASE, or sqlite:///PATH (four slashes for an absolute path)"
    )


def path_of(dsn: str) -> Path:
    """Returns the file of an SQLite database."""
    return Path(dsn.removeprefix("sqlite://").removeprefix("/"))


def shown(dsn: str) -> str:
    """Returns a DSN without the password in it."""
    head, found, tail = dsn.partition("://")
    user, at, place = tail.rpartition("@")
    return f"{head}{found}{user.partition(':')[0]}{at}{place}"


def connect(dsn: str) -> Any:
    """Opens a connection of sqlite3 or psycopg. Raises `ConfigError`, `NotConnectedError`."""
    if dialect_of_dsn(dsn) == "postgresql":
        return connect_postgresql(dsn)
    return connect_sqlite(dsn)


def connect_sqlite(dsn: str) -> sqlite3.Connection:
    """Each commit is on the disk when it returns. The file is there already, or made."""
    try:
        connection = sqlite3.connect(path_of(dsn), timeout=BUSY_MAX, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error as error:
        raise NotConnectedError(f"cannot open the database {shown(dsn)}: {error}") from error
    return connection


def connect_postgresql(dsn: str, *, autocommit: bool = False) -> psycopg.Connection[Any]:
    try:
        import psycopg
    except ImportError as error:
        raise ConfigError(
            "PostgreSQL needs the package psycopg: pip install 'penstock[outbox]'"
        ) from error
    try:
        return psycopg.connect(
            dsn.replace("postgresql+psycopg://", "postgresql://", 1),
            autocommit=autocommit, connect_timeout=CONNECT_MAX, application_name="penstock",
        )  # fmt: skip
    except psycopg.Error as error:
        raise NotConnectedError(f"cannot reach the database {shown(dsn)}: {error}") from error
