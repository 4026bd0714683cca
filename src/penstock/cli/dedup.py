"""`penstock dedup ...`: migrate, positions, vacuum, forget."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.asking import confirm
from penstock.cli.command import Env, command
from penstock.cli.databases import Dsn, database

Table = Annotated[str, typer.Option("--table", help="The dedup store in that database.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
_TABLE = "penstock_dedup"


def make(settings: dict[str, Any]) -> typer.Typer:
    """The command group."""
    app = typer.Typer(help="Which records a group has handled, in its database.", **settings)
    command(app, "migrate")(migrate)
    command(app, "positions")(show_positions)
    command(app, "vacuum")(vacuum)
    command(app, "forget")(forget)
    return app


def migrate(env: Env, dsn: Dsn, table: Table = _TABLE) -> None:
    """Make the store's tables, or bring them to this version."""
    from penstock.dedup.schema import migrate as migrated

    with database(dsn) as connection:
        done = migrated(connection, table=table)
    env.say(f"dedup store {table} has version {done.after}")


def show_positions(env: Env, dsn: Dsn, group: Group, table: Table = _TABLE) -> None:
    """Show the next offset of each partition that a group has handled."""
    from penstock.dedup.schema import positions

    with database(dsn) as connection:
        found = positions(connection, group, table=table)
    env.write_rows(
        ("topic", "partition", "next_offset"),
        [
            {"topic": topic, "partition": partition, "next_offset": offset}
            for (topic, partition), offset in found.items()
        ],
    )


def vacuum(
    env: Env,
    dsn: Dsn,
    ttl: Annotated[
        float, typer.Option("--ttl", min=0, metavar="SECONDS", help="Ids older than this go.")
    ],
    table: Table = _TABLE,
) -> None:
    """Forget the ids of records that will not come again. Positions stay."""
    from penstock.dedup.schema import vacuum as forgotten

    with database(dsn, commits=True) as connection:
        count = forgotten(connection, ttl=ttl, table=table)
    env.say(f"{count:,} ids forgotten")


def forget(
    env: Env,
    dsn: Dsn,
    group: Group,
    table: Table = _TABLE,
    topic: Annotated[str | None, typer.Option("--topic", help="Only of this topic.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a group's positions, so that its records count as new."""
    from penstock.dedup.schema import forget as forgotten

    if not yes:
        confirm(f"Forget what {group} has handled? Its records count as new then.", tries=False)
    with database(dsn, commits=True) as connection:
        count = forgotten(connection, group, topic=topic, table=table)
    env.say(f"{count:,} positions forgotten")
