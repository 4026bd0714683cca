"""At most once (rule 18): records are claimed, and the claim is acknowledged, before any of them is
handed out.

A claim moves the committed offset of a partition to the end of the fetched records. It is a
compare-and-advance, granted only to the partition's owner, and idempotent by its id. Records are
handed out only on a grant that this object received itself. While the outcome of a claim is
unknown, the same claim is asked again, across reconnects. Records of an outcome that stays unknown
are dropped. Records that were granted, or may have been, and were not handed out are counted as
`skipped` and told to the coordinator.

A loop has two claims at work: while its body works one off, the next is asked for (`ahead`), and
its answer is looked at when the first is used up. There is never more than one claim without an
answer, so each begins at the known committed offset of the group.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from penstock.client.consumer.consumer import Start
from penstock.client.consumer.group.membership import GroupMembership, Posted
from penstock.client.consumer.group.reader import UNSEEN, GroupReader
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.consumer")

CLAIM_BYTES: Final = 16 << 20
"""Bytes that one claim of a fast loop takes at most; each claim costs a sync of the disk."""
KEEP_TIMEOUT: Final = 1.0
"""Seconds that committing where a partition begins may hold a poll up."""


class _Asked(NamedTuple):
    """A claim, and what would be handed out for each of its parts."""

    request: co.ClaimOffsets
    names: list[TopicPartition]
    chunks: dict[TopicPartition, list[Chunk]]


class Claims:
    """Claims of an at-most-once member. `queue`: chunks granted and not handed out yet."""

    def __init__(
        self,
        reader: GroupReader,
        member: GroupMembership,
        counts: dict[str, int],
        node_timeout: float,
    ) -> None:
        self._reader = reader
        self._member = member
        self._counts = counts
        self._node_timeout = node_timeout
        self._heads: dict[TopicPartition, int] = {}
        self._asked: _Asked | None = None
        self._posted: Posted | None = None
        """Claim that was asked for ahead, if there is one."""
        self._fresh: set[TopicPartition] = set()
        self._last_id = 0
        self._unreported = 0
        self.queue: deque[Chunk] = deque()
        self.given: list[Chunk] = []
        """Chunks that a poll has taken of it, until the caller gets them."""
        reader.owner_position = self.position

    def place(self, owned: Iterable[co.Owned], fresh: Iterable[TopicPartition]) -> None:
        """These came; of `fresh` ones nothing is committed yet."""
        for one in owned:
            self._heads[one.topic, one.partition] = one.offset
        self._fresh.update(fresh)

    def drop(self, names: Sequence[TopicPartition]) -> None:
        """These went: what was granted of them and not handed out is skipped."""
        self.take_back()
        gone = set(names)
        kept = [chunk for chunk in self.queue if (chunk.topic, chunk.partition) not in gone]
        self._skip(sum(map(len, self.queue)) - sum(map(len, kept)), "its partition went")
        self.queue = deque(kept)
        for name in names:
            self._heads.pop(name, None)

    def committed(self) -> dict[TopicPartition, int | None]:
        return {name: None if head == co.NO_OFFSET else head for name, head in self._heads.items()}

    def position(self, name: TopicPartition) -> int:
        live = self._reader.handout.live
        if live is not None and live[0].name == name and live[2]:
            return live[1].row_offset(live[1].stop - live[2])
        asked = [] if self._asked is None else self._asked.chunks.get(name, [])
        for chunk in chain(self.queue, asked):
            if (chunk.topic, chunk.partition) == name:
                return chunk.row_offset(chunk.start)
        return self._reader.position(*name)

    def seeking(self, name: TopicPartition, to: Start) -> Waits[int]:
        """Seeks forwards only. Records that it passes over are not counted: the caller wants it."""
        self.settle()
        before = self._reader.position(*name)
        offset = yield from self._reader.seeking(*name, to)
        head = self._claimed_to(name)
        if offset < head:
            yield from self._reader.seeking(*name, before)
            raise er.GroupError(
                f"{name[0]}-{name[1]}: group {self._member.group!r} is at-most-once and committed "
                f"up to {head}; going back to {offset} would deliver twice. An admin "
                "can: reset_offsets(..., allow_redelivery=True)"
            )
        kept = [chunk for chunk in self.queue if (chunk.topic, chunk.partition) != name]
        asked = [] if self._asked is None else self._asked.chunks.pop(name, [])
        gone = sum(map(len, self.queue)) - sum(map(len, kept)) + sum(map(len, asked))
        self._skip(gone, "it was sought past")
        self.queue = deque(kept)
        return offset

    def _claimed_to(self, name: TopicPartition) -> int:
        """Up to where it is claimed, or may be: by a claim whose outcome is not known yet."""
        asked = () if self._asked is None else zip(
            self._asked.names, self._asked.request.claims, strict=True
        )  # fmt: skip
        return max([self._heads[name], *(claim.end for other, claim in asked if other == name)])

    # --- records ---
    def settle(self) -> None:
        """Puts the rest of a loop, or of an interrupted poll, at the front of the queue."""
        self.take_back()
        handout = self._reader.handout
        live = handout.live
        if live is None:
            return
        _, chunk, left = live
        queue, run = self.queue.copy(), handout.run
        if left:
            queue.appendleft(chunk.cut(chunk.stop - left, chunk.stop))
        self.queue, handout.run = queue, None  # in one go, for interrupts
        if run is not None:
            deque(run[2], maxlen=0)  # the loop that walks through it goes on

    def take_back(self) -> None:
        """Returns to the queue what a poll took out of it and the caller never got."""
        if self.given:
            queue = deque([*self.given, *self.queue])
            self.given, self.queue = [], queue

    def taking(self, max_records: int | None) -> Waits[list[Chunk]]:
        """Granted records, as many as are asked for; without a number what one claim takes."""
        if not self.queue:
            yield from self.knowing()
        if not self.queue:
            self._reader.go_back()
            if self._fresh:
                yield from self._keeping()
            self._prepare(self._fetch(max_records))
            yield from self.knowing()
        taken: list[Chunk] = []
        room, left = max_records, self.queue.copy()
        while left and (room is None or room > 0):
            chunk = left.popleft()
            if room is not None:
                if len(chunk) > room:
                    left.appendleft(chunk.cut(chunk.start + room, chunk.stop))
                    chunk = chunk.cut(chunk.start, chunk.start + room)
                room -= len(chunk)
            taken.append(chunk)
        # In one go, at the end: what an interrupt tears out of here is not lost.
        self.given, self.queue = taken, left
        return taken

    @property
    def holds(self) -> bool:
        """Whether something was claimed, or asked for, that is not handed out yet."""
        return bool(self.queue) or self._asked is not None

    def ahead(self, records: int) -> None:
        """Asks for the next claim, while others work off what the last one brought. Waits for
        nothing; what cannot be done now, the next poll does.

        Not for less than half of what is wanted: it would soon be more, by the same sync."""
        reader = self._reader
        if self._asked is not None or reader.is_torn or self._fresh:
            return
        if reader.is_lost or reader.is_disturbed():
            return
        there = sum(max(0, p.end - p.offset) for p in reader.partitions.values() if not p.paused)
        if there < records / 2:
            return
        try:
            self._prepare(self._fetch(records))
        except er.PenstockError:
            return  # the next poll raises it
        if self._asked is not None:
            self._posted = self._member.post(self._asked.request)
            self._counts["claims_ahead"] += 1

    def _keeping(self) -> Waits[None]:
        """Commits where partitions begin: where "latest" was is kept, lest a crash before the first
        claim moves it on, past records that nobody would count."""
        fresh = [
            (name, self._reader.partitions[name])
            for name in self._fresh
            if self._heads.get(name) == co.NO_OFFSET and name in self._reader.partitions
        ]
        owner = self._member.ownership
        begun = [(name, part.offset, part.leader_epoch) for name, part in fresh]
        self._fresh.clear()  # without an answer the first claim does it
        try:
            stale = yield from self._member.committing(
                [owner.commit_of(*place) for place in begun], KEEP_TIMEOUT
            )
        except er.PenstockError as error:
            if not error.retriable and not isinstance(error, er.UnknownMemberError):
                raise
            self._reader.notice = UNSEEN
            return
        for number, (name, offset, _) in enumerate(begun):
            if number not in stale and self._heads.get(name) == co.NO_OFFSET:
                self._heads[name] = offset

    def _fetch(self, max_records: int | None) -> list[Chunk]:
        """Returns the chunks that are there, up to so many records or about `CLAIM_BYTES`.

        After an interrupt before their claim they are fetched again.
        """
        self._reader.mark()
        chunks: list[Chunk] = []
        room, size = max_records, 0
        while size < CLAIM_BYTES and (room is None or room > 0):
            try:
                found = self._reader.gather(room)
            except er.PenstockError:
                if not chunks:
                    self._reader.brought()
                    raise
                break  # what is good is claimed first; the next poll raises it
            if not found:
                break
            chunks += found
            size += sum(chunk.size for chunk in found)
            if room is not None:
                room -= sum(map(len, found))
        return chunks

    # --- claims ---
    def _prepare(self, chunks: Sequence[Chunk]) -> None:
        """Makes the claim for all of them, which is still to be asked."""
        named: dict[TopicPartition, list[Chunk]] = {}
        for chunk in chunks:
            name = chunk.topic, chunk.partition
            # Nothing below the claim is handed out, wherever the reader was sent.
            row = chunk.columns.first_at(self._heads[name])
            if row < chunk.stop:
                chunk = chunk if row <= chunk.start else chunk.cut(row, chunk.stop)
                named.setdefault(name, []).append(chunk)
        if not named:
            self._reader.brought()
            return
        owned = self._member.ownership.owned
        claims = []
        for name, found in named.items():
            head = self._heads[name]
            start = found[0].row_offset(found[0].start) if head == co.NO_OFFSET else head
            one, last = owned[name], found[-1]
            claims.append(
                co.Claim(one.topic_id, one.partition, one.grant, start, last.next_offset,
                         last.leader_epoch)
            )  # fmt: skip
        self._last_id += 1
        request = co.ClaimOffsets(
            self._member.group, self._member.member_id, self._last_id, claims, self._unreported
        )
        self._asked, self._posted = _Asked(request, list(named), named), None
        self._reader.brought()

    def knowing(self, timeout: float | None = None) -> Waits[None]:
        """Learns the outcome of the claim that was made, if there is one.

        Granted chunks are in the queue afterwards. Those of an unknown outcome are dropped.
        """
        asked = self._asked
        if asked is None:
            return
        deadline = time.monotonic() + (self._node_timeout if timeout is None else timeout)
        try:
            answer = yield from self._member.asking(
                asked.request, co.Claimed, deadline, self._posted
            )
        except er.PenstockError as error:
            self._asked = None
            self._skip(
                sum(len(chunk) for chunks in asked.chunks.values() for chunk in chunks),
                f"nobody knows what became of a claim: {error}",
            )
            self._counts["skipped_claims"] += 1
            self._reader.notice = UNSEEN
            if isinstance(error, er.UnknownMemberError):
                return  # the next look at the group joins again
            raise
        if self._asked is not asked:
            return  # what came of it is known: its records are handed out once
        owned = self._member.ownership.owned
        queue, gone = self.queue.copy(), 0
        told = zip(asked.names, asked.request.claims, answer.granted, answer.committed, strict=True)
        for name, claim, granted, committed in told:
            if name not in self._heads or owned[name].grant != claim.grant:
                # It went while the answer was out: if it was granted, nobody else brings it.
                gone += sum(map(len, asked.chunks.get(name, ()))) if granted else 0
            elif granted:
                self._heads[name] = claim.end
                queue.extend(asked.chunks.get(name, ()))
            else:
                self._refused(name, claim, committed)
        # In one go, for a Ctrl-C: neither is a claim taken in twice, nor its records lost.
        left = self._unreported - asked.request.skipped
        self._asked, self.queue, self._unreported = None, queue, left
        self._skip(gone, "it went meanwhile")

    def _refused(self, name: TopicPartition, claim: co.Claim, committed: int) -> None:
        """Goes on at the committed offset of the group."""
        self._counts["refused_claims"] += 1
        self._reader.notice = UNSEEN
        logger.warning(
            "group %s: %s-%d from %d to %d was not granted: the group is at %d",
            self._member.group, *name, claim.start, claim.end, committed,
        )  # fmt: skip
        partition = self._reader.partitions.get(name)
        if partition is not None:
            self._heads[name] = committed
            partition.jump(claim.start if committed == co.NO_OFFSET else committed)

    def _skip(self, records: int, why: str) -> None:
        if records:
            self._counts["skipped"] += records
            self._unreported += records
            logger.warning("group %s: skipped %d records: %s", self._member.group, records, why)

    def closing(self, timeout: float) -> Waits[None]:
        """Nothing more is handed out: count and tell what is left."""
        self.settle()
        deadline = time.monotonic() + timeout
        try:
            yield from self.knowing(timeout)
        except er.PenstockError as error:
            logger.info("group %s: closing during a claim: %s", self._member.group, error)
        self._skip(sum(map(len, self.queue)), "it was closed with them in its hands")
        self.queue.clear()
        if self._unreported:
            self._last_id += 1
            request = co.ClaimOffsets(
                self._member.group, self._member.member_id, self._last_id, [], self._unreported
            )
            yield from self._member.asking(request, co.Claimed, deadline)
            self._unreported = 0
