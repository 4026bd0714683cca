"""`penstock sql QUERY`: DuckDB over topics, rows to stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, command
from penstock.core import errors as er
from penstock.operations import values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = 10_000
"""Rows written at once; those of a page are aligned with each other."""


def add_to(app: typer.Typer) -> None:
    command(app, "sql")(sql)


def sql(
    env: Env,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="In DuckDB's SQL, over topics with the columns topic, partition, offset, "
            "timestamp, key, value, headers. Example: "
            '"select decode(key), count(*) from orders group by all"',
        ),
    ],
    start: Annotated[
        str,
        typer.Option(
            "-o", "--offset", metavar="PLACE", help="Where scans begin, as in `penstock consume`."
        ),
    ] = "start",
) -> None:
    """Ask topics in SQL, up to the ends that they have when it begins."""
    from penstock.client.sql import connected, explained

    place = values.place(start)
    try:
        connection = connected(query, url=env.url, start=place, timeout=env.timeout)
    except ImportError as error:
        raise er.ConfigError(str(error)) from error
    with connection:
        try:
            connection.execute(query)
            for names, rows in pages(connection):
                write(env, names, rows)
        except er.PenstockError:
            raise
        except Exception as error:
            told = explained(error, env.url, env.timeout)
            if isinstance(told, er.PenstockError):
                raise told from error
            raise er.PenstockError(f"{told}{hint(told)}") from error


def hint(error: Exception) -> str:
    """Adds the hint that DuckDB lacks: a column of every topic is named by a word of SQL."""
    if 'at or near "offset"' not in str(error):
        return ""
    return ' (offset is a word of SQL: write the column as "offset", in double quotes)'


def pages(connection: Any) -> Iterator[tuple[list[str], Sequence[Sequence[Any]]]]:
    """Yields names and rows of a result, a page at a time; a result without rows is one
    empty page."""
    names = [column[0] for column in connection.description or ()]
    rows = connection.fetchmany(PAGE)
    yield names, rows
    while rows := connection.fetchmany(PAGE):
        yield names, rows


def write(env: Env, names: list[str], rows: Sequence[Sequence[Any]]) -> None:
    if env.is_json:
        for row in rows:
            output.write_json(dict(zip(names, map(plain, row), strict=True)))
    else:
        output.write_columns(names, [[text(item) for item in row] for row in rows])


def plain(item: Any) -> Any:
    """Converts an item for JSON: bytes become text, and a type that JSON lacks becomes its text."""
    if isinstance(item, bytes):
        return item.decode("utf-8", "backslashreplace")
    if isinstance(item, list | tuple):
        return [plain(part) for part in item]
    if isinstance(item, dict):
        return {str(name): plain(part) for name, part in item.items()}
    return item if item is None or isinstance(item, str | bool | int | float) else str(item)


def text(item: Any) -> object:
    return plain(item) if item is None or isinstance(item, bytes) else str(item)
