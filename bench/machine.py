"""Facts about the machine that every figure depends on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import penstock
from penstock.bench.errors import BenchError


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


def of_one_machine(results: Iterable[Mapping[str, Any]]) -> None:
    """Raises `BenchError` for results that tell of different machines or versions."""
    found = {tuple(one["machine"][name] for name in ("cpu", "cores", "python", "penstock"))
             for one in results}  # fmt: skip
    if len(found) > 1:
        raise BenchError("the results are of different machines: " + "; ".join(map(str, found)))
