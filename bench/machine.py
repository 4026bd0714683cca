"""Facts about the machine that every figure depends on."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

import penstock


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores`: those that this process may run on."""

    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    penstock: str
    date: str

    def as_dict(self) -> dict[str, str | int | float]:
        return asdict(self)


def describe() -> Machine:
    """Describes this machine, now."""
    return Machine(
        cpu_model(),
        len(os.sched_getaffinity(0)),
        round(psutil.virtual_memory().total / 1e9, 1),
        f"{platform.system()} {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        penstock.__version__,
        datetime.now(UTC).date().isoformat(),
    )


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
