"""`penstock outbox ...`: migrate, relay, list, retry, purge."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, command
from penstock.cli.databases import Dsn, database
from penstock.core import errors as er
from penstock.operations.letters import printable, text_of

if TYPE_CHECKING:
    from penstock.outbox.schema import RowState

Table = Annotated[str, typer.Option("--table", help="The outbox in that database.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only rows of this topic.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Only these rows.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Everything = Annotated[bool, typer.Option("--all", help="Every row of that state.")]
_TABLE = "penstock_outbox"


class RelayDurability(StrEnum):
    """How long records last once their rows go."""

    fsynced = "fsynced"
    appended = "appended"


class Removed(StrEnum):
    """Rows that may be removed."""

    dead = "dead"
    sent = "sent"

    @property
    def state(self) -> RowState:
        from penstock.outbox.schema import RowState

        return RowState.DEAD if self is Removed.dead else RowState.SENT


def make(settings: dict[str, Any]) -> typer.Typer:
    """The command group."""
    app = typer.Typer(help="Outboxes of applications, in their databases.", **settings)
    command(app, "migrate")(migrate)
    command(app, "relay")(relay)
    command(app, "list")(list_rows)
    command(app, "retry")(retry)
    command(app, "purge")(purge)
    return app


def migrate(
    env: Env,
    dsn: Dsn,
    table: Table = _TABLE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the statements that are missing.")
    ] = False,
) -> None:
    """Make the outbox's tables, or bring them to this version."""
    from penstock.database.migrations import version_of
    from penstock.database.statements import dialect_of
    from penstock.outbox.schema import SCHEMA
    from penstock.outbox.schema import migrate as migrated

    with database(dsn) as connection:
        if dry_run:
            before = version_of(connection, SCHEMA, table)
            for statement in SCHEMA.statements(dialect_of(connection), table, before):
                output.write_line(f"{statement};")
            return
        done = migrated(connection, table=table)
    change = "has" if done.before == done.after else f"went from version {done.before} to"
    env.say(f"outbox {table} {change} version {done.after}")


def relay(
    env: Env,
    dsn: Dsn,
    table: Table = _TABLE,
    batch_rows: Annotated[
        int, typer.Option("--batch-rows", metavar="N", help="Rows of one transaction, at most.")
    ] = 5000,
    poll_interval: Annotated[
        float | None,
        typer.Option(
            "--poll-interval",
            metavar="SECONDS",
            help="Between two looks at an empty outbox: 1 for PostgreSQL, which tells of new rows "
            "at once, and 0.005 for SQLite.",
        ),
    ] = None,
    keep_sent: Annotated[
        bool, typer.Option("--keep-sent", help="Rows that are sent stay, until a purge.")
    ] = False,
    durability: Annotated[
        RelayDurability,
        typer.Option(
            "--durability",
            help="appended: quicker, but a power cut of the node may take records whose rows are "
            "gone.",
        ),
    ] = RelayDurability.fsynced,
    progress_topic: Annotated[
        str, typer.Option("--progress-topic", metavar="TOPIC", help="Tells what was sent.")
    ] = "outbox.progress",
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap", help="Go on where database and topic do not fit, after a restore."
        ),
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Where Prometheus may ask."),
    ] = None,
) -> None:
    """Send committed rows to their topics, each once and in order of its key, until SIGTERM.

    A second relay of the same outbox waits, and takes over when the first one ends."""
    from penstock.outbox.config import RelayConfig
    from penstock.outbox.relay import Relay

    config = RelayConfig(
        dsn=dsn, table=table, progress_topic=progress_topic, batch_rows=batch_rows,
        poll_interval=poll_interval, keep_sent=keep_sent, durability=durability.value,
        accept_gap=accept_gap,
    )  # fmt: skip
    with Relay(config, url=env.given_url or env.url) as running:
        if metrics is not None:
            _serve(running, metrics)
        running.run(lambda: env.say(f"relaying {table}"))
        counts = running.metrics()
    if env.is_json:
        output.write_json(counts)
    env.say(f"{counts['sent']:,} rows sent, {counts['dead']:,} dead")


def _serve(running: Any, place: str) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    from penstock.outbox.metrics import collector

    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise er.ConfigError(f"--metrics {place!r} must be HOST:PORT, such as 127.0.0.1:9641")
    registry = CollectorRegistry()
    registry.register(collector(running))
    start_http_server(int(port), host, registry)


def list_rows(
    env: Env,
    dsn: Dsn,
    table: Table = _TABLE,
    topic: Topic = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", help="So many at most.")
    ] = 100,
) -> None:
    """Show rows that could not be sent, oldest first, with the reason."""
    from penstock.outbox.dead_row import dead_rows

    with database(dsn) as connection:
        found = dead_rows(connection, table=table, topic=topic, limit=limit)
    if env.is_json:
        for row in found:
            texts = {"key": text_of(row.key), "value": text_of(row.value)}
            output.write_json({**row._asdict(), **texts})
        return
    output.write_columns(
        ["ID", "DIED", "TOPIC", "KEY", "REASON"],
        [[row.id, row.died_at, printable(row.topic), printable(row.key), printable(row.reason)]
         for row in found],
    )  # fmt: skip
    if not found:
        env.say(f"no dead rows in {table}")


def retry(
    env: Env,
    dsn: Dsn,
    ids: Ids = None,
    table: Table = _TABLE,
    topic: Topic = None,
    everything: Everything = False,
) -> None:
    """Have dead rows sent again, behind what was sent of their keys meanwhile."""
    from penstock.outbox.dead_row import retry_rows

    _check_named(ids, topic, everything)
    with database(dsn, commits=True) as connection:
        count = retry_rows(
            connection, table=table, topic=topic, ids=ids or None, everything=everything
        )
    env.say(f"{count:,} rows are to be sent again")


def purge(
    env: Env,
    dsn: Dsn,
    ids: Ids = None,
    table: Table = _TABLE,
    topic: Topic = None,
    everything: Everything = False,
    state: Annotated[
        Removed, typer.Option("--state", help="dead, or sent (what --keep-sent left).")
    ] = Removed.dead,
    yes: Yes = False,
) -> None:
    """Remove dead rows, or rows that were sent and kept, for ever."""
    from penstock.outbox.dead_row import purge_rows

    _check_named(ids, topic, everything)
    if not yes:
        confirm(f"Remove {state.value} rows of {table} for ever?", tries=False)
    with database(dsn, commits=True) as connection:
        count = purge_rows(
            connection, table=table, state=state.state, topic=topic, ids=ids or None,
            everything=everything,
        )  # fmt: skip
    env.say(f"{count:,} rows removed")


def _check_named(ids: list[int] | None, topic: str | None, everything: bool) -> None:
    if not ids and topic is None and not everything:
        raise er.ConfigError("name rows: by ID, by --topic, or --all")
