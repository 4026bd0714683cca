"""A scratch copy of the repository, in which one fault at a time is planted and its tests run.

`PYTHONPATH` names the copy's `src`, so that the tests and every process they start import the copy.
Bytecode is kept from fault to fault, but that of the file that changed.

Owns the copy, the processes and the shared memory that its tests leave.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mutants.catalogue import ROOT, Mutant

from penstock.core.errors import ConfigError
from penstock.ipc.shm import unlink_all

LEFT_OUT: Final = (
    *(".git", ".venv", "build", "dist", "*.egg-info"),
    *(".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
)
TEST_SECONDS_MAX: Final = 60
RUN_SECONDS_MAX: Final = 240
SEED: Final = "20"
"""Of hypothesis and of the simulators: a fault is found in each run or in none."""

FOUND: Final = "found"
SURVIVED: Final = "survived"
BROKEN: Final = "broken"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run of pytest. `by` is the first test that failed, or what happened."""

    verdict: str
    by: str
    seconds: float
    failed: tuple[str, ...] = ()
    output: str = ""


class Scratch:
    """Runs tests in one copy, one run at a time."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.tree = folder / "tree"
        self._temporary = folder / "t"
        self._said = folder / "said"
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(root, self.tree, symlinks=True, ignore=ignored)
        self._child: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def end(self) -> None:
        """Run nothing more: what runs is killed. May be called from another thread."""
        self._is_over = True
        child = self._child
        if child is not None and child.poll() is None:
            child.kill()

    def run_with(self, mutant: Mutant) -> Outcome:
        """Plant a fault, run its tests until one fails, take the fault out."""
        path = self.tree / mutant.file
        stat, original = path.stat(), path.read_bytes()
        try:
            self._put(path, mutant.applied(self.tree).encode())
            return self.run(mutant.tests, stop_early=True)
        finally:
            self._put(path, original)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    @staticmethod
    def _put(path: Path, content: bytes) -> None:
        """Bytecode is compared by whole seconds and lengths, so that of before has to go."""
        path.write_bytes(content)
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()

    def run(self, tests: tuple[str, ...], *, stop_early: bool = False) -> Outcome:
        """Run these tests on the tree as it is."""
        if self._is_over:
            return Outcome(BROKEN, "interrupted", 0.0)
        self._temporary.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.tree / "src"),
            "TMPDIR": str(self._temporary),
            "PENSTOCK_DAY": SEED,
            "PENSTOCK_SEED": SEED,
        }
        command = [
            *(sys.executable, "-m", "pytest", "-n0", "-q", "-rfE", "--tb=short"),
            *("-p", "no:cacheprovider", "-o", "addopts=--strict-markers", "-m", "not bench"),
            *(f"--basetemp={self._temporary / 'p'}", f"--timeout={TEST_SECONDS_MAX}"),
            *(f"--hypothesis-seed={SEED}", *(["-x"] if stop_early else []), *tests),
        ]
        began, code = time.monotonic(), None
        with self._said.open("w+b") as said:
            child = self._child = subprocess.Popen(
                command,
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = child.wait(RUN_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            finally:
                self._clear_away()
            said.seek(0)
            text = said.read().decode(errors="replace")
        return _judged(code, text, time.monotonic() - began)

    def _clear_away(self) -> None:
        """Faulty nodes outlive their tests: processes that name the copy end, and what they had in
        shared memory goes."""
        wanted = os.fsencode(self._temporary)
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with contextlib.suppress(OSError):
                    if wanted in Path(f"/proc/{entry}/cmdline").read_bytes():
                        os.kill(int(entry), signal.SIGKILL)
        for identity in self._temporary.rglob("node.json"):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, ConfigError):
                unlink_all(str(json.loads(identity.read_bytes())["uuid"]))
        shutil.rmtree(self._temporary, ignore_errors=True)


def _judged(code: int | None, said: str, seconds: float) -> Outcome:
    failed = tuple(
        line.split(" ", 1)[1].partition(" - ")[0]
        for line in said.splitlines()
        if line.startswith(("FAILED ", "ERROR ")) and "::" in line
    )
    if code is None:
        return Outcome(FOUND, f"no end within {RUN_SECONDS_MAX} s", seconds, failed, said)
    if code == 0:
        return Outcome(SURVIVED, "", seconds, failed, said)
    if code < 0:
        return Outcome(FOUND, f"the tests ended by signal {-code}", seconds, failed, said)
    if code == 1:
        return Outcome(FOUND, failed[0] if failed else "a test that ran too long", seconds, failed,
                       said)  # fmt: skip
    return Outcome(BROKEN, f"pytest ended with status {code}", seconds, failed, said)
