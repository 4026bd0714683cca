"""Requests about groups, as calls of the group machine, and its answers as messages.

Each request becomes a `RequestPlan`: the decision to ask of the machine, and the form of its
answer. A plan is carried out elsewhere. Owns the translation and the bounds of lists; decides
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.cluster import groups as gr
from penstock.cluster.access import Kind
from penstock.cluster.decisions import Decision
from penstock.core.errors import ConfigError, ResourceLimitError, UnknownMemberError
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms
from penstock.server.coordinator.group_members import WatchedMembers
from penstock.server.coordinator.offset_checks import OffsetChecks
from penstock.server.node.attached_client import AttachedClient

NO_PAGE: Final = -1
PAGE_BYTES: Final = 48 * 1024
"""About how much of a message its lists take."""


class RequestPlan(NamedTuple):
    """`decide` calls the machine, given the time; `say` makes the answer, right after that."""

    decide: Callable[[float], Decision[Any]]
    say: Callable[[Any], ms.NodeMessage]


_OfMember = co.SyncGroup | co.LeaveGroup


class GroupRequests:
    """The translation for one life of the machine. `pages`: those of each topic there is. `checks`:
    of offsets that clients name."""

    def __init__(
        self,
        groups: gr.GroupMachine,
        members: WatchedMembers,
        pages: Mapping[bytes, Sequence[int]],
        checks: OffsetChecks,
    ) -> None:
        self._groups = groups
        self._members = members
        self._pages = pages
        self._checks = checks

    def plan(self, client: AttachedClient, request: co.Request) -> RequestPlan:
        match request:
            case co.JoinGroup():
                return self._join(client, request)
            case co.SyncGroup():
                return self._sync(client, request)
            case co.LeaveGroup():
                return self._leave(client, request)
            case co.CommitOffsets():
                return self._commit(client, request)
            case co.ClaimOffsets():
                return self._claim(client, request)
            case co.SeekGroup():
                return self._seek(client, request)
            case co.DeleteGroup():
                return self._delete(request)
            case co.ListGroups():
                return _look(lambda: self._listed(client, request))
            case co.DescribeGroup():
                return _look(lambda: self._described(client, request))
            case _:
                raise AssertionError(f"{type(request).__name__} is not of groups")

    # --- membership ---
    def _join(self, client: AttachedClient, request: co.JoinGroup) -> RequestPlan:
        check_count("topics", len(request.topics), co.NAMES_MAX)
        check_attempt(request.attempt)
        fresh = f"{client.name or 'member'}-{request.attempt or os.urandom(8).hex()}"

        def say(assignment: gr.Assignment) -> ms.NodeMessage:
            self._members.joined(request.group, assignment.member_id, client)
            return self._assigned(client, assignment, 0)

        def decide(now: float) -> Decision[gr.Assignment]:
            self._members.prepare(client)
            return self._groups.join(
                now,
                request.group,
                request.member_id or self._joined_before(client, request.group, fresh),
                fresh,
                request.topics,
                request.pattern,
                request.guarantee,
                request.instance_id,
                request.session_timeout,
                request.processing_timeout,
                self._members.identity(client),
                request.takes_over,
                client.permits.acts_for,
            )

        return RequestPlan(decide, say)

    def _joined_before(self, client: AttachedClient, group: str, fresh: str) -> str:
        """The member that this session is already, or that the same attempt made by an earlier one:
        it asks again, since the answer was lost or came too late. As another one it would keep what
        the first was given from everybody, itself included."""
        if self._groups.is_member(group, fresh):
            return fresh
        other = self._members.get(fresh)
        if other is not None and other.group != group:
            raise ConfigError(
                f"the attempt of a join of group {group!r} made member {fresh!r} of group "
                f"{other.group!r}: draw one at random for each join"
            )
        for member in self._members.of_client(client):
            if member.group == group and self._groups.is_member(group, member.member_id):
                return member.member_id
        return ""

    def _sync(self, client: AttachedClient, request: co.SyncGroup) -> RequestPlan:
        check_count("released", len(request.released), co.PARTITIONS_MAX)
        released = [gr.Release(*_fields(each)) for each in request.released]

        def say(assignment: gr.Assignment) -> ms.NodeMessage:
            self._members.seen(request.member_id, client)
            return self._assigned(client, assignment, request.skip)

        def decide(now: float) -> Decision[gr.Assignment]:
            self._check_member(client, request)
            return self._groups.sync(now, request.group, request.member_id, released)

        return RequestPlan(decide, say)

    def _check_member(self, client: AttachedClient, request: _OfMember) -> None:
        """A member is obeyed by word of the principal that made it. Raises UnknownMemberError."""
        self._groups.member_of(request.group, request.member_id, client.permits.acts_for)

    def _leave(self, client: AttachedClient, request: co.LeaveGroup) -> RequestPlan:
        group, member_id = request.group, request.member_id

        def decide(now: float) -> Decision[None]:
            try:
                self._check_member(client, request)
            except UnknownMemberError:
                return Decision((), None)  # as of one that has left already
            return self._groups.leave(now, group, member_id)

        def say(_: None) -> ms.NodeMessage:
            member = self._members.get(member_id)
            is_gone = not self._groups.is_member(group, member_id)
            if member is not None and member.group == group and is_gone:
                self._members.left(member_id)
            return ms.Done()

        return RequestPlan(decide, say)

    def _assigned(
        self, client: AttachedClient, assignment: gr.Assignment, skip: int
    ) -> co.GroupAssignment:
        reads = client.permits.reads
        owned = [each for each in assignment.partitions if reads(each.topic)]
        page = [self._owned(each) for each in owned[max(skip, 0) :]]
        fits = fitting(page)
        return co.GroupAssignment(
            assignment.member_id,
            assignment.generation,
            page[:fits],
            self._members.notice_of(client),
            fits < len(page),
        )

    def _owned(self, owned: gr.OwnedPartition) -> co.Owned:
        return co.Owned(
            owned.topic,
            owned.topic_id,
            owned.partition,
            self._page(owned.topic_id, owned.partition),
            owned.grant,
            owned.revoked,
            owned.offset,
            owned.leader_epoch,
        )

    def _page(self, topic_id: bytes, partition: int) -> int:
        pages = self._pages.get(topic_id, ())
        return pages[partition] if 0 <= partition < len(pages) else NO_PAGE

    # --- offsets ---
    def _commit(self, client: AttachedClient, request: co.CommitOffsets) -> RequestPlan:
        offsets = commits(request.offsets)

        def decide(now: float) -> Decision[list[int]]:
            group, member_id = request.group, request.member_id
            taken = self._checks.of_member(self._groups, client, group, member_id, offsets)
            return self._groups.commit(now, group, member_id, taken)

        return RequestPlan(decide, lambda stale: co.Committed(list(stale)))

    def _claim(self, client: AttachedClient, request: co.ClaimOffsets) -> RequestPlan:
        check_count("claims", len(request.claims), co.PARTITIONS_MAX)
        claims = [gr.Claim(*_fields(each)) for each in request.claims]

        def decide(now: float) -> Decision[gr.Claimed]:
            group, member_id = request.group, request.member_id
            taken = self._checks.of_member(self._groups, client, group, member_id, claims)
            return self._groups.claim(
                now, group, member_id, request.claim_id, taken, request.skipped
            )

        return RequestPlan(
            decide, lambda claimed: co.Claimed(list(claimed.granted), list(claimed.committed))
        )

    # --- administration ---
    def _seek(self, client: AttachedClient, request: co.SeekGroup) -> RequestPlan:
        check_count("offsets", len(request.offsets), co.PARTITIONS_MAX)
        offsets = [gr.OffsetSeek(*_fields(each)) for each in request.offsets]

        def decide(now: float) -> Decision[None]:
            self._checks.within_logs(client, request.group, offsets)
            return self._groups.seek(
                now, request.group, offsets, request.allow_redelivery,
                is_report=request.is_report, only_empty=request.only_empty,
            )  # fmt: skip

        return RequestPlan(decide, _done)

    def _delete(self, request: co.DeleteGroup) -> RequestPlan:
        check_count("offsets", len(request.offsets), co.PARTITIONS_MAX)
        return RequestPlan(
            lambda now: self._groups.delete(now, request.group, request.offsets), _done
        )

    def _listed(self, client: AttachedClient, request: co.ListGroups) -> co.Groups:
        found = self._groups.list_groups(
            request.after, lambda name: client.permits.sees(Kind.group, name)
        )
        infos = [_info(each) for each in found.groups]
        fits = fitting(infos)
        return co.Groups(infos[:fits], found.more or fits < len(infos))

    def _described(self, client: AttachedClient, request: co.DescribeGroup) -> co.GroupDescription:
        found = self._groups.describe(
            request.group,
            request.skip,
            sees=lambda name: client.permits.sees(Kind.topic, name),
        )
        members = [
            co.MemberInfo(
                each.member_id,
                each.instance_id,
                each.client.client_id,
                each.client.pid,
                self._members.slot_of(each.member_id),
                each.partitions,
            )
            for each in found.members
        ]
        partitions = [
            co.GroupPartition(
                each.topic,
                each.topic_id,
                each.partition,
                self._page(each.topic_id, each.partition),
                each.member_id,
                each.grant,
                each.offset,
                each.leader_epoch,
                each.committed_at,
                each.commits,
            )
            for each in found.partitions
        ]
        members = members[: fitting(members, PAGE_BYTES // 2)]
        fits = fitting(partitions, PAGE_BYTES // 2)
        return co.GroupDescription(
            _info(found.info),
            members,
            partitions[:fits],
            found.more or fits < len(partitions),
            found.skipped,
            dict(found.counts),
        )


def commits(offsets: Sequence[co.OffsetCommit]) -> list[gr.OffsetCommit]:
    check_count("offsets", len(offsets), co.PARTITIONS_MAX)
    for each in offsets:
        if each.offset < 0:
            raise ConfigError(
                f"offset {each.offset} of partition {each.partition} cannot be committed: offsets "
                "begin at 0"
            )
    return [gr.OffsetCommit(*_fields(each)) for each in offsets]


def fitting(items: Sequence[msgspec.Struct], room: int = PAGE_BYTES) -> int:
    """How many of these a message has room for, from the first on."""
    for count, item in enumerate(items):
        room -= len(msgspec.msgpack.encode(item))
        if room < 0:
            return count
    return len(items)


def check_attempt(attempt: str) -> None:
    if len(attempt) > co.ATTEMPT_CHARACTERS_MAX or (attempt and not attempt.isalnum()):
        raise ConfigError(
            f"attempt {attempt[:100]!r} of a join is not allowed: up to "
            f"{co.ATTEMPT_CHARACTERS_MAX} letters and digits, drawn at random"
        )


def check_count(what: str, count: int, most: int) -> None:
    """Lists of requests are bounded."""
    if count > most:
        raise ResourceLimitError(
            f"{what} names {count}, and a request {most} at most: send several requests"
        )


def _fields(struct: msgspec.Struct) -> tuple[Any, ...]:
    """The same fields in the same order: messages and machine name them alike."""
    return msgspec.structs.astuple(struct)


def _look(say: Callable[[], ms.NodeMessage]) -> RequestPlan:
    """A question that decides nothing."""
    return RequestPlan(lambda _: Decision((), None), lambda _: say())


def _done(_: object) -> ms.NodeMessage:
    return ms.Done()


def _info(info: gr.GroupInfo) -> co.GroupInfo:
    return co.GroupInfo(
        info.group, info.guarantee, info.state, info.generation, info.members, info.partitions
    )
