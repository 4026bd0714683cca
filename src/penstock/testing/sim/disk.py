"""A simulated disk: a list of batches of which a prefix is on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from penstock.testing.sim.kernel import Simulation

B = TypeVar("B")


class Disk(Generic[B]):
    """Each batch is there whole or not at all (its checksum says so). A process that dies leaves
    everything appended behind; a power cut any prefix that holds what was synced."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.batches: list[B] = []
        self.synced = 0

    def append(self, batch: B) -> int:
        """Adds a batch; returns the number of batches, which has to be synced for this one."""
        self.batches.append(batch)
        return len(self.batches)

    def sync(self, count: int) -> None:
        self.synced = max(self.synced, min(count, len(self.batches)))

    def power_cut(self) -> int:
        """Cuts the power; returns how many batches were lost."""
        keep = self._sim.random.randint(self.synced, len(self.batches))
        lost = len(self.batches) - keep
        del self.batches[keep:]
        self.synced = keep
        return lost
