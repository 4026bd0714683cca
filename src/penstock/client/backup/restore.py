"""Restores a backup by producing its records: into a node that is new, or into a cluster.

All that is needed is checked before anything is made. A topic is made as it was; each partition
gets its records in their order, so record n of the backup has offset n there. By that a restore
that was ended goes on, and offsets of groups are translated.

Owns no format (see `files`). Never writes into a topic that has other records.
"""

from __future__ import annotations

import fnmatch
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.client.admin.exported_offsets import ExportedOffset, ExportedOffsets
from penstock.client.admin.topic_config import TopicConfig
from penstock.client.backup import files as bf
from penstock.core import errors as er
from penstock.core.work import WorkFields

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin
    from penstock.client.client import Client
    from penstock.client.producer.producer import Producer

Told = Callable[[int], None]
DELIVERY_TIMEOUT: Final = 600.0
"""Seconds: a record that fails ends the restore, so it is tried for long."""

HEARD_WITHIN: Final = 30.0
HEARD_EVERY: Final = 0.05


@dataclass(frozen=True, slots=True)
class RestoredTopic:
    """Contents of a backup by topic. `earliest` and `latest` are times of records, microseconds
    since the epoch; `gaps`: spans of offsets that were deleted before a run came."""

    topic: str
    partitions: int
    records: int
    bytes: int
    earliest: int | None
    latest: int | None
    gaps: int


def checked(folder: bf.BackupFolder, topics: Sequence[str]) -> bf.BackupManifest:
    """The manifest with the topics that match alone, once all of their files were read and found
    right. Raises `BackupError`."""
    manifest = folder.load()
    manifest.topics = {
        name: topic
        for name, topic in manifest.topics.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in topics)
    }
    if not manifest.topics:
        raise bf.BackupError(f"the backup has no topic that matches {', '.join(topics)}")
    for _, _, file in bf.files_of(manifest):
        folder.check(file)
    return manifest


def contents(manifest: bf.BackupManifest) -> list[RestoredTopic]:
    """Lists the topics of a backup."""
    found = []
    for name, topic in manifest.topics.items():
        files = [file for partition in topic.partitions for file in partition.files]
        found.append(
            RestoredTopic(
                name, len(topic.partitions), sum(file.records for file in files),
                sum(file.length for file in files),
                min((file.earliest for file in files if file.earliest is not None), default=None),
                max((file.latest for file in files if file.latest is not None), default=None),
                sum(len(partition.gaps) for partition in topic.partitions),
            )
        )  # fmt: skip
    return found


def restore(
    client: Client,
    folder: str,
    topics: Sequence[str] = ("*",),
    *,
    resume: bool = False,
    dry_run: bool = False,
    told: Told = lambda records: None,
) -> list[RestoredTopic]:
    """Restores the topics that match, and what groups had committed of them. `resume`: go on with a
    restore that was ended. `dry_run`: only check the backup, and that the topics can be made.

    Raises `BackupError` before anything is done where the backup is damaged, or a topic is there.
    """
    with bf.BackupFolder(folder) as kept, client.admin() as admin:
        manifest = checked(kept, topics)
        starts = _starts(admin, kept, client, manifest, resume=resume)
        if not dry_run:
            for name, topic in manifest.topics.items():
                if name not in starts:
                    admin.create_topic(name, _config(topic))
            _Restore(client, kept, manifest, starts, told).run(admin)
        return contents(manifest)


def _config(topic: bf.BackupTopic) -> TopicConfig:
    """As it was, with as many replicas as the target has by default."""
    settings: dict[str, Any] = {**topic.settings, "partitions": len(topic.partitions)}
    return TopicConfig(**{**settings, "replication_factor": None, "min_insync_replicas": None})


def _starts(
    admin: Admin, kept: bf.BackupFolder, client: Client, manifest: bf.BackupManifest, *,
    resume: bool,
) -> dict[str, list[int]]:  # fmt: skip
    """Of topics that are there: how many records each partition has already."""
    found: dict[str, list[int]] = {}
    for name, topic in manifest.topics.items():
        try:
            there = admin.describe_topic(name)
        except er.UnknownTopicError:
            continue
        if not resume:
            raise bf.BackupError(
                f"topic {name!r} is there: restore elsewhere, delete it, or go on with a restore "
                "that was ended (--resume)"
            )
        ends = [part.high_watermark for part in there.partitions]
        known = [partition.records for partition in topic.partitions]
        fits = len(ends) == len(known) and all(
            end <= most for end, most in zip(ends, known, strict=True)
        )
        if not fits or any(part.log_start for part in there.partitions):
            raise _other(name)
        for number, end in enumerate(ends):
            if end and _last(client, name, number, end) != _record(kept, topic, number, end - 1):
                raise _other(name)
        found[name] = ends
    return found


def _other(name: str) -> bf.BackupError:
    return bf.BackupError(
        f"topic {name!r} has other records than the backup: it was not made by a restore of it"
    )


def _last(client: Client, name: str, number: int, end: int) -> tuple[Any, ...]:
    with client.consumer() as consumer:
        consumer.assign([(name, number)])
        consumer.seek(name, number, end - 1)
        batch = consumer.poll(1, timeout=10.0)
    if not batch:
        raise er.PenstockTimeout(f"the last record of {name}-{number} was not read within 10 s")
    return batch[0].timestamp, batch[0].key, batch[0].value


def _record(kept: bf.BackupFolder, topic: bf.BackupTopic, number: int, nth: int) -> Any:
    for file in topic.partitions[number].files:
        if nth >= file.records:
            nth -= file.records
            continue
        for block in kept.blocks(file):
            if nth < len(block.offsets):
                return block.timestamps[nth], block.keys[nth], block.values[nth]
            nth -= len(block.offsets)
    return None


def _await_ends(admin: Admin, name: str, records: Sequence[int]) -> None:
    """Waits until the admin's node has heard that all is committed, in a cluster a moment later: a
    group's offset beyond that is refused."""
    deadline = time.monotonic() + HEARD_WITHIN
    while True:
        ends = [part.high_watermark for part in admin.describe_topic(name).partitions]
        if all(end >= count for end, count in zip(ends, records, strict=True)):
            return
        if time.monotonic() >= deadline:
            raise er.PenstockTimeout(
                f"{name!r} has {sum(ends)} of {sum(records)} records {HEARD_WITHIN:g} s after all "
                "were delivered: go on with --resume, which sets the offsets of groups"
            )
        time.sleep(HEARD_EVERY)


class _Restore:
    def __init__(
        self,
        client: Client,
        kept: bf.BackupFolder,
        manifest: bf.BackupManifest,
        starts: dict[str, list[int]],
        told: Told,
    ) -> None:
        self._client = client
        self._kept = kept
        self._manifest = manifest
        self._starts = starts
        self._told = told
        self._sent = 0
        self._groups = [ExportedOffsets.from_json(bytes(text)) for text in manifest.groups.values()]
        self._moved: dict[tuple[str, int], dict[int, int]] = {}
        """Of offsets that groups had committed: those here, by topic and partition."""
        for group in self._groups:
            for one in group.offsets:
                if one.topic in manifest.topics:
                    self._moved.setdefault((one.topic, one.partition), {})[one.offset] = 0

    def run(self, admin: Admin) -> None:
        with self._client.producer(
            compression="lz4",
            acks="all",
            delivery_timeout=DELIVERY_TIMEOUT,
            block_timeout=DELIVERY_TIMEOUT,
        ) as producer:
            for name, topic in self._manifest.topics.items():
                starts = self._starts.get(name, [0] * len(topic.partitions))
                for number, partition in enumerate(topic.partitions):
                    self._send(producer, name, number, partition, starts[number])
                    producer.flush(DELIVERY_TIMEOUT)
        for name, topic in self._manifest.topics.items():
            _await_ends(admin, name, [partition.records for partition in topic.partitions])
        for group in self._groups:
            offsets = [
                ExportedOffset(
                    one.topic, one.topic_id, one.partition,
                    self._moved[one.topic, one.partition][one.offset], -1,
                )
                for one in group.offsets
                if (one.topic, one.partition) in self._moved
            ]  # fmt: skip
            if offsets:
                told = msgspec.structs.replace(group, offsets=offsets)
                admin.import_offsets(group.group, told, by_name=True)

    def _send(
        self, producer: Producer, name: str, number: int, partition: bf.BackupPartition, start: int
    ) -> None:
        """Sends the records of a partition from the `start`-th on."""
        moved = self._moved.get((name, number), {})
        nth = 0
        for file in partition.files:
            for block in self._kept.blocks(file):
                for offset in moved:
                    moved[offset] += bisect_left(block.offsets, offset)
                for row in range(max(0, start - nth), len(block.offsets)):
                    fields = block.work[row] if block.work is not None else None
                    work = None if fields is None else WorkFields(*fields)
                    producer.send(
                        name, block.values[row], key=block.keys[row], headers=block.headers_of(row),
                        timestamp=block.timestamps[row], partition=number, work=work,
                    )  # fmt: skip
                    self._sent += 1
                nth += len(block.offsets)
                self._told(self._sent)
