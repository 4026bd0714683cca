"""The demo's output: progress while it runs, a table or a JSON object at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from penstock.demo.directing import DemoOutcome, DemoProgress
from penstock.demo.stage import NodeOutcome
from penstock.operations.wording import human_bytes, human_seconds

Row = tuple[str, str]

LINE_EVERY: Final = 1.0
WIDTH_WITHOUT_TERMINAL: Final = 100


class Watcher:
    """Shows progress on stderr: bars on a terminal, else a line a second, else nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._begun = self._shown = time.monotonic()
        self._note = ""
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        if not quiet and sys.stderr is not None and sys.stderr.isatty():
            self._bars = Bars(
                TextColumn("{task.description:>12}"),
                BarColumn(),
                MofNCompleteColumn(),
                console=Console(stderr=True),
            )
            for name in ("sent", "acknowledged", "received"):
                self._tasks[name] = self._bars.add_task(name, total=None)

    def __enter__(self) -> Watcher:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, progress: DemoProgress) -> None:
        if self._quiet:
            return
        if progress.note != self._note:
            self._note = progress.note
            self._say(self._note)
        if self._bars is not None:
            for name, task in self._tasks.items():
                total = progress.total or None
                self._bars.update(task, completed=getattr(progress, name), total=total)
        elif progress.total and time.monotonic() - self._shown >= LINE_EVERY:
            self._shown = time.monotonic()
            self._say(
                f"sent {progress.sent:,} of {progress.total:,}, acknowledged "
                f"{progress.acknowledged:,}, received {progress.received:,}"
            )

    def _say(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, highlight=False)
        else:
            print(f"{time.monotonic() - self._begun:5.1f} s  {text}", file=sys.stderr, flush=True)


def as_fields(outcome: NodeOutcome) -> dict[str, Any]:
    """Returns the outcome as one JSON object. Seconds, bytes, records a second."""
    killed = outcome.killed
    return {
        **fields_of(outcome),
        "killed": None if killed is None else {
            "writer": killed.writer,
            "pid": killed.pid,
            "at_record": killed.at_record,
            "new_pid": killed.new_pid,
            "respawned_seconds": killed.respawned,
            "appending_seconds": killed.appending,
        },
        "duplicates_refused": outcome.duplicates_refused,
        "node_started_seconds": outcome.node_started_in,
        "prepared_seconds": outcome.prepared_in,
    }  # fmt: skip


def fields_of(outcome: DemoOutcome) -> dict[str, Any]:
    """Returns the fields that all demos report."""
    produced, consumed = outcome.produced, outcome.consumed
    complaints = outcome.complaints()
    return {
        "ok": not complaints,
        "complaints": complaints,
        "records": produced["records"],
        "value_bytes": produced["value_bytes"],
        "partitions": outcome.partitions,
        "aircraft": consumed["aircraft"],
        "producer_seconds": produced["seconds"],
        "producer_rate": produced["records"] / max(produced["seconds"], 1e-9),
        "consumer_seconds": consumed["seconds"],
        "consumer_rate": consumed["records"] / max(consumed["seconds"], 1e-9),
        **{name: consumed[name] for name in (
            "latency_p50", "latency_p99", "latency_max", "lost", "doubled", "out_of_order",
        )},
        "batches": outcome.batches,
        "data_bytes": outcome.data_bytes,
        "data_folder": outcome.kept,
        "total_seconds": outcome.total_seconds,
    }  # fmt: skip


def print_table(outcome: NodeOutcome) -> None:
    """Prints the outcome for people, on stdout."""
    print_rows(_rows(outcome), outcome.complaints())


def print_rows(rows: Iterable[Row], complaints: Sequence[str], good: str = "") -> None:
    """Prints a table of names and texts, and whether all is good."""
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(width=width, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    console.print(table)
    if complaints:
        console.print("[bold red]FAILED[/]: " + "; ".join(complaints), soft_wrap=True)
    else:
        console.print(
            "[bold green]GOOD[/]: nothing lost, nothing doubled, the order of every aircraft kept, "
            "all checksums right" + good
        )


def _rows(outcome: NodeOutcome) -> list[Row]:
    fields = as_fields(outcome)
    rows = [
        sent_row(fields),
        ("producer", f"{fields['producer_rate']:,.0f} records/s: {fields['records']:,} by single "
         f"send() calls, all acknowledged in {human_seconds(fields['producer_seconds'])}"),
        ("consumer", f"{fields['consumer_rate']:,.0f} records/s in "
         f"{human_seconds(fields['consumer_seconds'])}"),
        latency_row(fields, "crash"),
    ]  # fmt: skip
    killed = outcome.killed
    if killed is not None:
        back = "never" if killed.appending is None else human_seconds(killed.appending)
        at = f"at record {killed.at_record:,}"
        rows.append(("kill -9", f"writer {killed.writer}, pid {killed.pid}, {at}"))
        rows.append(("replaced", f"by pid {killed.new_pid}, appending again after {back}"))
    rows += [
        ("duplicates", f"{outcome.duplicates_refused:,} batches came again out of the ring, and "
         "were refused"),
        *stock_rows(fields, "data folder"),
        ("time", f"{human_seconds(outcome.total_seconds)} in all: node up in "
         f"{human_seconds(outcome.node_started_in)}, flights read in "
         f"{human_seconds(outcome.prepared_in)}"),
    ]  # fmt: skip
    return rows


def sent_row(fields: dict[str, Any]) -> Row:
    return (
        "flights", f"{fields['records']:,} records of {fields['aircraft']:,} aircraft, "
        f"{human_bytes(fields['value_bytes'])}, {fields['partitions']} partitions",
    )  # fmt: skip


def latency_row(fields: dict[str, Any], across: str) -> Row:
    return (
        "end to end", f"p50 {human_seconds(fields['latency_p50'])}, p99 "
        f"{human_seconds(fields['latency_p99'])}, at full speed and across the {across}",
    )  # fmt: skip


def stock_rows(fields: dict[str, Any], folder: str) -> list[Row]:
    """Returns the rows about the data left; `folder`: the name of the row about the data's
    place."""
    kept = fields["data_folder"]
    where = f", kept in {kept}" if kept else ", removed"
    return [
        ("check", f"lost {fields['lost']}, doubled {fields['doubled']}, out of order "
         f"{fields['out_of_order']}; {fields['batches']:,} batches in the files verified"),
        (folder, human_bytes(fields["data_bytes"]) + where),
    ]  # fmt: skip
