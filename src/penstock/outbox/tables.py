"""The outbox as a table of SQLAlchemy Core, for statements of the application.

`migrate` makes the same table, with indexes and triggers. Needs SQLAlchemy.
"""

from __future__ import annotations

import sqlalchemy as sa

from penstock.database.statements import check_table
from penstock.outbox.schema import TABLE


def table(metadata: sa.MetaData, name: str = TABLE) -> sa.Table:
    """Returns the outbox's table, for statements of the application. Its columns are those that a
    record needs, and what became of it."""
    schema, _, short = check_table(name).rpartition(".")
    return sa.Table(
        short,
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary),
        sa.Column("headers", sa.Text),
        sa.Column("options", sa.Text),
        sa.Column("state", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("reason", sa.Text),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now()),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
        schema=schema or None,
    )
