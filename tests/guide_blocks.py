"""The blocks of the guide's pages: found, run, and compared with what they show.

A fenced block behind `<!-- runs -->` is run, `python` within one namespace a page, `console` by its
lines behind `$ `; one behind `<!-- runs with Spark -->` too, where there is Spark. A `text` block
behind `<!-- prints -->` shows what the Python block before it printed. Times, ids and durations may
differ, and `...` stands for anything.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from cli_runner import call_cli

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"
RUNS, PRINTS, RUNS_WITH_SPARK = "<!-- runs -->", "<!-- prints -->", "<!-- runs with Spark -->"
MARKS = (RUNS, PRINTS, RUNS_WITH_SPARK)
VOLATILE = re.compile(
    r"\b\d+(?:\.\d+)? (?:us|ms|s)\b"  # durations
    r"|\b[0-9a-f]{32}\b"  # ids
    r"|\b\d{16}\b|\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"  # timestamps
    r"| +(?:\d+\.\d [KMG]iB|SIZE)\b"  # room on a disk, and the head of its column
)


class Block(NamedTuple):
    """A fenced block: the marker above it, its language, its line number, its lines."""

    marker: str
    language: str
    line: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    above, fence = "", None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence is None and line.startswith("```"):
            fence = Block(above, line[3:].strip(), number + 1, [])
        elif fence is not None and line.startswith("```"):
            found.append(fence)
            fence = None
        elif fence is not None:
            fence.lines.append(line)
        above = line.strip()
    assert fence is None, f"{page}: a block is not closed"
    return found


def run_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.marker in MARKS]


def assert_shown(shown: str, came: str, where: str) -> None:
    """`came` is what the page shows, but for what differs from run to run."""
    wanted = VOLATILE.sub("...", shown.strip())
    pattern = ".*".join(map(re.escape, wanted.split("...")))
    assert re.fullmatch(pattern, came.strip(), re.DOTALL), f"{where} shows\n{shown}\nbut\n{came}"


def run_python(block: Block, page: Path, namespace: dict[str, Any], named: dict[str, str]) -> str:
    """Run it; what it printed. Line numbers in a traceback are those of the page."""
    out = io.StringIO()
    text = block.text
    for name, mine in named.items():
        text = text.replace(name, mine)
    code = compile("\n" * (block.line - 1) + text, str(page), "exec")
    with redirect_stdout(out):
        exec(code, namespace)
    return out.getvalue()


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command with what it shows."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def run_command(command: str, url: str) -> str:
    """What it leaves on a terminal: a penstock command, with something before it whose output it
    reads, or some other program. Fails where one fails."""
    feeder, found, rest = command.rpartition("penstock ")
    assert feeder.endswith("| ") or not feeder, command
    given = shell(feeder.removesuffix("| ")) if feeder else b""
    if not found:
        return shell(command).decode()
    ran = call_cli(*map(os.path.expanduser, shlex.split(rest)), url=url, stdin=given)
    assert ran.code == 0, f"`{command}` exits with {ran.code}: {ran.err}"
    return ran.out.decode() + ran.err


def shell(command: str) -> bytes:
    return subprocess.run(
        ["sh", "-c", command], stdout=subprocess.PIPE, timeout=60, check=True
    ).stdout


def run_page(page: Path, url: str, named: dict[str, str] | None = None) -> None:
    """Run its blocks in order and compare what they print. `named`: what to write in the place of
    names that only a reader has, such as the URL of the default node."""
    namespace: dict[str, Any] = {"__name__": "guide"}
    printed = ""
    for block in run_blocks(page):
        where = f"{page.name}:{block.line}"
        if block.marker == PRINTS:
            assert_shown(block.text, printed, where)
            printed = ""
            continue
        assert not printed, (
            f"{where}: the block above prints what the page does not show: {printed}"
        )
        if block.language == "python":
            printed = run_python(block, page, namespace, named or {})
        else:
            assert block.language == "console", where
            for command, shown in commands(block):
                assert_shown(shown, run_command(command, url), f"{where} `{command}`")
    assert not printed, f"{page.name} does not show what its last block prints: {printed}"


def first_cells(page: Path, heading: str) -> list[str]:
    """What stands in backticks in the first column of tables with this heading."""
    found, inside = [], False
    for line in page.read_text().splitlines():
        cells = line.strip("|").split("|")
        if not line.startswith("|"):
            inside = False
        elif cells[0].strip() == heading:
            inside = True
        elif inside:
            found += re.findall(r"`([^`]+)`", cells[0])
    return found
