"""How the default suite is spread over processes (pytest-xdist, `make test`): most files side by
side, each by one process from its first test to its last; then, with nothing else running, those
that judge how long something takes, or what a processor does meanwhile.

The workers collect tests in the order that `in_stages` gives them; the scheduler hands them out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WORKERS_MAX: Final = 8
TOGETHER: Final = ("tests/spark", "tests/cluster")
"""Folders each of which goes to one process as a whole, before all others: the first one's files
share a machine of Java, and of three brokers there is one set at a time on the machine."""
WAITING: Final = ("tests/crash", "tests/e2e", "tests/interrupts")
"""Folders whose tests wait for processes most of the time. Their files take turns with those that
compute, so that both processors have work from the first file to the last."""
ALONE: Final = {
    "test_e2e_quotas.py": "bytes a second",
}
"""Files, and why nothing may run beside them."""
INTERRUPTS: Final = os.environ.get("PENSTOCK_INTERRUPTS")


def workers_of(processors: int) -> int:
    """A test computes for a third of its time and waits for the rest of it."""
    return min(2 * processors + 4, WORKERS_MAX)


def in_stages(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The order in which tests run, one after the other too."""
    items = list(items)
    kinds: dict[bool, dict[Path, int]] = {True: {}, False: {}}
    for item in items:
        files = kinds[item.nodeid.startswith(WAITING)]
        files.setdefault(item.path, len(files))

    def place(item: pytest.Item) -> tuple[int, float]:
        files = kinds[item.nodeid.startswith(WAITING)]
        stage = 1 if item.path.name in ALONE else -1 if item.nodeid.startswith(TOGETHER) else 0
        return stage, files[item.path] / len(files) if not stage else 0.0

    return sorted(items, key=place)


class TwoStages(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """A worker runs the last test that it has only when it is told what comes after it, or that
    nothing does. So where only files of `ALONE` are left, workers are sent home but for the last
    one, and that gets them once the others are gone."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # in the order of `in_stages`

    def _split_scope(self, nodeid: str) -> str:
        """What one worker gets as a whole."""
        if INTERRUPTS and nodeid.startswith("tests/interrupts/"):
            return nodeid  # a test lasts for minutes there
        found = (folder for folder in TOGETHER if nodeid.startswith(folder))
        return next(found, nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._is_alone() and len(self.nodes) > 1:
            if any(not other.shutting_down for other in self.nodes if other is not node):
                node.shutdown()
            return
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        crashed: str | None = super().remove_node(node)
        for left in self.nodes:
            if self.collection is not None:
                self._reschedule(left)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """A worker that took the place of one that died gets nothing before it has collected."""
        if node in self.registered_collections:
            super()._reschedule(node)

    def _is_alone(self) -> bool:
        return bool(self.workqueue) and Path(next(iter(self.workqueue))).name in ALONE
