"""Shared parts of commands that work at a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer

from penstock.core import errors as er

Dsn = Annotated[
    str,
    typer.Option(
        "--dsn",
        envvar="PENSTOCK_DSN",
        metavar="URL",
        help="The database: postgresql://USER@HOST/DATABASE, or sqlite:///PATH. Without it "
        "$PENSTOCK_DSN, which keeps a password out of the list of processes.",
    ),
]


@contextmanager
def database(dsn: str, *, commits: bool = False) -> Iterator[Any]:
    """A connection to it. `commits`: what was done counts once the block is left."""
    from penstock.database.dsn import connect, shown

    with closing(connect(dsn)) as connection:
        try:
            if commits and not hasattr(connection, "pgconn"):
                connection.execute("BEGIN IMMEDIATE")
            yield connection
            if commits:
                connection.commit()
        except Exception as error:
            if isinstance(error, er.PenstockError):
                raise
            raise er.PenstockError(f"the database {shown(dsn)} refused: {error}") from error
