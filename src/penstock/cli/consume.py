"""`penstock consume TOPIC`: records to stdout."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import output, values
from penstock.cli.command import Env, ExitCode, command
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.cli.showing import Render
    from penstock.records import RecordBatch

POLL_RECORDS: Final = 10_000


class Isolation(StrEnum):
    READ_UNCOMMITTED = "read-uncommitted"
    READ_COMMITTED = "read-committed"


def add_to(app: typer.Typer) -> None:
    command(app, "consume")(consume)


def consume(
    env: Env,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="PLACE",
            help="start, end, an offset (47), from the start (+2), from the end (-3), or @TIME "
            "(ISO 8601 or seconds since the epoch); of each partition.",
        ),
    ] = "start",
    partitions: Annotated[
        list[int],
        typer.Option("-p", "--partition", min=0, help="May be repeated. Default: all."),
    ] = [],  # noqa: B006 - typer copies it
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="Stop after so many records.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--layout",
            metavar="FORMAT",
            help=r"What to write: %t topic %p partition %o offset %k key %v value "
            r"%T time %h headers, \n \t \xHH. Default: '%v\n'.",
        ),
    ] = None,
    null: Annotated[
        str, typer.Option("--null", metavar="TEXT", help="Stands for null keys and values.")
    ] = "",
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on at the end; --timeout bounds the silence."),
    ] = False,
    isolation: Annotated[
        Isolation,
        typer.Option(
            help="read-committed: only what committed transactions wrote (and what was written "
            "without one), up to the oldest open one."
        ),
    ] = Isolation.READ_UNCOMMITTED,
) -> int:
    """Write records to stdout, up to the end that the topic had when it began, or on and on."""
    from penstock.cli import showing
    from penstock.cli.stopping import Stopped, Stopper

    place = values.place(start)
    if layout is not None and env.is_json:
        raise er.ConfigError("choose one of -f and --format json")
    if env.is_json:
        render: Render = showing.render_json
    else:
        text = layout or (showing.WIDE if env.is_wide else showing.DEFAULT)
        render = showing.compile_format(text, values.as_bytes(null))
    output.binary()
    with Stopper() as stopper, env.connect() as client:
        topics = () if partitions else (topic,)
        consumer = client.consumer(
            *topics, start=place, follow=follow, timeout=env.timeout,
            isolation="read_committed" if isolation.endswith("-committed") else "read_uncommitted",
        )  # fmt: skip
        if partitions:
            consumer.assign((topic, number) for number in partitions)
        page = POLL_RECORDS if count is None else min(count, POLL_RECORDS)
        batches = consumer.batches(page, env.given_timeout if follow else None)
        written = 0
        while count is None or written < count:
            try:
                with stopper.interruptible():
                    batch = next(batches, None)
            except Stopped:
                return ExitCode.DONE if follow else ExitCode.PARTLY
            if batch is None:
                break
            left = None if count is None else count - written
            written += write(batch, render, left, flush=follow)
    if follow and (count is None or written < count):
        raise er.PenstockTimeout(
            f"nothing more came from {topic} within {env.timeout:g} s (--timeout), after "
            f"{written} records"
        )
    return ExitCode.DONE


def write(batch: RecordBatch, render: Render, records_max: int | None, *, flush: bool) -> int:
    """Write a batch, at most `records_max` of it; how many records that were."""
    output.binary().write(render(islice(batch, records_max)))
    if flush:
        output.flush()
    return len(batch) if records_max is None else min(len(batch), records_max)
