"""Computes the offset that a place in a log means at this moment.

Owns the arithmetic, for consumers and admins alike. Reads pages, asks for times, changes nothing.
"""

from __future__ import annotations

from penstock.client.consumer.logs import LogHandle, NodeLogs
from penstock.client.consumer.offsets import Offset
from penstock.core.errors import OffsetOutOfRangeError
from penstock.ipc.waits import Waits


def resolving(
    to: Offset, name: str, logs: NodeLogs, log: LogHandle, here: int, *, committed: bool = False
) -> Waits[int]:
    """Returns the offset that `to` means in the partition `name`, for a reader at `here`. With
    `committed` the partition ends at the last stable offset. Raises `OffsetOutOfRangeError` for an
    exact offset outside the log."""
    page = log.page
    start = page.log_start
    end = page.last_stable if committed else page.high_watermark
    if to.place == "earliest":
        return start
    if to.place == "latest":
        return end
    if to.place == "time":
        found = yield from logs.finding_time(log, to.number, committed=committed)
        return end if found is None else max(found, start)
    if to.place == "exact":
        if not start <= to.number <= end:
            raise OffsetOutOfRangeError(
                f"{name}: offset {to.number} lies outside the log's {start} to {end}"
            )
        return to.number
    offset = {
        "relative": here + to.number,
        "from_start": start + to.number,
        "from_end": end - to.number,
    }[to.place]
    return min(max(offset, start), end)
