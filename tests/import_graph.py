"""The imports of the product, as a graph: rooms, arrows that point up, circles; and its drawing.

`python tests/import_graph.py` prints the figures, `--svg FILE` draws the rooms. A room is a package
below `penstock`; an arrow points up where a file imports from a higher floor than its own. Imports
count wherever they are: in functions and under TYPE_CHECKING, too.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = ("core", "ipc", "cluster", "bench")
FLOORS = (
    ("core",),
    ("ipc", "cluster"),
    ("security", "observe", "serializers"),
    ("client",),
    ("server", "database"),
    ("outbox", "dedup", "kombu", "taskiq", "faststream"),
    ("logcheck", "operations"),
    ("testing", "spark", "cli", "console", "demo", "bench"),
)
"""From the ground up. Rooms of one floor may import each other but for `ipc` and `cluster`."""
DOORS = (
    "penstock",
    "penstock.__main__",
    "penstock.aio",
    "penstock.metrics",
    "penstock.otel",
    "penstock.pytest_plugin",
    "penstock.lazily",
    "penstock.version",
)
"""What users import: modules that only name what is elsewhere."""

WIDTH = 860
STOREY = 92

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Each module of the product by its dotted name."""
    found = {}
    folders = {ROOT / "src" / "penstock": "penstock"}
    folders |= {ROOT / name: f"penstock.{name}" for name in TOP_LEVEL}
    for folder, package in folders.items():
        links = {entry for entry in folder.iterdir() if entry.is_symlink()}
        for file in folder.rglob("*.py"):
            if links.isdisjoint(file.parents):
                parts = file.relative_to(folder).with_suffix("").parts
                found[".".join([package, *(part for part in parts if part != "__init__")])] = file
    return found


def graph() -> Graph:
    """Which modules each module imports."""
    known = modules()
    return {name: set(_imported(file, name, known)) for name, file in known.items()}


def _imported(file: Path, name: str, known: dict[str, Path]) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.append(inner if inner in known else node.module)
    return [other for other in found if other in known and other != name]


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and module not in DOORS else "penstock"


def floor_of(room: str) -> int | None:
    return next((level for level, rooms in enumerate(FLOORS) if room in rooms), None)


def upward(edges: Graph) -> list[tuple[str, str]]:
    """Imports from a higher floor, or across between `ipc` and `cluster`."""
    found = []
    for module, others in edges.items():
        room = room_of(module)
        here = floor_of(room)
        for other in others:
            there = floor_of(room_of(other))
            if here is None or there is None:
                continue
            if there > here or {room, room_of(other)} == {"ipc", "cluster"}:
                found.append((module, other))
    return sorted(found)


def circles(edges: Graph) -> list[list[str]]:
    """Modules that import each other, directly or by others (Tarjan's algorithm, iterative)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            module, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in stack:
                    low[module] = min(low[module], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == index[module]:
                    at = stack.index(module)
                    circle = stack[at:]
                    del stack[at:]
                    if len(circle) > 1:
                        found.append(sorted(circle))
    return sorted(found, key=len, reverse=True)


def main() -> None:
    edges = graph()
    rooms = Counter(map(room_of, edges))
    print(f"{len(edges)} modules in {len(rooms)} rooms")
    for room, count in sorted(rooms.items()):
        print(f"  {room:10} {count:4} modules, floor {floor_of(room)}")
    up = upward(edges)
    print(f"{len(up)} arrows up")
    for module, other in up:
        print(f"  {module} -> {other}")
    found = circles(edges)
    print(f"{len(found)} circles")
    for circle in found:
        print(f"  {len(circle)}: {', '.join(circle)}")
    if sys.argv[1:2] == ["--svg"]:
        Path(sys.argv[2]).write_text(drawn(edges))


def drawn(edges: Graph) -> str:
    """The rooms by floor, each with its modules; an arrow's width is the number of its imports."""
    counts = Counter(map(room_of, edges))
    arrows = Counter(
        (room_of(module), room_of(other))
        for module, others in edges.items()
        for other in others
        if room_of(module) != room_of(other) and floor_of(room_of(module)) is not None
    )
    at = {}
    for level, rooms in enumerate(FLOORS):
        for place, room in enumerate(sorted(rooms)):
            x = WIDTH * (place + 1) / (len(rooms) + 1)
            at[room] = (x, STOREY * (len(FLOORS) - level) - STOREY / 2)
    up = {(room_of(module), room_of(other)) for module, other in upward(edges)}
    parts = [
        f'<line x1="{at[a][0]:.0f}" y1="{at[a][1]:.0f}" x2="{at[b][0]:.0f}" y2="{at[b][1]:.0f}" '
        f'stroke="{"#c0392b" if (a, b) in up else "#8fa8bf"}" '
        f'stroke-width="{min(1 + count / 25, 8):.1f}" opacity="0.6"/>'
        for (a, b), count in sorted(arrows.items())
        if a in at and b in at
    ]
    for room, (x, y) in at.items():
        parts.append(
            f'<rect x="{x - 62:.0f}" y="{y - 22:.0f}" width="124" height="44" fill="#eef3f8" '
            f'stroke="#33506b"/><text x="{x:.0f}" y="{y - 2:.0f}">{room}</text>'
            f'<text x="{x:.0f}" y="{y + 15:.0f}" fill="#55708a">{counts[room]} modules</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {STOREY * len(FLOORS)}" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
