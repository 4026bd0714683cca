"""`penstock transaction list`: what is open, and for how long."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.command import Env, command


def make(settings: dict[str, Any]) -> typer.Typer:
    """The command group."""
    app = typer.Typer(help="Transactional producers and stages.", **settings)
    app.callback()(_nothing)
    command(app, "list")(list_transactions)
    return app


def _nothing() -> None:
    """Transactional producers and stages."""


def list_transactions(
    env: Env,
    is_open: Annotated[
        bool, typer.Option("--open", help="Only what holds readers of committed records back.")
    ] = False,
) -> None:
    """Show every transactional id: its state, its producer, and for how long it has been open."""
    with env.admin() as admin:
        found = admin.list_transactions()
    rows = [asdict(each) for each in found if not is_open or each.state != "ready"]
    if env.is_json:
        for row in rows:
            output.write_json(row)
        return
    heads = ("transactional_id", "state", "producer_id", "producer_epoch", "partitions")
    output.write_columns(
        [*(head.upper().replace("_", " ") for head in heads), "OPEN FOR", "TOPICS"],
        [
            [*(row[head] for head in heads), f"{row['open_for']:.1f} s", ",".join(row["topics"])]
            for row in rows
        ],
    )
