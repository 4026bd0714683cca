"""The guide is true: its blocks run and print what they say, its links lead somewhere, the messages
it explains are in the code, and so are the bounds it lists.

A fenced block behind `<!-- runs -->` is run, `python` within one namespace a page, `console` by its
lines behind `$ `. A `text` block behind `<!-- prints -->` shows what the Python block before it
printed. Times, ids and durations may differ, and `...` stands for anything.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_runner import call_cli, environment

from penstock.cli.app import make_app
from penstock.core import errors
from penstock.embedded import EmbeddedNode
from penstock.ipc import layout
from penstock.server.config import NodeConfig

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
DOCUMENTS = [*PAGES, ARCHITECTURE, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
RUNS, PRINTS = "<!-- runs -->", "<!-- prints -->"
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
    return [block for block in blocks(page) if block.marker in (RUNS, PRINTS)]


def assert_shown(shown: str, came: str, where: str) -> None:
    """`came` is what the page shows, but for what differs from run to run."""
    wanted = VOLATILE.sub("...", shown.strip())
    pattern = ".*".join(map(re.escape, wanted.split("...")))
    assert re.fullmatch(pattern, came.strip(), re.DOTALL), f"{where} shows\n{shown}\nbut\n{came}"


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    """Run it; what it printed. Line numbers in a traceback are those of the page."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
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


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A reader's machine: a home, `python` on the path, and the default node."""
    home, runtime, programs = (tmp_path / name for name in ("home", "run", "bin"))
    for folder in (home, runtime, programs):
        folder.mkdir(mode=0o700)
    (programs / "python").symlink_to(sys.executable)
    places = {
        "HOME": str(home),
        "PENSTOCK_RUNTIME_DIR": str(runtime),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
    }
    for name, value in environment(env=places).items():
        monkeypatch.setenv(name, value)
    data = home / ".local" / "share" / "penstock" / "default"
    with EmbeddedNode(data, arguments=("--name", "default")) as node:
        yield node.url


@pytest.mark.parametrize("page", [page for page in PAGES if run_blocks(page)], ids=lambda p: p.stem)
def test_the_blocks_of_a_page_do_what_they_show(page, url):
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
            printed = run_python(block, page, namespace)
        else:
            assert block.language == "console", where
            for command, shown in commands(block):
                assert_shown(shown, run_command(command, url), f"{where} `{command}`")
    assert not printed, f"{page.name} does not show what its last block prints: {printed}"


def test_every_promised_page_has_blocks_that_run():
    assert {page.stem for page in PAGES if run_blocks(page)} == {
        "README", "asyncio", "at-least-once", "at-most-once", "columns", "exactly-once", "groups",
        "guarantees", "install", "operations", "quickstart", "testing",
    }  # fmt: skip


# --- what pages refer to --------------------------------------------------------------------------
def anchors(page: Path) -> set[str]:
    """The names that headings get, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", head.strip().lower()) for head in heads)
    return {head.replace(" ", "-") for head in kept}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        leads_to = (page.parent / path).resolve() if path else page
        assert leads_to.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(leads_to), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_named_files_and_commands_are_there(page):
    text = page.read_text()
    for path in re.findall(r"`((?:core|ipc|src/penstock|tests|docs)/[\w/.]+)`", text):
        if not path.startswith("docs/benchmarks"):  # written by `make bench`
            assert (ROOT / path).exists(), f"{page.name} names {path}"
    app = make_app()
    known = {command.name for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    for word in re.findall(r"(?:`|\$ |\| )penstock ([a-z]\w*)", text):
        assert word in known, f"{page.name} shows `penstock {word}`"


# --- messages and bounds --------------------------------------------------------------------------
@cache
def messages_of_the_code() -> list[str]:
    """Every string of the source, with a NUL where something is filled in."""
    found = []
    tops = ("core", "ipc", "cluster", "bench", "src")
    files = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0"
                         for part in node.values]  # fmt: skip
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-+0-9.]*[sdrgfx]", "\0", node.value))
    return found


def is_in_the_code(message: str) -> bool:
    """Whether one string of the source has the pieces between `...`, in this order."""
    pieces = [re.escape(piece.strip()) for piece in message.split("...") if piece.strip(" :;,")]
    pattern = re.compile(".*".join(pieces), re.DOTALL)
    return any(pattern.search(text) for text in messages_of_the_code())


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


@pytest.mark.parametrize(
    ("page", "heading"), [("troubleshooting.md", "message"), ("operations.md", "line")]
)
def test_explained_messages_are_in_the_code(page, heading):
    explained = [cell for cell in first_cells(GUIDE / page, heading) if " " in cell]
    assert len(explained) > 15
    unknown = [message for message in explained if not is_in_the_code(message)]
    assert not unknown


def test_explained_errors_are_in_the_code():
    names = re.findall(r"`(\w+(?:Error|Timeout))`", (GUIDE / "troubleshooting.md").read_text())
    builtin = {"ValueError", "TypeError", "TimeoutError"}
    assert [name for name in names if name not in builtin and not hasattr(errors, name)] == []
    codes = set(first_cells(GUIDE / "troubleshooting.md", "`ProduceError.code`"))
    assert codes <= set(errors.ErrorCode.__members__)


def seconds_or_bytes(text: str) -> float | str:
    """`10 s` and `4 MiB` as numbers; other words as they are."""
    number, _, unit = text.replace(",", "").partition(" ")
    factor = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}.get(unit)
    return text if factor is None or not number[:1].isdigit() else float(number) * factor


def test_the_bounds_of_a_node_are_the_ones_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    shown = {name: default for name, default, _ in rows}
    for field in fields(NodeConfig):
        assert field.name in shown, field.name
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert seconds_or_bytes(shown[field.name]) == field.default, field.name


def test_the_fixed_bounds_are_the_ones_of_the_code():
    rows = re.findall(
        r"^\| [^|]+ \| (\d+ [KM]iB|[\d,.]+)[^|]* \| `([\w/.]+)` \(`([A-Z_]+)`",
        ARCHITECTURE.read_text(), re.MULTILINE,
    )  # fmt: skip
    assert len(rows) >= 10
    for value, path, name in rows:
        source = (ROOT / path).read_text()
        match = re.search(rf"^{name}(?:: Final)? = ([^#\n]+)", source, re.MULTILINE)
        assert match, f"{path} has no {name}"
        assert eval(match[1], {"lo": layout}) == seconds_or_bytes(value), name
