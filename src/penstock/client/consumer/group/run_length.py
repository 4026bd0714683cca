"""How many records make a run: about a tenth of a second of the loop's own work.

Between two runs a consumer looks whether it has to let go of a partition or to commit. Fast loops
get whole batches, slow ones a record at a time; nothing is done for each record.
"""

from __future__ import annotations

from typing import Final

RUN_SECONDS: Final = 0.1
GROWTH: Final = 4
"""A run is at most so many times as long as the one before: a loop that slows down is noticed."""
RECORDS_MAX: Final = 1 << 20


class RunPace:
    """Pace of a loop over records. `records` is the length of the next run."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records = 1

    def note(self, records: int, seconds: float) -> None:
        """So many records took the loop so long."""
        grown = min(self.records * GROWTH, RECORDS_MAX)
        if seconds * grown <= RUN_SECONDS * records:
            self.records = grown
        else:
            self.records = max(1, int(records * RUN_SECONDS / seconds))
