"""The cleaner: looks at topics with retention or compaction, and asks the node for what is due.

It decides and prepares; the writers, whose logs these are, do. So it may die at any moment: what it
prepared and nobody put in place is dropped by the next look or the next open. Owns the order of a
round. Knows no writers: it is a client of the node, and leaves when that goes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from penstock.client.session import Session
from penstock.core.errors import NotConnectedError, PenstockError, UnknownTopicError
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.hostslots import CleanerSlot, DiskSlot
from penstock.server.cleaner.compaction import compact
from penstock.server.cleaner.rate import RateLimit
from penstock.server.cleaner.retention import CleanedPartition, retain
from penstock.server.node.process_clock import ProcessClock

logger = logging.getLogger("penstock.cleaner")

ASK_TIMEOUT: Final = 30.0
"""Seconds that the cleaner waits for the node; more than the node waits for a writer."""
WRITER_SHARE: Final = 0.2
"""The share of a writer's time that cleaning takes at most: trims and swaps sync small files."""
REST_MAX: Final = 1.0


class Cleaner:
    """One for a node. `run_once` is a round."""

    def __init__(
        self,
        session: Session,
        slot: CleanerSlot,
        disk: DiskSlot,
        clock: ProcessClock,
        rate: int,
        interval: float,
    ) -> None:
        self._session = session
        self._slot = slot
        self._disk = disk
        self._clock = clock
        self._interval = interval
        self._pace = RateLimit(rate, self._meanwhile)
        self._storage = Storage()
        self._retained_at = 0.0
        self._partitions: dict[tuple[bytes, int], CleanedPartition] = {}

    def run_once(self) -> None:
        """Look at every partition that retention or compaction is set for. Raises
        `NotConnectedError` when the node is gone."""
        self._find()
        self._retain()
        for partition in list(self._partitions.values()):
            if partition.topic.settings.compacts and not self._disk.is_stopped:
                self._try(partition, self._compact)
            self._slot.beat()
        self._slot.count_run(time.time_ns() // 1000)

    def _retain(self) -> None:
        for partition in list(self._partitions.values()):
            if partition.topic.settings.deletes and partition.is_led:
                self._try(partition, self._trim_expired)
            self._slot.beat()
        self._slot.hold(sum(one.held_bytes for one in self._partitions.values()))
        self._retained_at = time.monotonic()

    def _meanwhile(self) -> None:
        """Retention does not wait for the end of a long compaction."""
        self._slot.beat()
        if time.monotonic() - self._retained_at >= self._interval:
            self._retain()

    def _find(self) -> None:
        """Take up new topics and settings; forget what is gone or is cleaned no more."""
        known, self._partitions = self._partitions, {}
        for topic in self._topics():
            if not (topic.settings.deletes or topic.settings.compacts):
                continue
            for number, page in enumerate(topic.pages):
                key = topic.topic_id, number
                partition = known.get(key)
                if partition is None:
                    folder = f"{self._session.data_folder}/{topic.topic_id.hex()}-{number}"
                    partition = CleanedPartition(topic, number, self._session.page(page), folder)
                partition.topic = topic
                self._partitions[key] = partition

    def _topics(self) -> Iterator[ms.TopicInfo]:
        after, more = "", True
        while more:
            answer = self._session.request(
                ms.ListTopics(after, internal=True), ms.Topics, ASK_TIMEOUT
            )
            yield from answer.topics
            more = answer.more
            after = answer.topics[-1].name if answer.topics else after

    def _try(self, partition: CleanedPartition, work: Callable[[CleanedPartition], None]) -> None:
        """Do what is due; an error is counted, logged once, and tried again in the next round."""
        if not partition.is_open:
            return
        try:
            work(partition)
            partition.complaint = ""
        except NotConnectedError:
            raise
        except UnknownTopicError as error:
            logger.info("%s: %s", partition, error)  # the next round does not find it
        except PenstockError as error:
            partition.forget()
            if isinstance(error.__cause__, FileNotFoundError):
                return  # trimmed or swapped by somebody else meanwhile
            self._slot.count_error()
            if str(error) != partition.complaint:
                logger.warning("%s: not cleaned, will be tried again: %s", partition, error)
            partition.complaint = str(error)

    def _trim_expired(self, partition: CleanedPartition) -> None:
        before = partition.unread
        retain(partition, self._storage, self._ask, self._floor, self._clock.now_us())
        self._slot.count_unread(partition.unread - before)

    def _floor(self, partition: CleanedPartition) -> int | None:
        """How far all groups are there; None where the coordinator does not tell now."""
        request = ms.FindFloor(partition.topic.topic_id, partition.number)
        try:
            return self._session.request(request, ms.FloorFound, ASK_TIMEOUT).offset
        except NotConnectedError:
            raise
        except PenstockError as error:
            logger.info("%s: how far groups are is not known now: %s", partition, error)
            return None

    def _compact(self, partition: CleanedPartition) -> None:
        compact(partition, self._storage, self._ask, self._pace, self._clock.now_us())

    def _ask(self, order: ms.SwapSegments | ms.TrimPartition) -> ms.Cleaned:
        """Have the writer do something, and leave it alone for a while then: its lanes waited. Not
        where room is short."""
        begun = time.monotonic()
        answer = self._session.request(order, ms.Cleaned, ASK_TIMEOUT)
        if self._disk.read().level == lo.DISK_OK:
            took = time.monotonic() - begun
            time.sleep(min(took * (1 / WRITER_SHARE - 1), REST_MAX))
        return answer
