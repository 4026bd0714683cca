"""What a place in a log means at this moment, in offsets.

Owns the arithmetic, for consumers and admins alike. Reads pages and indexes, changes nothing.
"""

from __future__ import annotations

from penstock.core.errors import OffsetOutOfRangeError
from penstock.core.reader import Limit, offset_for_timestamp
from penstock.core.storage import Storage
from penstock.offsets import Offset


def resolve(
    to: Offset, name: str, storage: Storage, folder: str, start: int, limit: Limit, here: int
) -> int:
    """The offset that `to` means in the partition `name`, which holds `start` to `limit`, for one
    who stands at `here`. Raises `OffsetOutOfRangeError` for an exact offset outside the log."""
    end = limit.offset
    if to.place == "earliest":
        return start
    if to.place == "latest":
        return end
    if to.place == "time":
        found = offset_for_timestamp(storage, folder, to.number, limit)
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
