"""The cost of a turn of a curve, by the kind of process: who was busy, and how often it slept.

Owns the sums that tell what bends a curve. Never measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Result = dict[str, Any]

KINDS: Final = ("producers", "consumers", "writers", "gateway", "node")
_PREFIXES: Final = {
    "producer-": "producers",
    "consumer-": "consumers",
    "clients-": "producers",
    "writer-": "writers",
}


def kind_of(name: str) -> str:
    """Returns the kind of a process by its name in a result."""
    for prefix, kind in _PREFIXES.items():
        if name.startswith(prefix):
            return kind
    return name


def by_kind(found: Mapping[str, float]) -> dict[str, float]:
    """Adds up the values of processes of one kind."""
    sums: dict[str, float] = {}
    for name, value in found.items():
        kind = kind_of(name)
        sums[kind] = sums.get(kind, 0) + value
    return sums


def cost_of(result: Mapping[str, Any], seconds: float) -> Result:
    """Returns what the processes of a measured part of `seconds` used: cores (CPU seconds a
    second) by kind and of all others on the machine, microseconds of CPU a record, records a batch,
    sleeps and preemptions of clients and page faults a thousand records. A field is left out where
    the result does not tell it."""
    cpu, records = by_kind(result["cpu_seconds"]), result["records"]
    told: Result = {
        "cores": {kind: round(used / seconds, 3) for kind, used in cpu.items()},
        "us": {kind: round(1e6 * used / records, 3) for kind, used in cpu.items()},
    }
    if (everything := result.get("machine_cpu_seconds")) is not None:
        told["others"] = round(max(0.0, everything - sum(cpu.values())) / seconds, 3)
    if metrics := result.get("producer_metrics"):
        told["batch"] = round(metrics["records"] / max(1, metrics["batches"]), 1)
    for name in ("sleeps", "preempted", "page_faults"):
        if name in result:
            told[name] = round(1000 * sum(result[name].values()) / records, 2)
    return told
