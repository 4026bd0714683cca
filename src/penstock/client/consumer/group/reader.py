"""The reading half of a group's consumer: a `Consumer` that is told what to read, and from where.

Owns cursors and sleeping. Other modules decide the owners of partitions. This one only looks at the
notice word of the client slot, so that a change ends a sleep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.iteration import HandOut
from penstock.client.consumer.offsets import Offset
from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.consumer.records import Chunk
from penstock.client.remote.address import Place
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.ipc.coordination import NO_OFFSET, Owned
from penstock.ipc.layout import STATUS_DELETED
from penstock.ipc.messages import TopicInfo
from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.consumer")

UNSEEN = -1
"""A notice that no slot has: the coordinator is asked what is ours."""


class GroupReader(Consumer):
    """Consumer that is told what to read, and from where."""

    def __init__(self, socket: Place, **options: Any) -> None:
        self.owner_position: Callable[[TopicPartition], int] | None = None
        """Position of its owner, if that claims ahead of it and never goes back."""
        self.notice = UNSEEN
        self.from_start: set[str] = set()
        """Topics that begin at their start, whatever `start` says."""
        self._suspects: list[AssignedPartition] = []
        super().__init__(socket, (), **options)
        self._counts.update(deleted=0, truncated=0)

    @property
    def session(self) -> Session:
        return self._session

    @property
    def follows(self) -> bool:
        return self._follow

    @property
    def handout(self) -> HandOut:
        return self._handout

    @property
    def partitions(self) -> dict[TopicPartition, AssignedPartition]:
        """Partitions that it reads, by name."""
        return self._assigned

    def reads(self, partition: AssignedPartition) -> bool:
        return self._assigned.get(partition.name) is partition

    # --- what is read ---
    def placing(self, owned: Sequence[Owned]) -> Waits[list[TopicPartition]]:
        """Adds these partitions, each from the committed offset of the group.

        Those without a committed offset begin at `start`, and are returned.
        """
        assigned = dict(self._assigned)
        fresh = []
        for one in owned:
            name = (one.topic, one.partition)
            partition = self._partition(name, one.topic_id, one.page)
            if one.offset == NO_OFFSET:
                epoch = partition.page.leader_epoch
                start = Offset.earliest() if one.topic in self.from_start else self._start
                partition.jump((yield from partition.resolving(start, self._logs())), epoch)
                fresh.append(name)
            else:
                partition.jump(one.offset, one.leader_epoch)
            assigned[name] = partition
        self._adopt(assigned)
        self._suspect()
        return fresh

    def _suspect(self) -> None:
        """Lists partitions to check: a log may have been cut below the group's offset (rule 15).

        Nothing else would tell before the log has grown past that offset again.
        """
        self._suspects = [part for part in self._assigned.values() if part.is_suspect]

    def is_open(self, one: Owned) -> bool:
        """Whether its writer has opened it. Before that its page says nothing, or is that of a
        deleted topic still, so nobody could tell where it begins."""
        page = self._session.page(one.page)
        return page.identity == (one.topic_id, one.partition) and page.status != STATUS_DELETED

    def drop(self, names: Iterable[TopicPartition]) -> None:
        """Reads these no more: what was fetched and not handed out is forgotten."""
        gone = set(names)
        touched = self._published.touched
        self._published.touched = [part for part in touched if part.name not in gone]
        self._adopt({name: part for name, part in self._assigned.items() if name not in gone})

    def back_to(self, offsets: dict[TopicPartition, int]) -> None:
        """Goes on there, and forgets what was fetched ahead."""
        self._settle()
        for name, offset in offsets.items():
            partition = self._assigned.get(name)
            if partition is None:
                continue
            partition.jump(offset, partition.leader_epoch)
            self._published.touched.append(partition)

    # --- one poll, step by step ---
    def is_disturbed(self) -> bool:
        """Whether the coordinator has something to say: one load."""
        slot = self._session.slot
        return slot is not None and slot.notice != self.notice

    def begin(self) -> None:
        """Publishes the positions, since the caller asks for more."""
        self._check_usable()
        self.mark()
        self._published.positions()
        self._published.polled()

    def polled(self) -> None:
        """The caller looks for records now."""
        self._published.polled()

    @property
    def is_torn(self) -> bool:
        """Whether positions are ahead of what the caller has got."""
        return self._last.is_torn

    def mark(self) -> None:
        """Marks the current positions as those that an interrupt leads back to."""
        self.go_back()
        self._last.begin()

    def gather(self, max_records: int | None) -> Sequence[Chunk]:
        """Returns the chunks that are there now. `brought` follows once the caller gets them."""
        while self._suspects:
            if self.reads(self._suspects[-1]):
                self._check(self._suspects[-1])
            self._suspects.pop()
        return self._last.fetch(self._gather, max_records).chunks

    def minding(self, left: float) -> Waits[None]:
        """Notices that the node went away; looks for it again now and then."""
        return self._attachment.minding(self, left)

    def sleeping(self, bound: float, found: Callable[[], bool] | None = None) -> Waits[None]:
        """`found`: what ends it, in place of records and notices."""
        return self._attachment.sleeping(bound, self._spin, found or self._has_news)

    def reattaching(self, timeout: float) -> Waits[None]:
        """Attaches again if the node hung up, within `timeout` seconds."""
        if self.is_lost or self._session.farewell() is not None:
            self._attachment.give_up()
            yield from self._attachment.reconnecting(self, timeout)

    def finding(self, topics: Collection[str]) -> Waits[dict[str, TopicInfo]]:
        """Raises `UnknownTopicError` for a topic that is not there."""
        return (yield from self._attachment.finding(self, topics, self._timeout))

    @property
    def is_lost(self) -> bool:
        """Whether the node went away and did not come back yet."""
        return self._attachment.is_lost

    @property
    def noticed(self) -> int:
        """Current value of the notice word."""
        slot = self._session.slot
        return UNSEEN if slot is None else slot.notice

    def hush(self) -> None:
        """Not now: what the notice says is asked for later."""
        self.notice = self.noticed

    @property
    def was_forked(self) -> bool:
        return self._forked

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_usable(self) -> None:
        self._check_usable()

    def _check(self, partition: AssignedPartition) -> None:
        try:
            partition.check()
        except er.UnknownTopicError:
            return  # `_take` sees to that
        except er.LogTruncatedError as error:
            raise self._truncated(partition, error) from None

    def _truncated(
        self, partition: AssignedPartition, error: er.LogTruncatedError
    ) -> er.LogTruncatedError:
        """Counted, and with advice that can be followed."""
        self._counts["truncated"] += 1
        if self.owner_position is None:
            return error
        return er.LogTruncatedError(
            f"{partition}: the group is at offset {partition.offset}, but of what it had read "
            f"only that below {error.divergence} is left: the host lost unsynced records. The "
            "group is at-most-once, so that its members cannot go back; an admin can: "
            f"reset_offsets(..., to={error.divergence}, allow_redelivery=True)",
            divergence=error.divergence,
        )

    # --- what a group sees differently ---
    def known_lag(self) -> dict[TopicPartition, int]:
        if self.owner_position is None:
            return super().known_lag()
        return {
            name: max(0, one.end - self.owner_position(name))
            for name, one in self._assigned.items()
        }

    def _has_news(self) -> bool:
        return self._turns.has_more() or self.is_disturbed()

    def _take(self, partition: AssignedPartition, room: int | None, bytes_max: int) -> list[Chunk]:
        try:
            return super()._take(partition, room, bytes_max)
        except er.UnknownTopicError as error:  # the group lets go of it in its own time
            logger.warning("%s: %s", partition, error)
            self._counts["deleted"] += 1
            partition.pause()
            self._published.pages()
            return []
        except er.LogTruncatedError as error:
            raise self._truncated(partition, error) from None

    def paging(self, session: Session, timeout: float) -> Waits[dict[TopicPartition, int]]:
        """Partitions that are gone when the node is back are left out, and dropped by `moved`."""
        pages: dict[str, list[int]] = {}
        for topic in {topic for topic, _ in self._assigned}:
            try:
                pages[topic] = (yield from session.finding_topic(topic, timeout)).pages
            except er.UnknownTopicError:
                logger.warning("topic %s was deleted while the node was away", topic)
        there = [name for name in self._assigned if name[1] < len(pages.get(name[0], ()))]
        return {name: pages[name[0]][name[1]] for name in there}

    def moved(self, session: Session, pages: dict[TopicPartition, int]) -> None:
        for name in [name for name in self._assigned if name not in pages]:
            self._counts["deleted"] += 1
            self._assigned.pop(name).close()
        super().moved(session, pages)
        self._suspect()
        self.notice = UNSEEN
