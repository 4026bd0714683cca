"""`penstock transaction ...`: list, abort."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, command


def make(settings: dict[str, Any]) -> typer.Typer:
    """The command group."""
    app = typer.Typer(help="Transactional producers and stages.", **settings)
    command(app, "list")(list_transactions)
    command(app, "abort")(abort)
    return app


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


def abort(
    env: Env,
    transactional_id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Abort what is open of a transactional id, and fence its producer: readers of committed
    records go on behind it."""
    from penstock.client.transactions.abort import abort_transaction, find_transaction

    with env.connect() as client:
        found = find_transaction(client, transactional_id)
        if not yes:
            confirm(
                f"Abort what {transactional_id} has open for {found.open_for:.0f} s, and fence its "
                "producer?",
                tries=False,
            )
        abort_transaction(client, transactional_id)
    env.say(f"aborted what {transactional_id} had open ({found.state})")
