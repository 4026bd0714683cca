"""`penstock demo`: see it work, and survive."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, command


def add_to(app: typer.Typer) -> None:
    command(app, "demo")(demo)


def demo(
    env: Env,
    records: Annotated[
        int | None, typer.Option("--records", min=1, help="So many flights; default: all 336,776.")
    ] = None,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=256)] = 4,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Let all processes live.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the data folder, to look into.")
    ] = False,
) -> int:
    """Send a year of flights through a node of its own, kill a writer half-way, check everything.

    Exits 1 when a record was lost, doubled or out of order. Talks to no node but its own.
    """
    from penstock.cli.stopping import Stopper
    from penstock.demo.report import Watcher, as_fields, print_table
    from penstock.demo.stage import Plan, Stage
    from penstock.flights import find_archive

    find_archive()
    plan = Plan(records=records, partitions=partitions, kill=not no_kill, keep=keep)
    # A second signal must not cut the clean-up short: every wait in there is bounded.
    with Stopper(patient=True) as stopper, Watcher(quiet=env.quiet) as watcher:
        outcome = Stage(plan, stopper, watcher.show).run()
    if env.is_json:
        output.write_json(as_fields(outcome))
    else:
        output.binary()
        print_table(outcome)
    return ExitCode.FAILED if outcome.complaints() else ExitCode.DONE
