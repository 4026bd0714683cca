"""`penstock demo`: see it work, and survive."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, command
from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.cli.stopping import Stopper
    from penstock.demo.directing import DemoPlan, DemoProgress

    Show = Callable[[DemoProgress], None]


def add_to(app: typer.Typer) -> None:
    command(app, "demo")(demo)


def demo(
    env: Env,
    records: Annotated[
        int | None, typer.Option("--records", min=1, help="So many flights; default: all 336,776.")
    ] = None,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=256)] = 4,
    cluster: Annotated[
        int | None,
        typer.Option(
            "--cluster", min=3, max=7, help="So many brokers; one that leads is killed with -9."
        ),
    ] = None,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Let all processes live.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the data folder, to look into.")
    ] = False,
    console: Annotated[
        bool,
        typer.Option(
            "--console",
            help="Instead: live load with a stuck group, dead letters and a hot key, and the web "
            "console of it, until Ctrl-C.",
        ),
    ] = False,
) -> int:
    """Send a year of flights through a node of its own, kill a writer half-way, check everything.

    With --cluster through several brokers: one that leads is killed, and comes back.

    Exits 1 when a record was lost, doubled or out of order. Talks to no node but its own.
    """
    if console:
        if records is not None or no_kill:
            raise ConfigError("--console shows its own load: leave --records and --no-kill out")
        return _with_console(env, cluster or 0, keep)
    from penstock.cli.stopping import Stopper
    from penstock.demo.directing import DemoPlan
    from penstock.demo.report import Watcher
    from penstock.testing.flights import find_archive

    find_archive()
    plan = DemoPlan(
        records=records, partitions=partitions, kill=not no_kill, keep=keep, brokers=cluster or 0
    )
    # A second signal must not cut the clean-up short: every wait in there is bounded.
    with Stopper(patient=True) as stopper, Watcher(quiet=env.quiet) as watcher:
        return (_on_brokers if plan.brokers else _on_a_node)(env, plan, stopper, watcher.show)


def _with_console(env: Env, brokers: int, keep: bool) -> int:
    try:
        from penstock.demo.console_stage import ConsoleStage
    except ImportError as error:
        raise ConfigError(
            f"the console needs further packages ({error}): pip install 'penstock[console]'"
        ) from error
    from penstock.cli.stopping import Stopper

    if not env.verbose:  # brokers may be killed: lost connections are part of it
        logging.getLogger("penstock").setLevel(logging.ERROR)

    def tell(console: str, node: str) -> None:
        if env.is_json:
            output.write_json({"url": console, "node": node})
        else:
            output.write_line(console)
        output.flush()
        env.say(
            f"open {console} in a browser. The node is {node}: group shipping is stuck, mails "
            "become dead letters, customer-7 is a hot key. Ctrl-C ends it"
        )

    with Stopper(patient=True) as stopper:
        kept = ConsoleStage(brokers, keep, stopper, tell).run()
    if kept is not None:
        env.say(f"the data is in {kept}")
    return ExitCode.DONE


def _on_a_node(env: Env, plan: DemoPlan, stopper: Stopper, show: Show) -> int:
    from penstock.demo.report import as_fields, print_table
    from penstock.demo.stage import DemoRun

    outcome = DemoRun(plan, stopper, show).run()
    return _tell(env, as_fields(outcome), lambda: print_table(outcome))


def _on_brokers(env: Env, plan: DemoPlan, stopper: Stopper, show: Show) -> int:
    from penstock.demo.clusterreport import as_fields, print_table
    from penstock.demo.clusterstage import ClusterStage

    if not env.verbose:  # that connections are lost is what the demo is about
        logging.getLogger("penstock").setLevel(logging.ERROR)
    outcome = ClusterStage(plan, stopper, show).run()
    return _tell(env, as_fields(outcome), lambda: print_table(outcome))


def _tell(env: Env, fields: dict[str, Any], print_table: Callable[[], None]) -> int:
    if env.is_json:
        output.write_json(fields)
    else:
        output.binary()
        print_table()
    return ExitCode.DONE if fields["ok"] else ExitCode.FAILED
