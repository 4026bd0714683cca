"""Tracks how far a member is done, and tells the coordinator.

Owns the known committed offsets. A record is done if it was handed out before more was asked for.
In a loop within a run, every record before the one in hand is done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.client.consumer.group.consumed import Committed, GroupBatch
from penstock.client.consumer.group.membership import GroupMembership, stale_error
from penstock.client.consumer.group.reader import UNSEEN, GroupReader
from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.consumer.records import Record
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.consumer")

AUTOMATIC_TIMEOUT: Final = 1.0
"""Seconds that a commit nobody asked for may hold a poll up."""
Offsets = dict[TopicPartition, tuple[int, int]]
"""Of each partition the next offset wanted, and the leader epoch before it."""


class Commits:
    """Commits of a member. `at`: when the next automatic one is due (monotonic seconds)."""

    def __init__(
        self, reader: GroupReader, member: GroupMembership, counts: dict[str, int], interval: float
    ) -> None:
        self._reader = reader
        self._member = member
        self._counts = counts
        self._committed: dict[TopicPartition, int] = {}
        self._begun: dict[TopicPartition, int] = {}
        self._offered: dict[TopicPartition, int] = {}
        """How far transactions were asked to commit, or a rewind went back."""
        self._left: dict[TopicPartition, co.OffsetCommit] = {}
        """Of partitions that went: what was handed out and is in no transaction that is over."""
        self.interval = interval
        self.at = 0.0

    def place(self, owned: Iterable[co.Owned]) -> None:
        """Adds partitions that came; the reader is where each of them begins."""
        for one in owned:
            name = one.topic, one.partition
            self._begun[name] = self._reader.partitions[name].offset
            self._committed[name] = one.offset

    def leave(self, names: Iterable[TopicPartition]) -> None:
        """Removes partitions that go, where transactions commit.

        A transaction with records handed out of them is refused, since their next owner brings
        these again.
        """
        owner, handed = self._member.ownership, self._handed()
        for name in names:
            done = self._offered.pop(name, self._begun.get(name))
            if name in handed and name in owner.owned and handed[name][0] != done:
                self._left[name] = owner.commit_of(name, *handed[name])

    def forget(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            self._committed.pop(name, None)
            self._begun.pop(name, None)

    def committed(self) -> dict[TopicPartition, int | None]:
        return {
            name: None if offset == co.NO_OFFSET else offset
            for name, offset in self._committed.items()
        }

    # --- how far ---
    def done(self, out: GroupBatch[Any, Any] | None = None) -> Offsets:
        """How far all is done; `out` is in the caller's hands."""
        offsets = {name: _place(part) for name, part in self._reader.partitions.items()}
        handed: dict[TopicPartition, int] = {}
        for chunk in reversed(out.chunks if out is not None else ()):
            name = chunk.topic, chunk.partition
            if name in offsets:
                handed.setdefault(name, chunk.next_offset)
                offsets[name] = chunk.row_offset(chunk.start), chunk.leader_epoch
        live = self._reader.handout.live
        if live is not None and self._reader.reads(live[0]):
            partition, chunk, left = live
            row = max(chunk.start, chunk.stop - left - 1)
            handed[partition.name] = self._reader.handout.offset_of(partition)
            offsets[partition.name] = chunk.row_offset(row), chunk.leader_epoch
        for name, end in handed.items():
            first, epoch = offsets[name]
            committed = self._committed.get(name, co.NO_OFFSET)
            if committed == end:
                del offsets[name]  # the caller has committed what it had in its hands
            elif first < committed < end:
                offsets[name] = committed, epoch  # ... a part of it
        return offsets

    def _handed(self) -> Offsets:
        """How far all was handed out, the record in hand included. Partitions in whose coming or
        going a call was interrupted are left out: they are taken on, or let go, again."""
        offset_of, owned = self._reader.handout.offset_of, self._member.ownership.owned
        return {
            name: (offset_of(part), part.leader_epoch)
            for name, part in self._reader.partitions.items()
            if name in self._committed and name in owned
        }

    def handed_out(self) -> co.GroupOffsets:
        """Returns the offsets that a transaction commits for all records handed out.

        It starts where the partition came, or where this member committed last.
        """
        owner, handed = self._member.ownership, self._handed()
        offsets = [
            owner.commit_of(name, *place)
            for name, place in handed.items()
            if place[0] != self._committed[name]
        ]
        self._offered.update((name, offset) for name, (offset, _) in handed.items())
        return co.GroupOffsets(owner.group, owner.member_id, [*self._left.values(), *offsets])

    def out_but(
        self, out: GroupBatch[Any, Any] | None, name: TopicPartition
    ) -> GroupBatch[Any, Any] | None:
        """Returns the records in the caller's hands, without the partition where it seeks.

        They are of its batch, or the record in hand of a loop, which the seek ends.
        """
        in_hand = self._reader.handout.in_hand
        chunks = list(out.chunks) if out is not None else [in_hand] if in_hand is not None else []
        kept = [chunk for chunk in chunks if (chunk.topic, chunk.partition) != name]
        return GroupBatch(kept, self._member.ownership) if kept else None

    # --- commits ---
    def finishing(
        self,
        now: float,
        names: Sequence[TopicPartition] | None = None,
        *,
        out: GroupBatch[Any, Any] | None = None,
        timeout: float = AUTOMATIC_TIMEOUT,
    ) -> Waits[None]:
        """Commits what is done, of these partitions or all. A failure is counted and logged, and
        tried again in time: at worst records come again."""
        if names is None:
            self.at = now + self.interval
        owned = self._member.ownership.owned
        changed = {
            name: place
            for name, place in self.done(out).items()
            if name in owned
            and place[0] != self._committed.get(name)
            and (names is None or name in names)
        }
        if not changed:
            return
        yield from self._reader.minding(0.0)
        try:
            if self._reader.is_lost:
                raise er.NotConnectedError("there is no node")
            stale = yield from self._sending(changed, timeout)
        except er.UnknownMemberError as error:
            stale, changed = list(changed), {}
            logger.warning("group %s: %s", self._member.group, error)
        except er.PenstockError as error:
            if not error.retriable:
                raise
            self._counts["commit_failures"] += 1
            logger.warning("group %s: a commit failed: %s", self._member.group, error)
            return
        if stale:
            self._counts["stale_commits"] += len(stale)
            self._reader.notice = UNSEEN
            logger.warning("%s", stale_error(self._member.group, stale))

    def explicitly(self, given: Committed | None) -> Waits[None]:
        """Commits this, or all handed out. Raises `StaleGenerationError`, `ConfigError`."""
        owned = self._member.ownership.owned
        stale: list[TopicPartition]
        if given is None:
            wanted = {
                name: place
                for name, place in self._handed().items()
                if place[0] != self._committed[name]
            }
            stale = []
        elif not isinstance(given, GroupBatch):
            wanted, stale = self._placed(given)
        else:
            ends = {(chunk.topic, chunk.partition): chunk for chunk in given.chunks}
            stale = [
                name for name in ends
                if name not in owned or owned[name].grant != given.ownership.owned[name].grant
            ]  # fmt: skip
            wanted = {
                name: (chunk.next_offset, chunk.leader_epoch)
                for name, chunk in ends.items()
                if name not in stale
            }
        try:
            if wanted:
                stale += yield from self._sending(wanted, None)
        except er.UnknownMemberError as error:
            self._counts["stale_commits"] += len(wanted)
            self._reader.notice = UNSEEN
            raise stale_error(self._member.group, wanted) from error
        if stale:
            self._counts["stale_commits"] += len(stale)
            self._reader.notice = UNSEEN
            raise stale_error(self._member.group, stale)

    def _placed(
        self, given: Record[Any, Any] | Mapping[TopicPartition, int]
    ) -> tuple[Offsets, list[TopicPartition]]:
        """Returns the offsets to commit, and the partitions that others own by now.

        A record above the place of its partition was read before a seek, or before the partition
        came back.
        """
        is_record = isinstance(given, Record)
        places = (
            {(given.topic, given.partition): given.offset + 1}
            if isinstance(given, Record)
            else given
        )
        self._member.check_reads(topic for topic, _ in places)
        owned, handed = self._member.ownership.owned, self._handed()
        wanted: Offsets = {}
        stale = []
        for name, offset in places.items():
            end, epoch = handed.get(name, (0, 0))
            if name not in owned or name not in handed or (is_record and offset > end):
                stale.append(name)
            elif offset > end:
                raise er.ConfigError(
                    f"commit: offset {offset} of {name[0]}-{name[1]} is beyond {end}, up to where "
                    "records were handed out; seek() leaves records out"
                )
            else:
                wanted[name] = offset, epoch
        return wanted, stale

    def _sending(
        self, offsets: Mapping[TopicPartition, tuple[int, int]], timeout: float | None
    ) -> Waits[list[TopicPartition]]:
        """Those that are stale; the others are committed."""
        owner = self._member.ownership
        names = list(offsets)
        places = yield from self._member.committing(
            [owner.commit_of(name, *offsets[name]) for name in names], timeout
        )
        stale = [names[place] for place in places]
        self._counts["commits"] += 1
        for name in names:
            if name not in stale:
                self._committed[name] = offsets[name][0]
        return stale

    def back_before(self, batch: GroupBatch[Any, Any]) -> None:
        """Lets a batch come again, where its partitions were not given away since. Never forwards:
        what comes again already stays to come."""
        firsts: dict[TopicPartition, int] = {}
        owner, reader = self._member.ownership, self._reader
        for chunk in reversed(batch.chunks):
            name = chunk.topic, chunk.partition
            if owner.is_still(batch.ownership, name):
                firsts[name] = chunk.row_offset(chunk.start)
        self._member.ownership = owner.rewound(firsts)
        positions = {
            name: reader.handout.offset_of(part) for name, part in reader.partitions.items()
        }
        reader.back_to({name: at for name, at in firsts.items() if at < positions.get(name, 0)})
        self._reader.notice = UNSEEN  # a transaction was aborted: perhaps others own it by now

    def going_back(self, out: GroupBatch[Any, Any] | None, guarantee: str) -> Waits[None]:
        """Lets all above what is done (at-least-once) or committed come again."""
        reader = self._reader
        if guarantee == "at-least-once":
            reader.back_to({name: place[0] for name, place in self.done(out).items()})
            return
        if guarantee == "exactly-once":  # transactions commit elsewhere
            owned = self._member.ownership.owned
            for one in (yield from self._member.syncing()).partitions:
                name = one.topic, one.partition
                if name in owned and owned[name].grant == one.grant:
                    self._committed[name] = one.offset
        targets = {
            name: self._begun[name] if offset == co.NO_OFFSET else offset
            for name, offset in self._committed.items()
        }
        reader.back_to(targets)
        self._member.ownership = self._member.ownership.rewound(targets)
        self._offered, self._left = targets, {}


def _place(partition: AssignedPartition) -> tuple[int, int]:
    return partition.offset, partition.leader_epoch
