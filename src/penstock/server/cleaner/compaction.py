"""Compaction of one partition, as the cleaner sees to it: due? prepare, and ask for each swap.

Whether it is due is found out without numpy, which is loaded with the first one that is. Owns that
question and the order of a pass. Leaves the choice of records to `core.compaction` and the swaps to
the writer.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

from penstock.core.logconfig import LogConfig
from penstock.core.storage import Storage
from penstock.core.swapping import CLEANED_SUFFIX, Prepared, is_half_written, load_cleaned_to
from penstock.ipc import messages as ms
from penstock.server.cleaner.retention import CleanedPartition, held

logger = logging.getLogger("penstock.cleaner")

DIRTY_RATIO: Final = 0.5
_LEFT: Final = re.compile(r"(\d{20})\..*" + re.escape(CLEANED_SUFFIX))

Swap = Callable[[ms.SwapSegments], ms.Cleaned]


def settle(partition: CleanedPartition, storage: Storage, swap: Swap) -> None:
    """Drop what a cleaner that died, or that did not learn what became of an order, left behind.

    The writer does it, behind the orders that it still has: it may be about to use these files.
    """
    names = storage.listdir(partition.folder)
    for name in names:
        if is_half_written(name):  # no writer ever looks at these
            storage.unlink(f"{partition.folder}/{name}")
    found = (_LEFT.fullmatch(name) for name in names)
    for base in sorted({int(match[1]) for match in found if match}) or [0]:
        swap(_order(partition, ms.CleanedSegment(base, base, 0, []), 0))
    partition.is_settled = True


def compact(
    partition: CleanedPartition,
    storage: Storage,
    swap: Swap,
    pace: Callable[[int], None],
    now_us: int,
) -> None:
    """Compact what is due, the writer swapping it in. `now_us` judges what is old. Raises what the
    node refuses with, and `StorageError`, `CorruptBatchError` for files that cannot be read or
    written."""
    settings, page = partition.topic.settings, partition.page
    start, bases = page.log_start, partition.bases(storage)
    if len(bases) < 2:
        return
    bound = min(page.high_watermark, page.last_stable, page.durable)
    dirty_from = max(start, load_cleaned_to(storage, partition.folder))
    state = (bases[-1], dirty_from, bound >= bases[-1], settings)
    if bases[-1] <= dirty_from or partition.not_due == state:
        return
    from penstock.core.compaction import Compaction, plan_compaction

    plan = plan_compaction(
        storage, partition.folder, bases, log_start=start, bound=bound, now_us=now_us,
        min_lag_us=round((settings.min_compaction_lag or 0.0) * 1e6),
    )  # fmt: skip
    ratio = DIRTY_RATIO if settings.min_dirty_ratio is None else settings.min_dirty_ratio
    if not plan.dirty_bytes or plan.dirty_ratio < ratio:
        partition.not_due = None if settings.min_compaction_lag else state
        return
    # Other brokers read the stamp, too: it follows the wall clock, where that is ahead.
    ahead_us = max(0, time.time_ns() // 1000 - now_us)
    work = Compaction(
        storage, plan, now_us,
        delete_retention_us=ahead_us + round(settings.tombstones_kept * 1e6),
        segment_bytes=settings.segment_bytes or LogConfig().segment_bytes,
        pace=pace,
    )  # fmt: skip
    if not partition.is_settled:
        settle(partition, storage, swap)
    partition.is_settled = False  # until every order of this pass has been answered
    begun, dropped, freed = time.monotonic(), 0, 0
    for prepared in work.prepare():
        records, dropped = work.stats.records_dropped - dropped, work.stats.records_dropped
        sources = [source.base for source in prepared.sources]
        with held(storage, partition.folder, sources):
            answer = swap(_order(partition, _travelling(prepared), records))
        if not answer.done:
            logger.info("%s: the log has changed under the compaction: it begins again", partition)
            break
        freed += answer.freed
    partition.is_settled = True
    partition.forget()
    stats = work.stats
    logger.info(
        "%s: compacted below offset %d: %d of %d records stay, %d bytes are free, %d tombstones "
        "went, %d records were aborted, %d have no key; %d bytes read and %d written in %.1f s",
        partition, work.reached, stats.records_kept, stats.records_read, freed,
        stats.tombstones_dropped, stats.records_aborted, stats.keyless, stats.bytes_read,
        stats.bytes_written,
        time.monotonic() - begun,
    )  # fmt: skip


def _order(
    partition: CleanedPartition, segment: ms.CleanedSegment, records: int
) -> ms.SwapSegments:
    topic = partition.topic
    return ms.SwapSegments(topic.name, partition.number, topic.topic_id, segment, records)


def _travelling(prepared: Prepared) -> ms.CleanedSegment:
    sources = [(each.base, each.position, each.header_crc) for each in prepared.sources]
    return ms.CleanedSegment(prepared.base, prepared.end, prepared.length, sources)
