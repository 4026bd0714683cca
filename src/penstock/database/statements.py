"""Statements by the application's own connection, whatever library made it.

    connection of                            statement runs by
    SQLAlchemy (Connection, Session)         `text()` with bound names
    sqlite3                                  names as they are
    psycopg, psycopg2, pg8000, ...           the paramstyle of the driver's module

Owns the way from `:name` to a driver's own style. Never begins or ends a transaction.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final, Literal

from penstock.core.errors import ConfigError

Dialect = Literal["postgresql", "sqlite"]
Parameters = Mapping[str, Any]

NAME_MAX: Final = 50
"""Characters of a table's name: PostgreSQL cuts names at 63, and indexes add some."""
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")
_TABLE: Final = re.compile(r"(?:[a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*")
_POSTGRESQL: Final = frozenset({"psycopg", "psycopg2", "pg8000", "postgresql"})


def check_table(name: str) -> str:
    """Returns the name of a table. Raises `ConfigError` for one that would need quotes."""
    if not isinstance(name, str) or len(name) > NAME_MAX or _TABLE.fullmatch(name) is None:
        raise ConfigError(
            f"table={name!r} must be lower-case letters, digits and underscores, at most "
            f"{NAME_MAX}, with a schema before a dot if there is one"
        )
    return name


def dialect_of(connection: Any) -> Dialect:
    """Returns the kind of database behind a connection. Raises TypeError for another one."""
    library = _library(connection)
    if library == "sqlalchemy":
        library = _sqlalchemy(connection).dialect.name
    if library in ("sqlite3", "sqlite"):
        return "sqlite"
    if library in _POSTGRESQL:
        return "postgresql"
    raise _unknown(connection)


def driver_of(connection: Any) -> Any:
    """Returns the driver's own connection: below SQLAlchemy, or the one that was given."""
    if _library(connection) != "sqlalchemy":
        return connection
    return _sqlalchemy(connection).connection.driver_connection


def execute(connection: Any, statement: str, parameters: Parameters) -> Any:
    """Runs one statement with `:names`. Returns a result with `fetchall` and `rowcount`."""
    if _library(connection) == "sqlalchemy":
        from sqlalchemy import text

        return connection.execute(text(statement), dict(parameters))
    cursor = connection.cursor()
    cursor.execute(*_styled(connection, statement, parameters))
    return cursor


def execute_many(connection: Any, statement: str, rows: Sequence[Parameters]) -> None:
    """Runs one statement for each of these rows, in their order."""
    if not rows:
        return
    if _library(connection) == "sqlalchemy":
        from sqlalchemy import text

        connection.execute(text(statement), [dict(row) for row in rows])
        return
    styled, _ = _styled(connection, statement, rows[0])
    given: list[Any] = [_styled(connection, statement, row)[1] for row in rows]
    connection.cursor().executemany(styled, given)


def percent_style(statement: str) -> str:
    """Returns the statement in the style of psycopg."""
    return _PARAMETER.sub(r"%(\1)s", statement.replace("%", "%%"))


def _library(connection: Any) -> str:
    """Also of a class that an application derived from a driver's. Raises TypeError for one of
    asyncio: its coroutines would be awaited by nobody."""
    if iscoroutinefunction(getattr(type(connection), "commit", None)):
        name = type(connection).__name__
        raise TypeError(
            f"{type(connection).__module__}.{name} is a connection of asyncio: use the verb for "
            "those (enqueue_async), or SQLAlchemy's `await connection.run_sync(...)`"
        )
    known = {"sqlalchemy", "sqlite3", *_POSTGRESQL}
    for kind in type(connection).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in known:
            return name
    raise _unknown(connection)


def _unknown(connection: Any) -> TypeError:
    return TypeError(
        f"{type(connection).__module__}.{type(connection).__name__} is no connection that is known "
        "here: pass one of sqlite3, psycopg, psycopg2 or pg8000, or a Connection or Session of "
        "SQLAlchemy for PostgreSQL or SQLite"
    )


def _sqlalchemy(connection: Any) -> Any:
    """A Session's connection, or the connection itself."""
    return connection.connection() if hasattr(connection, "get_bind") else connection


def _styled(connection: Any, statement: str, parameters: Parameters) -> tuple[str, Any]:
    library = _library(connection)
    if library == "sqlite3":
        return statement, parameters
    style = getattr(sys.modules.get(library), "paramstyle", "pyformat")
    if style == "pyformat":
        return percent_style(statement), parameters
    if style == "format":
        return _PARAMETER.sub("%s", statement.replace("%", "%%")), _in_order(statement, parameters)
    raise TypeError(f"{library} has parameters of style {style!r}, which is not known here")


def _in_order(statement: str, parameters: Parameters) -> list[Any]:
    return [parameters[name] for name in _PARAMETER.findall(statement)]
