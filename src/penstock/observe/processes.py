"""Reads a process's state, processor time, memory and command line from /proc."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
COMMAND_MAX: Final = 200
STOPPED: Final = "T"
STATES: Final = {
    "R": "running", "S": "sleeping", "D": "in the device", "T": "stopped", "t": "traced",
    "Z": "dead", "X": "dead", "I": "idle",
}  # fmt: skip


class Process(NamedTuple):
    """A process at one moment. `cpu` in seconds since its start, `rss` in bytes."""

    pid: int
    state: str
    start_time: int
    cpu: float
    rss: int

    @property
    def state_name(self) -> str:
        return STATES.get(self.state, self.state)


def look_at(pid: int, start_time: int | None = None) -> Process | None:
    """Returns the process of that pid (and start time); None when it is gone or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The command is in parentheses and may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    state, started = fields[0].decode("ascii"), int(fields[19])
    if state in "ZX" or start_time not in (None, started):
        return None
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    return Process(pid, state, started, cpu, int(fields[21]) * _PAGE)


def uptime(process: Process) -> float:
    """Returns the seconds since its start."""
    with open("/proc/uptime", encoding="ascii") as file:
        return max(0.0, float(file.read().split()[0]) - process.start_time / _TICKS)


def command_of(pid: int) -> str:
    """Returns its command line for people, the program without its folder; empty when it cannot be
    read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return ""
    texts = [word.decode("utf-8", "replace") for word in words if word]
    if texts:
        texts[0] = os.path.basename(texts[0])
    return " ".join(" ".join(texts).split())[:COMMAND_MAX]
