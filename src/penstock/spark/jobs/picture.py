"""The picture of a rollup: one panel for each thing that was measured, one line for each topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# Told apart by readers of any colour sight (Okabe and Ito).
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK: Final = "#333333"
FAINT: Final = "#8a8a8a"
MIB: Final = 1 << 20


def needs_matplotlib() -> None:
    """Raises `ConfigError` without matplotlib: before the work, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "a picture wants matplotlib: pip install 'penstock[spark]', or leave --png out"
        ) from error


def draw(rows: Sequence[Row], file: str, window: float) -> None:
    """Writes the picture of a table to a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = panels_of(rows)
    topics = sorted({str(row["topic"]) for row in rows})
    figure = Figure(figsize=(11, 0.6 + 2.2 * len(panels)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{', '.join(topics[:6])}{' ...' if len(topics) > 6 else ''} by {window:g} s, in UTC",
        x=0.01, ha="left", fontsize=13, color=INK, weight="bold",
    )  # fmt: skip
    _fill(figure, rows, topics, panels)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, format="png")


def panels_of(rows: Sequence[Row]) -> list[tuple[str, Callable[[Row], float | None]]]:
    """Returns the panels to draw: title, and a row's height there."""
    panels: list[tuple[str, Callable[[Row], float | None]]] = [
        ("records a second", lambda row: row["records_per_second"]),
        ("MiB a second", lambda row: row["bytes_per_second"] / MIB),
        ("size of 99 % at most, bytes", lambda row: row["size_p99"]),
    ]
    groups = sorted({group for row in rows for group in (row["unread"] or {})})
    panels += [(f"not read by {group}", partial(_unread, group)) for group in groups]
    if any(row["sent"] is not None for row in rows):
        panels.append(("dropped, % of sent", _dropped))
    return panels


def _unread(group: str, row: Row) -> float | None:
    found: Mapping[str, float] = row["unread"] or {}
    return found.get(group)


def _dropped(row: Row) -> float | None:
    return None if row["drop_rate"] is None else 100.0 * float(row["drop_rate"])


def _fill(
    figure: Figure,
    rows: Sequence[Row],
    topics: Sequence[str],
    panels: Sequence[tuple[str, Callable[[Row], float | None]]],
) -> None:
    all_axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, of) in zip(all_axes, panels, strict=True):
        for number, topic in enumerate(topics):
            points = [
                (row["window_start"], height)
                for row in rows
                if row["topic"] == topic and (height := of(row)) is not None
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True), label=topic, drawstyle="steps-post",
                    color=COLOURS[number % len(COLOURS)], linewidth=1.2,
                    marker="o" if len(points) < 3 else None,
                )  # fmt: skip
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    if len(topics) > 1:
        all_axes[0].legend(fontsize=8, frameon=False, labelcolor=FAINT)
