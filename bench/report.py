"""Results as people read them: lines for a terminal, a table for Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.bench.machine import Machine

Result = Mapping[str, Any]

Row = tuple[str, Sequence[str], Result, Sequence[Result]]
"""Name, command, chosen result, all results."""

FAULTS = ("lost", "doubled", "early", "out_of_order", "foreign", "failed")


def is_clean(result: Result) -> bool:
    """Returns whether every record came once and in order, and no part of the run failed."""
    return not any(result.get(name) for name in FAULTS)


def faults_of(results: Iterable[Result]) -> dict[str, int]:
    """Returns the sum of each fault that one of them counts."""
    found = list(results)
    return {
        name: sum(each.get(name, 0) for each in found)
        for name in FAULTS
        if any(name in each for each in found)
    }


def as_text(result: Result) -> str:
    """Returns one field a line, nested ones on one line."""
    fields: dict[str, object] = {}
    for name, value in result.items():
        if isinstance(value, Mapping) and any(isinstance(part, Mapping) for part in value.values()):
            fields |= {f"{name}.{part}": found for part, found in value.items()}
        else:
            fields[name] = value
    width = max(map(len, fields))
    return "\n".join(f"{name:<{width}}  {_plain(value)}" for name, value in fields.items())


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name}={_plain(part)}" for name, part in value.items())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def verdict(result: Result) -> str:
    """Returns the result of the check."""
    if is_clean(result):
        return "ok"
    return ", ".join(f"{result[name]:,} {name}" for name in FAULTS if result.get(name))


def outcome(result: Result) -> str:
    """Returns the figures of a result in a few words."""
    if result["benchmark"] == "throughput":
        return (
            f"**{result['records_per_second']:,} records/s**, {result['mb_per_second']:,.0f} MB/s"
            + (f", {share:.0%} of pwrite" if (share := result.get("share_of_pwrite")) else "")
        )
    if result["benchmark"] == "latency":
        return (
            f"**p50 {result['p50_us']:,.0f} us, p99 {result['p99_us']:,.0f} us**, "
            f"p99.9 {result['p999_us']:,.0f} us, max {result['max_us']:,.0f} us"
        )
    if result["benchmark"] == "recovery":
        return (
            f"**node up in {result['start_clean_seconds']:.2f} s after a clean stop** (the log "
            f"alone {result['open_clean_seconds']:.3f} s), {result['start_killed_seconds']:.2f} s "
            f"after a kill with {result['tail_bytes'] / 1e6:,.0f} MB unsynced"
        )
    if result["benchmark"] == "backlog":
        return (
            f"**{result['ratio']:.0%} of the throughput without a backlog**: "
            f"{result['records_per_second']:,} and "
            f"{result['records_per_second_without']:,} records/s"
        )
    if result["benchmark"] == "groups":
        options = result["options"]
        return (
            f"**a killed member's records go on after {result['failover_p50_ms']:.0f} ms** (worst "
            f"{result['failover_max_ms']:.0f}); {options['members']} members share "
            f"{options['partitions']} partitions after {result['all_join_seconds']:.1f} s, one "
            f"more after {result['one_joins_ms']:.0f} ms, the others going on at "
            f"{result['delivered_meanwhile_share']:.0%} of their rate; "
            f"{result['commits_per_second']:,} commits/s"
        )
    if result["benchmark"] == "compare":
        options = result["options"]
        return (
            f"**{result['ratio']:.0%} of the throughput by {options['against']}**: "
            f"{result['records_per_second']:,} and "
            f"{result['records_per_second_against']:,} records/s"
        )
    if result["benchmark"] == "spark":
        triggers = result["triggers"]
        return (
            f"**{result['records_per_second'] / 1e6:.2f} M records/s read, "
            f"{result['mb_per_second']:,.0f} MB/s of values**; a trigger of "
            f"{result['options']['rows']} records {triggers['penstock_ms']:.0f} ms, to a topic "
            f"{triggers['topic_to_topic_ms']:.0f} ms, from Parquet {triggers['parquet_ms']:.0f} ms"
        )
    if result["benchmark"] == "cluster":
        live, meanwhile = result["live_before"], result["live_meanwhile"]
        return (
            f"**records to a partition go on {result['outage_p50_seconds']:.2f} s after its "
            f"leader is killed** (worst {result['outage_max_seconds']:.2f}), and "
            f"{result['controller_outage_p50_seconds']:.2f} s where it was the controller too "
            f"(worst {result['controller_outage_max_seconds']:.2f}); a follower catches up "
            f"at {result['catch_up_mb_per_second']:,.0f} MB/s, beside it p99 of "
            f"{result['options']['rate']:,} records/s {meanwhile.get('p99_ms', 0):.1f} ms instead "
            f"of {live.get('p99_ms', 0):.1f}"
        )
    if result["benchmark"] == "connections":
        return (
            f"**a request p50 {result['p50_us'] / 1000:.2f} ms, p99 "
            f"{result['p99_us'] / 1000:.2f} ms** at {result['options']['rate']:,.0f}/s in all; "
            f"{result['records_per_second']:,} records/s as much as goes{_gateway(result)}"
        )
    if result["benchmark"] == "cluster-partitions":
        total = sum(result["resident_mb"].values())
        return (
            f"**all brokers start in {result['start_all_seconds']:.1f} s**; a killed controller's "
            f"{result['led_by_the_killed']} partitions are led again after "
            f"{result['led_again_seconds']:.1f} s, and in sync {result['caught_up_seconds']:.1f} s "
            f"after its start; created in {result['create_seconds']:.1f} s; all processes "
            f"{total:,.0f} MB resident, {result['idle_cpu_percent']:.1f} % CPU when idle"
        )
    writers = [mb for name, mb in result["resident_mb"].items() if name.startswith("writer")]
    if result["benchmark"] == "partitions":
        return (
            f"**start {result['start_clean_seconds']:.2f} s**, after a kill "
            f"{result['start_killed_seconds']:.2f} s, created in {result['create_seconds']:.2f} s; "
            f"a writer {max(writers, default=0):.0f} MB resident, "
            f"{sum(result['descriptors'].values()):,} descriptors in all, "
            f"{result['idle_cpu_percent']:.1f} % CPU when idle"
        )
    return (
        f"**first acknowledged record after {result['start_to_first_ack']:.2f} s**, "
        f"{result['idle_cpu_percent']:.1f} % CPU when idle, "
        f"a writer {max(writers, default=0):.0f} MB resident"
    )


def _gateway(result: Result) -> str:
    if "gateway_mb" not in result:
        return ""
    return (
        f"; the gateway {result['gateway_mb']['connected']:.0f} MB resident and "
        f"{result['gateway_idle_cpu_percent']:.1f} % CPU when all are idle, "
        f"{result['gateway_kb_per_connection']:.0f} kB a connection"
    )


def cpu(result: Result) -> str:
    """Returns CPU seconds by process."""
    used = result.get("cpu_seconds", {})
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in used.items())


def spread(results: Sequence[Result]) -> str:
    """Returns the lowest and highest of several runs."""
    if len(results) < 2:
        return ""
    name = "records_per_second" if results[0]["benchmark"] == "throughput" else "p50_us"
    values = sorted(result[name] for result in results if name in result)
    return f"{values[0]:,.0f} to {values[-1]:,.0f}" if values else ""


def as_markdown(
    machine: Machine,
    rows: Sequence[Row],
    plots: Sequence[str] = (),
    title: str = "Benchmarks",
    notes: Sequence[str] = (),
) -> str:
    """Returns the page: machine facts, rows, and plots by their file names. `notes`: instead of
    those on how rows are measured."""
    facts = {
        "CPU": f"{machine.cpu}, {machine.cores} cores",
        "Memory": f"{machine.memory_gb:g} GB",
        "Kernel": machine.kernel,
        "Python": machine.python,
        "Penstock": machine.penstock,
        "Date": machine.date,
    }
    disks = sorted({found for _, _, result, _ in rows if (found := result.get("filesystem"))})
    if disks:
        facts["File system"] = ", ".join(disks)
    runs = max((len(results) for *_, results in rows), default=1)
    lines = [
        f"# {title}",
        "",
        "Written by `make bench`; run it to see your own machine's figures.",
        "",
        "| Machine | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        "",
        "| What | Result | Range of runs | CPU seconds | Check | Command |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {outcome(result)} | {spread(results)} | {cpu(result)} | "
            f"{verdict(result)} | `penstock bench {shlex.join(command)}` |"
            for name, command, result, results in rows
        ),
        "",
        *([] if not plots else ["## Plots", ""]),
        *(f"![{name.removesuffix('.png').replace('-', ' ')}]({name})\n" for name in plots),
        *(line for name, _, result, _ in rows for line in _spark_tables(name, result)),
        *(["## How it is measured", "", *notes, ""] if notes else _notes(runs)),
    ]
    return "\n".join(lines)


def _spark_tables(name: str, result: Result) -> list[str]:
    """Returns every query, and the cost of a trigger; nothing for other benchmarks."""
    if result["benchmark"] != "spark":
        return []
    lines = [
        f"## {name}",
        "",
        "| Query | from the topic | from Parquet | topic / Parquet | seconds | CPU seconds |",
        "|---|---|---|---|---|---|",
    ]
    for query, told in result["queries"].items():
        lines.append(
            f"| {SPARK_QUERIES[query]} | {told['records_per_second'] / 1e6:.2f} M rows/s, "
            f"{told['mb_per_second']:,.0f} MB/s | "
            f"{told['parquet_records_per_second'] / 1e6:.2f} M rows/s, "
            f"{told['parquet_mb_per_second']:,.0f} MB/s | {told['ratio']:.2f} | "
            f"{told['seconds']:.2f} | Java {told['java_cpu_seconds']:.2f}, Python "
            f"{told['python_cpu_seconds']:.2f} |"
        )
    triggers = result["triggers"]
    steps = triggers["penstock_steps"]
    lines += [
        "",
        f"| Triggers of {result['options']['rows']} records | from a topic | topic to topic | "
        "from Parquet |",
        "|---|---|---|---|",
        f"| one of many | {triggers['penstock_ms']:.0f} ms | "
        f"{triggers['topic_to_topic_ms']:.0f} ms | {triggers['parquet_ms']:.0f} ms |",
        f"| a run with `AvailableNow` that finds nothing new | "
        f"{triggers['penstock_empty_run_ms']:.0f} ms | | "
        f"{triggers['parquet_empty_run_ms']:.0f} ms |",
        *(
            f"| {step} | {took:.0f} ms | {triggers['topic_to_topic_steps'][step]:.0f} ms | "
            f"{triggers['parquet_steps'][step]:.0f} ms |"
            for step, took in steps.items()
        ),
        "",
    ]
    return lines


SPARK_QUERIES = {
    "count": "`count()`",
    "sum": "`sum(length(value))`",
    "noop": '`write.format("noop")`',
    "parquet": "written to Parquet",
    "sink": "written to a topic",
}


def _notes(runs: int) -> list[str]:
    how_often = "one run" if runs == 1 else f"the median of {runs} runs, each"
    return [
        "## How it is measured",
        "",
        f"- Each row of throughput or latency is {how_often}"
        " with a node and a data folder of its own.",
        *_NOTES,
        "",
    ]


_NOTES = (
    "- Throughput counts from the moment the first producer begins its first send, all processes "
    "being warm and attached, until the last consumer has received and checked the last record. "
    "Every record has been appended to segment files by then.",
    "- `send` is a Python loop of `producer.send` and a Python loop over the consumer's records; "
    "`batch` is `producer.send_batch` with lists and polled columns, `arrow` is "
    "`producer.send_arrow` with tables and `to_arrow()` of polled batches.",
    "- The check is exact: every value carries its producer and number; what is lost, doubled or "
    "out of order within a partition is counted.",
    "- MB is 10^6 bytes of values. *of pwrite* compares with raw page-cache writes of the same "
    "bytes on the same machine: `pwrite` of 256 KiB buffers to a fresh file in the data folder "
    "that grows by 4 MiB `posix_fallocate` steps, the median of several runs just before the "
    "benchmark, with the node idle.",
    "- Latency counts from the moment a record is due by its schedule until the consumer's loop "
    "has it, so a stall shows in every record that it held up; the first second is left out.",
    "- CPU seconds are user and system time of each process from start to end of the run.",
    "- Producers and consumers call `gc.freeze()` before the clock starts; the garbage collector "
    "stays on.",
)
SPARK_NOTES = (
    "- The records are written once, and copied to Parquet by Spark (snappy; values are random, so "
    "they do not shrink). Queries run on both in turns, the first turn of each uncounted; figures "
    "are medians. Seconds are those of the whole query: planning, tasks, and the commit of what is "
    "written.",
    "- Both have the one column `value`. `count()` takes nothing of a Parquet file but the numbers "
    "of rows in its footer; of a topic it takes the values.",
    "- *written to a topic* is one transaction, on stable storage when the query ends.",
    "- The check compares how many rows there are, and a digest of all of them, in the topic, its "
    "copy, and what was written from both to Parquet and to a topic.",
    "- MB is 10^6 bytes of values. CPU seconds are those of the JVM and of Spark's Python workers "
    "during the query on the topic.",
    "- Triggers: a query with `AvailableNow` and a limit of so many records a batch, into "
    "`noop`, beside the same from a folder of Parquet files with one file a batch. Steps as "
    "Spark's progress names them, medians over batches; planning and tasks of Spark are in all.",
)
