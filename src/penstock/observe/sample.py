"""Everything that shared memory, /proc and topics.json tell of a node, at one moment."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.core.errors import NotConnectedError, PenstockError
from penstock.ipc import layout as lo
from penstock.ipc.clients import ClientSlot
from penstock.ipc.hostslots import CleanerSlot, CleanerState, DiskRoom, DiskSlot
from penstock.ipc.names import is_internal
from penstock.ipc.state import WriterSlot
from penstock.observe.place import NodePlace, find_node
from penstock.observe.processes import STOPPED, Process, command_of, look_at
from penstock.observe.shared import Shared

_PAGE_WORDS: Final = lo.PAGE_BYTES // 8
_SLOT_WORDS: Final = lo.CLIENT_SLOT_BYTES // 8


class TopicRules(msgspec.Struct, frozen=True):
    """The settings of a topic that are read."""

    retention: float | None = None
    cleanup: str = "delete"


class TopicSample(msgspec.Struct, frozen=True):
    """The fields of a topic in topics.json that are read."""

    name: str
    topic_id: str
    pages: list[int]
    settings: TopicRules = TopicRules()


class Catalogue(msgspec.Struct):
    topics: list[TopicSample] = []


class PartitionSample(NamedTuple):
    """A partition's page."""

    topic: str
    topic_id: str
    partition: int
    page: int
    writer: int
    status: int
    log_start: int
    log_end: int
    high_watermark: int
    durable: int
    leader_epoch: int
    records: int
    bytes: int
    batches: int
    duplicates: int
    refusals: int
    throttles: int
    last_stable: int
    open_began: int
    """Since when the oldest open transaction is, in microseconds since the epoch; 0: there is
    none."""
    cleaning: list[int]
    """As `ipc.state.CLEANING` names them."""
    syncs: list[int]
    """Microseconds in syncs, and how many syncs under each bound of `layout.SYNC_BOUNDS_US`."""
    producers_expired: int


class ConsumerSample(NamedTuple):
    """A consumer's slot.

    `positions`: page and next offset wanted; `skipped`: records that its `latest_only` left out.
    `polled`: when it last looked for records (microseconds of the monotonic clock, 0: not known).
    `stopped`: a signal has stopped its process."""

    slot: int
    pid: int
    start_time: int
    alive: bool
    asleep: bool
    assigned: int
    positions: list[tuple[int, int]]
    skipped: int
    polled: int = 0
    stopped: bool = False


class LaneSample(NamedTuple):
    """A lane: `tail` bytes in `batches` frames were put into it, `used` are not taken yet. `pid` 0:
    of a producer on another host, whose life nobody sees from here."""

    name: str
    producer_id: int
    pid: int
    start_time: int
    alive: bool
    writer: int
    capacity: int
    used: int
    tail: int
    batches: int
    closed: bool


class WriterSample(NamedTuple):
    """A writer's slot and its process; `process` is None when it is dead."""

    writer: int
    pid: int
    generation: int
    restarts: int
    silent_for: float
    passes: int
    process: Process | None


@dataclass(slots=True)
class Sample:
    """One look. `at` counts monotonically, `time` since the epoch; both in seconds."""

    at: float
    time: float
    node: Process | None
    partitions: dict[int, PartitionSample] = field(default_factory=dict)
    consumers: list[ConsumerSample] = field(default_factory=list)
    lanes: list[LaneSample] = field(default_factory=list)
    writers: list[WriterSample] = field(default_factory=list)
    disk: DiskRoom | None = None
    cleaner: CleanerState | None = None
    cleaner_process: Process | None = None
    retentions: dict[str, float] = field(default_factory=dict)
    """Seconds by topic, of those that delete by time."""
    dropped: dict[int, int] = field(default_factory=dict)
    """Records that a producer's own policy gave up, by producer id."""


class Observer:
    """Looks at one node again and again. Close it. `internal`: at the node's own topics, too."""

    def __init__(self, place: NodePlace, *, internal: bool = False) -> None:
        self.place = place
        self._internal = internal
        self.shared = Shared(place.owner)
        self.topics: list[TopicSample] = []
        self._pid = place.pid
        self._start_time: int | None = None
        self._catalogue_is: tuple[int, int] | None = None
        self._commands: dict[tuple[int, int], str] = {}

    def command(self, pid: int, start_time: int) -> str:
        """Returns the command line of a process that was seen, kept for when it is dead."""
        key = pid, start_time
        known = self._commands.get(key)
        if known is None:
            if len(self._commands) > 4 * lo.CLIENTS_MAX:
                self._commands.clear()
            known = command_of(pid) if look_at(pid, start_time) else ""
            self._commands[key] = known
        return known

    def folder(self, partition: PartitionSample) -> str:
        return str(self.place.folder / f"{partition.topic_id}-{partition.partition}")

    def sample(self) -> Sample:
        """Takes one sample. Raises `NotConnectedError` when the node has ended and took its
        tables."""
        try:
            self.shared.refresh()
        except NotConnectedError:
            self.place = find_node(f"shm://{self.place.folder}")
            if self.place.owner == self.shared.owner:
                raise
            self.shared.move(self.place.owner)
        self._read_catalogue()
        sample = Sample(time.monotonic(), time.time(), self._node())
        sample.partitions = self._partitions()
        sample.retentions = {
            topic.name: topic.settings.retention
            for topic in self.topics
            if topic.settings.retention is not None and "delete" in topic.settings.cleanup
        }
        self._clients(sample)
        sample.lanes = self._lanes()
        sample.writers = self._writers()
        sample.disk = DiskSlot(self.shared.state).read()
        cleaner = CleanerSlot(self.shared.state).read()
        if cleaner.pid:
            sample.cleaner, sample.cleaner_process = cleaner, look_at(cleaner.pid)
        return sample

    def _node(self) -> Process | None:
        process = look_at(self._pid, self._start_time)
        if process is None:
            try:
                self.place = find_node(f"shm://{self.place.folder}")
            except PenstockError:
                return None
            process = look_at(self.place.pid)
        if process is not None:
            self._pid, self._start_time = process.pid, process.start_time
        return process

    def _read_catalogue(self) -> None:
        """Reads topics.json again if it was replaced."""
        path = Path(self.place.folder, "topics.json")
        try:
            found = path.stat()
            identity = found.st_ino, found.st_mtime_ns
            if identity != self._catalogue_is:
                topics = msgspec.json.decode(path.read_bytes(), type=Catalogue).topics
                self.topics = [
                    topic for topic in topics if self._internal or not is_internal(topic.name)
                ]
                self._catalogue_is = identity
        except FileNotFoundError:
            self.topics = []

    def _partitions(self) -> dict[int, PartitionSample]:
        words = self.shared.state.q
        found = {}
        for topic in self.topics:
            for number, page in enumerate(topic.pages):
                start = lo.PAGES_AT // 8 + page * _PAGE_WORDS
                q = words[start : start + _PAGE_WORDS].tolist()
                records, nbytes, batches, duplicates, refusals, throttles = q[
                    lo.Q_PAGE_RECORDS : lo.Q_PAGE_THROTTLES + 1
                ]
                found[page] = PartitionSample(
                    topic.name,
                    topic.topic_id,
                    number,
                    page,
                    page % max(1, self.place.writers),
                    q[lo.Q_PAGE_STATUS],
                    q[lo.Q_PAGE_LOG_START],
                    q[lo.Q_PAGE_LOG_END],
                    q[lo.Q_PAGE_HIGH_WATERMARK],
                    q[lo.Q_PAGE_DURABLE],
                    q[lo.Q_PAGE_LEADER_EPOCH],
                    records,
                    nbytes,
                    batches,
                    duplicates,
                    refusals,
                    throttles,
                    q[lo.Q_PAGE_LAST_STABLE],
                    q[lo.Q_PAGE_OPEN_BEGAN],
                    q[lo.Q_PAGE_CLEANINGS : lo.Q_PAGE_CLEANED_AT + 1],
                    q[lo.Q_PAGE_SYNC_US :],
                    q[lo.Q_PAGE_PRODUCERS_EXPIRED],
                )
        return found

    def _clients(self, sample: Sample) -> None:
        region = self.shared.clients
        first = lo.CLIENT_SLOTS_AT // 8
        in_use = region.q[first::_SLOT_WORDS].tolist()
        for index, used in enumerate(in_use):
            if not used:
                continue
            slot = ClientSlot(region, index)
            if slot.kind == lo.KIND_PRODUCER:
                sample.dropped[slot.producer_id] = slot.dropped
            elif slot.kind == lo.KIND_CONSUMER:
                pid, start_time = slot.pid, slot.start_time
                process = look_at(pid, start_time)
                stopped = process is not None and process.state == STOPPED
                sample.consumers.append(
                    ConsumerSample(
                        index, pid, start_time, process is not None, bool(slot.ticket),
                        slot.assigned, slot.positions(), slot.dropped, slot.polled, stopped,
                    )
                )  # fmt: skip

    def _lanes(self) -> list[LaneSample]:
        found = []
        for name, (who, region) in self.shared.lanes.items():
            q = region.q
            head, tail = q[lo.Q_LANE_HEAD], q[lo.Q_LANE_TAIL]
            found.append(
                LaneSample(
                    name, who.producer_id, who.pid, who.start_time,
                    not who.pid or look_at(who.pid, who.start_time) is not None, who.writer,
                    who.capacity,
                    max(0, tail - head), tail, q[lo.Q_LANE_TAIL_SEQUENCE],
                    q[lo.Q_LANE_STATE] == lo.LANE_CLOSED,
                )
            )  # fmt: skip
        return found

    def _writers(self) -> list[WriterSample]:
        found = []
        for index in range(lo.WRITERS_MAX):
            slot = WriterSlot(self.shared.state, index)
            pid = slot.pid
            if pid:
                found.append(
                    WriterSample(
                        index, pid, slot.generation, slot.restarts, slot.silent_for, slot.passes,
                        look_at(pid),
                    )
                )  # fmt: skip
        return found

    def close(self) -> None:
        self.shared.close()
