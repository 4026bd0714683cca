"""`penstock run MODULE:APP`: a service made of handlers, until it is told to stop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import Env, ExitCode, command
from penstock.cli.loading import load as load_named
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.client.app.app import App

logger = logging.getLogger("penstock.app")


def add_to(app: typer.Typer) -> None:
    command(app, "run")(run)


def run(
    env: Env,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="The module, found from this folder on, and the name of its penstock.App.",
        ),
    ],
) -> int:
    """Run an app's handlers until SIGTERM or Ctrl-C: what is in hand is finished and committed.

    The node is the one that -b names, else the app's own, else $PENSTOCK_URL, else shm://. Fails
    with the error of a handler that is to stop the app. -v tells what runs."""
    app = load(target)
    app.url = env.given_url or app.url
    try:
        app.run()
    except er.PenstockError:
        raise
    except Exception:
        logger.exception("%s ends by an error of a handler", target)
        return ExitCode.FAILED
    return ExitCode.DONE


def load(target: str) -> App:
    """Returns the app that MODULE:APP names. Raises `ConfigError`, and what the module raises."""
    from penstock.client.app.app import App

    loaded, name, found = load_named(target, "an app by MODULE:APP, such as billing:app")
    if not isinstance(found, App):
        apps = [each for each, value in vars(loaded).items() if isinstance(value, App)]
        there = f"it has {', '.join(apps)}" if apps else "it has none"
        raise er.ConfigError(
            f"module {loaded.__name__!r} has no penstock.App named {name!r}: {there}"
        )
    return found
