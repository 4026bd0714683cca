"""The role of a partition that has no replicas: leader of itself, committed once appended."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.admission import refused
from penstock.core.errors import ErrorCode
from penstock.core.log import AppendResult
from penstock.ipc.lane import Frame
from penstock.ipc.logrole import LogRole


class AloneRole(LogRole):
    """A partition at replication factor 1. One instance per open partition of a writer process."""

    def replicate(self, frames: Sequence[Frame], now_us: int) -> list[AppendResult]:
        why = f"{self.name} is not replicated"
        return [refused(ErrorCode.UNKNOWN_PARTITION, why)] * len(frames)
