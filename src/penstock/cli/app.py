"""The tree of commands, and its entry point.

A command's module is loaded when its name is in the command line. So `penstock produce` does not
pay for the options of all others; `--help` and mistakes load all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from penstock.cli.command import Env, ExitCode, Format, command, merge
from penstock.cli.output import narrate, write_json, write_line

COMMANDS: Final = {
    "serve": "serve",
    "demo": "demo",
    "produce": "produce",
    "consume": "consume",
    "sql": "sql",
    "run": "running",
    "work": "working",
    "top": "top",
    "console": "console",
    "doctor": "doctor",
    "backup": "backup",
    "restore": "restore",
    "completion": "completion",
}
"""Name of a command: module in `penstock.cli`, whose `add_to` registers it."""
GROUPS: Final = {
    "topic": "topics",
    "group": "groups",
    "dlq": "dlq",
    "client": "clients",
    "log": "logs",
    "node": "node",
    "transaction": "transactions",
    "verify": "verify",
    "outbox": "outbox",
    "dedup": "dedup",
    "keys": "keys",
    "acl": "acl",
    "quota": "quotas",
    "cluster": "cluster",
    "spark": "spark",
}
"""Name of a command group: module in `penstock.cli`, whose `make` returns it."""

_HELP: Final = ("-h", "--help")
_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": list(_HELP), "max_content_width": 100},
}


def _tell_version(wanted: bool) -> None:
    if wanted:
        from penstock.version import __version__

        write_line(f"penstock {__version__}")
        raise typer.Exit


def root(
    ctx: typer.Context,
    bootstrap: Annotated[
        str | None, typer.Option("-b", "--bootstrap", metavar="URL", help="The node to talk to.")
    ] = None,
    format: Annotated[
        Format | None, typer.Option("--format", help="How results are written.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.01, metavar="SECONDS", help="Bound of waits.")
    ] = None,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True)] = 0,
    quiet: Annotated[bool, typer.Option("-q", "--quiet")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_tell_version, help="Show it and leave."),
    ] = False,
) -> None:
    given = {
        "bootstrap": bootstrap,
        "format": format,
        "timeout": timeout,
        "verbose": verbose,
        "quiet": quiet,
    }
    ctx.obj = merge(None, given)


def version(env: Env) -> None:
    """Show the version, and with --format wide or json what it runs on."""
    from penstock.version import __version__

    if not (env.is_json or env.is_wide):
        write_line(f"penstock {__version__}")
        return
    import platform
    from importlib.metadata import version as version_of

    parts = {"penstock": __version__, "python": platform.python_version()}
    parts["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in ("numpy", "posix-ipc", "pyzmq", "lz4", "crc32c", "msgspec"):
        parts[name] = version_of(name)
    if env.is_json:
        write_json(parts)
        return
    for name, text in parts.items():
        write_line(f"{name} {text}")


def bench(ctx: typer.Context) -> None:
    """Measure this machine: penstock bench throughput|latency ..."""
    from penstock.bench.cli import main

    raise typer.Exit(main(list(ctx.args)))


def make_app(names: Collection[str] | None = None) -> typer.Typer:
    """Makes the application with the commands of these names, or all; `version` and `bench`
    always."""
    app = typer.Typer(
        name="penstock",
        help="A distributed message queue at shared-memory speed.\n\nData goes to stdout, "
        "narration to stderr. Exit status: 0 done, 1 failed, 2 usage, 3 timeout, 4 partly done.",
        **_SETTINGS,
    )
    app.callback()(root)
    for name, module in COMMANDS.items():
        if names is None or name in names:
            import_module(f"penstock.cli.{module}").add_to(app)
    for name, module in GROUPS.items():
        if names is None or name in names:
            app.add_typer(import_module(f"penstock.cli.{module}").make(_SETTINGS), name=name)
    app.command(
        "bench",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(bench)
    command(app, "version")(version)
    return app


def wanted(arguments: Sequence[str]) -> Collection[str] | None:
    """Returns the commands that a command line can mean: names have no abbreviations, so the one
    that is meant is in it unchanged. None: all, to show them."""
    known = {*COMMANDS, *GROUPS, "version", "bench"}
    first = next((word for word in arguments if word in known or word in _HELP), None)
    return None if first is None or first in _HELP else known.intersection(arguments)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit status."""
    app = make_app(wanted(arguments))
    try:
        app(args=list(arguments), prog_name="penstock")
    except SystemExit as left:
        if left.code == ExitCode.USAGE:
            _tell_flags(arguments)
        return left.code if isinstance(left.code, int) else ExitCode.DONE
    return ExitCode.DONE


def _tell_flags(arguments: Sequence[str]) -> None:
    """Names the options here for options of Kafka's commands."""
    from penstock.client.kafka_words import KAFKA_FLAGS

    for word in arguments:
        if word in KAFKA_FLAGS:
            narrate(f"what Kafka calls {word} is here {KAFKA_FLAGS[word]}")
