"""Keyed batches, and a cleaner that runs to its end, for the tests of compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batch_bytes import identified
from unit.core.log_helpers import FOLDER, TOPIC, MemoryStorage, open_log

from penstock.core.columns import decode
from penstock.core.compaction import Compaction, Stats, plan_compaction
from penstock.core.encode import encode_batch
from penstock.core.header import ATTR_CONTROL
from penstock.core.log import Log, LogConfig
from penstock.core.segment import list_segments

CONFIG = LogConfig(
    segment_bytes=2048, index_interval_bytes=256, preallocate_bytes=512, batch_bytes_max=1 << 20
)
Pair = tuple[bytes | None, bytes | None]


def keyed(pairs: Sequence[Pair], sequence: int = 0, producer: int = 1, **more: Any) -> memoryview:
    """A sealed batch of (key, value) pairs."""
    options: dict[str, Any] = {
        "base_timestamp": 1_000,
        "topic_id": TOPIC,
        "partition": 0,
        "producer_id": producer,
        "base_sequence": sequence,
        **more,
    }
    keys = [key for key, _ in pairs]
    if any(key is not None for key in keys):
        options["keys"] = keys
    return memoryview(encode_batch([value for _, value in pairs], **identified(**options)).image())


class Keyed:
    """A log of keyed records with producers that count their own sequences."""

    def __init__(self, storage: MemoryStorage | None = None, **options: Any) -> None:
        self.storage = storage or MemoryStorage()
        self.log, _ = open_log(self.storage, **{"config": CONFIG, **options})
        self.at = 1_000_000

    def put(self, *pairs: Pair, producer: int = 1, **more: Any) -> int:
        """Append one batch; its base offset."""
        _, sequence = self.log.producers.next_sequence(producer) or (0, 0)
        self.at += 1_000
        batch = keyed(pairs, sequence, producer, **more)
        (result,) = self.log.append([batch], self.at)
        assert not result.error, result
        return result.base_offset

    def close_segment(self) -> None:
        self.log.roll(self.at)
        self.log.sync()


def records(log: Log, start: int | None = None) -> dict[int, Pair]:
    """Offset -> (key, value) of all that can be read, log start respected."""
    found: dict[int, Pair] = {}
    start = log.log_start if start is None else start
    for head, data in log.read(start, 1 << 40):
        if not head.record_count or head.attributes & ATTR_CONTROL:
            continue
        columns = decode(memoryview(data), 0, head)
        for offset, key, value in zip(
            columns.offsets.tolist(), columns.keys, columns.values, strict=True
        ):
            if offset >= start:
                assert offset not in found
                found[offset] = key, value
    return found


def newest(found: dict[int, Pair]) -> dict[int, Pair]:
    """What compaction must leave of these."""
    last = {key: offset for offset, (key, _) in sorted(found.items()) if key is not None}
    return {o: pair for o, pair in found.items() if pair[0] is None or last[pair[0]] == o}


def compaction(
    storage: MemoryStorage, log: Log, *, now_us: int = 0, delete_retention_us: int = 0,
    bound: int | None = None, **more: Any,
) -> Compaction:  # fmt: skip
    plan = plan_compaction(
        storage,
        FOLDER,
        list_segments(storage, FOLDER),
        log_start=log.log_start,
        bound=log.durable if bound is None else bound,
        now_us=now_us,
    )
    options = {"segment_bytes": 2048, "index_interval_bytes": 256, **more}
    return Compaction(storage, plan, now_us, delete_retention_us, **options)


def compact(storage: MemoryStorage, log: Log, **options: Any) -> Stats:
    """One pass, every part of it swapped."""
    work = compaction(storage, log, **options)
    for prepared in work.prepare():
        assert log.swap(prepared)
    return work.stats
