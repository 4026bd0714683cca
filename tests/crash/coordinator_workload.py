"""Work for a coordinator that may die at any moment, and what must be true of it after that.

Every request is repeated until it is answered. What was answered is noted; what was only asked may
have been decided or not. Repeated claims and ends of transactions are answered as they were first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from group_members import RawMember
from node_helpers import RawClient, Refusal

from penstock.core.errors import NotConnectedError
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import sharing as sh

RETRIABLE = ("PenstockTimeout", "NotConnectedError", "ResourceLimitError", "LogOfflineError")
ELSEWHERE = "NotLeaderError"
TIMEOUT = 25.0

_T = TypeVar("_T")


class Work:
    """One client of each kind. `round` does a piece of everything. `where`: a socket to try next;
    `partitions`: of the topic `orders`, in which each transaction is open."""

    def __init__(
        self,
        where: Callable[[], Path],
        partitions: Sequence[int] = (1,),
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        self._where = where
        self._timeout = timeout
        self._partitions = partitions
        self._members: dict[str, RawMember] = {}
        self._link: RawClient | None = None
        self.committed = self.claimed = self.claims = self.consumed = 0
        self._producer: tuple[int, int] | None = None
        self.retriable: tuple[str, ...] = RETRIABLE
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while something is not answered."""

    # --- asking until there is an answer ---
    def _repeat(self, ask: Callable[[], _T], forget: Callable[[], None]) -> _T:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return ask()
            except (NotConnectedError, AssertionError, OSError) as error:
                forget()
                failure: Exception = error
            except Refusal as error:
                if error.error == ELSEWHERE:
                    forget()
                elif error.error not in self.retriable:
                    raise
                failure = error
            self.meanwhile()
            if time.monotonic() > deadline:
                raise AssertionError(f"no answer for {self._timeout} s: {failure}") from failure
            time.sleep(0.01)

    def _as_member(self, group: str, guarantee: str, ask: Callable[[RawMember], _T]) -> _T:
        def work() -> _T:
            member = self._members.get(group)
            if member is None:
                member = RawMember(self._where(), group, "orders", guarantee=guarantee)
                self._members[group] = member
                is_attached.append(True)
            if not is_attached:
                member.connect(self._where())
                is_attached.append(True)
            return ask(member)

        def forget() -> None:
            is_attached.clear()
            if group in self._members:
                self._members[group].close()

        is_attached = [True] if group in self._members else []
        return self._repeat(work, forget)

    def _ask(self, request: Any, expect: type[_T]) -> _T:
        def work() -> _T:
            if self._link is None:
                self._link = RawClient(self._where(), lo.KIND_ADMIN)
            return self._link.ask(request, expect)

        def forget() -> None:
            link, self._link = self._link, None
            if link is not None:
                link.close()

        return self._repeat(work, forget)

    # --- the work ---
    def round(self) -> None:
        self._commit()
        self._claim()
        self._transact()

    def _commit(self) -> None:
        wanted = self.committed + 1
        assert self._as_member("plain", "manual", lambda member: member.commit(0, wanted)) == []
        self.committed = wanted

    def _claim(self) -> None:
        self.claims += 1
        start, end = self.claimed, self.claimed + 10
        answer = self._as_member(
            "once", "at-most-once", lambda member: member.claim(self.claims, 0, start, end)
        )
        assert answer == co.Claimed([True], [end]), "the same claim, granted once and for all"
        self.claimed = end

    def _transact(self) -> None:
        if self._producer is None:
            ready = self._ask(co.InitTransactions("job", 60.0), co.TransactionReady)
            self._producer = ready.producer_id, ready.producer_epoch
        who, wanted = self._producer, self.consumed + 1
        topic_id, offsets = self._as_member(
            "exact", "exactly-once", lambda member: self._consumed(member, wanted)
        )
        places = [(topic_id, partition) for partition in self._partitions]
        self._ask(co.AddPartitions("job", *who, places), object)
        done = self._as_member("jobs", "shared", lambda it: self._done(it, topic_id, wanted))
        request = co.EndTransaction("job", *who, True, [offsets], done=[done])
        ended = self._ask(request, co.TransactionEnded)
        assert ended.committed
        assert self._ask(request, co.TransactionEnded) == ended, "decided once"
        self.consumed = wanted
        self._producer = who[0], ended.next_epoch

    @staticmethod
    def _consumed(member: RawMember, offset: int) -> tuple[bytes, co.GroupOffsets]:
        owned = member.owned[0]
        commit = co.OffsetCommit(owned.topic_id, 0, owned.grant, offset)
        return owned.topic_id, co.GroupOffsets(member.group, member.member_id, [commit])

    @staticmethod
    def _done(member: RawMember, topic_id: bytes, end: int) -> sh.DoneJobs:
        """The record before `end`. What an answer that was lost gave this worker goes back."""
        ends = [sh.PartitionEnds(topic_id, 0, 0, end)]
        request = sh.AcquireRecords(member.group, member.member_id, 1, ends, holds=[])
        [leased] = member.client.ask(request, sh.RecordsAcquired).leases
        assert leased.runs == [(end - 1, end)], "all before it is done"
        lease = sh.DoneLease(leased.topic_id, leased.partition, leased.lease, leased.runs)
        return sh.DoneJobs(member.group, member.member_id, [lease])

    # --- what must be true ---
    def check(self) -> None:
        """Everything that was answered is there, and nothing that was not asked for."""
        for group, wanted in (
            ("plain", self.committed), ("once", self.claimed), ("exact", self.consumed),
        ):  # fmt: skip
            found = self._ask(co.DescribeGroup(group), co.GroupDescription)
            offset = next(each.offset for each in found.partitions if each.partition == 0)
            assert offset == wanted, f"{group}: {offset} is committed, {wanted} was answered"
            assert found.info.members == 1
        shared = self._ask(sh.DescribeShare("jobs"), sh.ShareDescription)
        [jobs] = shared.partitions
        assert (jobs.floor, jobs.frontier, jobs.leased) == (self.consumed, self.consumed, 0)
        listed = self._ask(co.ListTransactions(), co.Transactions).transactions
        assert [(each.transactional_id, each.state) for each in listed] == [("job", "ready")]

    def close(self) -> None:
        for member in self._members.values():
            member.close()
        if self._link is not None:
            self._link.close()
