"""`penstock topic trim`: let partitions start later than they do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env
from penstock.operations import values

if TYPE_CHECKING:
    from penstock.client.admin.trim import TrimResult


def trim(
    env: Env,
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="PLACE",
            help="What lies before goes: an offset (47), a time (@2013-07-04T12:00), end, or a "
            "distance from start (+2) or end (-3).",
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("-p", "--partition", min=0, help="Only this one; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the oldest records of a topic. Consumers that are below get OffsetOutOfRangeError, or
    what their on_out_of_range says."""
    place = values.place(before)
    with env.admin() as admin:
        if dry_run or not yes:
            foretold = admin.trim(name, partition or None, before=place, dry_run=True)
            if dry_run:
                show_trimmed(env, "would start", foretold)
                return
            count = sum(result.records for result in foretold)
            confirm(f"Delete {count} records of {name} before {before}?")
        show_trimmed(env, "starts", admin.trim(name, partition or None, before=place))


def show_trimmed(env: Env, verb: str, results: list[TrimResult]) -> None:
    for result in results:
        if env.is_json:
            output.write_json(asdict(result))
        else:
            output.write_line(
                f"partition {result.partition} {verb} at {result.log_start} instead of "
                f"{result.log_start_before}: {result.records} records, {result.segments} segments, "
                f"{result.nbytes} bytes gone"
            )
