"""Requests about transactions: the machine decides them, then the partitions get the markers.

| request | decided | before it is answered |
|---|---|---|
| InitTransactions | who the producer is; what was open is aborted; durable | ... and marked |
| AddPartitions | where the transaction may write | markers of earlier ones there, then BEGIN |
| EndTransaction | COMMIT or ABORT, with offsets and jobs; durable | marked, or `MARKED_WITHIN` |
| BeginStage | who the stage is; earlier attempts are aborted | |
| EndStages | abort of those that are open; durable | |
| CommitTransaction | which stages count; durable | marked, or `MARKED_WITHIN` |

Owns that order. A client may repeat every request: the answer is that of the first decision.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import astuple

from penstock.cluster import shares as sh
from penstock.cluster.access import Kind
from penstock.cluster.decisions import Decision
from penstock.cluster.transactions import ConsumedOffsets, EndedTransaction, Listed
from penstock.core.errors import (
    AccessDeniedError,
    PenstockTimeout,
    UnknownMemberError,
    UnknownTopicError,
)
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms
from penstock.ipc import sharing
from penstock.server.coordinator.epoch import Life
from penstock.server.coordinator.group_requests import check_count, commits, fitting
from penstock.server.coordinator.offset_checks import OffsetChecks
from penstock.server.coordinator.producer_holders import Holders
from penstock.server.coordinator.turns import PrincipalTurns
from penstock.server.node.attached_client import AttachedClient
from penstock.server.node.data_folder import DataFolder

MARKED_WITHIN: Final = 2.0
"""Seconds that an answer waits for markers which are on their way. They go on without it."""

REQUESTS: Final = (
    co.InitTransactions, co.AddPartitions, co.EndTransaction, co.BeginStage, co.EndStages,
    co.CommitTransaction, co.ListTransactions,
)  # fmt: skip
NOBODY: Final = ""
"""The id of no member."""

_T = TypeVar("_T")
_PAGE: Final = 500
"""Transactional ids of one answer, at most."""
_TOPICS_SHOWN: Final = 20
"""Topics that are named of one transactional id, at most."""


class TransactionRequests:
    """The requests, in one life of the machine; each ends at `until` (monotonic). `now` is the
    coordinator's clock."""

    def __init__(
        self,
        life: Life,
        folder: DataFolder,
        holders: Holders,
        now: Callable[[], float],
        until: float,
        checks: OffsetChecks,
        turns: PrincipalTurns,
        names: Mapping[bytes, str],
    ) -> None:
        self._life = life
        self._transactions = life.machines.transactions
        self._markers = life.markers
        self._folder = folder
        self._holders = holders
        self._now = now
        self._until = until
        self._checks = checks
        self._turns = turns
        self._names = names

    async def _carry(self, decide: Callable[[float], Decision[_T]]) -> _T:
        """Have something decided, and wait until it may be told."""
        return await self._life.carried_out(decide, self._until, _same)

    async def answer(self, client: AttachedClient, request: co.Request) -> ms.NodeMessage:
        match request:
            case co.InitTransactions():
                return await self._init(client, request)
            case co.AddPartitions():
                return await self._add(request)
            case co.EndTransaction():
                return await self._end(client, request)
            case co.BeginStage():
                return await self._begin_stage(request)
            case co.EndStages():
                return await self._end_stages(request)
            case co.CommitTransaction():
                return await self._commit(request)
            case co.ListTransactions():
                return await self._listed(client, request)
            case _:
                raise AssertionError(f"{type(request).__name__} is not of transactions")

    @property
    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    # --- who a producer is ---
    async def _init(
        self, client: AttachedClient, request: co.InitTransactions
    ) -> co.TransactionReady:
        name, fresh = request.transactional_id, 0
        if self._transactions.needs_producer_id(name):
            fresh = self._folder.next_producer_id()
        identity = await self._carry(
            lambda now: self._transactions.init(now, name, request.timeout, fresh)
        )
        self._holders.note(identity.producer_id, client)
        marked = await self._markers.until(
            lambda: not self._transactions.is_marking(name), self._left
        )
        if not marked:
            raise PenstockTimeout(
                f"what {name!r} had open is aborted, but not in all of its partitions yet: their "
                "writers restart or are offline. Ask again"
            )
        return co.TransactionReady(identity.producer_id, identity.epoch)

    async def _begin_stage(self, request: co.BeginStage) -> co.TransactionReady:
        fresh, stage = self._folder.next_producer_id(), os.urandom(8).hex()
        identity = await self._carry(
            lambda now: self._transactions.begin_stage(
                now, request.transactional_id, request.epoch, fresh, stage, request.attempt
            )
        )
        return co.TransactionReady(identity.producer_id, identity.epoch, stage)

    async def _end_stages(self, request: co.EndStages) -> ms.Done:
        check_count("stages", len(request.stages), co.STAGES_MAX)
        await self._carry(
            lambda now: self._transactions.end_stages(now, request.transactional_id, request.stages)
        )
        return ms.Done()

    # --- where it writes ---
    async def _add(self, request: co.AddPartitions) -> ms.Done:
        name, who = request.transactional_id, (request.producer_id, request.producer_epoch)
        check_count("partitions", len(request.partitions), co.PARTITIONS_MAX)
        places = sorted(set(request.partitions))
        for topic_id, partition in places:
            if self._markers.page((topic_id, partition)) is None:
                raise UnknownTopicError(
                    f"transaction {name!r} names partition {partition} of topic {topic_id.hex()}, "
                    "which is not there (any more): look the topic up again"
                )

        def add(now: float) -> Decision[None]:
            return self._transactions.add_partitions(now, name, *who, places)

        await self._carry(add)
        earlier = self._markers.until(
            lambda: not self._markers.misses(who[0], None, places), self._left
        )
        if not await earlier:
            raise PenstockTimeout(
                f"the transaction before this one of {name!r} is decided, but not marked yet in "
                "all of these partitions: their writers restart or are offline. Ask again"
            )
        add(self._now())  # raises if it was ended meanwhile: nothing of it may be opened then
        await self._markers.begin(*who, places, self._left)
        return ms.Done()

    # --- what is decided ---
    async def _end(self, client: AttachedClient, request: co.EndTransaction) -> co.TransactionEnded:
        name, who = request.transactional_id, (request.producer_id, request.producer_epoch)
        check_count(
            "offsets", sum(len(each.offsets) for each in request.offsets), co.PARTITIONS_MAX
        )
        leases = [lease for each in request.done for lease in each.leases]
        check_count("leases", len(leases), sharing.DONE_LEASES_MAX)
        check_count("runs of jobs", sum(len(each.runs) for each in leases), sharing.RUNS_MAX)
        consumed = [
            ConsumedOffsets(each.group, each.member_id, commits(each.offsets))
            for each in request.offsets
        ]

        def end(now: float) -> Decision[EndedTransaction]:
            own = [self._of_own_member(client, each) for each in consumed]
            done = [self._of_own_worker(client, each) for each in request.done]
            return self._transactions.end(
                now, name, *who, request.commit, own, request.partitions, done
            )

        ended = await self._carry(end)
        await self._settled(lambda: not self._markers.misses(*who))
        error = ended.error(name, request.commit)
        if error is not None:
            raise error
        return co.TransactionEnded(ended.committed, ended.next_epoch)

    def _of_own_member(self, client: AttachedClient, consumed: ConsumedOffsets) -> ConsumedOffsets:
        """The same, or offsets of nobody where the client may not act for that member: they abort
        the transaction, as those of a member that is gone do."""
        groups, group, member_id = self._life.machines.groups, consumed.group, consumed.member_id
        try:
            taken = self._checks.of_member(groups, client, group, member_id, consumed.offsets)
        except UnknownMemberError:
            return ConsumedOffsets(group, NOBODY, consumed.offsets)
        return ConsumedOffsets(group, member_id, taken)

    def _of_own_worker(self, client: AttachedClient, done: sharing.DoneJobs) -> sh.AcceptedJobs:
        """The same, or jobs of nobody where the client may not act for that member: they abort the
        transaction. Raises AccessDeniedError for a topic of its own that it may not read any
        more."""
        machines, member_id = self._life.machines, done.member_id
        try:
            machines.groups.member_of(done.group, member_id, client.permits.acts_for)
        except UnknownMemberError:
            member_id = NOBODY
        jobs = sh.TransactedJobs(machines.shares)
        found = []
        for topic_id, partition, lease, runs in map(astuple, done.leases):
            place = (topic_id, partition)
            why = client.permits.denied(topic_id)
            # A stranger hears of it what it hears of topics that are not there.
            is_own = jobs.is_holder(done.group, member_id, place, lease)
            if is_own and isinstance(why, AccessDeniedError):
                raise why
            topic = topic_id.hex() if why is not None else self._names.get(topic_id, "")
            name = f"{topic}-{partition}"
            found.append(sh.AcceptedLease(place, lease, sh.runs_of(runs), name))
        return sh.AcceptedJobs(done.group, member_id, found)

    async def _commit(self, request: co.CommitTransaction) -> co.TransactionEnded:
        check_count("stages", len(request.stages), co.STAGES_MAX)
        before = self._missing()
        decided = await self._carry(
            lambda now: self._transactions.commit_stages(
                now,
                request.transactional_id,
                request.epoch,
                request.stages,
                request.commit,
                request.is_last,
            )
        )
        wanted = self._missing() - before
        await self._settled(lambda: wanted.isdisjoint(self._missing()))
        return co.TransactionEnded(decided.committed, 0, decided.epoch)

    def _missing(self) -> set[tuple[int, int]]:
        return {(each.producer_id, each.epoch) for each in self._transactions.unmarked()}

    async def _settled(self, condition: Callable[[], bool]) -> None:
        """Waits a while for markers; it is decided all the same."""
        await self._markers.until(condition, min(MARKED_WITHIN, self._left))

    async def _listed(
        self, client: AttachedClient, request: co.ListTransactions
    ) -> co.Transactions:
        """A client that sees few ids among many needs a long look. Others do not wait for it."""
        now, names = self._now(), self._names
        infos: list[co.TransactionInfo] = []
        async with self._turns.of(str(client.permits)) as turn:
            for name in self._transactions.ids().after(request.after):
                await turn.rest()
                if not client.permits.sees(Kind.transactional_id, name):
                    continue
                listed = self._transactions.listed(name)
                if listed is None:
                    continue  # it went in a pause
                topics = sorted(names[each] for each in listed.topics if each in names)
                seen = (each for each in topics if client.permits.sees(Kind.topic, each))
                infos.append(_info(listed, now, [*islice(seen, _TOPICS_SHOWN)]))
                if len(infos) > _PAGE:
                    break
        fits = min(fitting(infos), _PAGE)
        return co.Transactions(infos[:fits], fits < len(infos))


def _same(answer: _T) -> _T:
    return answer


def _info(listed: Listed, now: float, topics: list[str]) -> co.TransactionInfo:
    return co.TransactionInfo(
        listed.transactional_id,
        listed.state,
        listed.producer_id,
        listed.epoch,
        listed.partitions,
        0.0 if listed.opened_at is None else max(0.0, now - listed.opened_at),
        topics,
    )
