"""`penstock backup`: topics and offsets of groups, in a folder."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.command import Env, command
from penstock.cli.progress import ProgressBar
from penstock.operations import wording

Folder = Annotated[str, typer.Argument(metavar="DIR", help="The backup's folder.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="PATTERN", help="Only these, like 'order*'; may be repeated."),
]


def add_to(app: typer.Typer) -> None:
    command(app, "backup")(backup)


def backup(env: Env, folder: Folder, topic: Topics = None) -> None:
    """Write topics, their committed records and the offsets of groups to a folder; of a backup that
    is there, what came since. Nothing stops meanwhile."""
    from penstock.client.backup.create import create

    begun = time.monotonic()
    with env.connect() as client, ProgressBar(env, "records", 1) as progress:
        run = create(
            client, folder, topic or ["*"], timeout=env.timeout,
            told=lambda records: progress.at_of(records, records),
        )  # fmt: skip
    if env.is_json:
        output.write_json(asdict(run))
    for gap in run.gaps:
        env.say(f"penstock: {gap} were deleted before this run: the backup has a gap there")
    env.say(
        f"{wording.counted(run.records, 'new record')} of "
        f"{wording.counted(run.topics, 'topic')} and offsets of "
        f"{wording.counted(run.groups, 'group')} in {folder}, "
        f"{wording.human_bytes(run.bytes)}, in {wording.human_seconds(time.monotonic() - begun)}"
    )
