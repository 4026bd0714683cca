"""Shared parts of all commands: common options, and the exit status of each exception.

A command is a function whose first parameter is an `Env`. `command` gives it the common options and
runs it under the rules for errors, signals and closed pipes. Owns those rules and no command.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin
    from penstock.client.client import Client
    from penstock.client.remote.address import Place

DEFAULT_URL: Final = "shm://"
TIMEOUT_DEFAULT: Final = 15.0
"""Seconds that a command waits for the node's answer unless `--timeout` says otherwise."""
CONNECT_MAX: Final = 5.0
"""Seconds that a command waits for a node that is starting, at most."""

Body = Callable[..., "int | None"]


class ExitCode(IntEnum):
    """The exit status that a shell sees."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TIMEOUT = 3
    PARTLY = 4


class Format(StrEnum):
    """The format of results on stdout."""

    text = "text"
    json = "json"
    wide = "wide"


class Guarantee(StrEnum):
    """The guarantee of a group."""

    at_most_once = "at-most-once"
    at_least_once = "at-least-once"
    exactly_once = "exactly-once"
    manual = "manual"


@dataclass(frozen=True, slots=True)
class Env:
    """The common options of one invocation."""

    url: str = DEFAULT_URL
    given_url: str | None = None
    format: Format = Format.text
    given_timeout: float | None = None
    verbose: int = 0
    quiet: bool = False

    @property
    def timeout(self) -> float:
        return TIMEOUT_DEFAULT if self.given_timeout is None else self.given_timeout

    @property
    def is_json(self) -> bool:
        return self.format is Format.json

    @property
    def is_wide(self) -> bool:
        return self.format is Format.wide

    @property
    def shows_progress(self) -> bool:
        """Returns whether progress is shown: only at a terminal."""
        return not self.quiet and output.is_terminal(sys.stderr)

    def say(self, text: str) -> None:
        """Writes narration: on stderr, never mixed with data."""
        if not self.quiet:
            output.narrate(text)

    def write_rows(self, heads: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
        """Rows as JSON lines, whole, or else these columns of theirs."""
        if self.is_json:
            for row in rows:
                output.write_json(row)
        else:
            output.write_columns(
                [head.upper().replace("_", " ") for head in heads],
                [[row[head] for head in heads] for row in rows],
            )

    @property
    def _connect_timeout(self) -> float | None:
        return None if self.given_timeout is None else min(self.given_timeout, CONNECT_MAX)

    def place(self) -> Place:
        from penstock.client.session import place_of

        return place_of(self.url)

    def admin(self) -> Admin:
        """Returns an admin of the node, without loading modules that only producers and consumers
        need."""
        from penstock.client.admin.admin import Admin

        return Admin(
            self.place(), client_id="penstock-cli", timeout=self.timeout,
            attach_timeout=self._connect_timeout,
        )  # fmt: skip

    def connect(self) -> Client:
        from penstock.client.client import connect

        return connect(self.url, client_id="penstock-cli", timeout=self._connect_timeout)


_Url = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap",
        metavar="URL",
        help="The node: shm://, shm://NAME, shm:///DATA/FOLDER or tcp://HOST:PORT. "
        f"Default: $PENSTOCK_URL, else {DEFAULT_URL}",
    ),
]
_Format = Annotated[Format | None, typer.Option("--format", help="How results are written.")]
_Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.01, metavar="SECONDS", help="Bound of each wait for the node."),
]
_Verbose = Annotated[
    int,
    typer.Option("-v", "--verbose", count=True, help="More narration; -vv adds tracebacks."),
]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only results and errors.")]

_COMMON: Final[dict[str, tuple[Any, Any]]] = {
    "bootstrap": (_Url, None),
    "format": (_Format, None),
    "timeout": (_Timeout, None),
    "verbose": (_Verbose, 0),
    "quiet": (_Quiet, False),
}


def with_common_options(
    body: Callable[..., None], own: list[inspect.Parameter]
) -> Callable[..., None]:
    """Returns `body(ctx, **options)` with a signature that shows the command its options."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", kind, annotation=typer.Context),
        *(parameter.replace(kind=kind) for parameter in own),
        *(
            inspect.Parameter(name, kind, default=default, annotation=annotation)
            for name, (annotation, default) in _COMMON.items()
        ),
    ]
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    body.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return body


def command(app: typer.Typer, name: str, **settings: Any) -> Callable[[Body], Body]:
    """Registers a command. Its common options may be before its name or behind it."""

    def register(body: Body) -> Body:
        signature = inspect.signature(body, eval_str=True)
        own = list(signature.parameters.values())[1:]

        @wraps(body)
        def invoke(**given: Any) -> None:
            ctx = given.pop("ctx")
            common = {option: given.pop(option) for option in _COMMON}
            env = merge(ctx.obj, common)
            raise typer.Exit(guarded(env, lambda: body(env, **given)))

        del invoke.__wrapped__
        app.command(name, **settings)(with_common_options(invoke, own))
        return body

    return register


def merge(outer: Env | None, given: dict[str, Any]) -> Env:
    """Options of a command over those that stood before its name, over the environment's."""
    before = outer or Env(url=os.environ.get("PENSTOCK_URL") or DEFAULT_URL)
    return Env(
        url=given["bootstrap"] or before.url,
        given_url=given["bootstrap"] or before.given_url,
        format=given["format"] or before.format,
        given_timeout=before.given_timeout if given["timeout"] is None else given["timeout"],
        verbose=before.verbose + given["verbose"],
        quiet=before.quiet or given["quiet"],
    )


def guarded(env: Env, body: Callable[[], int | None]) -> int:
    """Runs a command's body; an exception becomes one line on stderr and an exit status."""
    configure_logging(env)
    try:
        code = body() or ExitCode.DONE
        output.flush()
    except BrokenPipeError:
        output.abandon()  # the reader has what it wanted, as `head` does
        return ExitCode.DONE
    except KeyboardInterrupt:
        complain(env, "interrupted")
        return ExitCode.FAILED
    except UnicodeEncodeError as error:
        complain(env, f"an argument holds bytes that are no UTF-8: {error.object!a}")
        return ExitCode.USAGE
    except (er.PenstockError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, er.PenstockError):
            output.abandon()
        complain(env, str(error) or type(error).__name__)
        return code_of(error)
    return code


def code_of(error: BaseException) -> ExitCode:
    """Returns the exit status of a command that failed with this error."""
    if isinstance(error, er.PenstockTimeout):
        return ExitCode.TIMEOUT
    if isinstance(error, er.ConfigError):
        return ExitCode.USAGE
    return ExitCode.FAILED


def complain(env: Env, message: str) -> None:
    """Writes one line about the error; with -vv also the traceback."""
    if env.verbose >= 2:
        traceback.print_exc()
    output.narrate(f"penstock: {' '.join(message.split())}")


def configure_logging(env: Env) -> None:
    """Sends the library's log to stderr: warnings, with -v more, with -q errors alone."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(env.verbose, 2)]
    logging.basicConfig(
        level=logging.ERROR if env.quiet else level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
