"""What a member of a group can be asked and told about offsets: commits, rewinds, positions, seeks.

Each guarantee has its own answer: at-most-once stands where its claims do, the others where their
commits and what was handed out say. Never reads a record; `consumer` does, and is made of this.
"""

from __future__ import annotations

import logging
from abc import abstractmethod

from penstock.client.consumer.consumer import Start
from penstock.client.consumer.group.at_most_once import Claims
from penstock.client.consumer.group.consumed import Committed, GroupBatch, as_batch, as_committed
from penstock.client.consumer.group.membership import Membership, stale_error
from penstock.client.consumer.group.offset_commits import Commits
from penstock.client.consumer.group.options import Guarantee
from penstock.client.consumer.group.reader import GroupReader
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.waits import Waits, run

logger = logging.getLogger("penstock.consumer")


class OffsetVerbs:
    """The half of `GroupConsumer`, which sets all of these, that knows of offsets."""

    group: str
    guarantee: Guarantee
    _reader: GroupReader
    _member: Membership
    _commits: Commits
    _claims: Claims | None
    _closed: bool
    _out: GroupBatch | None
    _is_rewinding: bool

    @abstractmethod
    def attending(self) -> Waits[None]: ...

    @abstractmethod
    def _recovering(self) -> Waits[None]: ...

    def commit(self, what: Committed | None = None) -> None:
        """Commit all that was handed out so far, what a batch or a slice of it brought, a record
        with all before it in its partition, or `{(topic, partition): offset}`, where the offset is
        that of the next record wanted.

        Raises `StaleGenerationError` naming the partitions that others own by now; the rest is
        committed. `ConfigError` where the guarantee commits otherwise, and for an offset beyond
        what was handed out: `seek` leaves records out.
        """
        run(self.committing(what))

    def committing(self, what: Committed | None = None) -> Waits[None]:
        """`commit`, with the waiting left to another one."""
        self._reader.check_usable()
        if self._is_rewinding and what is None:
            yield from self._recovering()
        self._reader.go_back()
        if self.guarantee in ("at-most-once", "exactly-once"):
            how = (
                "before records are handed out" if self._claims is not None
                else "with a transaction: producer.transaction(consumed=batch)"
            )  # fmt: skip
            raise er.ConfigError(f"group {self.group!r} is {self.guarantee}: it commits {how}")
        given = None if what is None else as_committed(what)
        if isinstance(given, GroupBatch) and given.ownership.member_id != self._member.member_id:
            raise stale_error(self.group, given.ownership.owned)
        yield from self._commits.explicitly(given)
        if what is None or what is self._out:
            self._out = None

    def offsets_of(self, batch: GroupBatch | None = None) -> co.GroupOffsets:
        """What a transaction has to commit for a batch, or for all that was handed out."""
        if batch is not None:
            return batch.consumed_under(self._member.ownership)
        if self._is_rewinding:
            raise er.GroupError(
                f"group {self.group!r}: what it handed out is not known, since a rewind had no "
                "answer: abort; what is not committed comes again"
            )
        self._reader.go_back()
        return self._commits.handed_out()

    def rewind(self, batch: GroupBatch | None = None) -> None:
        """Bring it again: a batch, or all above what is committed. Partitions that others own by
        now are left to them. Refused at-most-once. What is committed by transactions the node has
        to say; while it does not, no poll brings anything."""
        run(self.rewinding(batch))

    def rewinding(self, batch: GroupBatch | None = None) -> Waits[None]:
        """`rewind`, with the waiting left to another one."""
        if self._closed:
            return  # there is nobody to bring it again
        if self._claims is not None:
            raise er.ConfigError(f"group {self.group!r} is at-most-once: nothing comes again")
        self._reader.go_back()
        if batch is not None:
            self._commits.back_before(as_batch(batch))
        elif self.guarantee == "exactly-once":
            yield from self._going_back()
        else:
            yield from self._commits.going_back(self._out, self.guarantee)
        self._out = None  # now: an interrupted rewind may be asked for again

    def _going_back(self) -> Waits[None]:
        """To what transactions have committed; without an answer the next poll does it."""
        self._is_rewinding = True
        try:
            yield from self._recovering()
        except er.PenstockError as error:
            if not error.retriable:
                raise
            logger.warning("group %s: the next poll rewinds: %s", self.group, error)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that iteration or `poll` will bring."""
        if self._claims is not None:
            return self._claims.position((topic, partition))
        return self._reader.position(topic, partition)

    def committed(self) -> dict[TopicPartition, int | None]:
        """What is committed of its partitions (None: nothing yet), as this member knows it."""
        if self._claims is not None:
            return self._claims.committed()
        return self._commits.committed()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are its own now."""
        run(self._following())
        return self._reader.assignment()

    def _following(self) -> Waits[None]:
        """Let the assignment be what the coordinator last said, unless a loop stands within it."""
        if not self._reader.handout.is_live and self._reader.is_disturbed():
            yield from self.attending()

    def seek(self, topic: str, partition: int, to: Start) -> int:
        """Go on elsewhere; returns the offset that `to` meant. What is committed follows with the
        next commit. At-most-once only forwards."""
        return run(self.seeking(topic, partition, to))

    def seeking(self, topic: str, partition: int, to: Start) -> Waits[int]:
        self._reader.check_usable()
        yield from self._following()
        yield from self._reader.refreshing()
        if self._claims is not None:
            return (yield from self._claims.seeking((topic, partition), to))
        self._out = self._commits.out_but(self._out, (topic, partition))
        return (yield from self._reader.seeking(topic, partition, to))

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch nothing of these (none given: of all) until `resume`; they stay its own."""
        self._reader.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._reader.resume(*partitions)

    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and high watermark."""
        return self._reader.lag()

    def known_lag(self) -> dict[TopicPartition, int]:
        return self._reader.known_lag()
