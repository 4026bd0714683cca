"""Metrics from shared memory and /proc: partitions, consumers, lanes, processes, the disk.

Sends no requests. `LocalMetrics` lists the state that it keeps between two looks.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from penstock.ipc import layout as lo
from penstock.observe.ages import Ages, Log, LogPosition
from penstock.observe.processes import STOPPED, Process, uptime
from penstock.observe.report import SILENT_AFTER
from penstock.observe.sample import Observer, PartitionSample, Sample, WriterSample
from penstock.server.health.page import Page, labels

_ONLINE: Final = (lo.STATUS_ONLINE, lo.STATUS_FOLLOWING)
_SYNC_BOUNDS: Final = [bound / 1e6 for bound in lo.SYNC_BOUNDS_US]


def is_up(writer: WriterSample) -> bool:
    """Whether a writer lives, is not stopped and has given a sign of life lately."""
    process = writer.process
    return process is not None and process.state != STOPPED and writer.silent_for <= SILENT_AFTER


class LocalMetrics:
    """Keeps the ages of records that were seen to come. It also keeps the sync times of deleted
    partitions, so that the sum over all partitions never falls."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.ages = Ages()
        self._wheres: dict[int, tuple[str, int, str]] = {}
        self._syncs: dict[Log, list[int]] = {}
        self._past_syncs = [0] * (len(lo.SYNC_BOUNDS_US) + 2)

    def sample(self) -> Sample:
        sample = self._observer.sample()
        self.ages.follow(sample)
        return sample

    def write(self, page: Page, sample: Sample) -> None:
        self._partitions(page, sample)
        self._sync_times(page, sample)
        self._consumers(page, sample)
        _lanes(page, sample)
        _processes(page, sample)

    # --- partitions ---
    def _partitions(self, page: Page, sample: Sample) -> None:
        parts = list(sample.partitions.values())
        where = [self._where(part) for part in parts]
        now_us = int(sample.time * 1e6)
        columns: dict[str, list[int]] = {
            "appended_records_total": [part.records for part in parts],
            "appended_bytes_total": [part.bytes for part in parts],
            "appended_batches_total": [part.batches for part in parts],
            "duplicate_batches_total": [part.duplicates for part in parts],
            "refused_batches_total": [part.refusals for part in parts],
            "throttled_appends_total": [part.throttles for part in parts],
            "expired_producers_total": [part.producers_expired for part in parts],
            "log_start_offset": [part.log_start for part in parts],
            "log_end_offset": [part.log_end for part in parts],
            "high_watermark_offset": [part.high_watermark for part in parts],
            "last_stable_offset": [part.last_stable for part in parts],
            "durable_offset": [part.durable for part in parts],
            "partition_online": [int(part.status in _ONLINE) for part in parts],
            "deleted_segments_total": [part.cleaning[1] for part in parts],
            "deleted_bytes_total": [part.cleaning[2] for part in parts],
            "compacted_records_total": [part.cleaning[3] for part in parts],
            "leader_elections_total": [part.leader_epoch for part in parts],
            "cleaning_errors_total": [part.cleaning[4] for part in parts],
        }
        for name, column in columns.items():
            page.rows(f"penstock_{name}", zip(where, column, strict=True))
        open_for = [
            max(0, now_us - part.open_began) / 1e6 if part.open_began else 0 for part in parts
        ]
        page.rows("penstock_open_transaction_seconds", zip(where, open_for, strict=True))
        statuses = Counter(part.status for part in parts)
        for status, name in lo.STATUS_NAMES.items():
            page.add("penstock_partitions", statuses[status], labels(status=name))

    def _where(self, part: PartitionSample) -> str:
        known = self._wheres.get(part.page)
        if known is None or known[:2] != (part.topic, part.partition):
            text = labels(topic=part.topic, partition=part.partition)
            known = self._wheres[part.page] = part.topic, part.partition, text
        return known[2]

    def _sync_times(self, page: Page, sample: Sample) -> None:
        found = {(part.topic_id, part.partition): part.syncs for part in sample.partitions.values()}
        for log, before in self._syncs.items():
            if log not in found or found[log][0] < before[0]:  # deleted, or in new tables
                self._past_syncs = list(map(sum, zip(self._past_syncs, before, strict=True)))
        self._syncs = found
        spent, *counts = map(sum, zip(self._past_syncs, *found.values(), strict=True))
        page.histogram("penstock_sync_seconds", _SYNC_BOUNDS, counts, spent / 1e6)

    def write_lags(self, page: Page, sample: Sample, lags: list[tuple[int, int, int]]) -> None:
        """How far followers are behind what is led here: (page, broker, offsets)."""
        for number, broker, offsets in lags:
            part = sample.partitions.get(number)
            if part is not None:
                where = labels(topic=part.topic, partition=part.partition, broker=broker)
                page.add("penstock_replica_lag_offsets", offsets, where)

    # --- consumers ---
    def _consumers(self, page: Page, sample: Sample) -> None:
        places: dict[tuple[int, int], LogPosition] = {}
        for consumer in sample.consumers:
            for number, offset in consumer.positions:
                part = sample.partitions.get(number)
                if part is not None and offset < part.high_watermark:
                    places[consumer.slot, number] = self.place(consumer.slot, part, offset)
        times = self.ages.times(places.values())
        for consumer in sample.consumers:
            lags: dict[str, list[float]] = {}
            for number, offset in consumer.positions:
                part = sample.partitions.get(number)
                if part is None:
                    continue
                lag = lags.setdefault(part.topic, [0, 0.0])
                lag[0] += max(0, part.high_watermark - offset)
                appended = times.get(places.get((consumer.slot, number), NOWHERE))
                if appended is not None:
                    lag[1] = max(lag[1], sample.time - appended)
            who = labels(consumer=consumer.slot, pid=consumer.pid)
            page.add("penstock_consumer_assigned_partitions", consumer.assigned, who)
            page.add("penstock_consumer_skipped_records_total", consumer.skipped, who)
            for topic, (records, seconds) in lags.items():
                where = f"{who},{labels(topic=topic)}"
                page.add("penstock_consumer_lag_records", records, where)
                page.add("penstock_consumer_lag_seconds", seconds, where)

    def place(self, who: int, part: PartitionSample, offset: int) -> LogPosition:
        """Returns a client's position in a partition, for `ages`."""
        log = part.topic_id, part.partition
        return LogPosition(who, log, self._observer.folder(part), max(offset, part.log_start))


NOWHERE: Final = LogPosition(0, ("", 0), "", 0)


def _lanes(page: Page, sample: Sample) -> None:
    for lane in sample.lanes:
        where = labels(producer=lane.producer_id, pid=lane.pid, writer=lane.writer)
        page.add("penstock_lane_used_bytes", lane.used, where)
        page.add("penstock_lane_capacity_bytes", lane.capacity, where)
        page.add("penstock_lane_written_bytes_total", lane.tail, where)
    pids = {lane.producer_id: lane.pid for lane in sample.lanes}
    for producer_id, dropped in sample.dropped.items():
        where = labels(producer=producer_id, pid=pids.get(producer_id, 0))
        page.add("penstock_producer_dropped_records_total", dropped, where)
    page.add("penstock_clients", len(sample.dropped), labels(kind="producer"))
    page.add("penstock_clients", len(sample.consumers), labels(kind="consumer"))


def _processes(page: Page, sample: Sample) -> None:
    node = sample.node
    page.add("penstock_node_up", int(node is not None and node.state != STOPPED))
    if node is not None:
        page.add("penstock_node_start_time_seconds", round(sample.time - uptime(node), 2))
        _process(page, "node", node, "")
    for writer in sample.writers:
        where = labels(writer=writer.writer)
        page.add("penstock_writer_up", int(is_up(writer)), where)
        page.add("penstock_writer_restarts_total", writer.restarts, where)
        page.add("penstock_writer_heartbeat_age_seconds", writer.silent_for, where)
        page.add("penstock_writer_passes_total", writer.passes, where)
        if writer.process is not None:
            _process(page, "writer", writer.process, where)
    if sample.cleaner is not None:
        cleaner = sample.cleaner
        age = max(0.0, sample.at - cleaner.heartbeat / 1e6)
        page.add("penstock_cleaner_up", int(sample.cleaner_process is not None))
        page.add("penstock_cleaner_heartbeat_age_seconds", age)
        page.add("penstock_cleaner_runs_total", cleaner.runs)
        page.add("penstock_cleaner_unread_records_total", cleaner.unread)
        page.add("penstock_cleaner_held_bytes", cleaner.held)
        page.add("penstock_cleaner_errors_total", cleaner.errors)
    disk = sample.disk
    if disk is not None and disk.total:
        page.add("penstock_disk_free_bytes", disk.free)
        page.add("penstock_disk_size_bytes", disk.total)
        page.add("penstock_disk_warn_below_bytes", disk.warn_below)
        page.add("penstock_disk_stop_below_bytes", disk.stop_below)


def _process(page: Page, name: str, process: Process, where: str) -> None:
    page.add(f"penstock_{name}_cpu_seconds_total", process.cpu, where)
    page.add(f"penstock_{name}_resident_memory_bytes", process.rss, where)
