"""Applies a rebalance to a member: calls listeners, lets go, takes on, in the caller's thread.

    what the coordinator answers        what happens here
    a partition that was not ours       taken on from what is committed, then on_assigned
    one of ours, marked as revoked      on_revoked, then what is done is committed, then it is
                                        dropped and released; only then another may have it
    one of ours is not there, or        on_lost: another has it already (or an admin sought it);
    has another grant                   nothing of it is committed
    it does not know this member        all is lost, and it joins again

Owns that order. Knows nothing of how offsets are committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from penstock.client.consumer.group.membership import JOINS_MAX, GroupMembership
from penstock.client.consumer.group.reader import GroupReader
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.waits import Waits

logger = logging.getLogger("penstock.consumer")

Listener = Callable[[list[TopicPartition]], object]

ROUNDS_MAX: Final = 8
"""Syncs in one go, while each answer revokes something more."""
RETRY_EVERY: Final = 0.5
UNOPENED_EVERY: Final = 0.05
"""Seconds between two looks whether a partition that was given to this member is open."""
NAMED_MAX: Final = 8
"""Partitions that a line of the log names."""
LOOK_SECONDS: Final = 0.02
"""Seconds that looking for a lost node may take of a poll that has other things to do."""


class Owner(Protocol):
    """The consumer, which commits, drops and reads."""

    def letting_go(self, names: Sequence[TopicPartition], *, lost: bool) -> Waits[None]: ...

    def taking_on(self, owned: Sequence[co.Owned]) -> Waits[None]: ...


class Changes:
    """Changes of a member's assignment. `listeners`: on_assigned, on_revoked, on_lost."""

    def __init__(
        self,
        reader: GroupReader,
        member: GroupMembership,
        counts: dict[str, int],
        listeners: tuple[Listener | None, Listener | None, Listener | None],
        owner: Owner,
    ) -> None:
        self._reader = reader
        self._member = member
        self._counts = counts
        self._on_assigned, self._on_revoked, self._on_lost = listeners
        self._owner = owner
        self.retry_at: float | None = None

    def following(self) -> Waits[None]:
        """Asks what is ours, and makes it so. Without an answer things stay as they are, and it is
        asked again soon; raises `NotConnectedError` after `node_timeout` without a node."""
        reader, member = self._reader, self._member
        yield from reader.minding(LOOK_SECONDS)
        self.retry_at = time.monotonic()  # where an interrupt ends this, it is done again
        if reader.is_lost:
            self._later("there is no node")
            return
        try:
            for _ in range(JOINS_MAX):  # one that is stopped again and again is out again and again
                try:
                    yield from self._applying()
                    return
                except er.UnknownMemberError as error:
                    logger.warning("group %s: %s; joining again", member.group, error)
                    member.forget()
                    yield from self._losing(list(self._reader.partitions))
            self._later("the group puts this member out as soon as it has joined")
        except er.PenstockError as error:
            if not error.retriable:
                self.retry_at = None
                raise
            self._later(str(error))

    def _later(self, why: str) -> None:
        logger.info("group %s: no word of the coordinator: %s", self._member.group, why)
        self._reader.hush()
        self.retry_at = time.monotonic() + RETRY_EVERY

    def _applying(self) -> Waits[None]:
        reader, member = self._reader, self._member
        before = dict(member.ownership.owned)
        notice = reader.noticed
        assignment = yield from member.syncing()
        for _ in range(ROUNDS_MAX):
            mine = {_name(one): one for one in assignment.partitions if not one.revoked}
            revoked = [one for one in assignment.partitions if one.revoked]
            yield from self._giving_up(mine, revoked)
            if not revoked:
                break
            notice = reader.noticed
            assignment = yield from member.syncing(
                [co.Release(one.topic_id, one.partition, one.grant) for one in revoked]
            )
        held = member.ownership.owned
        wanted = [
            one
            for name, one in mine.items()
            if one.page >= 0 and (name not in held or name not in reader.partitions)
        ]
        added = [one for one in wanted if reader.is_open(one)]
        if added:
            yield from self._owner.taking_on(added)
            member.own([*held.values(), *added])
            self._counts["assigned"] += len(added)
        reader.notice = notice
        if before != member.ownership.owned:
            self._counts["rebalances"] += 1
        # New ones may be missing, which their writers are about to make.
        is_whole = len(added) == len(wanted)
        self.retry_at = None if is_whole else time.monotonic() + UNOPENED_EVERY
        if added and self._on_assigned is not None:
            self._on_assigned([_name(one) for one in added])

    def _giving_up(
        self, mine: dict[TopicPartition, co.Owned], revoked: list[co.Owned]
    ) -> Waits[None]:
        held = self._member.ownership.owned
        leaving = [_name(one) for one in revoked if _is_same(held.get(_name(one)), one)]
        lost = [
            name
            for name, one in held.items()
            if name not in leaving and not _is_same(mine.get(name), one)
        ]
        if lost:
            yield from self._losing(lost, mine)
        if leaving:
            if self._on_revoked is not None:
                self._on_revoked(list(leaving))
            yield from self._owner.letting_go(leaving, lost=False)
            self._without(leaving)
            self._counts["revoked"] += len(leaving)

    def _losing(
        self, names: list[TopicPartition], mine: Collection[TopicPartition] = ()
    ) -> Waits[None]:
        if not names:
            return
        for told, which in (
            ("lost to others", [name for name in names if name not in mine]),
            ("sought elsewhere by an admin, or given again", [n for n in names if n in mine]),
        ):
            if which:
                places = ", ".join(f"{topic}-{number}" for topic, number in which[:NAMED_MAX])
                more = f" and {len(which) - NAMED_MAX} more" if len(which) > NAMED_MAX else ""
                logger.warning("group %s: %s: %s%s", self._member.group, told, places, more)
        yield from self._owner.letting_go(names, lost=True)
        self._without(names)
        self._counts["lost"] += len(names)
        if self._on_lost is not None:
            self._on_lost(list(names))

    def _without(self, names: Sequence[TopicPartition]) -> None:
        gone = set(names)
        owned = self._member.ownership.owned
        self._member.own([one for name, one in owned.items() if name not in gone])

    def leaving(self) -> None:
        """The member leaves by itself: tell the listener while things are still its own."""
        names = list(self._member.ownership.owned)
        if names and self._on_revoked is not None:
            self._on_revoked(names)


def _name(one: co.Owned) -> TopicPartition:
    return one.topic, one.partition


def _is_same(one: co.Owned | None, other: co.Owned) -> bool:
    return one is not None and (one.topic_id, one.grant) == (other.topic_id, other.grant)
