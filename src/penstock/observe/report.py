"""The difference between two samples of a node: rates, lags and faults, as rows to be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.ipc import layout as lo
from penstock.observe.ages import Ages, LogPosition
from penstock.observe.processes import STOPPED, uptime
from penstock.observe.sample import (
    ConsumerSample,
    LaneSample,
    Observer,
    PartitionSample,
    Sample,
    WriterSample,
)

SILENT_AFTER: Final = 2.0
"""Seconds without a heartbeat after which a writer is called silent; idle ones beat twice a
second."""
NEVER: Final = PartitionSample._make(["", "", *[0] * 17, [], [], 0])


class LogRow(msgspec.Struct):
    """A partition, or all partitions of a topic together (`partition` is None)."""

    topic: str
    partition: int | None
    partitions: int
    status: str
    writer: int | None
    records_per_second: float
    bytes_per_second: float
    batches_per_second: float
    log_start: int | None
    log_end: int | None
    high_watermark: int | None
    records_held: int
    uncommitted: int
    undurable: int
    consumers: int
    lag: int | None
    lag_seconds: float | None
    duplicates: int
    refusals: int
    throttles: int


class Standing(msgspec.Struct):
    """A consumer in one partition. `lag` counts what the last poll brought as not done."""

    topic: str
    partition: int
    position: int
    lag: int
    lag_seconds: float | None


class ConsumerRow(msgspec.Struct):
    """A consumer. `drain_seconds`: when its lag is gone if it goes on like this."""

    pid: int
    command: str
    state: str
    topics: list[str]
    assigned: int
    records_per_second: float
    lag: int
    lag_seconds: float | None
    drain_seconds: float | None
    positions: list[Standing]
    skipped: int = 0
    """Records that its `latest_only` left out."""
    poll_seconds: float | None = None
    """Seconds since it last looked for records."""


class ProducerRow(msgspec.Struct):
    """A producer with all its lanes. `lane_use`: of its fullest lane, 0 to 1."""

    producer_id: int
    pid: int
    command: str
    state: str
    lanes: int
    lane_use: float
    bytes_waiting: int
    bytes_per_second: float
    batches_per_second: float
    dropped: int
    """Records that its own `on_full` gave up."""


class WriterRow(msgspec.Struct):
    """A writer process. `cpu`: 1.0 is one core."""

    writer: int
    pid: int
    state: str
    generation: int
    restarts: int
    heartbeat_age: float
    cpu: float | None
    rss: int | None
    partitions: int
    passes_per_second: float


class CleanerRow(msgspec.Struct):
    """The cleaner process. `runs` and `errors` are counted since the shared tables were made."""

    pid: int
    state: str
    heartbeat_age: float
    cpu: float | None
    rss: int | None
    runs: int
    errors: int


class DiskRow(msgspec.Struct):
    """Room on the disk of the data folder, as the node last saw it, in bytes."""

    level: str
    free: int
    total: int


class NodeRow(msgspec.Struct):
    """The node process. `pid` is None while there is none."""

    pid: int | None
    state: str
    data_folder: str
    cpu: float | None
    rss: int | None
    uptime: float | None


class Report(msgspec.Struct):
    """All of it. `interval`: seconds between the two looks."""

    time: float
    interval: float
    node: NodeRow
    warnings: list[str]
    total: LogRow
    topics: list[LogRow]
    partitions: list[LogRow]
    consumers: list[ConsumerRow]
    producers: list[ProducerRow]
    writers: list[WriterRow]
    cleaner: CleanerRow | None = None
    disk: DiskRow | None = None


class Reporter:
    """Makes reports of one observer. `chosen` says of which topics; others are left out.

    With `by_partition` the report has a row for each partition as well.
    """

    def __init__(
        self,
        observer: Observer,
        chosen: Callable[[str], bool] = lambda topic: True,
        *,
        by_partition: bool = False,
    ) -> None:
        self._observer = observer
        self._chosen = chosen
        self._by_partition = by_partition
        self._ages = Ages()

    def take(self) -> Sample:
        """Takes a sample, and learns the ages of records from it."""
        sample = self._observer.sample()
        self._ages.follow(sample)
        return sample

    def compare(self, before: Sample, after: Sample, **ages: float) -> Report:
        """Returns the report of the time between two samples. `budget` bounds the look-ups
        of ages."""
        seconds = max(after.at - before.at, 1e-6)
        parts = {page: part for page, part in after.partitions.items() if self._chosen(part.topic)}
        consumers = self._consumers(before, after, parts, seconds, ages)
        by_page: dict[tuple[str, int], list[Standing]] = {}
        for consumer in consumers:
            for standing in consumer.positions:
                by_page.setdefault((standing.topic, standing.partition), []).append(standing)
        rows: dict[str, list[LogRow]] = {}
        for page, part in parts.items():
            row = _log_row(part, _same(before.partitions.get(page), part), seconds)
            _add_lag(row, by_page.get((part.topic, part.partition), []))
            rows.setdefault(part.topic, []).append(row)
        writers = [_writer_row(writer, before, after, seconds) for writer in after.writers]
        topics = [_sum(name, found) for name, found in rows.items()]
        for topic in topics:
            topic.consumers = sum(topic.topic in consumer.topics for consumer in consumers)
        everything = [row for found in rows.values() for row in found]
        total = _sum("", everything)
        total.consumers = len(consumers)
        warnings = _warnings(after, everything)
        if after.partitions and not parts:
            warnings.append("no topic has a name that was asked for")
        return Report(
            time=after.time,
            interval=seconds,
            node=self._node_row(before, after, seconds),
            warnings=warnings,
            total=total,
            topics=topics,
            partitions=everything if self._by_partition else [],
            consumers=consumers,
            producers=self._producers(before, after, seconds),
            writers=writers,
            cleaner=_cleaner_row(before, after, seconds),
            disk=_disk_row(after),
        )

    def _node_row(self, before: Sample, after: Sample, seconds: float) -> NodeRow:
        node, old = after.node, before.node
        folder = str(self._observer.place.folder)
        if node is None:
            return NodeRow(None, "gone", folder, None, None, None)
        cpu = None
        if old is not None and old.start_time == node.start_time:
            cpu = (node.cpu - old.cpu) / seconds
        return NodeRow(node.pid, node.state_name, folder, cpu, node.rss, uptime(node))

    # --- consumers ---
    def _consumers(
        self,
        before: Sample,
        after: Sample,
        parts: dict[int, PartitionSample],
        seconds: float,
        ages: dict[str, float],
    ) -> list[ConsumerRow]:
        places: dict[tuple[int, int], LogPosition] = {}
        for consumer in after.consumers:
            for page, offset in consumer.positions:
                part = parts.get(page)
                if part is not None and offset < part.high_watermark:
                    places[consumer.slot, page] = LogPosition(
                        consumer.slot,
                        (part.topic_id, part.partition),
                        self._observer.folder(part),
                        max(offset, part.log_start),
                    )
        times = self._ages.times(places.values(), **ages)
        known = {
            key: max(0.0, after.time - times[place])
            for key, place in places.items()
            if place in times
        }
        old = {consumer.slot: consumer for consumer in before.consumers}
        rows = []
        for consumer in after.consumers:
            same = old.get(consumer.slot)
            if same is None or (same.pid, same.start_time) != (consumer.pid, consumer.start_time):
                same = consumer
            row = self._consumer_row(consumer, same, before, parts, seconds, known)
            if row.positions or not consumer.positions:
                rows.append(row)
        return rows

    def _consumer_row(
        self,
        consumer: ConsumerSample,
        old: ConsumerSample,
        before: Sample,
        parts: dict[int, PartitionSample],
        seconds: float,
        known: dict[tuple[int, int], float],
    ) -> ConsumerRow:
        was = dict(old.positions)
        standings, moved, lag_before = [], 0, 0
        for page, offset in consumer.positions:
            part = parts.get(page)
            if part is None:
                continue
            lag = max(0, part.high_watermark - offset)
            standings.append(
                Standing(
                    part.topic, part.partition, offset, lag,
                    known.get((consumer.slot, page)) if lag else 0.0,
                )
            )  # fmt: skip
            start = was.get(page, offset)
            moved += max(0, offset - start)
            end = before.partitions.get(page, part).high_watermark
            lag_before += max(0, end - start)
        lag = sum(standing.lag for standing in standings)
        shrinks = (lag_before - lag) / seconds
        return ConsumerRow(
            pid=consumer.pid,
            command=self._observer.command(consumer.pid, consumer.start_time),
            state=_consumer_state(consumer),
            topics=sorted({standing.topic for standing in standings}),
            assigned=consumer.assigned,
            records_per_second=moved / seconds,
            lag=lag,
            lag_seconds=_most(standing.lag_seconds for standing in standings),
            drain_seconds=0.0 if not lag else lag / shrinks if shrinks > 0 else None,
            positions=standings,
            skipped=consumer.skipped,
            poll_seconds=_since(consumer.polled, before.at + seconds),
        )

    # --- producers ---
    def _producers(self, before: Sample, after: Sample, seconds: float) -> list[ProducerRow]:
        old = {lane.name: lane for lane in before.lanes}
        lanes: dict[int, list[LaneSample]] = {}
        for lane in after.lanes:
            lanes.setdefault(lane.producer_id, []).append(lane)
        rows = []
        for producer_id, found in lanes.items():
            first = found[0]
            state = "closed" if all(lane.closed for lane in found) else "attached"
            rows.append(
                ProducerRow(
                    producer_id=producer_id,
                    pid=first.pid,
                    command=self._observer.command(first.pid, first.start_time),
                    state=state if first.alive else "dead",
                    lanes=len(found),
                    lane_use=max(lane.used / lane.capacity for lane in found),
                    bytes_waiting=sum(lane.used for lane in found),
                    bytes_per_second=sum(
                        lane.tail - old.get(lane.name, lane).tail for lane in found
                    )
                    / seconds,
                    batches_per_second=sum(
                        lane.batches - old.get(lane.name, lane).batches for lane in found
                    )
                    / seconds,
                    dropped=after.dropped.get(producer_id, 0),
                )
            )
        return rows


def _same(old: PartitionSample | None, new: PartitionSample) -> PartitionSample:
    """Returns the earlier state of the page, if it was the same partition's; a new one has come
    from 0."""
    if old is None or old.topic_id != new.topic_id:
        return NEVER
    return old if old.records <= new.records else NEVER  # the tables were made again


def _log_row(new: PartitionSample, old: PartitionSample, seconds: float) -> LogRow:
    return LogRow(
        topic=new.topic,
        partition=new.partition,
        partitions=1,
        status=lo.STATUS_NAMES.get(new.status, str(new.status)),
        writer=new.writer,
        records_per_second=(new.records - old.records) / seconds,
        bytes_per_second=(new.bytes - old.bytes) / seconds,
        batches_per_second=(new.batches - old.batches) / seconds,
        log_start=new.log_start,
        log_end=new.log_end,
        high_watermark=new.high_watermark,
        records_held=max(0, new.log_end - new.log_start),
        uncommitted=max(0, new.log_end - new.high_watermark),
        undurable=max(0, new.log_end - new.durable),
        consumers=0,
        lag=None,
        lag_seconds=None,
        duplicates=new.duplicates,
        refusals=new.refusals,
        throttles=new.throttles,
    )


def _add_lag(row: LogRow, standings: list[Standing]) -> None:
    """Adds the largest lag of its consumers."""
    row.consumers = len(standings)
    row.lag = max((standing.lag for standing in standings), default=None)
    row.lag_seconds = _most(standing.lag_seconds for standing in standings)


def _sum(topic: str, rows: list[LogRow]) -> LogRow:
    """Sums several partitions in one row; their lags are added, their lags in seconds are not."""
    lags = [row.lag for row in rows if row.lag is not None]
    ill = [row.status for row in rows if row.status != "online"]
    return LogRow(
        topic=topic,
        partition=None,
        partitions=len(rows),
        status=ill[0] if ill else "online",
        writer=None,
        records_per_second=sum(row.records_per_second for row in rows),
        bytes_per_second=sum(row.bytes_per_second for row in rows),
        batches_per_second=sum(row.batches_per_second for row in rows),
        log_start=None,
        log_end=None,
        high_watermark=None,
        records_held=sum(row.records_held for row in rows),
        uncommitted=sum(row.uncommitted for row in rows),
        undurable=sum(row.undurable for row in rows),
        consumers=0,
        lag=sum(lags) if lags else None,
        lag_seconds=_most(row.lag_seconds for row in rows),
        duplicates=sum(row.duplicates for row in rows),
        refusals=sum(row.refusals for row in rows),
        throttles=sum(row.throttles for row in rows),
    )


def _consumer_state(consumer: ConsumerSample) -> str:
    if not consumer.alive:
        return "dead"
    if consumer.stopped:
        return "stopped"
    return "waiting" if consumer.asleep else "busy"


def _since(polled: int, now: float) -> float | None:
    return max(0.0, now - polled / 1e6) if polled else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _writer_row(new: WriterSample, before: Sample, after: Sample, seconds: float) -> WriterRow:
    old = next(
        (
            writer
            for writer in before.writers
            if (writer.writer, writer.generation) == (new.writer, new.generation)
        ),
        new,
    )
    process = new.process
    state = "dead" if process is None else process.state_name
    if process is not None and process.state != STOPPED and new.silent_for > SILENT_AFTER:
        state = "silent"
    cpu = None
    if process is not None and old.process is not None:
        cpu = (process.cpu - old.process.cpu) / seconds
    return WriterRow(
        writer=new.writer,
        pid=new.pid,
        state=state,
        generation=new.generation,
        restarts=new.restarts,
        heartbeat_age=new.silent_for,
        cpu=cpu,
        rss=process.rss if process is not None else None,
        partitions=sum(part.writer == new.writer for part in after.partitions.values()),
        passes_per_second=(new.passes - old.passes) / seconds,
    )


def _cleaner_row(before: Sample, after: Sample, seconds: float) -> CleanerRow | None:
    state, process, old = after.cleaner, after.cleaner_process, before.cleaner_process
    if state is None:
        return None
    cpu = None
    if process is not None and old is not None and old.start_time == process.start_time:
        cpu = (process.cpu - old.cpu) / seconds
    return CleanerRow(
        pid=state.pid,
        state="dead" if process is None else process.state_name,
        heartbeat_age=max(0.0, after.at - state.heartbeat / 1e6),
        cpu=cpu,
        rss=process.rss if process is not None else None,
        runs=state.runs,
        errors=state.errors,
    )


def _disk_row(sample: Sample) -> DiskRow | None:
    """Returns the disk's row, None where the node has not looked yet."""
    disk = sample.disk
    if disk is None or not disk.total:
        return None
    return DiskRow(lo.DISK_NAMES.get(disk.level, str(disk.level)), disk.free, disk.total)


def _warnings(sample: Sample, rows: list[LogRow]) -> list[str]:
    """Lists the warnings for an operator, worst first."""
    found = []
    node = sample.node
    if node is None:
        found.append("the node is gone: nothing is supervised, numbers do not change")
    elif node.state == STOPPED:
        found.append(f"the node (pid {node.pid}) is stopped: `kill -CONT {node.pid}` lets it go on")
    for writer in sample.writers:
        if writer.process is None:
            found.append(f"writer {writer.writer} (pid {writer.pid}) is dead")
        elif writer.silent_for > SILENT_AFTER:
            how = "is stopped and" if writer.process.state == STOPPED else ""
            found.append(
                f"writer {writer.writer} (pid {writer.pid}) {how} has given no sign of life for "
                f"{writer.silent_for:.1f} s".replace("  ", " ")
            )
    disk = _disk_row(sample)
    if disk is not None and disk.level != lo.DISK_NAMES[lo.DISK_OK]:
        what = "nothing is appended" if disk.level == lo.DISK_NAMES[lo.DISK_STOP] else "little room"
        found.append(f"the disk is {disk.level}: {what}, {disk.free} of {disk.total} bytes free")
    for row in rows:
        if row.status not in ("online", "absent"):
            found.append(f"{row.topic}-{row.partition} is {row.status}")
    return found
