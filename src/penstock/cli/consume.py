"""`penstock consume TOPIC`: records to stdout."""

from __future__ import annotations

import time
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, Guarantee, command
from penstock.core import errors as er
from penstock.operations import values

if TYPE_CHECKING:
    from penstock.cli.showing import Render
    from penstock.cli.stopping import Stopper
    from penstock.client.consumer.group.consumer import GroupConsumer
    from penstock.client.consumer.records import RecordBatch

POLL_RECORDS: Final = 10_000
GROUP_POLL_SECONDS: Final = 0.2
"""Between two looks for a signal: a member of a group is not to be torn out of a poll."""


class Isolation(StrEnum):
    READ_UNCOMMITTED = "read-uncommitted"
    READ_COMMITTED = "read-committed"


class OnOutOfRange(StrEnum):
    error = "error"
    earliest = "earliest"
    latest = "latest"


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
        str, typer.Option("--null", metavar="TEXT", help="Shown for null keys and values.")
    ] = "",
    group: Annotated[
        str | None,
        typer.Option(
            "-g", "--group", metavar="GROUP", help="Read as a member of this group, and commit."
        ),
    ] = None,
    guarantee: Annotated[
        Guarantee | None,
        typer.Option("--guarantee", help="Of the group. Default: at-least-once."),
    ] = None,
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
    on_out_of_range: Annotated[
        OnOutOfRange,
        typer.Option(help="Where to go on when retention took the next record; or fail."),
    ] = OnOutOfRange.error,
) -> int:
    """Write records to stdout, up to the end that the topic had when it began, or on and on.

    With -g offsets are committed once the records are written (at-most-once: before). -o says where
    partitions begin for which the group has committed nothing."""
    from penstock.cli import showing
    from penstock.cli.stopping import StoppedBySignal, Stopper

    place = values.place(start)
    if layout is not None and env.is_json:
        raise er.ConfigError("choose one of -f and --format json")
    if env.is_json:
        render: Render = showing.render_json
    else:
        text = layout or (showing.WIDE if env.is_wide else showing.DEFAULT)
        render = showing.compile_format(text, values.as_bytes(null))
    output.binary()
    level: Literal["read_committed", "read_uncommitted"] = (
        "read_committed" if isolation is Isolation.READ_COMMITTED else "read_uncommitted"
    )
    if group is not None:
        guarantee = guarantee or Guarantee.at_least_once
        _check_group_options(guarantee, partitions)
        with Stopper() as stopper, env.connect() as client:
            member = client.consumer(
                topic, group=group, guarantee=guarantee.value, start=place, follow=follow,
                isolation=level, on_out_of_range=on_out_of_range.value, timeout=env.timeout,
            )  # fmt: skip
            return _drain(env, member, stopper, render, count)
    if guarantee is not None:
        raise er.ConfigError(f"--guarantee {guarantee} is that of a group: name it by -g GROUP")
    with Stopper() as stopper, env.connect() as client:
        topics = () if partitions else (topic,)
        consumer = client.consumer(
            *topics, start=place, follow=follow, timeout=env.timeout, isolation=level,
            on_out_of_range=on_out_of_range.value,
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
            except StoppedBySignal:
                return ExitCode.DONE if follow else ExitCode.PARTLY
            if batch is None:
                break
            left = None if count is None else count - written
            written += write(batch, render, left, flush=follow)
    if follow and (count is None or written < count):
        raise _silence(topic, env, written)
    return ExitCode.DONE


def _check_group_options(guarantee: Guarantee, partitions: list[int]) -> None:
    if partitions:
        raise er.ConfigError("a group gives out its partitions itself: leave -p out")
    if guarantee in (Guarantee.manual, Guarantee.exactly_once):
        raise er.ConfigError(
            f"--guarantee {guarantee}: a program says what is committed; use at-least-once or "
            "at-most-once"
        )


def _drain(
    env: Env, member: GroupConsumer, stopper: Stopper, render: Render, count: int | None
) -> int:
    """Writes the records that the group gives, and flushes them before it polls again.

    The next poll says that they are done.
    """
    written, quiet_since, code = 0, time.monotonic(), ExitCode.DONE
    while count is None or written < count:
        if stopper.requested:
            code = ExitCode.DONE if member.follows else ExitCode.PARTLY
            break
        if member.is_at_end():
            break
        page = POLL_RECORDS if count is None else min(count - written, POLL_RECORDS)
        batch = member.poll(page, GROUP_POLL_SECONDS)
        now = time.monotonic()
        if batch:
            written += write(batch, render, None, flush=True)
            quiet_since = now
        elif env.given_timeout is not None and now - quiet_since > env.given_timeout:
            raise _silence(f"group {member.group}", env, written)
    if member.guarantee == "at-least-once":
        member.commit()  # also of what was written last before a signal came
    return code


def _silence(what: str, env: Env, written: int) -> er.PenstockTimeout:
    return er.PenstockTimeout(
        f"nothing more came from {what} within {env.timeout:g} s (--timeout), after "
        f"{written} records"
    )


def write(batch: RecordBatch, render: Render, records_max: int | None, *, flush: bool) -> int:
    """Write a batch, at most `records_max` of it; how many records that were."""
    output.binary().write(render(islice(batch, records_max)))
    if flush:
        output.flush()
    return len(batch) if records_max is None else min(len(batch), records_max)
