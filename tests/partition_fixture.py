"""A partition as its writer keeps it, without a process: a real role on its page, on files in
memory or on disk, and a plain account of what was written and what became of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from store_crash import memory
from unit.core.log_helpers import FOLDER, TOPIC, MemoryStorage, abort, begin, commit

from penstock.client.consumer.partition_cursor import AssignedPartition, Isolation
from penstock.client.consumer.source import LocalSource
from penstock.core.compaction import Compaction, plan_compaction
from penstock.core.encode import encode_batch
from penstock.core.header import ATTR_TRANSACTIONAL, BatchIdentity
from penstock.core.segment import list_segments
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.alone import AloneRole
from penstock.ipc.messages import OpenPartition, TopicSettings
from penstock.ipc.state import StatePage, format_table

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass
class Written:
    """A batch: where it stands, its values, whose it is, and what became of its transaction."""

    offset: int
    values: list[bytes]
    who: tuple[int, int] | None
    state: str = COMMITTED
    is_gone: bool = False


class Partition:
    """A partition with its page, and a plain account of it."""

    def __init__(
        self, segment_bytes: int = 3000, storage: Storage | None = None, folder: str = FOLDER
    ) -> None:
        self.storage = storage or MemoryStorage()
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.boot = self.generation = 1
        self.clock = 1_000_000
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.open_from: dict[int, int] = {}
        self.written: list[Written] = []
        self.count = 0
        self.new_page()
        self.start()

    def new_page(self) -> None:
        fd, self.region = memory(lo.state_table_bytes(4))
        os.close(fd)
        format_table(self.region, bytes(16), 4)
        self.page = StatePage(self.region, 2)

    def start(self) -> None:
        order = OpenPartition(
            2, "t", TOPIC, 0, self.folder, TopicSettings(segment_bytes=self.segment_bytes), False,
            f"boot-{self.boot}",
        )  # fmt: skip
        self.role, _ = AloneRole.open(
            self.storage, order, self.page, generation=self.generation, batch_bytes_max=1 << 16,
            now_us=self.clock,
        )  # fmt: skip

    def append(self, *batches: memoryview) -> list[int]:
        self.clock += 1000
        results = self.role.append(list(batches), self.clock)
        assert not any(result.error for result in results), results
        return [result.base_offset for result in results]

    def write(self, producer: int, count: int) -> None:
        """In the producer's transaction if it has one open."""
        epoch, inside = self.epochs.get(producer, 0), producer in self.open_from
        sequence = self.sequences.get(producer, 0)
        values = [b"%d" % number for number in range(self.count, self.count + count)]
        self.count += count
        image = encode_batch(
            values,
            BatchIdentity(TOPIC, 0, producer, epoch, sequence),
            keys=values,
            base_timestamp=self.clock,
            attributes=ATTR_TRANSACTIONAL if inside else 0,
        ).image()
        (offset,) = self.append(memoryview(image))
        self.sequences[producer] = sequence + count
        who = (producer, epoch) if inside else None
        self.written.append(Written(offset, values, who, OPEN if inside else COMMITTED))

    def begin(self, producer: int) -> None:
        epoch = self.epochs.setdefault(producer, 0)
        (self.open_from[producer],) = self.append(begin(epoch, producer=producer))

    def end(self, producer: int, *, committed: bool) -> None:
        epoch = self.epochs[producer]
        self.append((commit if committed else abort)(epoch, producer=producer))
        self.ended(producer, committed=committed)

    def ended(self, producer: int, *, committed: bool) -> None:
        epoch = self.epochs[producer]
        self.epochs[producer], self.sequences[producer] = epoch + 1, 0
        del self.open_from[producer]
        for one in self.written:
            if one.who == (producer, epoch):
                one.state = COMMITTED if committed else ABORTED

    def sync(self) -> None:
        self.role.request_sync()
        job = self.role.tick(0.0, self.clock)
        if job is not None:
            job.run()
            self.role.finish_sync(job)

    def reader(self, isolation: Isolation, offset: int | None = None) -> AssignedPartition:
        made = AssignedPartition(
            ("t", 0), TOPIC, self.page, LocalSource(self.storage, self.folder), None, isolation
        )
        made.jump(self.page.log_start if offset is None else offset)
        return made

    def read(self, isolation: Isolation) -> list[tuple[int, bytes]]:
        return drained(self.reader(isolation))

    def power_cut(self, chance: Any) -> None:
        """The host goes down and comes back: what was not synced may be gone."""
        assert isinstance(self.storage, MemoryStorage)
        self.storage = self.storage.power_cut(chance)
        self.new_page()
        self.boot += 1
        self.generation += 1
        self.start()
        end, table = self.role.log_end, self.role._log.producers
        self.written = [one for one in self.written if one.offset < end]
        for one in self.written:  # the markers that undid or made them may be gone
            if one.who is not None:
                is_open = table.transactions.get(one.who[0])
                if is_open is not None and is_open.epoch == one.who[1]:
                    one.state = OPEN
        known = {p: table.next_sequence(p) or (0, 0) for p in range(1, 5)}
        self.epochs = {p: epoch for p, (epoch, _) in known.items()}
        self.sequences = {p: sequence for p, (_, sequence) in known.items()}
        opened = [table.transactions.get(p) for p in known]
        self.open_from = {one.producer_id: one.first_offset for one in opened if one is not None}
        assert all(
            one.who is not None and one.who[0] in self.open_from
            for one in self.written
            if one.state == OPEN
        )

    def compact(self, delete_retention: int, keys_max: int = 1000) -> None:
        """Keys are all different: only what was aborted goes, and marks of transactions."""
        self.sync()
        page = self.page
        bound = min(page.high_watermark, page.last_stable, page.durable)
        plan = plan_compaction(
            self.storage, self.folder, list_segments(self.storage, self.folder),
            log_start=page.log_start, bound=bound, now_us=self.clock,
        )  # fmt: skip
        work = Compaction(
            self.storage, plan, self.clock, delete_retention, self.segment_bytes,
            keys_max=keys_max,
        )  # fmt: skip
        for prepared in work.prepare():
            assert self.role.swap(prepared, 0, self.clock).done
        cleaned = [each for each in work.plan.segments if each.base < work.reached]
        end = cleaned[-1].end if cleaned else 0
        for one in self.written:
            one.is_gone |= one.state == ABORTED and one.offset < end

    def trim(self, share: float) -> None:
        """So much of what is there goes."""
        page = self.page
        self.role.trim(page.log_start + int(share * (page.log_end - page.log_start)), self.clock)

    @property
    def stable(self) -> int:
        return max(self.page.log_start, min([self.page.log_end, *self.open_from.values()]))

    def expected(self, committed: bool) -> list[tuple[int, bytes]]:
        """(offset, value) of what a reader is to see from the log start on."""
        start, end = self.page.log_start, self.stable if committed else self.page.log_end
        return [
            (one.offset + i, value)
            for one in self.written
            if one.state == COMMITTED or not (committed or one.is_gone)
            for i, value in enumerate(one.values)
            if start <= one.offset + i < end
        ]


def drained(reader: AssignedPartition) -> list[tuple[int, bytes]]:
    """All that a reader can bring now."""
    found: list[Any] = []
    while reader.has_more:
        before = reader.offset
        chunks = reader.take(None)
        for chunk in chunks:
            columns = chunk.columns
            rows = slice(chunk.start, chunk.stop)
            offsets = columns.offsets[rows].tolist()
            found += zip(offsets, columns.values[rows].to_list(), strict=True)
        assert chunks or reader.offset > before, "it says that there is more, and brings nothing"
    return found
