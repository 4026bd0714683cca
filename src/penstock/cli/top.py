"""`penstock top`: what a node does, again and again, without asking it.

Owns options, the loop and the choice of how it is shown; the numbers come from `observe`, their
layout from `screen`.
"""

from __future__ import annotations

import fnmatch
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, command
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.cli.stopping import Stopper
    from penstock.observe.report import Report, Reporter

ONCE_BUDGET: Final = 1.0
"""Seconds that a single report may look up ages in the logs."""


class Sort(StrEnum):
    """By what rows are ordered, the most first."""

    records = "records"
    bytes = "bytes"
    lag = "lag"
    name = "name"


def add_to(app: typer.Typer) -> None:
    command(app, "top")(top)


def top(
    env: Env,
    interval: Annotated[
        float, typer.Option("-i", "--interval", min=0.1, max=3600, help="Seconds between looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One report, then leave.")] = False,
    sort: Annotated[Sort, typer.Option("--sort", help="What comes first.")] = Sort.records,
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic", metavar="TOPIC",
            help="Only topics that match, like 'order*', with a row a partition. May be repeated.",
        ),
    ] = [],  # noqa: B006 - typer copies it
) -> int | None:  # fmt: skip
    """Show throughput, lag, lanes and writers of a node on this host, again and again.

    Read from shared memory and /proc: the node is not asked, and may be stopped.
    """
    from penstock.cli.stopping import Stopper
    from penstock.observe.place import find_node
    from penstock.observe.report import Reporter
    from penstock.observe.sample import Observer

    def chosen(topic: str) -> bool:
        return not topics or any(fnmatch.fnmatchcase(topic, pattern) for pattern in topics)

    with closing(Observer(find_node(env.url))) as observer, Stopper() as stopper:
        reporter = Reporter(observer, chosen, by_partition=bool(topics))
        if once or env.is_json or not output.is_terminal(sys.stdout):
            _print(env, reporter, stopper, interval, once, sort)
        else:
            _live(env, reporter, stopper, interval, sort)
    return None


def _loop(
    reporter: Reporter,
    stopper: Stopper,
    interval: float,
    once: bool,
    show: Callable[[Report], None],
) -> None:
    """Reports until a signal comes, or the node and its shared memory are gone for good."""
    budget = {"budget": ONCE_BUDGET} if once else {}
    before = reporter.take()
    while not stopper.wait(interval):
        try:
            after = reporter.take()
        except er.NotConnectedError as error:
            raise er.NotConnectedError(f"the node has ended: {error}") from error
        show(reporter.compare(before, after, **budget))
        if once:
            return
        before = after


def _print(
    env: Env, reporter: Reporter, stopper: Stopper, interval: float, once: bool, sort: Sort
) -> None:
    """Reports one after the other, for pipes and files."""
    from penstock.cli import screen

    def show(report: Report) -> None:
        screen.order(report, sort.value)
        if env.is_json:
            output.write_json(report)
        else:
            for line in screen.lines(report, wide=env.is_wide):
                output.write_line(line.text)
            output.write_line("")
        output.flush()

    _loop(reporter, stopper, interval, once, show)


def _live(env: Env, reporter: Reporter, stopper: Stopper, interval: float, sort: Sort) -> None:
    """Shows one screen, drawn again each time."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from penstock.cli import screen

    console = Console(highlight=False)
    with Live(Text("looking..."), console=console, screen=True, auto_refresh=False) as live:

        def show(report: Report) -> None:
            screen.order(report, sort.value)
            size = shutil.get_terminal_size()
            text = Text(no_wrap=True, overflow="crop")
            rows = screen.fit(screen.lines(report, wide=env.is_wide), size.lines - 1)
            for row in rows:
                text.append(row.text[: size.columns], row.style)
                text.append("\n")
            live.update(text, refresh=True)

        _loop(reporter, stopper, interval, False, show)
