"""What Python runs at the start of a node's processes, for tests of hosts that are not well: a wall
clock that is wrong, and a device that syncs slowly.

Python looks for `sitecustomize` along PYTHONPATH, and this checkout goes before it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CLOCK = "PENSTOCK_TEST_CLOCK"
SYNCS = "PENSTOCK_TEST_SYNCS"
_START = f"""
import os, time

def _number(variable):
    with open(os.environ[variable]) as file:
        return float(file.read())

def _wrong(real, unit):
    def read():
        return real() + type(real())(_number("{CLOCK}") * unit)
    return read

def _slow(real):
    def sync(fd):
        time.sleep(_number("{SYNCS}"))
        real(fd)
    return sync

if "{CLOCK}" in os.environ:
    time.time = _wrong(time.time, 1)
    time.time_ns = _wrong(time.time_ns, 1_000_000_000)
if "{SYNCS}" in os.environ:
    os.fdatasync = _slow(os.fdatasync)
"""


class Seconds:
    """A number of seconds in a file, which each process reads when it needs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0.0)

    def set(self, seconds: float) -> None:
        written = self.path.with_name(f"{self.path.name}.new")
        written.write_text(str(seconds))
        written.rename(self.path)


def _altered(folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> Seconds:
    home = folder / "startup"
    home.mkdir(exist_ok=True)
    (home / "sitecustomize.py").write_text(_START)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(home), *(one for one in known if one and one != str(home))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    made = Seconds(folder / variable.lower())
    monkeypatch.setenv(variable, str(made.path))
    return made


def wrong_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """By how much the wall clock of nodes is ahead that start from now on. The test's own clients
    have the right time."""
    return _altered(folder, monkeypatch, CLOCK)


def slow_syncs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """How long each fdatasync takes longer in nodes that start from now on."""
    return _altered(folder, monkeypatch, SYNCS)
