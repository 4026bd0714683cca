"""Requests of share group workers, as calls of the machine of all share groups.

A request is a row of decisions, each appended as it is taken; the answer waits for the last of
them. Owns the translation, and what a member may name; decides nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from penstock.cluster import groups as gr
from penstock.cluster import shares as sh
from penstock.cluster.access import Kind
from penstock.cluster.decisions import Decision
from penstock.core.errors import GroupError, PenstockError, UnknownTopicError
from penstock.ipc import messages as ms
from penstock.ipc import sharing
from penstock.ipc.state import StatePage
from penstock.server.coordinator.committed import LEADING
from penstock.server.coordinator.epoch import Life
from penstock.server.coordinator.group_members import WatchedMembers
from penstock.server.node.attached_client import AttachedClient

NO_PAGE: Final = -1
NONE_READY: Final = -1
NOTHING_PEEKED: Final = sharing.SharePeeked([], -1)
CONDEMNED_BYTES: Final = 12_000
"""Of the stories that one answer tells."""
PARTITIONS_PER_PAGE: Final = 100
MEMBERS_SHOWN: Final = 64


class ShareRequests:
    """For one life of the machines. `pages`: those of each topic there is; `names`: of topics."""

    def __init__(
        self,
        life: Life,
        members: WatchedMembers,
        pages: Mapping[bytes, Sequence[int]],
        names: Mapping[bytes, str],
        page: Callable[[int], StatePage],
        now: Callable[[], float],
        until: float,
    ) -> None:
        self._life = life
        self._shares = life.machines.shares
        self._arranged = life.arranged
        self._groups = life.machines.groups
        self._members = members
        self._pages = pages
        self._names = names
        self._page = page
        self._now = now
        self._until = until

    async def answer(self, client: AttachedClient, request: sharing.Request) -> ms.NodeMessage:
        """Raises what refuses it, and `PenstockTimeout`: it may take effect."""
        try:
            said = self._decided(client, request)
        except PenstockError:
            await self._settled()  # what refuses it may yet come to nothing
            raise
        await self._settled()
        return said

    async def _settled(self) -> None:
        left = max(0.0, self._until - time.monotonic())
        await self._life.journal.settled(durable=False, timeout=left)

    def _decided(self, client: AttachedClient, request: sharing.Request) -> ms.NodeMessage:
        match request:
            case sharing.AcquireRecords():
                return self._acquire(client, request)
            case sharing.BuryRecords():
                self._member(client, request.group, request.member_id)
                place = self._allowed(client, request.topic_id, request.partition)
                runs = sh.runs_of(request.runs)
                self._decide(lambda _: self._shares.bury(request.group, place, runs))
                return ms.Done()
            case sharing.SeekShare():
                place = (request.topic_id, request.partition)
                if not 0 <= request.partition < len(self._pages.get(request.topic_id, ())):
                    raise UnknownTopicError(
                        f"there is no partition {request.partition} of topic "
                        f"{request.topic_id.hex()}"
                    )
                self._decide(lambda _: self._shares.seek(request.group, place, request.offset))
                return ms.Done()
            case sharing.PauseShare(group, reason):
                by = str(client.permits)
                self._decide(lambda now: self._shares.pause(now, group, by, reason))
                return ms.Done()
            case sharing.ResumeShare(group):
                self._decide(lambda _: self._shares.resume(group))
                return ms.Done()
            case sharing.DescribeShare():
                return self._described(client, request)
            case sharing.PeekShare():
                return self._peeked(client, request)

    # --- a worker ---
    def _acquire(self, client: AttachedClient, request: sharing.AcquireRecords) -> ms.NodeMessage:
        name, member_id = request.group, request.member_id
        member = self._member(client, name, member_id)
        if request.settings is not None:
            given = request.settings
            policy = sh.SharePolicy(**msgspec.structs.asdict(given))
            self._arranged.check(
                name, member_id, policy, lambda it: self._groups.is_member(name, it)
            )
            self._decide(lambda _: self._shares.configure(name, policy))
            while self._decide(lambda _: self._arranged.arrange(name)):
                pass
        if request.holds is not None:
            holds = {((it.topic_id, it.partition), it.lease) for it in request.holds}
            self._decide(lambda _: self._shares.keep_only(name, member_id, holds))
        stale = [self._answered(client, name, member_id, each) for each in request.answers]
        withheld = [self._claimed(client, name, member_id, each) for each in request.claims]
        topics = self._topics_of(client, member)
        ends = [self._ends(client, each) for each in request.ends]
        ends = [each for each in ends if each.place[0] in topics]
        self._tell(name, request, ends)
        acquired = self._decide(
            lambda now: self._shares.acquire(
                now, name, member_id, request.records_max, ends, topics
            )
        )
        frontiers = dict(zip((each.place for each in ends), acquired.frontiers, strict=True))
        condemned = self._condemned(name, member_id, topics) if request.records_max else []
        return sharing.RecordsAcquired(
            [_leased(each) for each in acquired.granted],
            [list(runs) for runs in stale],
            [frontiers.get((it.topic_id, it.partition), it.start) for it in request.ends],
            condemned,
            self._members.notice_of(client),
            acquired.is_full,
            int(self._now() * 1e6),
            acquired.is_paused,
            [list(runs) for runs in withheld],
        )

    def _tell(
        self, name: str, request: sharing.AcquireRecords, ends: Sequence[sh.KnownEnds]
    ) -> None:
        """Begins with records by the keys and tenants that the worker tells."""
        upto = {each.place: each.end for each in ends}
        told = [
            sh.ToldHashes(place, each.first, each.keys, each.tenants, upto[place])
            for each in request.ends
            if (each.keys or each.tenants) and (place := (each.topic_id, each.partition)) in upto
        ]
        if told:
            self._decide(lambda _: self._arranged.tell(name, told))

    def _answered(
        self, client: AttachedClient, name: str, member_id: str, answer: sharing.LeaseAnswer
    ) -> sh.Runs:
        """Applies an answer; returns the runs that were stale."""
        place = self._allowed(client, answer.topic_id, answer.partition)
        lease, shares = answer.lease, self._shares
        share = shares.share(name, place)
        if share is not None and share.machine and not share.machine.is_of(member_id, lease):
            # It is over. A power cut that took what was not synced has its number given again.
            late = sorted(run for runs in _told_by(answer) for run in sh.runs_of(runs))
            shares.count(name, "stale", sum(end - first for first, end in late))
            return tuple(late)
        stale: list[sh.Run] = []
        for more in answer.extended:
            extend = partial(
                shares.extend, name=name, place=place, lease=lease, runs=sh.runs_of(more.runs),
                seconds=more.seconds,
            )  # fmt: skip
            stale += self._decide(extend).stale
        for how in ("accepted", "skipped", "expired", "lost"):
            if done := sh.runs_of(getattr(answer, how)):
                accept = partial(shares.accept, name, place, lease, done, how)
                stale += self._decide(_untimed(accept)).stale
        if answer.released:
            runs = sh.runs_of(answer.released)
            stale += self._decide(
                lambda _: shares.release(name, place, lease, runs, member_id)
            ).stale
        told: Any = {"name": name, "place": place, "lease": lease, "by": member_id}
        for failure in answer.failed:
            fail = partial(
                shares.fail, runs=sh.runs_of(failure.runs), reason=failure.reason,
                delay=failure.delay, **told,
            )  # fmt: skip
            stale += self._decide(fail).stale
        if answer.delayed:
            delayed = sorted((run, one.due_us) for one in answer.delayed for run in one.runs)
            delay = partial(
                shares.delay, runs=sh.runs_of(run for run, _ in delayed),
                due_us=[due_us for _, due_us in delayed], **told,
            )  # fmt: skip
            stale += self._decide(delay).stale
        for failure in answer.rejected:
            reject = partial(
                shares.reject, runs=sh.runs_of(failure.runs), reason=failure.reason, **told
            )
            stale += self._decide(reject).stale
        return tuple(sorted(stale))

    def _claimed(
        self, client: AttachedClient, name: str, member_id: str, told: sharing.ClaimedIds
    ) -> sh.Runs:
        """Claims dedup ids; returns the runs that are not to be handed out."""
        claimed = sh.ClaimedRecords(
            self._allowed(client, told.topic_id, told.partition), told.lease,
            sh.runs_of(told.runs), told.digests, told.stamps,
        )  # fmt: skip
        judged: sh.IdsJudged = self._decide(
            lambda now: sh.claim(self._shares, now, name, member_id, claimed)
        )
        return judged.withheld

    def _condemned(
        self, name: str, member_id: str, topics: set[bytes]
    ) -> list[sharing.CondemnedRecord]:
        now, room = self._now(), CONDEMNED_BYTES
        found: list[sharing.CondemnedRecord] = []
        for each in self._shares.dead_letters(now, name, member_id, topics, sharing.CONDEMNED_MAX):
            story = [sharing.FailureInfo(it.member, it.at_us, it.reason) for it in each.failures]
            topic_id, partition = each.place
            found.append(
                sharing.CondemnedRecord(topic_id, partition, each.offset, each.deliveries, story)
            )
            room -= 100 + sum(len(one.reason) + len(one.member_id) + 20 for one in story)
            if room < 0:
                break
        return found

    # --- what a member may name ---
    def _member(self, client: AttachedClient, name: str, member_id: str) -> gr.Member:
        member = self._groups.member_of(name, member_id, client.permits.acts_for)
        if not self._groups.is_shared(name):
            raise GroupError(f"group {name!r} is no share group: its members own partitions")
        self._members.seen(member_id, client)
        self._groups.connected(self._now(), name, member_id)
        return member

    def _allowed(self, client: AttachedClient, topic_id: bytes, partition: int) -> sh.Place:
        """That partition. Raises AccessDeniedError, UnknownTopicError."""
        if (why := client.permits.denied(topic_id)) is not None:
            raise why
        return topic_id, partition

    def _topics_of(self, client: AttachedClient, member: gr.Member) -> set[bytes]:
        """The topics that it works on and may read."""
        wanted = set(member.topics)
        return {
            topic_id for topic_id, name in self._names.items()
            if name in wanted and client.permits.denied(topic_id) is None
        }  # fmt: skip

    def _ends(self, client: AttachedClient, told: sharing.PartitionEnds) -> sh.KnownEnds:
        """Where a partition that is led here ends is known, so that nobody begins beyond it."""
        end = told.end
        numbers = self._pages.get(told.topic_id, ())
        if client.remote is not None and told.partition < len(numbers):
            page = self._page(numbers[told.partition])
            if page.status in LEADING and page.identity == (told.topic_id, told.partition):
                end = min(end, page.log_end)
        return sh.KnownEnds((told.topic_id, told.partition), min(told.start, end), end)

    # --- operators ---
    def _described(self, client: AttachedClient, request: sharing.DescribeShare) -> ms.NodeMessage:
        seen = [
            (name, place, machine)
            for place, machine in self._shares.partitions(request.group)
            if (name := self._names.get(place[0])) is not None
            and client.permits.sees(Kind.topic, name)
        ]
        leased: Counter[str] = Counter()
        for _, _, machine in seen:
            leased.update(machine.members())
        policy, pause = self._shares.policy(request.group), self._shares.pause_of(request.group)
        upto = request.skip + PARTITIONS_PER_PAGE
        return sharing.ShareDescription(
            sharing.ShareSettings(**msgspec.structs.asdict(policy)),
            [self._partition(*each) for each in seen[request.skip : upto]],
            dict(list(leased.items())[:MEMBERS_SHOWN]),
            self._shares.counts(request.group),
            upto < len(seen),
            None if pause is None else sharing.PauseInfo(pause.at_us, pause.by, pause.reason),
        )

    def _peeked(self, client: AttachedClient, request: sharing.PeekShare) -> ms.NodeMessage:
        place = self._allowed(client, request.topic_id, request.partition)
        share = self._shares.share(request.group, place)
        if share is None or share.machine is None:
            return NOTHING_PEEKED
        most = request.records_max
        found = share.machine.peek(request.state, request.first, most + 1)
        shown = [
            sharing.PeekedInfo(*one[:-1], one.reason[: sharing.REASON_SHOWN])
            for one in found[:most]
        ]
        return sharing.SharePeeked(shown, share.machine.frontier, len(found) > most)

    def _partition(
        self, name: str, place: sh.Place, machine: sh.SharePartition
    ) -> sharing.SharePartitionInfo:
        topic_id, partition = place
        counts = machine.counts()
        pages = self._pages.get(topic_id, ())
        return sharing.SharePartitionInfo(
            name, topic_id, partition, pages[partition] if partition < len(pages) else NO_PAGE,
            machine.floor, machine.frontier,
            counts["ready"] + counts["suspect"], counts["waiting"], counts["leased"],
            counts["condemned"], machine.next_due_us() or 0,
            NONE_READY if (ready := machine.oldest_ready()) is None else ready,
            counts["behind"],
        )  # fmt: skip

    def _decide(self, decide: Callable[[float], Decision[Any]]) -> Any:
        answer = self._life.decide(decide).answer
        for snapshot in self._shares.snapshots():
            self._life.decide(_as_decided(snapshot))
        return answer


def _leased(each: sh.GrantedRecords) -> sharing.LeasedRecords:
    topic_id, partition = each.place
    granted = each.granted
    return sharing.LeasedRecords(
        topic_id, partition, granted.lease, list(granted.runs),
        [(times, first, end) for times, (first, end) in granted.deliveries],
    )  # fmt: skip


def _told_by(answer: sharing.LeaseAnswer) -> Iterator[list[tuple[int, int]]]:
    """Yields the offsets of each part of an answer."""
    yield from (answer.accepted, answer.released, answer.skipped, answer.expired, answer.lost)
    for part in (answer.failed, answer.rejected, answer.delayed, answer.extended):
        yield from (one.runs for one in part)


def _untimed(
    decide: Callable[[], Decision[sh.LeaseAnswered]],
) -> Callable[[float], Decision[sh.LeaseAnswered]]:
    return lambda _: decide()


def _as_decided(decision: Decision[None]) -> Callable[[float], Decision[None]]:
    return lambda _: decision
