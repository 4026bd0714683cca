"""Groups as an admin sees and changes them: members, offsets, lag, resets.

Owns the sums. Asks the coordinator through a function that it is given; high watermarks, positions
and times of records come from shared memory and the logs, without asking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.client.admin.exported_offsets import ExportedOffset, ExportedOffsets
from penstock.client.admin.share_groups import AGES_BUDGET, ShareGroupAdmin
from penstock.client.admin.trim import chosen
from penstock.client.consumer.group.options import check_group_name
from penstock.client.consumer.logs import LogHandle, PollAge
from penstock.client.consumer.offset_lookup import resolving
from penstock.client.consumer.offsets import Offset
from penstock.client.remote.logs import logs_of
from penstock.client.session import Session
from penstock.cluster.groups import windows
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage
from penstock.ipc.waits import run

if TYPE_CHECKING:  # it needs numpy, which administration does without
    from penstock.client.consumer.partition_cursor import TopicPartition

SHARED = "shared"
"""The guarantee of a share group."""
NAMED_MAX = 5
"""Partitions that a refusal names."""

Ask = Callable[[Any, type[Any]], Any]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list. `state`: "empty", "stable" or "moving" (partitions change hands)."""

    group: str
    guarantee: str
    state: str
    generation: int
    members: int
    partitions: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and its process. `is_connected`: whether it is attached to the node now;
    `poll_seconds`: how long ago it last looked for records, None where nobody knows. Of a member on
    another host that is told within seconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    pid: int
    is_connected: bool
    partitions: int
    poll_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """Progress of a group in a partition.

    `committed` and `committed_at` (seconds since the epoch) are None where nothing is committed.
    `position`: the owner has asked for records beyond it. `lag` counts records between the
    committed offset and the high watermark, `lag_seconds` is the age of the first one. `in_hand`
    counts offsets below the position that are not committed: from the log's start where nothing
    is committed (a member that began later has fewer). `status` judges the last commits: "OK",
    "WARN" (it falls behind), "REWIND" (it went back) or "STOP", and `reason` says why in a
    sentence; None where nothing is committed.
    """

    topic: str
    partition: int
    member_id: str
    committed: int | None
    committed_at: float | None
    position: int | None
    high_watermark: int
    lag: int | None
    lag_seconds: float | None
    in_hand: int | None = None
    status: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with all of it. `lag` counts partitions of which something is committed. `skipped`:
    records that an at-most-once group knows it never handed out. `drain_seconds`: when its lag is
    gone if it goes on as during the sample; None: never, or no sample was taken."""

    group: str
    guarantee: str
    state: str
    generation: int
    members: list[GroupMember]
    partitions: list[GroupPartition]
    lag: int
    lag_seconds: float | None
    drain_seconds: float | None
    skipped: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Effect of a reset on a partition, done or predicted.

    `redelivers` counts records that come once more. `skips` counts records that are passed over,
    from the log's start where nothing was committed.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    redelivers: int
    skips: int


class GroupAdmin:
    """Group calls of the admin. `find` looks up a topic; `session` is the attachment."""

    def __init__(
        self, ask: Ask, session: Session, find: Callable[[str], ms.TopicInfo], timeout: float
    ) -> None:
        self._ask = ask
        self._session = session
        self._find = find
        self._timeout = timeout
        self._logs = logs_of(session, timeout)

    def listed(self) -> list[GroupListing]:
        found: list[GroupListing] = []
        while True:
            answer = self._ask(co.ListGroups(found[-1].group if found else ""), co.Groups)
            found += [
                GroupListing(
                    one.group, one.guarantee, one.state, one.generation, one.members, one.partitions
                )
                for one in answer.groups
            ]
            if not answer.more:
                return found

    # --- describe ---
    def describe(self, group: str, sample: float) -> GroupDescription:
        asked = self._asked(group)
        drain: float | None = None
        if sample > 0:
            before, begun = self._lag_of_positions(asked), time.monotonic()
            time.sleep(sample)
            asked = self._asked(group)
            left = self._lag_of_positions(asked)
            shrinks = (before - left) / (time.monotonic() - begun)
            drain = 0.0 if left <= 0 else left / shrinks if shrinks > 0 else None
        ages = self._ages(asked)
        polled = self._polled(asked)
        positions = _positions(asked, polled)
        now = time.time()
        partitions = []
        for one in asked.partitions:
            name, poll = (one.topic, one.partition), polled.get(one.member_id)
            times = ages.get(name, {})
            partitions.append(
                self._progress(one, positions.get(name), times, poll.age if poll else None, now)
            )
        members = [
            GroupMember(
                one.member_id, one.instance_id, one.client_id, one.pid, one.slot >= 0,
                one.partitions, polled[one.member_id].age if one.member_id in polled else None,
            )
            for one in asked.members
        ]  # fmt: skip
        info = asked.info
        known = [one.lag_seconds for one in partitions if one.lag_seconds is not None]
        return GroupDescription(
            group, info.guarantee, info.state, info.generation, members, partitions,
            lag=sum(one.lag or 0 for one in partitions),
            lag_seconds=max(known, default=None),
            drain_seconds=drain,
            skipped=asked.skipped,
            counts=dict(asked.counts),
        )  # fmt: skip

    def _progress(
        self,
        one: co.GroupPartition,
        position: int | None,
        times: Mapping[int, float],
        polled: float | None,
        now: float,
    ) -> GroupPartition:
        """`times`: when the records at some of its offsets were appended."""
        end, start = self._end_of(one), self._start_of(one)
        if one.offset == co.NO_OFFSET:
            hand = None if position is None else max(0, position - start)
            return GroupPartition(
                one.topic, one.partition, one.member_id, None, None, position, end, None, None, hand
            )  # fmt: skip
        lag = max(0, end - one.offset)
        at = times.get(max(one.offset, start))
        seconds = 0.0 if lag == 0 else None if at is None else max(0.0, now - at)
        hand = None if position is None else max(0, position - one.offset)
        owner = windows.PartitionOwner(one.member_id, polled, hand)
        verdict = windows.judge(one.commits, now, lag, times, owner)
        return GroupPartition(
            one.topic, one.partition, one.member_id, one.offset, one.committed_at / 1e6,
            position, end, lag, seconds, hand, *verdict,
        )  # fmt: skip

    def _asked(self, group: str) -> co.GroupDescription:
        check_group_name(group)
        answer: co.GroupDescription = self._ask(co.DescribeGroup(group), co.GroupDescription)
        partitions = list(answer.partitions)
        more = answer.more
        while more:
            rest = self._ask(co.DescribeGroup(group, len(partitions)), co.GroupDescription)
            if not rest.partitions:
                break
            partitions += rest.partitions
            more = rest.more
        return co.GroupDescription(
            answer.info, answer.members, partitions, False, answer.skipped, answer.counts
        )

    def _polled(self, asked: co.GroupDescription) -> dict[str, PollAge]:
        """Returns what the connected members publish, by member id."""
        members = [member for member in asked.members if member.slot >= 0]
        found = run(self._logs.positioning([(member.slot, member.pid) for member in members]))
        return {member.member_id: each for member, each in zip(members, found, strict=True)}

    def _lag_of_positions(self, asked: co.GroupDescription) -> int:
        positions = _positions(asked, self._polled(asked))
        lag = 0
        for one in asked.partitions:
            offset = positions.get((one.topic, one.partition), one.offset)
            if offset != co.NO_OFFSET:
                lag += max(0, self._end_of(one) - offset)
        return lag

    def _end_of(self, one: co.GroupPartition) -> int:
        """Its high watermark; 0 before its page is its own."""
        page = self._page_of(one)
        return 0 if page is None else page.high_watermark

    def _start_of(self, one: co.GroupPartition) -> int:
        page = self._page_of(one)
        return 0 if page is None else page.log_start

    def _page_of(self, one: co.GroupPartition) -> StatePage | None:
        if one.page < 0:
            return None
        page = self._session.page(one.page)
        return page if page.identity == (one.topic_id, one.partition) else None

    def _ages(self, asked: co.GroupDescription) -> dict[TopicPartition, dict[int, float]]:
        """When records at offsets that were committed were appended, by the time index: of the
        first one that is not committed, and of those that `windows.judge` asks for."""
        names, places = [], []
        for one in asked.partitions:
            if co.NO_OFFSET < one.offset < self._end_of(one):
                page = self._session.page(one.page)
                log = LogHandle(page, one.topic_id, one.partition)
                start = page.log_start
                before = [offset for offset in windows.places(one.commits) if offset > start]
                for offset in {max(one.offset, start), *before}:
                    names.append((one.topic, one.partition))
                    places.append((log, offset))
        found: dict[TopicPartition, dict[int, float]] = {}
        times = run(self._logs.dating(places, AGES_BUDGET))
        for name, (_, offset), at in zip(names, places, times, strict=True):
            if at is not None:
                found.setdefault(name, {})[offset] = at
        return found

    # --- change ---
    def reset(
        self,
        group: str,
        topic: str,
        to: Offset,
        partitions: int | Sequence[int] | None,
        *,
        dry_run: bool,
        allow_redelivery: bool,
    ) -> list[OffsetReset]:
        info = self._find(topic)
        asked = self._asked(group)
        is_shared = asked.info.guarantee == SHARED
        shares = ShareGroupAdmin(self._ask, self._session, self._timeout)
        known = (
            shares.floors(group, info.topic_id)
            if is_shared
            else {
                one.partition: one.offset
                for one in asked.partitions
                if one.topic_id == info.topic_id
            }
        )
        resets, seeks = [], []
        for number in chosen(info, partitions):
            offset = known.get(number, co.NO_OFFSET)
            epoch = self._session.page(info.pages[number]).leader_epoch
            after = self._resolved(info, number, to, offset)
            start = self._session.page(info.pages[number]).log_start
            resets.append(_reset(topic, number, offset, after, start))
            seeks.append(co.OffsetSeek(info.topic_id, number, after, epoch))
        self._check_redelivery(asked, resets, allow_redelivery)
        if is_shared and not dry_run:
            shares.seek(group, info, [(seek.partition, seek.offset) for seek in seeks])
        elif not dry_run:
            for part in _parts(seeks):
                self._ask(co.SeekGroup(group, part, allow_redelivery), ms.Done)
        return resets

    def exported(self, group: str) -> ExportedOffsets:
        asked = self._asked(group)
        offsets = [
            ExportedOffset(
                one.topic, one.topic_id.hex(), one.partition, one.offset, one.leader_epoch
            )
            for one in asked.partitions
            if one.offset != co.NO_OFFSET
        ]
        if not offsets:
            raise er.GroupError(
                f"group {group!r} has committed nothing: there is nothing to export"
            )
        offsets.sort(key=lambda one: (one.topic, one.partition))
        return ExportedOffsets(group, asked.info.guarantee, time.time(), offsets)

    def imported(
        self,
        group: str,
        given: ExportedOffsets,
        *,
        dry_run: bool,
        by_name: bool,
        clamp: bool,
        allow_redelivery: bool,
    ) -> list[OffsetReset]:
        asked = self._asked(group)
        if asked.members:
            raise er.GroupError(
                f"offsets of group {group!r} were not set: it has {len(asked.members)} members; "
                "stop them first"
            )
        known = {(one.topic_id, one.partition): one.offset for one in asked.partitions}
        topics: dict[str, ms.TopicInfo] = {}
        resets, seeks, outside = [], [], []
        for each in given.offsets:
            info = topics.get(each.topic)
            if info is None:
                info = topics[each.topic] = self._same(each, by_name=by_name)
            [number] = chosen(info, each.partition)
            page = self._session.page(info.pages[number])
            start, end = page.log_start, page.high_watermark
            after = min(max(each.offset, start), end)
            if after != each.offset:
                outside.append(f"{each.topic}-{number} {each.offset} ({start} to {end})")
            is_as_it_was = after == each.offset and info.topic_id.hex() == each.topic_id
            epoch = each.leader_epoch if is_as_it_was else page.leader_epoch
            offset = known.get((info.topic_id, number), co.NO_OFFSET)
            resets.append(_reset(each.topic, number, offset, after, start))
            seeks.append(co.OffsetSeek(info.topic_id, number, after, epoch))
        if outside and not clamp:
            more = f" and {len(outside) - NAMED_MAX} more" if len(outside) > NAMED_MAX else ""
            raise er.OffsetOutOfRangeError(
                f"offsets of group {group!r} lie outside the logs as they are now: "
                f"{', '.join(outside[:NAMED_MAX])}{more}. Say clamp (--clamp) to go on at the "
                "nearest record that there is"
            )
        self._check_redelivery(asked, resets, allow_redelivery)
        if not dry_run:
            for part in _parts(seeks):
                self._ask(co.SeekGroup(group, part, allow_redelivery, only_empty=True), ms.Done)
        return resets

    def _same(self, each: ExportedOffset, *, by_name: bool) -> ms.TopicInfo:
        """The topic that an exported offset is of, or `by_name` another one of its name."""
        info = self._find(each.topic)
        if info.topic_id.hex() != each.topic_id and not by_name:
            raise er.UnknownTopicError(
                f"topic {each.topic!r} is another one than the exported offsets are of (its id is "
                f"{info.topic_id.hex()}, not {each.topic_id}): offsets mean other records there. "
                "Say by_name (--by-name) if it has the same records in the same order"
            )
        return info

    @staticmethod
    def _check_redelivery(
        asked: co.GroupDescription, resets: Sequence[OffsetReset], allowed: bool
    ) -> None:
        back = next((one for one in resets if one.redelivers), None)
        if back is not None and asked.info.guarantee == "at-most-once" and not allowed:
            raise er.GroupError(
                f"group {asked.info.group!r} is at-most-once: going back in "
                f"{back.topic}-{back.partition} from {back.before} to {back.after} would deliver "
                f"{back.redelivers} records twice; say allow_redelivery (--allow-redelivery) if "
                "that is wanted"
            )

    def report(self, group: str, topic: str, offsets: Mapping[int, tuple[int, int]]) -> None:
        info = self._find(topic)
        seeks = [co.OffsetSeek(info.topic_id, number, *place) for number, place in offsets.items()]
        for part in _parts(seeks):
            self._ask(co.SeekGroup(group, part, is_report=True), ms.Done)

    def _resolved(self, info: ms.TopicInfo, number: int, to: Offset, here: int) -> int:
        page = self._session.page(info.pages[number])
        here = page.log_start if here == co.NO_OFFSET else here
        log = LogHandle(page, info.topic_id, number)
        return run(resolving(to, f"{info.name}-{number}", self._logs, log, here))

    def delete(self, group: str, topic: str | None) -> None:
        check_group_name(group)
        if topic is None:
            self._ask(co.DeleteGroup(group), ms.Done)
            return
        info = self._find(topic)
        places = [(info.topic_id, number) for number in range(len(info.pages))]
        for part in _parts(places):
            self._ask(co.DeleteGroup(group, part), ms.Done)


def _reset(topic: str, partition: int, before: int, after: int, start: int) -> OffsetReset:
    if before == co.NO_OFFSET:
        return OffsetReset(topic, partition, None, after, 0, max(0, after - start))
    return OffsetReset(
        topic, partition, before, after, max(0, before - after), max(0, after - before)
    )


def _positions(
    asked: co.GroupDescription, polled: Mapping[str, PollAge]
) -> dict[TopicPartition, int]:
    """The next offset that each partition's owner wants of it."""
    return {
        (one.topic, one.partition): polled[one.member_id].positions[one.page]
        for one in asked.partitions
        if one.member_id in polled and one.page in polled[one.member_id].positions
    }


def _parts(items: Sequence[Any]) -> Iterator[Any]:
    for start in range(0, len(items), co.PARTITIONS_MAX):
        yield [*items[start : start + co.PARTITIONS_MAX]]
