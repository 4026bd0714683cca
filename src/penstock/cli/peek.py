"""`penstock group peek`: looks at jobs of a share group without taking them from its workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env
from penstock.operations import wording
from penstock.operations.letters import printable
from penstock.operations.record_json import json_fields

if TYPE_CHECKING:
    from penstock.client.admin.peek import PeekedJob

TOLD: Final = (
    "topic", "partition", "offset", "state", "deliveries", "due", "worker", "since", "reason"
)  # fmt: skip
HEADS: Final = (
    "PARTITION", "OFFSET", "STATE", "DELIVERIES", "AGE", "TIME", "WORKER", "KEY", "VALUE", "REASON"
)  # fmt: skip
SHOWN: Final = 40
"""Characters of a key, value or reason in a row."""


def peek(
    env: Env,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="A share group.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="One of its topics.")],
    partition: Annotated[
        list[int] | None,
        typer.Option("-p", "--partition", min=0, help="Only this one; may be repeated."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only those that are ready, behind, leased, waiting, condemned or new.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("-n", "--limit", min=1, metavar="N", help="So many of a partition at most."),
    ] = 20,
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="With the records themselves.")
    ] = True,
) -> None:
    """Show jobs of a share group, which its workers get all the same."""
    named: Any = state
    with env.admin() as admin:
        found = admin.peek_share_group(
            group, topic, state=named, partitions=partition, limit=limit, values=values
        )
    if env.is_json:
        for job in found:
            told = {name: getattr(job, name) for name in TOLD}
            if job.record is not None:
                told["record"] = json_fields(job.record)
            output.write_json(told)
    elif found:
        now = time.time()
        output.write_columns(list(HEADS), [_row(job, now) for job in found])
    else:
        env.say(f"no such jobs of group {group} in {topic}")


def _row(job: PeekedJob, now: float) -> list[object]:
    """Tells a job: its age, and for how long it is leased, or has to wait."""
    at, record = "-", job.record
    if job.due is not None:
        at = f"in {wording.human_age(max(0.0, job.due - now))}"
    elif job.since is not None:
        at = f"for {wording.human_age(max(0.0, now - job.since))}"
    age = None if record is None else max(0.0, now - record.timestamp / 1e6)
    key, value = (None, None) if record is None else (record.key, record.value)
    texts = [printable(text, SHOWN) or "-" for text in (key, value, job.reason)]
    return [
        job.partition, job.offset, job.state, job.deliveries, wording.human_age(age), at,
        job.worker or "-", *texts,
    ]  # fmt: skip
