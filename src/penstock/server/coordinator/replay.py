"""Opening a coordinator epoch: the fence is appended, then the log is replayed up to it.

Once the fence is in the log, nothing of an earlier epoch can get in behind it. So the log below it
has everything that was ever decided (rule 17). Reading and decoding happen in a thread, replaying
on the loop in bounded steps. Owns that order. Keeps no state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.cluster.decisions import Record
from penstock.core.errors import CorruptBatchError, PenstockTimeout, StorageError
from penstock.core.plain import decode_records
from penstock.core.reader import Limit, LogReader
from penstock.core.storage import Storage
from penstock.ipc.state import StatePage
from penstock.server.coordinator.decision_log import Journal

STEP_BYTES: Final = 64 << 10
"""Bytes that are replayed before the loop does other work."""
LOOK_AGAIN: Final = 0.01
STUCK_AFTER: Final = 10.0
"""Seconds without any progress in reading what is known to be there."""

FENCE_KEY: Final = msgspec.msgpack.encode(("coordinator",))


async def fence(journal: Journal, boot_id: str, pid: int) -> int:
    """Append the first batch of an epoch and wait for its answer; its offset."""
    value = msgspec.msgpack.encode((journal.epoch, pid, boot_id))
    journal.append([Record(FENCE_KEY, value)], durable=True)
    await journal.settled(durable=False, timeout=None)
    return journal.fence_offset


async def replay(folder: str, state: StatePage, end: int, take: Callable[[Record], None]) -> int:
    """Hand every record below `end` to `take`, in order; how many there were."""
    loop = asyncio.get_running_loop()
    reader = LogReader(Storage(), folder, state.log_start)
    count, stuck_since = 0, time.monotonic()
    try:
        while reader.offset < end:
            before = reader.offset
            step = loop.run_in_executor(None, _step, reader, state, end)
            try:
                found = await asyncio.shield(step)
            except asyncio.CancelledError:
                await asyncio.wait([step])  # it reads what `close` unmaps
                raise
            for record in found:
                take(record)
                count += 1
            if reader.offset > before:
                stuck_since = time.monotonic()
                continue
            if time.monotonic() - stuck_since > STUCK_AFTER:
                raise StorageError(
                    f"the coordinator's log in {folder} could not be read past offset {before} of "
                    f"{end} for {STUCK_AFTER:g} s"
                )
            await asyncio.sleep(LOOK_AGAIN)
    except CorruptBatchError as error:
        raise CorruptBatchError(
            f"the log of the node's coordinator in {folder} cannot be read: {error}. Without it "
            "nothing is known of groups and transactions: bring that folder back from a backup"
        ) from error
    finally:
        reader.close()
    return count


def _step(reader: LogReader, state: StatePage, end: int) -> list[Record]:
    """The records of the next batches."""
    try:
        high_watermark = state.high_watermark
        base, valid_bytes = state.segment()
    except PenstockTimeout:  # its writer died in the middle of a publication
        return []
    limit = Limit(high_watermark, base, valid_bytes, state.log_start)
    found: list[Record] = []
    for batch in reader.fetch(limit, STEP_BYTES):
        for offset, key, value in decode_records(batch.view, batch.position, batch.head):
            if offset < end and key is not None:
                found.append(Record(key, value))
    return found
