"""The layout of a report of `penstock top`: sections of aligned columns.

Owns the layout and the order of rows, and writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.cli.output import columns
from penstock.operations.wording import human_age, human_bytes, human_count, iso_time

if TYPE_CHECKING:
    from penstock.observe.report import (
        CleanerRow,
        ConsumerRow,
        LogRow,
        ProducerRow,
        Report,
        WriterRow,
    )

HEAD: Final = "bold"
ALARM: Final = "bold red"
COMMAND_WIDTH: Final = 40


class Line(NamedTuple):
    """A line, its rich style, and whether it may be left out where room is short."""

    text: str
    style: str = ""
    may_go: bool = False


def order(report: Report, by: str) -> None:
    """Sorts the rows in place: the busiest first, or by name."""

    def of_log(row: LogRow) -> tuple[Any, ...]:
        first = {
            "records": row.records_per_second,
            "bytes": row.bytes_per_second,
            "lag": row.lag or 0,
        }.get(by, 0)
        return -first, row.topic, row.partition or 0

    report.topics.sort(key=of_log)
    report.partitions.sort(key=of_log)
    if by == "name":
        report.consumers.sort(key=lambda row: (row.topics, row.pid))
        report.producers.sort(key=lambda row: row.producer_id)
    else:
        report.consumers.sort(key=lambda row: (-row.lag, row.pid))
        report.producers.sort(key=lambda row: (-row.bytes_per_second, row.producer_id))


def lines(report: Report, *, wide: bool) -> list[Line]:
    """Returns the lines of the whole report."""
    found = [Line(_first(report), HEAD), Line(_second(report.total, report.consumers))]
    found += [Line(f"! {warning}", ALARM) for warning in report.warnings]
    if report.partitions:
        found += _logs(report.partitions, wide, "PARTITION")
    else:
        found += _logs(report.topics, wide, "TOPIC")
    found += _consumers(report.consumers, wide)
    found += _producers(report.producers, wide)
    found += _writers(report.writers)
    if report.cleaner is not None:
        found += _cleaner(report.cleaner)
    return found


def fit(rows: list[Line], height: int) -> list[Line]:
    """Returns the rows that a screen shows: the first of each section, and how many are
    left out."""
    if len(rows) <= height:
        return rows
    sections: list[list[Line]] = []
    for row in rows:
        if not row.may_go or not sections:
            sections.append([row])
        else:
            sections[-1].append(row)
    spare = height - len(sections)
    long = [section for section in sections if len(section) > 1]
    for position, section in enumerate(sorted(long, key=len)):
        share = max(0, spare // (len(long) - position))
        if len(section) - 1 > share:
            left_out = len(section) - share
            section[1:] = [*section[1:share], Line(f"... {left_out} more")] if share else []
        spare -= len(section) - 1
    return [row for section in sections for row in section][:height]


def _first(report: Report) -> str:
    node = report.node
    who = "no node" if node.pid is None else f"node {node.pid} {node.state}"
    parts = [f"penstock top  {iso_time(int(report.time * 1e6))[11:19]}Z  {who}"]
    if node.pid is not None:
        parts += [f"up {human_age(node.uptime)}", f"cpu {_percent(node.cpu)}", f"{_size(node.rss)}"]
    return "  ".join([*parts, node.data_folder])


def _second(total: LogRow, consumers: Sequence[ConsumerRow]) -> str:
    taken = sum(row.records_per_second for row in consumers)
    return "  ".join(
        (
            f"in {human_count(total.records_per_second)} records/s",
            f"{human_bytes(total.bytes_per_second)}/s",
            f"{human_count(total.batches_per_second)} batches/s",
            f"out {human_count(taken)} records/s",
            f"lag {human_count(sum(row.lag for row in consumers))}",
            f"({human_age(total.lag_seconds)})",
            f"undurable {human_count(total.undurable)}",
        )
    )


def _section(head: Sequence[str], rows: list[Sequence[object]]) -> list[Line]:
    if not rows:
        return []
    first, *others = columns(head, rows)
    return [Line(""), Line(first, HEAD), *(Line(text, may_go=True) for text in others)]


def _logs(rows: list[LogRow], wide: bool, title: str) -> list[Line]:
    each = title == "PARTITION"
    head = [title, "STATUS", *(("WRITER", "START", "END", "HIGH") if each else ("PARTS", "HELD")),
            "RECORDS/S", "BYTES/S", "BATCHES/S", "UNDURABLE", "READERS", "LAG", "LAG-TIME",
            "DUPLICATES", "REFUSALS", "THROTTLES"]  # fmt: skip
    number = str if wide else human_count
    table: list[Sequence[object]] = []
    for row in rows:
        if each:
            where: list[object] = [f"{row.topic}-{row.partition}", row.status, row.writer,
                                   row.log_start, row.log_end, row.high_watermark]  # fmt: skip
        else:
            where = [row.topic, row.status, row.partitions, number(row.records_held)]
        table.append(
            [
                *where,
                human_count(row.records_per_second),
                human_bytes(row.bytes_per_second),
                human_count(row.batches_per_second),
                number(row.undurable),
                row.consumers,
                None if row.lag is None else number(row.lag),
                human_age(row.lag_seconds),
                row.duplicates,
                row.refusals,
                row.throttles,
            ]
        )
    return _section(head, table)


def _consumers(rows: list[ConsumerRow], wide: bool) -> list[Line]:
    head = [
        "CONSUMER",
        "STATE",
        "READS",
        "RECORDS/S",
        "LAG",
        "LAG-TIME",
        "DRAINED-IN",
        "POLL",
        "SKIPPED",
        "COMMAND",
    ]
    return _section(
        head,
        [
            [
                row.pid,
                row.state,
                _reads(row),
                human_count(row.records_per_second),
                row.lag if wide else human_count(row.lag),
                human_age(row.lag_seconds),
                human_age(row.drain_seconds),
                human_age(row.poll_seconds),
                row.skipped if wide else human_count(row.skipped),
                row.command if wide else row.command[:COMMAND_WIDTH],
            ]
            for row in rows
        ],
    )


def _reads(row: ConsumerRow) -> str:
    """`orders/4` for four partitions of it; `+n` for those whose positions are not published."""
    names = ",".join(row.topics[:2]) + (",..." if len(row.topics) > 2 else "")
    hidden = row.assigned - len(row.positions)
    return f"{names or '-'}/{len(row.positions)}" + (f"+{hidden}" if hidden > 0 else "")


def _producers(rows: list[ProducerRow], wide: bool) -> list[Line]:
    head = ["PRODUCER", "STATE", "LANES", "LANE-USE", "WAITING", "BYTES/S", "BATCHES/S", "DROPS",
            "COMMAND"]  # fmt: skip
    return _section(
        head,
        [
            [
                row.pid,
                row.state,
                row.lanes,
                _percent(row.lane_use),
                human_bytes(row.bytes_waiting),
                human_bytes(row.bytes_per_second),
                human_count(row.batches_per_second),
                row.dropped if wide else human_count(row.dropped),
                row.command if wide else row.command[:COMMAND_WIDTH],
            ]
            for row in rows
        ],
    )


def _writers(rows: list[WriterRow]) -> list[Line]:
    head = ["WRITER", "PID", "STATE", "CPU", "RSS", "HEARTBEAT", "PASSES/S", "PARTS", "RESTARTS"]
    return _section(
        head,
        [
            [
                row.writer,
                row.pid,
                row.state,
                _percent(row.cpu),
                _size(row.rss),
                human_age(row.heartbeat_age),
                human_count(row.passes_per_second),
                row.partitions,
                row.restarts,
            ]
            for row in rows
        ],
    )


def _cleaner(row: CleanerRow) -> list[Line]:
    head = ["CLEANER", "STATE", "CPU", "RSS", "HEARTBEAT", "RUNS", "ERRORS"]
    cells = [row.pid, row.state, _percent(row.cpu), _size(row.rss), human_age(row.heartbeat_age),
             row.runs, row.errors]  # fmt: skip
    return _section(head, [cells])


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part * 100:.0f}%"


def _size(count: int | None) -> str:
    return "-" if count is None else human_bytes(count)
