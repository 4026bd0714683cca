"""A member's talk with the coordinator: join, sync, commit, claim, leave.

Owns the member's id, what it owns and under which grants. A request that finds no node attaches
again and joins as the same member, within its bound, before it is asked again. Knows nothing of
records, and calls nobody back. Calls are generators of waits (see `penstock.ipc.waits`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock.client.consumer.group.consumed import GrantedPartitions
from penstock.client.consumer.group.reader import UNSEEN, GroupReader
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.doorbell import Backoff
from penstock.ipc.messages import Done
from penstock.ipc.waits import Wait, Waits

logger = logging.getLogger("penstock.consumer")

Reply = TypeVar("Reply", bound=msgspec.Struct)
Item = TypeVar("Item")

REQUEST_MIN: Final = 0.05
"""Seconds that an answer gets at least."""
JOINS_MAX: Final = 3
"""How often a member that is fenced before it knows what it owns joins."""
LEAVE_TIMEOUT: Final = 2.0


class Posted(NamedTuple):
    """A request whose answer nobody has waited for yet."""

    session: Session
    ticket: int


class GroupMembership:
    """Membership in a group. `join`: how it joins; its member id is filled in."""

    def __init__(self, reader: GroupReader, join: co.JoinGroup, timeout: float) -> None:
        self._reader = reader
        self._join = msgspec.structs.replace(join, attempt=_attempt())
        self._timeout = timeout
        self._session: Session | None = None
        self.ownership = GrantedPartitions(join.group)

    @property
    def group(self) -> str:
        return self._join.group

    @property
    def member_id(self) -> str:
        return self.ownership.member_id

    def check_reads(self, topics: Iterable[str]) -> None:
        """Raises `ConfigError` for one that it never gets, which those by a pattern may be."""
        for topic in topics:
            if self._join.pattern is None and topic not in self._join.topics:
                raise er.ConfigError(
                    f"commit: this consumer of group {self.group!r} does not read {topic!r}, but "
                    f"{', '.join(self._join.topics)}; offsets of other topics are set by "
                    "Admin.reset_offsets()"
                )

    def subscribe(self, topics: Sequence[str]) -> None:
        """To these; the next request joins with them, as the same member."""
        self._join = msgspec.structs.replace(self._join, topics=[*topics])
        self._session = None

    def own(self, owned: Iterable[co.Owned]) -> None:
        """From now on these, and no others."""
        named = {(one.topic, one.partition): one for one in owned}
        self.ownership = replace(self.ownership, owned=named)

    def forget(self) -> None:
        """The coordinator does not know this member: the next request joins as a new one, but not
        in the place of a process that may have taken over from it."""
        self._join = msgspec.structs.replace(self._join, takes_over=False, attempt=_attempt())
        self.ownership = GrantedPartitions(self.group)
        self._session = None

    # --- requests ---
    def joining(self) -> Waits[None]:
        """Becomes a member, and learns of it: a process stopped in between is fenced again."""
        for _ in range(JOINS_MAX - 1):
            try:
                yield from self.syncing()
                return
            except er.UnknownMemberError as error:
                logger.warning("group %s: %s; joining again", self.group, error)
                self.forget()
        yield from self.syncing()

    def syncing(self, released: Sequence[co.Release] = ()) -> Waits[co.GroupAssignment]:
        """Returns the assignment. Raises `UnknownMemberError` and the errors of `asking`."""
        deadline = time.monotonic() + self._timeout
        yield from self.being_known(self._timeout)
        parts = list(_parts(released)) or [[]]
        for part in parts:
            request = co.SyncGroup(self.group, self.member_id, part)
            assignment = yield from self.asking(request, co.GroupAssignment, deadline)
        while assignment.more:
            if time.monotonic() >= deadline:
                raise er.PenstockTimeout(
                    f"group {self.group!r}: what {self.member_id} owns takes several messages, and "
                    f"changed between them for {self._timeout:g} s; it is asked again"
                )
            known = assignment.partitions
            request = co.SyncGroup(self.group, self.member_id, [], skip=len(known))
            rest = yield from self.asking(request, co.GroupAssignment, deadline)
            if (rest.generation, rest.notice) == (assignment.generation, assignment.notice):
                assignment = msgspec.structs.replace(rest, partitions=known + rest.partitions)
            else:  # it changed in between: from the first page on
                request = co.SyncGroup(self.group, self.member_id, [])
                assignment = yield from self.asking(request, co.GroupAssignment, deadline)
        return assignment

    def committing(
        self, offsets: Sequence[co.OffsetCommit], timeout: float | None = None
    ) -> Waits[list[int]]:
        """The places in `offsets` whose partitions others own by now."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        stale: list[int] = []
        done = 0
        for part in _parts(offsets):
            request = co.CommitOffsets(self.group, self.member_id, part)
            answer = yield from self.asking(request, co.Committed, deadline)
            stale += [done + place for place in answer.stale]
            done += len(part)
        return stale

    def leaving(self) -> Waits[None]:
        """Gives everything back at once. Static members only go: a successor takes over."""
        if self._join.instance_id is None and self.member_id and self._session is not None:
            request = co.LeaveGroup(self.group, self.member_id)
            try:
                yield from self._session.requesting(request, Done, LEAVE_TIMEOUT)
            except er.PenstockError as error:
                logger.warning("leaving group %s: %s", self.group, error)
        self._session = None

    def post(self, request: msgspec.Struct) -> Posted | None:
        """Asks, and waits for nothing. None where that cannot be done now."""
        session = self._reader.session
        if self._session is not session:
            return None  # it would have to join first
        try:
            return Posted(session, session.post(request))
        except (OSError, er.PenstockError) as error:
            logger.info("group %s: nothing asked ahead: %s", self.group, error)
            return None

    def asking(
        self,
        request: msgspec.Struct,
        expect: type[Reply],
        deadline: float,
        posted: Posted | None = None,
    ) -> Waits[Reply]:
        """The answer, before `deadline` (monotonic seconds), also across the node's restart.
        `posted`: it was asked already, and is asked again only if that answer is lost.

        Raises `PenstockTimeout`, `NotConnectedError`, and what the coordinator refuses with.
        """
        pauses = Backoff(first=0.005, last=0.25)
        while True:
            left = max(deadline - time.monotonic(), REQUEST_MIN)
            try:
                session = yield from self.being_known(left)
                if posted is not None and posted.session is session:
                    ticket, posted = posted.ticket, None
                    answer = yield from session.collecting(ticket, expect, left)
                    if answer is not None:
                        return answer
                return (yield from session.requesting(request, expect, left))
            except er.PenstockError as error:
                if not error.retriable or time.monotonic() >= deadline:
                    raise
                is_lost = isinstance(error, er.NotConnectedError)
            left = max(deadline - time.monotonic(), 0.0)
            yield Wait(min(pauses.bound(), left))
            if is_lost:
                yield from self._looking_for_node(left)

    def _looking_for_node(self, timeout: float) -> Waits[None]:
        try:
            yield from self._reader.reattaching(timeout)
        except er.PenstockError as error:
            if not error.retriable:
                raise

    def being_known(self, timeout: float) -> Waits[Session]:
        """Join by this attachment, if that is not done yet."""
        session = self._reader.session
        if self._session is not session:
            request = msgspec.structs.replace(self._join, member_id=self.member_id)
            assignment = yield from session.requesting(request, co.GroupAssignment, timeout)
            self.ownership = replace(self.ownership, member_id=assignment.member_id)
            self._session = session
            self._reader.notice = UNSEEN  # what the answer says is fetched where it is wanted
        return session


def _attempt() -> str:
    """By which a join is known, however often and by how many connections it is asked."""
    return os.urandom(8).hex()


def stale_error(group: str, names: Collection[TopicPartition]) -> er.StaleGenerationError:
    listed = ", ".join(f"{topic}-{number}" for topic, number in sorted(names))
    return er.StaleGenerationError(
        f"group {group!r} gave {listed} to another member, or was sought, after these records were "
        "read: nothing of them is committed here, and their owner now gets them again"
    )


def _parts(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Yields the items in parts, each as large as one message takes."""
    for start in range(0, len(items), co.PARTITIONS_MAX):
        yield list(items[start : start + co.PARTITIONS_MAX])
