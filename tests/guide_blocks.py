"""The blocks of the guide's pages: found, run, and compared with what they show.

A fenced block behind `<!-- runs -->` is run, `python` within one namespace a page, `console` by its
lines behind `$ `; one behind `<!-- runs with Spark -->` too, where there is Spark. A `text` block
behind `<!-- prints -->` shows what the Python block before it printed. Times, ids and durations may
differ, and `...` stands for anything. What `penstock serve` began goes on to the end of the page.

A `console` block behind `<!-- runs in a shell -->` is run as it is typed, loops and variables with
it, in one shell a page; what it shows is what comes to stdout.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from cleanup_commands import Afterwards
from cli_runner import COMMAND, call_cli, environment

from penstock.testing import wait_until

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"
RUNS, PRINTS, RUNS_WITH_SPARK = "<!-- runs -->", "<!-- prints -->", "<!-- runs with Spark -->"
RUNS_IN_A_SHELL = "<!-- runs in a shell -->"
MARKS = (RUNS, PRINTS, RUNS_WITH_SPARK, RUNS_IN_A_SHELL)
VOLATILE = re.compile(
    r"\b\d+(?:\.\d+)? (?:us|ms|s)\b"  # durations
    r"|\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b"  # ids, fingerprints of keys
    r"|\bpid \d+|\[\d+\]|\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"  # of a line of the log
    r"|\b\d{16}\b|\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"  # timestamps
    r"| +(?:\d+\.\d [KMG]iB|SIZE|FINGERPRINT)\b"  # room on a disk, and heads of columns
    r"| +768(?: +1\b)?"  # bytes of 100 short records in one batch: a busy machine makes two
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
    pattern = ".*".join(map(re.escape, re.split(r" *\.\.\. *", wanted)))
    assert re.fullmatch(pattern, came.strip(), re.DOTALL), f"{where} shows\n{shown}\nbut\n{came}"


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    """Run it; what it printed. Line numbers in a traceback are those of the page."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with redirect_stdout(out):
        exec(code, namespace)
    return out.getvalue()


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command, its further lines behind `> ` included, with what it shows."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        more = next((n for n, line in enumerate(lines) if n and line[:2] != "> "), len(lines))
        yield "".join([lines[0], *(line[2:] for line in lines[1:more])]), "".join(lines[more:])


def run_command(command: str, url: str | None, started: ExitStack) -> str:
    """What it leaves on a terminal: a penstock command, with something before it whose output it
    reads, or some other program. Fails where one fails."""
    feeder, found, rest = command.rpartition("penstock ")
    assert feeder.endswith("| ") or not feeder, command
    given = shell(feeder.removesuffix("| ")) if feeder else b""
    if not found:
        return shell(command).decode()
    words = list(map(os.path.expanduser, shlex.split(rest, comments=True)))
    if words[0] == "serve":
        return started.enter_context(served(words))
    ran = call_cli(*words, url=url, stdin=given)
    assert ran.code == 0, f"`{command}` exits with {ran.code}: {ran.err}"
    return ran.out.decode() + ran.err


def shell(command: str) -> bytes:
    return subprocess.run(
        ["sh", "-c", command], stdout=subprocess.PIPE, timeout=60, check=True
    ).stdout


@contextmanager
def served(words: list[str]) -> Iterator[str]:
    """A node that runs until its page ends; what it had said when it let clients in."""
    with tempfile.NamedTemporaryFile("r") as log:
        process = subprocess.Popen([*COMMAND, *words], env=environment(), stderr=log.fileno())
        afterwards = Afterwards("true", killed=f"kill {process.pid}")
        try:
            wait_until(
                lambda: "\npenstock serves " in Path(log.name).read_text() or process.poll(),
                30, lambda: f"{words}: {Path(log.name).read_text()}",
            )  # fmt: skip
            assert process.poll() is None, f"{words}: {Path(log.name).read_text()}"
            yield Path(log.name).read_text()
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(45)
            afterwards.now()
        assert code == 0, Path(log.name).read_text()


class Terminal:
    """A shell that keeps variables and jobs from command to command, and ends its jobs as it ends,
    also because this process has ended."""

    _FIRST = "trap 'kill $(jobs -p); wait' EXIT"

    def __init__(self) -> None:
        self._typed = 0
        with ExitStack() as stack:
            self._out, self._errors = (
                stack.enter_context(tempfile.NamedTemporaryFile("r")) for _ in range(2)
            )
            self._shell = subprocess.Popen(
                ["bash"], stdin=subprocess.PIPE, stdout=self._out.fileno(),
                stderr=self._errors.fileno(), env=environment(),
            )  # fmt: skip
            self._kept = stack.pop_all()
        self.type(self._FIRST)

    def type(self, command: str) -> str:
        """What the command writes to stdout; fails where it fails, or does not end."""
        assert self._shell.stdin is not None
        self._typed += 1
        end = re.compile(rf"^end {self._typed} (\d+)\n", re.MULTILINE)
        self._shell.stdin.write(f"{command}\necho end {self._typed} $?\n".encode())
        self._shell.stdin.flush()
        wait_until(
            lambda: end.search(self.read(self._out)), 90,
            lambda: f"{command} ends\n{self.read(self._errors)[-8000:]}",
        )  # fmt: skip
        *_, shown = re.split(r"^end \d+ \d+\n", self.read(self._out), flags=re.MULTILINE)[:-1]
        found = end.search(self.read(self._out))
        assert found is not None
        assert found[1] == "0", f"`{command}`: {shown}\n{self.read(self._errors)[-8000:]}"
        return shown

    @staticmethod
    def read(file: Any) -> str:
        return Path(file.name).read_text()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with self._kept:
            assert self._shell.stdin is not None
            self._shell.stdin.close()
            try:
                self._shell.wait(60)
            finally:
                self._shell.kill()
                self._shell.wait()


def run_page(page: Path, url: str | None, named: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run its blocks in order and compare what they print; the names that its Python has then.

    Args:
        page: the file.
        url: the node that commands talk to; None where the page serves it: the default one.
        named: what to write in the place of names that only a reader has, such as hosts.
    """
    module = ModuleType("guide")  # some libraries look up where a function is from
    namespace = vars(module)
    with ExitStack() as started:
        # Not `patch.dict`, which forgets what a page imports: DuckDB imported twice aborts.
        sys.modules["guide"] = module
        started.callback(sys.modules.pop, "guide")
        terminal: Terminal | None = None
        printed = ""
        for block in run_blocks(page):
            where = f"{page.name}:{block.line}"
            block = _renamed(block, named or {})
            if block.marker == PRINTS:
                assert_shown(block.text, printed, where)
                printed = ""
                continue
            assert not printed, (
                f"{where}: the block above prints what the page does not show: {printed}"
            )
            if block.language == "python":
                printed = run_python(block, page, namespace)
                continue
            assert block.language == "console", where
            if block.marker == RUNS_IN_A_SHELL and terminal is None:
                terminal = started.enter_context(Terminal())
            for command, shown in commands(block):
                if block.marker == RUNS_IN_A_SHELL:
                    assert terminal is not None
                    came = terminal.type(command)
                else:
                    came = run_command(command, url, started)
                if shown or not is_served(command):
                    assert_shown(shown, came, f"{where} `{command}`")
        assert not printed, f"{page.name} does not show what its last block prints: {printed}"
    return namespace


def _renamed(block: Block, named: Mapping[str, str]) -> Block:
    lines = block.lines
    for name, mine in named.items():
        lines = [line.replace(name, mine) for line in lines]
    return block._replace(lines=lines)


def is_served(command: str) -> bool:
    return command.startswith("penstock serve")


def serves(page: Path) -> bool:
    """Whether it starts a node of its own in place of the default one."""
    found = (block for block in run_blocks(page) if block.language == "console")
    return any(is_served(command) for block in found for command, _ in commands(block))


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
