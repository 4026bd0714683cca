"""Makes a backup, or brings one up to date: topics, their committed records, offsets of groups.

A run reads each partition from where the last one ended to where it ends when the run begins. So it
ends under any load, and the next one brings what came since. Groups are asked first: what they had
committed then, the records cover.

Owns no format (see `files`). Changes nothing at the node.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.client.admin.groups import SHARED
from penstock.client.backup import files as bf
from penstock.client.consumer.span_scan import scanning
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin, TopicDescription
    from penstock.client.client import Client
    from penstock.client.consumer.records import Chunk

Told = Callable[[int], None]
RECORDS_AT_ONCE: Final = 20_000


@dataclass(frozen=True, slots=True)
class BackupRun:
    """Additions of a run. `gaps`: partitions of which records were deleted before it came."""

    topics: int
    partitions: int
    records: int
    bytes: int
    groups: int
    gaps: list[str]


def create(
    client: Client,
    folder: str,
    topics: Sequence[str] = ("*",),
    *,
    timeout: float = 30.0,
    told: Told = lambda records: None,
) -> BackupRun:
    """Backs the topics up that match these patterns. `told` hears of records as they come.

    Raises `BackupError` where the folder is no backup of these topics, or is in use; what reading
    raises. Then the backup is as it was before.
    """
    with bf.BackupFolder(folder, make=True) as kept, client.admin() as admin:
        manifest = kept.load()
        kept.remove_rests(manifest)
        names = [
            name
            for name in admin.list_topics()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in topics)
        ]
        if not names:
            raise bf.BackupError(f"there is no topic that matches {', '.join(topics)}")
        manifest.groups = _groups(admin)
        run = _Run(client, kept, manifest, timeout, told)
        try:
            for name in names:
                run.take(admin.describe_topic(name))
        except BaseException:
            run.discard()
            raise
        manifest.runs.append(time.time())
        kept.save(manifest)
        return BackupRun(
            len(names), run.partitions, run.records, run.bytes, len(manifest.groups), run.gaps
        )


def _groups(admin: Admin) -> dict[str, msgspec.Raw]:
    found = {}
    for one in admin.list_groups():
        if one.guarantee != SHARED:
            try:
                text = admin.export_offsets(one.group).to_json()
            except er.GroupError:
                continue  # it has committed nothing
            found[one.group] = msgspec.Raw(text.encode())
    return found


class _Run:
    def __init__(
        self,
        client: Client,
        kept: bf.BackupFolder,
        manifest: bf.BackupManifest,
        timeout: float,
        told: Told,
    ) -> None:
        self._client = client
        self._kept = kept
        self._manifest = manifest
        self._timeout = timeout
        self._told = told
        self._writers: dict[int, bf.RecordsWriter] = {}
        self.partitions = self.records = self.bytes = 0
        self.gaps: list[str] = []

    def take(self, topic: TopicDescription) -> None:
        """Reads what is new of a topic."""
        entry = self._entry(topic)
        known = entry.partitions
        with self._client.consumer(
            topic.name, isolation="read-committed", start="earliest", on_out_of_range="earliest"
        ) as consumer:
            starts, ends = consumer.beginning_offsets(), consumer.end_offsets()
            spans = {}
            for number, partition in enumerate(known):
                place = (topic.name, number)
                spans[place] = self._span(place, partition, starts[place], ends[place])
            for chunks in scanning(consumer, spans, self._timeout, RECORDS_AT_ONCE):
                for chunk in chunks:
                    self._write(entry, chunk)
                self._told(self.records)
            if consumer.metrics()["out_of_range"]:
                self.gaps.append(f"{topic.name}: records that retention took while they were read")
        for number, partition in enumerate(known):
            self._finish(number, partition)
            partition.next = max(partition.next, spans[topic.name, number][1])
        self.partitions += len(known)

    def _entry(self, topic: TopicDescription) -> bf.BackupTopic:
        entry = self._manifest.topics.get(topic.name)
        if entry is None:
            entry = bf.BackupTopic(topic.topic_id, dict(topic.settings), [])
            self._manifest.topics[topic.name] = entry
        if entry.topic_id != topic.topic_id:
            raise bf.BackupError(
                f"topic {topic.name!r} is another one than the backup has (its id is "
                f"{topic.topic_id}, not {entry.topic_id}): make a backup in another folder"
            )
        entry.settings = dict(topic.settings)
        missing = len(topic.partitions) - len(entry.partitions)
        entry.partitions += [bf.BackupPartition() for _ in range(missing)]
        return entry

    def _span(
        self, place: tuple[str, int], partition: bf.BackupPartition, start: int, end: int
    ) -> tuple[int, int]:
        where = f"{place[0]}-{place[1]}"
        if end < partition.next:
            raise bf.BackupError(
                f"{where} ends at {end}, and the backup has it to {partition.next}: it lost records"
                " or is of another node; make a backup in another folder"
            )
        if partition.files and start > partition.next:
            partition.gaps.append((partition.next, start))
            self.gaps.append(f"{where} {partition.next} to {start}")
        return max(start, partition.next), end

    def _write(self, entry: bf.BackupTopic, chunk: Chunk) -> None:
        number = chunk.partition
        writer = self._writers.get(number)
        if writer is not None and writer.told.length >= bf.FILE_BYTES_MAX:
            self._finish(number, entry.partitions[number])
            writer = None
        if writer is None:
            first = int(chunk.offsets[0])
            writer = self._writers[number] = self._kept.writer(entry.topic_id, number, first)
        writer.add(_block(chunk), chunk.next_offset)
        self.records += len(chunk)

    def _finish(self, number: int, partition: bf.BackupPartition) -> None:
        writer = self._writers.pop(number, None)
        if writer is not None:
            partition.files.append(writer.finish())
            partition.next = writer.told.next
            self.bytes += writer.told.length

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


def _block(chunk: Chunk) -> bf.RecordBlock:
    records = chunk.records()
    work: list[Any] | None = None
    if chunk.work is not None:
        work = [None if one.work is None else tuple(one.work) for one in records]
    return bf.RecordBlock(
        [one.offset for one in records],
        [one.timestamp for one in records],
        [one.key for one in records],
        [one.value for one in records],
        [bf.pack_headers(one.headers) for one in records] if chunk.headers() is not None else None,
        work,
    )
