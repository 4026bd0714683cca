"""Reading the logs of a data folder from their files alone, as the audit wants them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crash.ledgers import Stored, StoredBatch, StoredLog

from penstock.core.columns import decode
from penstock.core.segment import Scan, Stop, list_segments, segment_path
from penstock.core.storage import READ, Storage


def read_log(folder: Path, topic: str, partition: int) -> StoredLog:
    """Every batch and record; AssertionError where a segment holds anything else."""
    storage = Storage()
    log = StoredLog(topic, partition)
    bases: Sequence[int] = list_segments(storage, str(folder))
    offset, order = bases[0] if bases else 0, (0, 0)
    for i, base in enumerate(bases):
        until = bases[i + 1] if i + 1 < len(bases) else None
        path = segment_path(str(folder), base)
        assert base == offset, f"{path}: the segment before ends at {offset}"
        fd = storage.open(path, READ)
        scan = Scan(
            storage, fd, position=0, offset=base, order=order, until=until, bodies=True,
        )  # fmt: skip
        for position, head in scan:
            columns = decode(scan.body(position, head), 0, head)
            log.batches.append(
                StoredBatch(
                    head.base_offset, head.next_offset, head.producer_id, head.producer_epoch,
                    head.base_sequence,
                )
            )  # fmt: skip
            headers = columns.headers() or [()] * columns.count
            log.records.extend(map(Stored, columns.keys, columns.values, headers))
        assert scan.stop in (Stop.END, Stop.ZERO, Stop.LIMIT), f"{path}: {scan.stop} {scan.detail}"
        offset, order = scan.offset, scan.order
        storage.close(fd)
    return log
