"""`penstock restore`: topics and offsets of groups, from a backup's folder."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.backup import Folder, Topics
from penstock.cli.command import Env, command
from penstock.cli.progress import ProgressBar
from penstock.operations import wording

if TYPE_CHECKING:
    from penstock.client.backup.restore import RestoredTopic


def add_to(app: typer.Typer) -> None:
    command(app, "restore")(restore)


def restore(
    env: Env,
    folder: Folder,
    topic: Topics = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a restore that was ended.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all of the backup, and show what it has.")
    ] = False,
) -> None:
    """Make the topics of a backup again, with their records and the offsets of groups."""
    from penstock.client.backup.restore import restore

    begun = time.monotonic()
    with env.connect() as client, ProgressBar(env, "records", 1) as progress:
        found = restore(
            client, folder, topic or ["*"], resume=resume, dry_run=dry_run,
            told=lambda records: progress.at_of(records, records),
        )  # fmt: skip
    _write(env, found)
    records = wording.counted(sum(one.records for one in found), "record")
    env.say(
        f"{records} of {wording.counted(len(found), 'topic')} "
        f"{'would be restored' if dry_run else 'restored'} from {folder}, checked, in "
        f"{wording.human_seconds(time.monotonic() - begun)}"
    )


def _write(env: Env, found: list[RestoredTopic]) -> None:
    if env.is_json:
        for one in found:
            output.write_json(asdict(one))
        return
    output.write_columns(
        ["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "EARLIEST", "LATEST", "GAPS"],
        [
            [one.topic, one.partitions, one.records, wording.human_bytes(one.bytes),
             _moment(one.earliest), _moment(one.latest), one.gaps]
            for one in found
        ],
    )  # fmt: skip


def _moment(timestamp: int | None) -> str | None:
    return None if timestamp is None else wording.iso_time(timestamp)
