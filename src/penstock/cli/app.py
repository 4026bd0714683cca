"""The tree of commands, and the way into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from penstock.cli import consume, demo, logs, node, produce, serve, top, topics, verify
from penstock.cli.command import Env, ExitCode, Format, command, merge
from penstock.cli.output import write_json, write_line

_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}

app = typer.Typer(
    name="penstock",
    help="A distributed message queue at shared-memory speed.\n\nData goes to stdout, narration to "
    "stderr. Exit status: 0 done, 1 failed, 2 usage, 3 timeout, 4 partly done.",
    **_SETTINGS,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        write_line(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
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


@command(app, "version")
def version(env: Env) -> None:
    """Show the version, and with --format wide or json what it runs on."""
    from penstock import __version__

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


@app.command(
    "bench",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(ctx: typer.Context) -> None:
    """Measure this machine: penstock bench throughput|latency ..."""
    from penstock.bench.cli import main

    raise typer.Exit(main(list(ctx.args)))


serve.add_to(app)
demo.add_to(app)
produce.add_to(app)
consume.add_to(app)
top.add_to(app)
app.add_typer(topics.make(_SETTINGS), name="topic")
app.add_typer(logs.make(_SETTINGS), name="log")
app.add_typer(node.make(_SETTINGS), name="node")
app.add_typer(verify.make(_SETTINGS), name="verify")


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit status."""
    try:
        app(args=list(arguments), prog_name="penstock")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else ExitCode.DONE
    return ExitCode.DONE
