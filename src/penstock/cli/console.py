"""`penstock console`: the web console of a node or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, command
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.console.config import ConsoleConfig

LISTEN = "127.0.0.1:9642"


def add_to(app: typer.Typer) -> None:
    command(app, "console")(console)


def console(
    env: Env,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where browsers find it.")
    ] = LISTEN,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The key that the console acts by. Default: $PENSTOCK_KEY."
        ),
    ] = None,
    name: Annotated[
        list[str],
        typer.Option(
            metavar="HOST", help="A further name by which browsers reach it; may be repeated."
        ),
    ] = [],  # noqa: B006 - typer copies it
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Let in who has its first line; only its owner may read it."
        ),
    ] = None,
    certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="For TLS: the certificate's chain, in PEM.")
    ] = None,
    private_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="For TLS: its private key, in PEM.")
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Take connections from this proxy only, which does TLS and the login.",
        ),
    ] = None,
) -> int:
    """Serve the web console until SIGTERM or Ctrl-C. It may do what its key may do; without a
    password only processes of this user reach it."""
    try:
        from penstock.console.config import ConsoleConfig, address_of, password_of
        from penstock.console.server import ConsoleServer
    except ImportError as error:
        raise er.ConfigError(
            f"the console needs further packages ({error}): pip install 'penstock[console]'"
        ) from error
    from penstock.cli.stopping import Stopper

    host, port = address_of(listen)
    config = ConsoleConfig(
        url=env.url, keys=keys, host=host, port=port, names=tuple(name),
        password=None if password_file is None else password_of(password_file),
        certificate=certificate, private_key=private_key, proxy=proxy,
    )  # fmt: skip
    with Stopper() as stopper:
        server = ConsoleServer(config)
        try:
            server.start()
            _tell(env, config, server.url)
            while server.is_running and not stopper.wait(1.0):
                pass
        finally:
            server.stop()
    return ExitCode.DONE if stopper.requested else ExitCode.FAILED


def _tell(env: Env, config: ConsoleConfig, url: str) -> None:
    if env.is_json:
        output.write_json({"url": url, "node": config.url})
    else:
        output.write_line(url)
    output.flush()
    env.say(f"the console of {config.url} is at {url}; Ctrl-C ends it")
