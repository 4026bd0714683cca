"""`penstock client ...`: list, kick."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import output
from penstock.cli.command import Env, command
from penstock.cli.topics import for_each
from penstock.operations import wording


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(help="Show what is attached to a node, and send clients away.", **settings)
    command(app, "list")(list_clients)
    command(app, "kick")(kick)
    return app


def list_clients(
    env: Env,
    broker: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="In a cluster: only those of this broker."),
    ] = None,
) -> None:
    """Show producers, consumers and admins that are attached, and for how long; this command, too.
    A client of a cluster has an attachment at each broker that it uses."""
    with env.admin() as admin:
        found = admin.list_clients(broker)
    if env.is_json:
        for each in found:
            output.write_json(msgspec.structs.asdict(each))
        return
    now = time.time()
    output.write_columns(
        ["ID", "KIND", "CLIENT ID", "PRINCIPAL", "BY", "FROM", "CONNECTED"],
        [
            [each.id, each.kind, each.client_id or "-", each.principal, each.transport,
             each.address or f"pid {each.pid}", wording.human_age(max(0.0, now - each.since))]
            for each in found
        ],
    )  # fmt: skip


def kick(
    env: Env,
    clients: Annotated[
        list[str], typer.Argument(metavar="ID", help="One or more, as `client list` shows them.")
    ],
) -> int:
    """End connections of clients. They hear why, and may connect again: revoke a key (`keys
    revoke`) or take access away (`acl`) to keep somebody out."""
    with env.admin() as admin:

        def kick_one(client: str) -> None:
            admin.kick_client(client)
            env.say(f"sent client {client} away")

        return for_each(env, clients, kick_one)
