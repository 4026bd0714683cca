"""`penstock keys ...`: clients that may come from other hosts. Works on the node's data
folder, also while it runs, and never shows a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, command
from penstock.core import errors as er
from penstock.operations import values

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="The node's data folder. Default: that of the node's URL."
    ),
]


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(help="Make, list and revoke the keys of remote clients.", **settings)
    command(app, "create")(create)
    command(app, "list")(list_keys)
    command(app, "revoke")(revoke)
    command(app, "show-server")(show_server)
    command(app, "prepare-server")(prepare_server)
    command(app, "trust")(trust)
    command(app, "switch-server")(switch_server)
    command(app, "brokers")(brokers)
    command(app, "create-cluster")(create_cluster)
    command(app, "trust-cluster")(trust_cluster)
    return app


def create(
    env: Env,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The key's name in lists.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the client's key file is put.")
    ],
    principal: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="The principal of clients with it. Default: its name."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="All names below PREFIX. are this principal's own."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="From then on it lets nobody in: 90d, or 2027-01-31."),
    ] = None,
    data: Data = None,
) -> None:
    """Make a client's key: FILE is for the client alone. From the first key on everybody needs
    one."""
    from penstock.security import keys

    folder = _folder(env, data)
    until = None if expires is None else values.moment_to_come(expires)
    made = keys.create_key(
        folder, name, out, principal=principal, namespace=namespace, expires=until
    )
    if env.is_json:
        output.write_json({"name": name, "principal": made.principal, "public": made.public,
                           "file": os.fspath(out), "namespace": namespace,
                           "expires": made.expires_text})  # fmt: skip
    else:
        env.say(
            f"{out} lets {made.principal} in: move it to the client, and keep it from everybody "
            "else (penstock.connect(url, keys=FILE), or $PENSTOCK_KEY)"
        )


def list_keys(env: Env, data: Data = None) -> None:
    """Show the keys of clients. No secrets."""
    from penstock.security import keys

    folder = keys.authorized_folder(_folder(env, data))
    rows = []
    for file in sorted(Path(folder).glob(f"*{keys.SUFFIX}")):
        try:
            key = keys.load_authorized_key(os.fspath(file))
        except (er.ConfigError, OSError) as error:
            output.narrate(f"penstock: {error}; it lets nobody in")
            continue
        rows.append({"name": file.stem, **keys.as_dict(key)})
    heads = ["name", "principal", "namespace", "expires", "fingerprint"]
    heads += ["public"] if env.is_wide else []
    env.write_rows(heads, rows)


def revoke(
    env: Env,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="As `keys list` has them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: Data = None,
) -> None:
    """Let keys in no more; connections that they have end within two seconds."""
    from penstock.security import keys

    folder = _folder(env, data)
    if not yes:
        confirm(f"Revoke {', '.join(names)}? Connected clients are sent away.", tries=False)
    for name in names:
        keys.revoke_key(folder, name)
        env.say(f"revoked {name}")


def show_server(env: Env, data: Data = None) -> None:
    """Show the node's public key, which clients check it by."""
    from penstock.security import keys

    folder = _folder(env, data)
    key = keys.load_server_key(folder)
    if key is None:
        raise er.ConfigError(
            f"{folder} has no server key: `penstock keys create` makes one with the first client's"
        )
    output.write_line(key.public)


def prepare_server(env: Env, data: Data = None) -> None:
    """Make the server key that the node is to have next, and show its public half. Copy the file to
    all brokers of a cluster, and have the clients trust it."""
    from penstock.security import keys

    folder = _folder(env, data)
    made = keys.prepare_server_key(folder)
    env.say(f"{keys.next_server_key_file(folder)} is used from `penstock keys switch-server` on")
    output.write_line(made.public)


def trust(
    env: Env,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The client's key file.")],
    public: Annotated[str, typer.Argument(metavar="PUBLIC", help="The server's public key.")],
    only: Annotated[bool, typer.Option("--only", help="And no other one any more.")] = False,
) -> None:
    """Make a client trust another key of its node beside the one it trusts. Clients that run read
    their file again when a broker does not have the key they expect."""
    from penstock.security import keys

    keys.trust_server(file, public, only=only)
    env.say(f"{file} trusts {'only ' if only else ''}{public}")


def switch_server(env: Env, data: Data = None) -> None:
    """Make the node use the server key that was prepared, from now on. Clients connect again by
    themselves."""
    from penstock.security import keys

    folder = _folder(env, data)
    made = keys.switch_server_key(folder)
    env.say(f"{folder} has the server key {made.public} now")


def brokers(env: Env) -> int:
    """Show which broker has which keys, by fingerprints: they are to be the same at all. Other
    brokers are asked with $PENSTOCK_KEY."""
    from penstock.client.admin.admin import Admin
    from penstock.client.session import place_of

    with env.admin() as admin:
        first = admin.describe_node()
        others = admin.describe_cluster().brokers if first.cluster else []
    found: dict[str, dict[str, str]] = {"-": first.keys} if not others else {}
    for each in others:
        try:
            with Admin(place_of(each.url), client_id="penstock-cli", timeout=env.timeout) as admin:
                found[str(each.broker)] = admin.describe_node().keys
        except er.PenstockError as error:
            output.narrate(f"penstock: broker {each.broker} at {each.url} does not tell: {error}")
            found[str(each.broker)] = {}
    heads = ["server", "cluster", "clients", "number"]
    rows = [
        {"broker": name, **{head: keys.get(head) for head in heads}} for name, keys in found.items()
    ]
    env.write_rows(["broker", *heads], rows)
    differ = [head for head in heads if len({row[head] for row in rows}) > 1]
    if differ:
        output.narrate(f"penstock: not all brokers have the same keys: {', '.join(differ)} differ")
    return 1 if differ else 0


def create_cluster(
    env: Env,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the key is put.")],
) -> None:
    """Make the key that all brokers of a cluster have: FILE is for their nodes alone."""
    from penstock.security import keys

    keys.create_cluster_key(out)
    env.say(
        f"{out} makes a broker of every node that has it: copy it to each broker's host, name it "
        "there as cluster_key, and keep it from everybody else"
    )


def trust_cluster(
    env: Env,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A cluster key of a broker.")],
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="OTHER", help="The one that other brokers may have. None: no other."
        ),
    ] = None,
) -> None:
    """Make brokers with FILE trust brokers with OTHER too, while the cluster's key is changed. They
    read FILE when they start."""
    from penstock.security import keys

    keys.trust_cluster_key(file, other)
    env.say(f"{file} trusts {other if other is not None else 'no other key'}")


def _folder(env: Env, data: Path | None) -> str:
    """Returns the data folder that is meant."""
    if data is not None:
        return os.path.abspath(data)
    from penstock.ipc.paths import DEFAULT_NODE, default_data_folder, folder_of, parse_url

    target = parse_url(env.url)
    if target.scheme != "shm":
        raise er.ConfigError(
            f"{env.url} is elsewhere: keys are made on the node's host, in its data folder, which "
            "--data names"
        )
    if target.folder is not None:
        return os.fspath(target.folder)
    name = target.name or DEFAULT_NODE
    return os.fspath(folder_of(name) or default_data_folder(name))
