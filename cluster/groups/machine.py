"""The group machine: the owners of the partitions of each group, and the committed offsets.

**Theory.** A partition of a group has one owner or none. Actions of the owner are valid under its
*grant*, the generation in which the partition was given to it. A generation is never used twice, so
one comparison refuses a former owner. A partition changes hands only after its owner let go of it
(`sync` with `released`, `leave`), was fenced, or was taken over as a static member. So nobody has
to stop for a partition that stays where it is. Handlers decide records and change nothing; `replay`
alone does, from records alone, and the newest record of each key is all that counts. All other
state is volatile and documented so: the catalogue of topics, counts, and the times of requests
(`liveness`).

**A group**, by what `GroupInfo.state` says:

| state | event | becomes |
|---|---|---|
| (none) | join, seek | stable, empty |
| empty | join | stable, or moving where a static member is among them |
| empty | offsets_retention, delete | (none) |
| stable | join, leave, fence, topics changed: owners have to let go | moving |
| stable | the same, but only what is free is handed out | stable |
| moving | the last of those partitions is released, or its owner dropped | stable |
| stable, moving | the last member leaves or is fenced | empty |
| stable, moving | delete | refused |

**A partition**, by owner and whom it is meant for:

| owner, meant for | event | becomes |
|---|---|---|
| -, B | the same decision | B, B under a new grant |
| A, A | assignment changed | A, B: revoked |
| A, B | A releases, leaves, is fenced or succeeded | B, B under a new grant |
| A, B | assignment changed back | A, A under the old grant |
| A, A | A releases it all the same, or seek | A, A under a new grant |

**An offset** is moved by the partition's owner under its current grant, or by `seek`: by nothing
else.
One of 0 comes with a partition, or a topic, that comes to be while members want it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.groups import admission, described, records, requests
from penstock.cluster.groups import offsets as kept
from penstock.cluster.groups.admission import Owns, owned_by_all
from penstock.cluster.groups.bounded import RECORDS_MAX, Bounded, size_of
from penstock.cluster.groups.described import everything
from penstock.cluster.groups.draft import GroupDraft
from penstock.cluster.groups.liveness import Liveness, Timers
from penstock.cluster.groups.records import CommittedOffset, Member
from penstock.cluster.groups.state import Group
from penstock.cluster.groups.types import (
    SHARED,
    Assignment,
    Claim,
    Claimed,
    ClientIdentity,
    GroupDescription,
    GroupLimits,
    GroupList,
    OffsetCommit,
    OffsetSeek,
    Release,
    Topics,
)
from penstock.core.errors import GroupError, UnknownMemberError

TOMBSTONES_MAX: Final = 100
"""Offsets of a group that one decision drops by itself."""
_KINDS: Final = frozenset(
    {records.GROUP, records.MEMBER, records.OWNERS, records.OFFSET, records.SKIPPED}
)


class GroupMachine:
    """All groups of a node. The first call after the replay is `topics_changed`."""

    def __init__(self, limits: GroupLimits | None = None) -> None:
        self._limits = limits or GroupLimits()
        self._groups: dict[str, Group] = {}
        # Volatile from here on.
        self._topics: Topics | None = None
        self._liveness = Liveness()
        self._expiry = Timers()
        self.doubt = 0.0
        """Seconds by which `now` may be ahead of the time that passed: offsets stay so much longer.
        The shell says so."""
        self._unsettled: dict[str, None] = {}  # groups that have not followed the catalogue yet
        self._counts: dict[str, Counter[str]] = {}
        self._gone: dict[tuple[str, str], None] = {}

    def limit(self, now: float, limits: GroupLimits) -> None:
        """Other bounds from now on. Nothing is decided by that: what expires earlier by them does
        so with the next tick."""
        self._limits = limits
        for group in self._groups.values():
            self._watch_expiry(group, now)

    def replay(self, record: Record) -> None:
        """The only mutator of groups. Records of other machines are passed over."""
        kind, *rest = records.decode_key(record.key)
        if kind not in _KINDS:
            return
        name = rest.pop(0)
        group = self._groups.get(name) or self._groups.setdefault(name, Group(name))
        group.replay(kind, rest, record.value)
        if kind == records.MEMBER:
            if record.value is None:
                self._gone[name, rest[0]] = None
                self._liveness.forget((name, rest[0]))
            else:
                self._liveness.replayed((name, rest[0]))
        elif kind == records.GROUP:
            self._watch_expiry(group)
        if group.void:
            del self._groups[name]
            self._counts.pop(name, None)
            self._gone[name, ""] = None

    # --- membership ---
    def join(
        self,
        now: float,
        group: str,
        member_id: str,
        new_member_id: str,
        topics: Sequence[str],
        pattern: str | None,
        guarantee: str,
        instance_id: str | None,
        session_timeout: float,
        processing_timeout: float | None,
        client: ClientIdentity,
        takes_over: bool = True,
        owns: Owns = owned_by_all,
    ) -> Decision[Assignment]:
        """`member_id` is empty at first (then `new_member_id` is taken), and known afterwards.
        `takes_over`: also from a static member that is connected. `owns`: which principals the
        caller may act for."""
        requests.check_name("the group", group)
        if instance_id is not None:
            requests.check_name(f"the instance_id of a member of group {group!r},", instance_id)
        requests.check_guarantee(group, guarantee)
        requests.check_subscription(group, topics, pattern, self._limits)
        requests.check_timeouts(group, session_timeout, processing_timeout, self._limits)
        there = self._groups.get(group) or Group(group)
        old = self.member_of(group, member_id, owns) if member_id else None
        if old is not None:
            admission.check_same(there, old, instance_id, client)
        before = None if old else admission.predecessor(there, instance_id, owns)
        if before and not takes_over and self._liveness.is_connected((group, before.member_id)):
            admission.refuse_twin(there, before)
        admission.check_guarantee(there, guarantee)
        if not old and not before:
            admission.check_room(there, len(self._groups), self._limits)
        draft = GroupDraft(there, None if there.members else guarantee)
        member = Member(
            old.member_id if old else new_member_id,
            old.number if old else draft.next_number,
            instance_id,
            tuple(sorted(set(topics))),
            pattern,
            session_timeout,
            processing_timeout,
            client,
        )
        if before is not None:
            draft.succeed(before.member_id, member)
        else:
            draft.enter(member)
        self._place(draft)
        decision = self._answer(now, draft, member)
        self._liveness.heard(now, (group, member.member_id), member)
        return decision

    def sync(
        self, now: float, group: str, member_id: str, released: Sequence[Release]
    ) -> Decision[Assignment]:
        """Takes `released` from the member; returns the assignment that it has then."""
        requests.check_places(group, released)
        member = self._known(group, member_id)
        self._liveness.heard(now, (group, member_id), member)
        draft = GroupDraft(self._groups[group])
        draft.release(member, released)
        return self._answer(now, draft, member)

    def leave(self, now: float, group: str, member_id: str) -> Decision[None]:
        """Unknown members have left already: no records."""
        decision = self._drop(now, group, member_id, "left")
        return decision._replace(notify=decision.notify - {member_id})

    def fence(self, now: float, group: str, member_id: str, why: str) -> Decision[None]:
        """It lost everything at once: stalled, or its time ran out. `why` is what it is counted
        as. Of members that are unknown nothing is decided."""
        return self._drop(now, group, member_id, why)

    def died(self, now: float, group: str, member_id: str) -> Decision[None]:
        """Its process is gone. Fenced, but for a static member: its successor has the session
        timeout to come."""
        member = self._find(group, member_id)
        if member is None or member.instance_id is None:
            return self._drop(now, group, member_id, "died")
        self.disconnected(now, group, member_id)
        return Decision((), None)

    def connected(self, now: float, group: str, member_id: str) -> None:
        """Volatile: stops the session timeout. Every request of a member does so too."""
        if member := self._find(group, member_id):
            self._liveness.heard(now, (group, member_id), member)

    def disconnected(self, now: float, group: str, member_id: str) -> None:
        """Volatile: starts the session timeout."""
        if member := self._find(group, member_id):
            self._liveness.lost(now, (group, member_id), member)

    def members(self) -> Iterator[tuple[str, str, ClientIdentity]]:
        """(group, member id, process) of every member: whom to watch after a reload."""
        for group in self._groups.values():
            for member in group.members.values():
                yield group.name, member.member_id, member.client

    def take_gone(self) -> Collection[tuple[str, str]]:
        """(group, member) of members that were dropped since the last call; (group, "") of groups
        that are gone."""
        gone, self._gone = self._gone, {}
        return gone

    def committed_of(self, topic_id: bytes) -> Iterator[Mapping[int, CommittedOffset]]:
        """Yields what each group has committed of a topic, by partition."""
        for group in self._groups.values():
            if of_topic := group.offsets.get(topic_id):
                yield of_topic

    def is_shared(self, group: str) -> bool:
        there = self._groups.get(group)
        return there is not None and there.guarantee == SHARED

    def names(self) -> Collection[str]:
        """Of all groups there are."""
        return self._groups.keys()

    def is_member(self, group: str, member_id: str) -> bool:
        return self._find(group, member_id) is not None

    def member_of(self, group: str, member_id: str, owns: Owns) -> Member:
        """That member. Raises UnknownMemberError, also where the caller may not act for it."""
        member = self._known(group, member_id)
        if not owns(member.client.principal):
            raise _unknown(group, member_id)
        return member

    def is_owner(
        self, group: str, member_id: str, topic_id: bytes, partition: int, grant: int
    ) -> bool:
        """Whether that member owns the partition under this grant."""
        member = self._find(group, member_id)
        return member is not None and self._groups[group].is_current(
            member, topic_id, partition, grant
        )

    # --- offsets ---
    def commit(
        self, now: float, group: str, member_id: str, offsets: Sequence[OffsetCommit]
    ) -> Decision[list[int]]:
        """Answers the places in `offsets` whose grant is not current."""
        requests.check_places(group, offsets)
        member = self._known(group, member_id)
        self._liveness.heard(now, (group, member_id), member)
        decided, stale = kept.commit(self._groups[group], member, offsets, now)
        if stale:
            self._count(group, "stale_commits", len(stale))
        return Decision(decided, stale)

    def claim(
        self,
        now: float,
        group: str,
        member_id: str,
        claim_id: int,
        claims: Sequence[Claim],
        skipped: int,
    ) -> Decision[Claimed]:
        """Rule 18; durable. The ids of a member's claims grow."""
        requests.check_places(group, claims)
        member = self._known(group, member_id)
        self._liveness.heard(now, (group, member_id), member)
        there = self._groups[group]
        decided, claimed, counts = kept.claim(there, member, claim_id, claims, skipped, now)
        self._counts.setdefault(group, Counter()).update(counts)
        return Decision(decided, claimed, durable=True)

    def check_offsets(self, group: str, member_id: str, offsets: Sequence[OffsetCommit]) -> None:
        """For transactions: raises StaleGenerationError, UnknownMemberError or GroupError."""
        member = self._known(group, member_id)
        kept.check_current(self._groups[group], member, offsets)

    def offset_records(
        self, now: float, group: str, offsets: Sequence[OffsetCommit]
    ) -> tuple[Record, ...]:
        """Of offsets that were checked in the same decision: what commits them."""
        return kept.commit_records(self._groups[group], offsets, now)

    # --- administration ---
    def seek(
        self, now: float, group: str, offsets: Sequence[OffsetSeek], allow_redelivery: bool,
        *, is_report: bool = False, only_empty: bool = False,
    ) -> Decision[None]:  # fmt: skip
        """Set offsets. Members keep their partitions, under new grants; a report, and what is for
        an empty group, is refused while there are any. Makes a group that is not there."""
        requests.check_name("the group", group)
        requests.check_places(group, offsets)
        there = self._groups.get(group) or Group(group)
        if there.guarantee == SHARED:
            raise GroupError(f"group {group!r} is a share group, which has no committed offsets")
        if is_report and there.members:
            raise GroupError(
                f"how far group {group!r} is was not taken from outside: it has "
                f"{len(there.members)} members, who say so themselves; report under another name"
            )
        if only_empty and there.members:
            raise GroupError(
                f"offsets of group {group!r} were not set: it has {len(there.members)} members; "
                "stop them first, or move it while they are there by seek (`penstock group seek`)"
            )
        if there.meta is None:
            admission.check_room(there, len(self._groups), self._limits)
        decided = kept.seek(there, offsets, allow_redelivery, self._catalogue, now)
        draft = GroupDraft(there)
        for offset in offsets:
            draft.regrant(offset.topic_id, offset.partition)
        return Decision(self._finish(now, draft) + decided, None, draft.notify)

    def delete(
        self, now: float, group: str, offsets: Sequence[tuple[bytes, int]]
    ) -> Decision[None]:
        """The whole group, or with `offsets` only these (topic id, partition)."""
        requests.check_places(group, offsets)
        there = self._existing(group)
        if offsets:
            return Decision(kept.delete(there, offsets), None)
        if there.members:
            raise GroupError(
                f"group {group!r} was not deleted: it has {len(there.members)} members; stop them "
                "first"
            )
        return Decision(tuple(kept.removal(there)), None)

    def list_groups(self, after: str, sees: Callable[[str], bool] = everything) -> GroupList:
        """`sees`: which groups are told."""
        return described.list_groups(self._groups, after, sees)

    def describe(
        self,
        group: str,
        skip: int,
        partitions_max: int = requests.PLACES_MAX,
        sees: Callable[[str], bool] = everything,
    ) -> GroupDescription:
        """Partitions from the `skip`-th on; members with the first page. `sees`: which topics'. A
        group that nobody has joined yet is empty."""
        requests.check_name("the group", group)
        names = {topic_id: name for name, (topic_id, _) in self._catalogue.items()}
        there = self._groups.get(group) or Group(group)
        counts = self._counts.get(group, Counter())
        return described.describe(there, names, self._liveness, counts, skip, partitions_max, sees)

    # --- the world ---
    def topics_changed(self, now: float, topics: Topics) -> Decision[None]:
        """`topics` is the whole catalogue, also the first one after a reload: groups drop topics
        that are not in it. `tick` does the rest if one decision has too little room."""
        old, self._topics = self._topics, dict(topics)
        names = {n for n in (old or {}).keys() | topics if not old or old.get(n) != topics.get(n)}
        there = {topic_id for topic_id, _ in topics.values()}
        for group in self._groups.values():
            if group.concerned_by(names, there):
                self._unsettled[group.name] = None
        return self._follow(now, {})

    def tick(self, now: float) -> Decision[None]:
        """Does all that is due: drops members whose time is up, lets groups follow the catalogue,
        and drops offsets that nobody wants any more."""
        for key in self._liveness.unseen():
            if member := self._find(*key):
                self._liveness.lost(now, key, member)
        ends: dict[str, dict[str, str]] = {}
        for group, member_id in self._liveness.timers.due(now, RECORDS_MAX):
            member = self._find(group, member_id)
            why = member and self._liveness.expired(now, (group, member_id), member)
            if why:
                ends.setdefault(group, {})[member_id] = why
        return self._follow(now, ends)

    def deadline(self) -> float | None:
        """When `tick` is wanted next; it may be in the past."""
        if self._unsettled:
            return 0.0
        expiry = self._expiry.next()
        both = (self._liveness.deadline(), None if expiry is None else expiry + self.doubt)
        return min((at for at in both if at is not None), default=None)

    # --- deciding ---
    def _answer(self, now: float, draft: GroupDraft, member: Member) -> Decision[Assignment]:
        decided = self._finish(now, draft)
        notify = draft.notify - {member.member_id}
        return Decision(decided, draft.assignment(member), notify)

    def _finish(self, now: float, draft: GroupDraft) -> tuple[Record, ...]:
        decided = self._finished(now, draft)
        if decided:
            self._count(draft.group.name, "rebalances", 1)
        return decided

    def _finished(self, now: float, draft: GroupDraft) -> tuple[Record, ...]:
        """Returns the records of the draft, and the first offsets of new partitions. The offsets
        are left out if so many came at once that no batch takes them."""
        begins = kept.begin_records(draft.group, draft.added, now)
        fits = size_of(begins) <= self._limits.decision_bytes
        return draft.finish(now) + (begins if fits else ())

    def _drop(self, now: float, group: str, member_id: str, why: str) -> Decision[None]:
        if self._find(group, member_id) is None:
            return Decision((), None)
        draft = GroupDraft(self._groups[group])
        draft.drop(member_id)
        self._count(group, why, 1)
        self._place(draft)
        decided = self._finish(now, draft)
        return Decision(decided, None, draft.notify)

    def _place(self, draft: GroupDraft) -> None:
        draft.place(self._catalogue, self._limits.member_partitions_max)

    def _follow(self, now: float, ends: Mapping[str, Mapping[str, str]]) -> Decision[None]:
        """Drops the members in `ends` (by group, with the reason); then lets groups follow the
        catalogue; then expires offsets. Work beyond one decision stays due."""
        decided, notify = Bounded(self._limits.decision_bytes), frozenset[str]()
        there = {topic_id for topic_id, _ in self._catalogue.values()} if self._unsettled else set()
        waiting = deque([*ends, *(name for name in self._unsettled if name not in ends)])
        while waiting:
            if group := self._groups.get(waiting[0]):
                draft, ended = GroupDraft(group), ends.get(group.name, {})
                for member_id in ended:
                    draft.drop(member_id)
                self._place(draft)
                changed, orphans = self._finished(now, draft), self._orphans(group, there)
                if not decided.take((*changed, *orphans)):
                    break
                notify |= draft.notify
                for what in (*ended.values(), *(["rebalances"] if changed else [])):
                    self._count(group.name, what, 1)
                if len(orphans) == TOMBSTONES_MAX:
                    waiting.popleft()  # it has more of them: still unsettled
                    continue
            self._unsettled.pop(waiting.popleft(), None)
        for name in waiting:
            for member_id in ends.get(name, ()):
                self._liveness.timers.schedule((name, member_id), now)
        later: list[Group] = []
        believed = now - self.doubt
        while not waiting and (due := self._expiry.due(believed, 1)):
            group = self._groups[due[0][0]]
            later.append(group)
            gone, offsets = ((), 0) if group.name in ends else self._expired(believed, group)
            if not decided.take(gone):
                break
            if offsets:
                self._count(group.name, "expired_offsets", offsets)
        for group in later:
            self._watch_expiry(group, believed)
        return Decision(tuple(decided.records), None, notify)

    def _orphans(self, group: Group, there: Container[bytes]) -> tuple[Record, ...]:
        """Tombstones of offsets whose topic is not `there`, for a group that has not looked yet."""
        if group.name not in self._unsettled:
            return ()
        return tuple(islice(kept.orphaned(group, there), TOMBSTONES_MAX))

    def _expired(self, now: float, group: Group) -> tuple[tuple[Record, ...], int]:
        """Tombstones of what nobody wants any more, and of how many offsets they are."""
        retention = self._limits.offsets_retention
        at = kept.expires_at(group, retention)
        if at is None or at > now:
            return (), 0
        gone = tuple(islice(kept.expired(group, now, retention), TOMBSTONES_MAX))
        everything = len(gone) == sum(1 for _ in group.all_offsets())
        return (tuple(kept.removal(group)) if everything else gone), len(gone)

    # --- looking up ---
    @property
    def _catalogue(self) -> Topics:
        if self._topics is None:
            raise RuntimeError("groups were asked for something before topics_changed was called")
        return self._topics

    def _find(self, group: str, member_id: str) -> Member | None:
        there = self._groups.get(group)
        return there.members.get(member_id) if there else None

    def _known(self, group: str, member_id: str) -> Member:
        if member := self._find(group, member_id):
            return member
        raise _unknown(group, member_id)

    def _existing(self, group: str) -> Group:
        there = self._groups.get(group)
        if there is None or there.meta is None:
            raise GroupError(f"there is no group {group!r}: one comes with its first member")
        return there

    def _count(self, group: str, what: str, by: int) -> None:
        self._counts.setdefault(group, Counter())[what] += by

    def _watch_expiry(self, group: Group, not_before: float = 0.0) -> None:
        if group.meta is None or group.meta.empty_since is None:
            self._expiry.forget((group.name, ""))
            return
        retention = self._limits.offsets_retention
        at = kept.expires_at(group, retention)
        self._expiry.schedule((group.name, ""), not_before + retention if at is None else at)


def _unknown(group: str, member_id: str) -> UnknownMemberError:
    return UnknownMemberError(
        f"group {group!r} has no member {member_id!r} (any more): it was away for longer than "
        "its session_timeout, fenced, or replaced; join again"
    )
