"""The cost of processes: CPU seconds and memory, of one's own process and of others."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from penstock.client.client import Client
from penstock.testing.embedded_cluster import EmbeddedCluster

SERVER_MODULES: Final = "penstock.server."
GATEWAY_MODULE: Final = f"{SERVER_MODULES}gateway.main"


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a process: CPU seconds (user and system, all threads), page faults, and switches
    to another thread of the machine: because it slept, or because it was preempted."""

    cpu_seconds: float
    page_faults: int
    sleeps: int = 0
    preempted: int = 0

    @classmethod
    def now(cls) -> Usage:
        """Returns what this process used so far."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            used.ru_utime + used.ru_stime, used.ru_minflt + used.ru_majflt,
            used.ru_nvcsw, used.ru_nivcsw,
        )  # fmt: skip

    def since(self, earlier: Usage) -> Usage:
        return Usage(
            self.cpu_seconds - earlier.cpu_seconds, self.page_faults - earlier.page_faults,
            self.sleeps - earlier.sleeps, self.preempted - earlier.preempted,
        )  # fmt: skip


def cpu_seconds_of(pids: Mapping[str, int]) -> dict[str, float]:
    """Returns the CPU seconds of other processes; those that are gone are left out."""
    found = {}
    for name, pid in pids.items():
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        found[name] = times.user + times.system
    return found


def differences(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Returns the use between; a process that was replaced meanwhile is counted from zero."""
    used = {}
    for name, value in after.items():
        earlier = before.get(name, 0.0)
        used[name] = round(value - earlier if value >= earlier else value, 3)
    return used


def machine_cpu_seconds() -> float:
    """Returns the CPU seconds that all processes of the machine used so far, and its kernel."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


@dataclass(frozen=True, slots=True)
class Memory:
    """Megabytes (10^6). `private` leaves out what others share: lanes, tables, libraries."""

    resident: float
    private: float


def memory_of(pid: int) -> Memory:
    info = psutil.Process(pid).memory_full_info()
    return Memory(round(info.rss / 1e6, 1), round(info.uss / 1e6, 1))


def server_pids(client: Client) -> dict[str, int]:
    """Returns the node, its writers, and its gateway if it has one."""
    with client.admin() as admin:
        node = admin.describe_node()
    writers = {f"writer-{writer.writer}": writer.pid for writer in node.writers if writer.pid}
    gateway = {"gateway": pid} if node.listen and (pid := _gateway_of(node.pid)) else {}
    return {**writers, **gateway, "node": node.pid}


def broker_pids(cluster: EmbeddedCluster) -> dict[str, int]:
    """Returns the processes of all brokers that run, by the broker's number and their kind."""
    found: dict[str, int] = {}
    for number, node in cluster.nodes.items():
        if not node.is_running:
            continue
        found[f"{number}-node"] = node.pid
        with suppress(psutil.Error):
            for child in psutil.Process(node.pid).children():
                with suppress(psutil.Error):
                    kind = _kind_of(child.cmdline())
                    found[_free_name(f"{number}-{kind}", found)] = child.pid
    return found


def _kind_of(command: list[str]) -> str:
    modules = (word for word in command if word.startswith(SERVER_MODULES))
    return next(modules, "other").removeprefix(SERVER_MODULES).removesuffix(".main")


def _free_name(name: str, taken: Mapping[str, int]) -> str:
    names = (f"{name}-{count}" for count in itertools.count(2))
    return name if name not in taken else next(each for each in names if each not in taken)


def _gateway_of(node: int) -> int | None:
    with suppress(psutil.Error):
        for child in psutil.Process(node).children():
            with suppress(psutil.Error):
                if GATEWAY_MODULE in child.cmdline():
                    return int(child.pid)
    return None
