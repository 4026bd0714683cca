"""The plots: points in, one PNG each. Never measures.

All of them share one look: the title names what is measured, units are on the axes, lines carry
their names, the machine is below. Matplotlib is an extra (`pip install 'penstock[bench]'`). Only
`new_figure` imports it, without its global state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.bench.errors import BenchError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Point = Mapping[str, Any]
Points = Sequence[Point]

# Told apart by readers of any colour sight (Okabe and Ito).
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK: Final = "#333333"
FAINT: Final = "#8a8a8a"
DPI: Final = 150


# --- the look -------------------------------------------------------------------------------------
def new_figure(title: str, panels: int = 1, note: str = "") -> tuple[Figure, list[Axes]]:
    """Makes a figure with so many panels side by side. Raises `BenchError` without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchError(
            "plots want matplotlib: pip install 'penstock[bench]', or 'matplotlib>=3.8'"
        ) from error
    figure = Figure(figsize=(5.2 * panels + 1.6, 4.4), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK, weight="bold")
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color=FAINT)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(FAINT)
        each.tick_params(colors=INK, labelsize=9)
        each.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        each.set_axisbelow(True)
    return figure, axes


def label(axes: Axes, x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(x, color=INK, fontsize=9.5)
    axes.set_ylabel(y, color=INK, fontsize=9.5)
    if title:
        axes.set_title(title, loc="left", fontsize=10, color=INK)


def from_zero(axes: Axes) -> None:
    """Heights that can be compared, with some room above the highest."""
    axes.set_ylim(0, 1.12 * axes.dataLim.ymax)


def named(axes: Axes, where: Literal["best", "lower right", "upper right"] = "best") -> None:
    """Names the lines, where there are several."""
    if len(axes.get_lines()) > 1:
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc=where, handlelength=3)


def categories(axes: Axes, values: Sequence[float], text: Callable[[float], str]) -> None:
    """Makes a logarithmic axis with a tick at each measured value and no other."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(values), [text(value) for value in values])
    axes.minorticks_off()


def lines(
    axes: Axes,
    points: Points,
    y: str,
    names: Mapping[str, str] | None = None,
    scale: float = 1.0,
    style: str = "-",
) -> None:
    """Draws a line for each series of the points, over their `x`."""
    for number, series in enumerate(dict.fromkeys(point["series"] for point in points)):
        own = sorted((p for p in points if p["series"] == series), key=lambda p: p["x"])
        axes.plot(
            [p["x"] for p in own], [p[y] * scale for p in own],
            color=COLOURS[number % len(COLOURS)], marker="o", markersize=4.5, linewidth=1.8,
            linestyle=style,
            label=(names or {}).get(series, series),
        )  # fmt: skip


def raw_line(axes: Axes, points: Points, scale: float) -> None:
    """Draws raw page-cache writes of the same bytes, as measured beside each point."""
    xs = sorted({point["x"] for point in points})
    speeds = []
    for x in xs:
        found = sorted(p["pwrite_mb_per_second"] for p in points if p["x"] == x)
        speeds.append(found[len(found) // 2] * scale)
    axes.plot(xs, speeds, color=FAINT, linestyle="--", linewidth=1.5, label="_raw")
    axes.annotate(
        "raw page-cache writes", (xs[0], speeds[0]), (0, -14), textcoords="offset points",
        fontsize=8.5, color=FAINT,
    )  # fmt: skip


def size_text(value: float) -> str:
    """Returns bytes as people say them."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B"


def save(figure: Figure, path: Path) -> None:
    """Saves a file that is the same for the same points: no field in it tells when it was drawn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


# --- the plots ------------------------------------------------------------------------------------
APIS: Final = {
    "send": "send one by one, iterate",
    "batch": "send_batch, read columns",
    "arrow": "send_arrow, to_arrow",
}


def by_record_size(points: Points, note: str) -> Figure:
    figure, (left, right) = new_figure("Throughput by record size", 2, note)
    sizes = sorted({point["x"] for point in points})
    lines(left, points, "records_per_second", APIS, 1e-6)
    left.set_yscale("log")
    label(left, "bytes of a value", "million records/s", "Records, end to end")
    lines(right, points, "mb_per_second", APIS, 1e-3)
    raw_line(right, points, 1e-3)
    right.set_yscale("log")
    label(right, "bytes of a value", "GB/s", "Bytes, and what the page cache takes raw")
    for axes in (left, right):
        categories(axes, sizes, size_text)
        plain_log(axes.yaxis)
    named(left, "upper right")  # where records a second are always few
    return figure


def by_batch_size(points: Points, note: str) -> Figure:
    figure, (axes,) = new_figure("Throughput by batch size, values of 1 KiB", 1, note)
    lines(axes, points, "mb_per_second", APIS, 1e-3)
    raw_line(axes, points, 1e-3)
    label(axes, "batch_bytes of the producer", "GB/s, end to end")
    categories(axes, sorted({point["x"] for point in points}), size_text)
    from_zero(axes)
    named(axes)
    return figure


def latency_cdf(points: Points, note: str) -> Figure:
    figure, (axes,) = new_figure("Latency from due to received, 1 KiB at 1,000 records/s", 1, note)
    for number, point in enumerate(sorted(points, key=lambda point: "is_floor" in point)):
        is_floor = "is_floor" in point
        axes.plot(
            point["us"], [100 * share for share in point["share"]],
            color=FAINT if is_floor else COLOURS[number], linewidth=1.5 if is_floor else 1.8,
            linestyle="--" if is_floor else "-",
            label=f"{point['series']}: p50 {point['p50_us']:,.0f}, p99 {point['p99_us']:,.0f}, "
            f"p99.9 {point['p999_us']:,.0f} µs",
        )  # fmt: skip
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False, fontsize=8.5,
        labelcolor=INK,
    )  # fmt: skip
    axes.set_xscale("log")
    plain_log(axes.xaxis)
    axes.set_ylim(0, 101)
    label(axes, "microseconds", "% of records that were there by then")
    return figure


def by_backlog(points: Points, note: str) -> Figure:
    figure, (axes,) = new_figure("Throughput against backlog, values of 1 KiB", 1, note)
    lines(axes, points, "records_per_second", scale=1e-6)
    for point in points:
        if "ratio" in point:
            axes.annotate(
                f"{point['ratio']:.0%}", (point["x"], point["records_per_second"] * 1e-6),
                (0, 8), textcoords="offset points", ha="center", fontsize=9, color=COLOURS[0],
            )  # fmt: skip
    label(axes, "unread gigabytes between producer and consumer", "million records/s")
    axes.set_xlim(0, 1.06 * axes.dataLim.xmax)
    from_zero(axes)
    named(axes, "lower right")
    return figure


def scaling(points: Points, note: str) -> Figure:
    figure, (axes,) = new_figure("Producers and partitions, send_batch of 100 B", 1, note)
    lines(axes, points, "records_per_second", scale=1e-6)
    categories(axes, sorted({point["x"] for point in points}), lambda value: f"{value:g}")
    label(axes, "partitions", "million records/s, end to end")
    from_zero(axes)
    named(axes, "lower right")
    return figure


def by_transaction_size(points: Points, note: str) -> Figure:
    figure, (axes,) = new_figure("Transactions by their size, send of 1 KiB", 1, note)
    without = [point["records_per_second"] for point in points if not point["x"]]
    within = [point for point in points if point["x"]]
    lines(axes, within, "records_per_second", scale=1e-6)
    for speed in without:
        axes.axhline(speed * 1e-6, color=FAINT, linestyle="--", linewidth=1.5)
        axes.annotate(
            "without transactions", (within[0]["x"], speed * 1e-6), (0, 5),
            textcoords="offset points", fontsize=8.5, color=FAINT,
        )  # fmt: skip
    label(axes, "records of a transaction", "million records/s, read_committed")
    categories(axes, [point["x"] for point in within], lambda value: f"{value:,g}")
    from_zero(axes)
    return figure


WAYS: Final = {"tcp": "TCP", "curve": "TCP with keys (CURVE)"}


def by_connections(points: Points, note: str) -> Figure:
    figure, (left, right) = new_figure("Connections by TCP, values of 1 KiB", 2, note)
    counts = sorted({point["x"] for point in points})
    lines(left, points, "records_per_second", WAYS, 1e-3)
    label(left, "connections", "thousand records/s", "Lists of 32, as much as goes, all together")
    for quantile, style in (("p50", "-"), ("p99", "--")):
        named_so = {way: f"{name}, {quantile}" for way, name in WAYS.items()}
        lines(right, points, f"{quantile}_us", named_so, 1e-3, style)
    right.set_yscale("log")
    plain_log(right.yaxis)
    label(right, "connections", "milliseconds", "A record and its answer, 1,000 records/s in all")
    for axes in (left, right):
        categories(axes, counts, lambda value: f"{value:g}")
        named(axes)
    from_zero(left)
    return figure


def recovery(points: Points, note: str) -> Figure:
    figure, (left, right) = new_figure("Opening a log", 2, note)
    names = {"start": "node, until clients are admitted", "open": "the log alone"}
    for axes, kind, x, title in (
        (left, "clean", "gigabytes of log", "After a clean stop, by size of the log"),
        (right, "killed", "megabytes that no sync had reached", "After a kill, by unsynced tail"),
    ):
        lines(axes, [point for point in points if point["kind"] == kind], "seconds", names)
        label(axes, x, "seconds", title)
        axes.set_xlim(0, 1.06 * axes.dataLim.xmax)
        axes.set_ylim(0, 1.3 * max(point["seconds"] for point in points))
    named(left)
    return figure


EVENTS: Final = {
    "fenced": "the dead broker is fenced",
    "decided": "another controller decides",
    "led_again": "another broker leads",
    "acknowledged": "records are acknowledged again",
    "in_sync": "started again, and in sync",
}


DEATHS: Final = {False: "it led the partition", True: "it was the controller, too"}


def failover(points: Points, note: str) -> Figure:
    kinds = [kind for kind in DEATHS if any(point["was_controller"] == kind for point in points)]
    title = "A leader is killed with -9: what happens when"
    figure, panels = new_figure(title, len(kinds), note)
    latest = 1.3 * max(point["x"] for point in points)
    shown = [name for name in EVENTS if any(point["series"] == name for point in points)]
    for axes, kind in zip(panels, kinds, strict=True):
        own = [point for point in points if point["was_controller"] == kind]
        _events(axes, own, shown, latest)
        label(axes, "seconds after the death (dots: each round, bars: medians)", "", DEATHS[kind])
    for axes in panels[1:]:
        axes.tick_params(labelleft=False)
    return figure


def _events(axes: Axes, points: Points, shown: Sequence[str], latest: float) -> None:
    """Draws a row for each of these events."""
    for row, name in enumerate(reversed(shown)):
        seen = sorted(point["x"] for point in points if point["series"] == name)
        if not seen:
            continue
        colour = COLOURS[row % len(COLOURS)]
        axes.plot(seen, [row] * len(seen), "o", color=colour, alpha=0.35, markersize=7)
        middle = seen[len(seen) // 2]
        axes.plot([middle], [row], "|", color=colour, markersize=20, markeredgewidth=2.5)
        axes.annotate(
            f"{middle:.2f} s", (middle, row), (0, 11), textcoords="offset points", ha="center",
            fontsize=8.5, color=INK,
        )  # fmt: skip
    axes.set_yticks(range(len(shown)), [EVENTS[name] for name in reversed(shown)])
    axes.set_xscale("symlog", linthresh=1.0)
    ticks = [second for second in (0, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if second < latest]
    axes.set_xticks(ticks, [f"{second:g}" for second in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(0, latest)
    axes.set_ylim(-0.6, len(shown) - 0.3)


def plain_log(axis: Axis) -> None:
    """Numbers as numbers on a logarithmic axis: 0.5, 20, 1,000; fewer of them on a long one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_data_interval()
    steps = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
