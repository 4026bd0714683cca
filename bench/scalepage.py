"""The page of scale and its plots, from results of `penstock bench scale`.

Results may have different curves: the page has all of them, and all turns of a point. It says twice
why a curve bends: by the cost of its points, from the results, and by notes of profiles.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.bench import plots
from penstock.bench.errors import BenchError
from penstock.bench.machine import of_one_machine
from penstock.bench.queuepage import read
from penstock.bench.report import faults_of, verdict
from penstock.bench.scale import CURVES, ScaleCurve
from penstock.bench.scalecost import KINDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]

FULL: Final = 0.85
"""Share of all cores from which on they are called full: what is left is the kernel's."""
FLAT: Final = 0.85
"""A rate above so much of the best one bends nothing."""
SHORTER: Final = 0.7
"""Batches of less than so many of the best point's records are called shorter."""


def write(files: Sequence[Path], notes: Path | None, page: Path) -> None:
    """Writes the page, and a plot of each curve beside it. Raises `BenchError`."""
    result = merged([read(file, "scale") for file in files])
    told = _notes(notes)
    for curve in shown(result):
        plots.save(drawn(curve, result), page.with_name(f"scale-{curve.key}.png"))
    page.write_text(as_page(result, told))


def _notes(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BenchError(f"{file} is not TOML: {error}") from error
    unknown = set(found) - {curve.key for curve in CURVES}
    if unknown or not all(isinstance(text, str) for text in found.values()):
        raise BenchError(f"{file}: a text for each curve, and no {', '.join(sorted(unknown))}")
    return found


def merged(results: Sequence[Result]) -> Result:
    """Puts the turns of several results on one machine together. Raises `BenchError` where they are
    of two."""
    of_one_machine(results)
    turns: dict[tuple[str, str, float], list[Result]] = {}
    for one in results:
        for key, points in one["curves"].items():
            for point in points:
                turns.setdefault((key, point["line"], point["x"]), []).extend(point["turns"])
    found = sorted(turns.items(), key=_place)
    left_out = dict.fromkeys(text for one in results for text in one["left_out"])
    return {
        **results[-1],
        "curves": {
            curve.key: [_point(*place[1:], told) for place, told in found if place[0] == curve.key]
            for curve in CURVES
        },
        **faults_of(results),
        "left_out": list(left_out),
    }  # fmt: skip


def _place(turns: tuple[tuple[str, str, float], Any]) -> tuple[str, int, float]:
    """Returns what points are sorted by: lines come as their curve has them."""
    key, line, x = turns[0]
    lines = next([*curve.lines] for curve in CURVES if curve.key == key)
    return key, lines.index(line), x


def _point(line: str, x: float, turns: list[Result]) -> Result:
    """Returns a point: medians of its turns, and the slowest and the fastest."""
    rates = [turn["records_per_second"] for turn in turns]
    middle = sorted(turns, key=lambda turn: float(turn["records_per_second"]))[len(turns) // 2]
    fields = {
        name: statistics.median(turn[name] for turn in turns if name in turn)
        for name, value in middle.items()
        if isinstance(value, int | float)
    }
    return {
        "series": line, "x": x, **fields, "low": min(rates), "high": max(rates),
        "turns": len(turns), "cores": middle["cores"], "us": middle["us"],
    }  # fmt: skip


def shown(result: Result) -> list[ScaleCurve]:
    """Returns the curves that have points."""
    return [curve for curve in CURVES if result["curves"][curve.key]]


# --- what bends a curve -------------------------------------------------------------------------
def bend(points: Sequence[Result], cores: int, *, by_bytes: bool = False) -> str:
    """Returns what the cost of a line's points says: from the best one to the slower end of the
    curve. `by_bytes`: bytes count, and not records."""
    name = "mb_per_second" if by_bytes else "records_per_second"
    best = max(points, key=lambda point: float(point[name]))
    worst = min((points[0], points[-1]), key=lambda point: float(point[name]))
    share = worst[name] / best[name]
    if share > FLAT:
        return f"nearly flat: the slower end has {share:.0%} of the best rate. {_full(best, cores)}"
    slow, fast = (
        {kind: point["us"].get(kind, 0) * (1000 / point["x"] if by_bytes else 1) for kind in KINDS}
        for point in (worst, best)
    )
    more = sorted(((slow[kind] - fast[kind], kind) for kind in KINDS), reverse=True)
    total = [sum(cost.values()) for cost in (fast, slow)]
    parts = [
        f"{_x(best)} to {_x(worst)}: {share:.0%} of {'MB/s' if by_bytes else 'the rate'}",
        f"CPU a {'KB' if by_bytes else 'record'} {total[0]:.2f} to {total[1]:.2f} µs "
        f"({', '.join(f'{kind} {_signed(grown)}' for grown, kind in more if abs(grown) >= 0.05)})",
    ]
    if "batch" in best and worst["batch"] < SHORTER * best["batch"]:
        parts.append(f"batches are shorter: {best['batch']:,.0f} to {worst['batch']:,.0f} records")
    for use, title in (("preempted", "preemptions"), ("sleeps", "sleeps")):
        if not by_bytes and worst.get(use, 0) > 2 * best.get(use, 0) + 0.5:
            parts.append(
                f"{title} of clients {best[use]:.1f} to {worst[use]:.1f} a thousand records"
            )
    return "; ".join(parts) + f". {_full(worst, cores)}"


def _x(point: Mapping[str, Any]) -> str:
    return _number(point["x"])


def _number(x: float) -> str:
    return f"{x:,.0f}" if x >= 1 else f"{x:g}"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{abs(value):.2f}"


def _full(point: Mapping[str, Any], cores: int) -> str:
    busy, others = sum(point["cores"].values()), point.get("others", 0.0)
    how = "all cores are full" if busy + others >= FULL * cores else "cores are left"
    beside = f", and {others:.2f} with the kernel's threads and other work" * (others >= 0.1)
    return f"At {_x(point)}, {busy:.2f} of {cores} cores are busy{beside}: {how}."


# --- the page -----------------------------------------------------------------------------------
def as_page(result: Result, notes: Mapping[str, str]) -> str:
    parts = [_head(result), *(_section(curve, result, notes) for curve in shown(result)),
             _left_out(result), _NOTES]  # fmt: skip
    return "\n".join([*chain.from_iterable(parts), ""])


def _head(result: Result) -> Iterator[str]:
    machine = result["machine"]
    yield from (
        "# Benchmarks: scale",
        "",
        "For readers who ask what more producers, consumers, partitions, connections, larger "
        "records or a backlog do, and why.",
        "Written by `penstock bench scale-page`; [how to run it](#how-to-run-it).",
        "",
        "| Machine | |",
        "|---|---|",
        f"| CPU | {machine['cpu']}, {machine['cores']} cores that the node and its clients share |",
        f"| Memory | {machine['memory_gb']:g} GB |",
        f"| Kernel | {machine['kernel']} |",
        f"| File system | {result['filesystem']}; raw page-cache writes "
        f"{result['pwrite_mb_per_second']:,.0f} MB/s |",
        f"| Python | {machine['python']} |",
        f"| Date | {machine['date']} |",
        f"| Records, all checked | {verdict(result)} |",
        "",
        "Rates are medians of turns, with the slowest and the fastest. *Cores*: CPU seconds a "
        "second of all processes of the run, and of others on the machine with the kernel's "
        "threads.",
        "*µs a record*: CPU of all processes of a kind. *Sleeps* and *preempted*: of clients, a "
        "thousand records.",
    )


def _section(curve: ScaleCurve, result: Result, notes: Mapping[str, str]) -> Iterator[str]:
    points = result["curves"][curve.key]
    cores = result["machine"]["cores"]
    yield from (
        "",
        f"## {curve.title}",
        "",
        f"![{curve.title}](scale-{curve.key}.png)",
        "",
        "**What bends it**",
        "",
    )
    for line, own in _by_line(points).items():
        if len(own) > 1:
            told = bend(own, cores, by_bytes=curve.key == "size")
            yield f"- *{curve.lines[line]}*: {told}"
    if curve.key in notes:
        yield from ("", *notes[curve.key].strip().splitlines())
    columns = [*_columns(curve, points)]
    yield from (
        "",
        f"| {curve.axis} | | records/s | turns | {' | '.join(title for title, _ in columns)} |",
        "|---" * (4 + len(columns)) + "|",
    )
    for line, own in _by_line(points).items():
        for point in own:
            cells = " | ".join(text(point) for _, text in columns)
            yield (
                f"| {_x(point)} | {curve.lines[line]} | **{point['records_per_second']:,.0f}** "
                f"({point['low']:,} to {point['high']:,}) | {point['turns']} | {cells} |"
            )


def _by_line(points: Sequence[Result]) -> dict[str, list[Result]]:
    lines: dict[str, list[Result]] = {}
    for point in points:
        lines.setdefault(point["series"], []).append(point)
    return lines


def _columns(curve: ScaleCurve, points: Sequence[Result]) -> Iterator[tuple[str, Any]]:
    """Yields the columns of a curve's table behind the rate: title, and text of a point."""
    if curve.key == "backlog":
        yield "at the end, same turns", lambda p: f"{p['records_per_second_without']:,.0f}"
        yield "behind / at the end", lambda p: f"{p['ratio']:.2f}"
    if curve.key == "size":
        yield "MB/s", lambda p: f"{p['mb_per_second']:,.0f}"
    if curve.key == "connections":
        yield "p50, p99 at 1,000/s", lambda p: (
            f"{p['p50_us'] / 1000:.2f}, {p['p99_us'] / 1000:.2f} ms")  # fmt: skip
        yield "all connected", lambda p: f"{p['connect_seconds']:.1f} s"
    yield "cores, others", lambda p: f"{sum(p['cores'].values()):.2f}, {p.get('others', 0):.2f}"
    kinds = [kind for kind in KINDS if any(p["us"].get(kind, 0) >= 0.005 for p in points)]
    yield f"µs a record: {', '.join(kinds)}", lambda p: ", ".join(
        f"{p['us'].get(kind, 0):.2f}" for kind in kinds)  # fmt: skip
    yield "records a batch", lambda p: f"{p['batch']:,.0f}"
    if all("sleeps" in point for point in points):
        yield "sleeps, preempted", lambda p: f"{p['sleeps']:.1f}, {p['preempted']:.1f}"


def _left_out(result: Result) -> Iterator[str]:
    if result["left_out"]:
        yield from ("", f"Left out: {'; '.join(result['left_out'])}.")


_NOTES: Final = (
    """
## How to run it
```console
$ penstock bench scale --format json > scale.json
$ penstock bench scale-page scale.json --notes docs/benchmarks/scale.toml
```

`--only partitions` takes one curve, `--only partitions/small` one line, `--at 1000` one point;
`scale-page` takes several results and puts turns of one point together. `--quick` takes few points
and a tenth of the records, `--turns`, `--records` and `--gb` choose. The whole run takes a quarter
of an hour and 15 GB of disk and page cache at a time.

## How it is measured
- Turns go round the points of a curve, forward and back. Each turn has a node of its own on a new
  folder; its processes are warm and attached before the clock starts. It stops when the last record
  is acknowledged and checked.
- *Producers* and *consumers* have 8 partitions, so that their first points are the same work.
- *Partitions*: the warm-up opens each one, and all points send as many different values.
- *Connections*: clients in four processes; [more about it](../guide/benchmarks.md).
- A turn of large records has 1 GB of values at most. A backlog is read from the page cache, where
  memory has room for it.""",
)


# --- the plots ----------------------------------------------------------------------------------
def drawn(curve: ScaleCurve, result: Result) -> Figure:
    """Draws the rates, with the slowest and fastest turns, and the CPU of a record by its kind."""
    machine = result["machine"]
    note = f"{machine['cpu']}, {machine['cores']} cores · {machine['python']} · {machine['date']}"
    points = result["curves"][curve.key]
    figure, (left, right) = plots.new_figure(curve.title, 2, note)
    scale = 1e-3 if max(point["records_per_second"] for point in points) < 1e6 else 1e-6
    plots.lines(left, points, "records_per_second", curve.lines, scale)
    for number, own in enumerate(_by_line(points).values()):
        low, high = ([point[name] * scale for point in own] for name in ("low", "high"))
        colour = plots.COLOURS[number % len(plots.COLOURS)]
        left.fill_between([point["x"] for point in own], low, high, color=colour, alpha=0.15)
    unit = "thousand" if scale == 1e-3 else "million"
    plots.label(left, curve.axis, f"{unit} records/s, end to end", "Rate, and range of the turns")
    line = next(iter(_by_line(points)))
    own = _by_line(points)[line]
    kinds = [kind for kind in KINDS if any(p["us"].get(kind, 0) >= 0.005 for p in own)]
    cost = [
        {"series": kind, "x": point["x"], "us": point["us"].get(kind, 0)}
        for kind in kinds
        for point in own
    ]
    plots.lines(right, cost, "us")
    plots.label(right, curve.axis, "microseconds of CPU a record", f"Cost: {curve.lines[line]}")
    for axes in (left, right):
        xs = sorted({point["x"] for point in points})
        plots.categories(axes, xs, _number)
        if curve.key == "size":
            axes.set_yscale("log")
            plots.plain_log(axes.yaxis)
        else:
            plots.from_zero(axes)
        plots.named(axes)
    return figure
