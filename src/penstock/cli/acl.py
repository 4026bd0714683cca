"""`penstock acl ...`: who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli.command import Env, ExitCode, command

if TYPE_CHECKING:
    from penstock.client.admin.access import AccessEntry

Who = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="A key's principal, or '*'.")]
What = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION", help="read, write, create, alter, describe, delete, or all."
    ),
]
Kind = Annotated[
    str, typer.Argument(metavar="KIND", help="topic, group, transactional_id or cluster.")
]
Name = Annotated[
    str, typer.Argument(metavar="[NAME]", help="A name, or all that begin so: 'orders.*'.")
]
Deny = Annotated[bool, typer.Option("--deny", help="An entry that denies, which wins.")]


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(help="Show and change who may do what.", **settings)
    command(app, "list")(list_entries)
    command(app, "add")(add)
    command(app, "remove")(remove)
    return app


def list_entries(
    env: Env,
    principal: Annotated[
        str | None, typer.Argument(metavar="[PRINCIPAL]", help="Only its entries and '*'.")
    ] = None,
) -> None:
    """Show the entries. Without entries and keys everybody may do everything."""
    with env.admin() as admin:
        found = admin.list_access()
    rows = [
        msgspec.structs.asdict(each)
        for each in found
        if principal is None or each.principal in (principal, "*")
    ]
    env.write_rows(("principal", "effect", "operation", "kind", "name"), rows)


def add(
    env: Env, principal: Who, operation: What, kind: Kind, name: Name = "*", deny: Deny = False
) -> None:
    """Add an entry. From the first one on, what no entry allows is denied to remote clients."""
    entry = _entry(principal, operation, kind, name, deny)
    with env.admin() as admin:
        changed = admin.add_access(entry)
    env.say(f"{'added' if changed else 'there already'}: {_told(entry)}")


def remove(
    env: Env, principal: Who, operation: What, kind: Kind, name: Name = "*", deny: Deny = False
) -> int:
    """Remove exactly this entry."""
    entry = _entry(principal, operation, kind, name, deny)
    with env.admin() as admin:
        changed = admin.remove_access(entry)
    env.say(f"{'removed' if changed else 'there is no such entry'}: {_told(entry)}")
    return ExitCode.DONE if changed else ExitCode.FAILED


def _entry(principal: str, operation: str, kind: str, name: str, deny: bool) -> AccessEntry:
    from penstock.client.admin.access import AccessEntry

    return AccessEntry(principal, "deny" if deny else "allow", operation, kind, name)


def _told(entry: AccessEntry) -> str:
    return f"{entry.effect} {entry.principal} {entry.operation} {entry.kind} {entry.name}"
