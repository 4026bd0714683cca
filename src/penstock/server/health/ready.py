"""Finds the reasons why a node is not ready: a judgement over a sample."""

from __future__ import annotations

from typing import Final

from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.observe.processes import STOPPED
from penstock.observe.report import SILENT_AFTER
from penstock.observe.sample import Sample

NAMED_MAX: Final = 20
"""Partitions that are named one by one."""


def missing(sample: Sample, node: ms.NodeDescription) -> list[str]:
    """Returns the reasons; empty if the node is ready. It answers, its coordinator serves (or was
    never needed), every partition takes records and every writer gives signs of life. A broker of a
    cluster need not lead anything, and must not be fenced."""
    found = []
    if node.cluster.get("fenced"):
        found.append("the controller has fenced this broker, or has not heard of it yet")
    if node.coordinator and not node.coordinator.get("serving"):
        found.append("the coordinator does not serve yet: it reads its log")
    found += _writers(sample, node)
    if sample.disk is not None and sample.disk.level == lo.DISK_STOP:
        found.append(f"the disk is full: {sample.disk.free} of {sample.disk.total} bytes are free")
    well = (lo.STATUS_ONLINE, lo.STATUS_FOLLOWING) if node.cluster else (lo.STATUS_ONLINE,)
    ill = [part for part in sample.partitions.values() if part.status not in well]
    found += [
        f"{part.topic}-{part.partition} is {lo.STATUS_NAMES.get(part.status, part.status)}"
        for part in ill[:NAMED_MAX]
    ]
    if len(ill) > NAMED_MAX:
        found.append(f"{len(ill) - NAMED_MAX} more partitions do not take records")
    return found


def _writers(sample: Sample, node: ms.NodeDescription) -> list[str]:
    seen = {writer.writer: writer for writer in sample.writers}
    found = []
    for expected in node.writers:
        writer = seen.get(expected.writer)
        if expected.pid == 0 or writer is None or writer.process is None:
            found.append(f"writer {expected.writer} is not running: its successor starts")
        elif writer.process.state == STOPPED:
            found.append(f"writer {expected.writer} (pid {writer.pid}) is stopped")
        elif writer.silent_for > SILENT_AFTER:
            found.append(
                f"writer {expected.writer} (pid {writer.pid}) has given no sign of life for "
                f"{writer.silent_for:.1f} s"
            )
    return found
