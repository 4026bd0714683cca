"""`penstock quota ...`: bytes a second of principals and client ids, and limits of namespaces."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.command import Env, command
from penstock.core import errors as er
from penstock.operations import values

Who = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Or '*': each that has none of its own.")
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="ID", help="Only its clients of this id; '*': each id."),
]


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(help="Show and change quotas, and limits of namespaces.", **settings)
    command(app, "list")(list_quotas)
    command(app, "show")(show)
    command(app, "set")(set_quota)
    command(app, "remove")(remove)
    command(app, "limit")(limit)
    return app


def list_quotas(env: Env) -> None:
    """Show all quotas and limits."""
    with env.admin() as admin:
        quotas, limits = admin.list_quotas(), admin.list_limits()
    for found in (quotas, limits):
        if found:
            heads = found[0].__struct_fields__
            env.write_rows(heads, [msgspec.structs.asdict(one) for one in found])


def show(
    env: Env,
    namespace: Annotated[
        str | None, typer.Argument(metavar="NAMESPACE", help="This one only.")
    ] = None,
) -> None:
    """Show how much namespaces have, and may have. Bytes, shared memory and connections are those
    of the broker that is asked."""
    with env.admin() as admin:
        found = [one for one in admin.list_uses() if namespace in (None, one.namespace)]
    if namespace is not None and not found:
        raise er.ConfigError(f"namespace {namespace!r} has no limits, and no key has it")
    rows = [msgspec.structs.asdict(one) for one in found]
    env.write_rows(("namespace", "limit", "used", "most"), rows)


def set_quota(
    env: Env,
    principal: Who,
    client_id: ClientId = None,
    produce: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes a second sent, like 10MiB.")
    ] = None,
    consume: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes a second read.")
    ] = None,
    connections: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most connections.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Most producers, consumers and admins together."),
    ] = None,
    in_flight: Annotated[
        str | None,
        typer.Option("--in-flight", metavar="SIZE", help="Most bytes sent without an answer."),
    ] = None,
) -> None:
    """Set bounds; those that are not named stay as they are."""
    given = {
        "produce_bytes": None if produce is None else values.size(produce),
        "consume_bytes": None if consume is None else values.size(consume),
        "connections_max": connections,
        "clients_max": clients,
        "inflight_bytes_max": None if in_flight is None else values.size(in_flight),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise er.ConfigError("say what is to be bounded, such as --produce 10MiB")
    from penstock.client.admin.access import QuotaSetting

    with env.admin() as admin:
        known = {(one.principal, one.client_id): one for one in admin.list_quotas()}
        before = known.get((principal, client_id)) or QuotaSetting(principal, client_id)
        admin.set_quota(msgspec.structs.replace(before, **changes))
    env.say(f"set the quota of {_named(principal, client_id)}")


def remove(env: Env, principal: Who, client_id: ClientId = None) -> None:
    """Take a quota away."""
    from penstock.client.admin.access import QuotaSetting

    with env.admin() as admin:
        admin.set_quota(QuotaSetting(principal, client_id))
    env.say(f"{_named(principal, client_id)} has no quota of its own any more")


def limit(
    env: Env,
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE")],
    topics_max: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    partitions_max: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    groups_max: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    transactional_ids_max: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    connections_max: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of its principals, at each broker.")
    ] = None,
    disk_bytes_max: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of its topics, at each broker.")
    ] = None,
    shm_bytes_max: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Shared memory for its producers, at each broker."),
    ] = None,
) -> None:
    """Bound what a namespace may have, in place of its limits before. Without limits the namespace
    of a key has its share."""
    from penstock.client.admin.access import LimitSetting

    with env.admin() as admin:
        admin.set_limits(
            LimitSetting(
                namespace,
                topics_max,
                partitions_max,
                groups_max,
                transactional_ids_max,
                connections_max,
                None if disk_bytes_max is None else values.size(disk_bytes_max),
                None if shm_bytes_max is None else values.size(shm_bytes_max),
            )
        )
    env.say(f"set the limits of namespace {namespace}")


def _named(principal: str, client_id: str | None) -> str:
    return principal if client_id is None else f"clients {client_id!r} of {principal}"
