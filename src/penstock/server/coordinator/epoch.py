"""One life of the machines, from a replay to the first append that fails: decide, append, replay.

One decision at a time (rule 17): its records go into the log's lane as one batch and are replayed
at once; only the answer waits. It waits until all that was decided before is acknowledged and,
where rule 15 asks, durable: so nobody hears of what a failed append would undo. When one fails for
good, this life is over and everybody who waits is told; another begins with what the log holds.
Owns the machines and their clock. Never loads, and knows no clients.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.groups import GroupMachine
from penstock.cluster.shares import ArrangedGroups, ShareGroups
from penstock.cluster.transactions import TransactionMachine
from penstock.core.errors import PenstockError, ResourceLimitError
from penstock.ipc.state import StatePage
from penstock.server.coordinator.brokers import CoordinatorCluster
from penstock.server.coordinator.control_batches import OwnLanes, ToLeaders
from penstock.server.coordinator.decision_log import Journal
from penstock.server.coordinator.lanes import Mailbox
from penstock.server.coordinator.markers import Markers
from penstock.server.coordinator.orphan_transactions import Sweep

logger = logging.getLogger("penstock.coordinator")

AGAIN: Final = 1.0
"""Seconds until a decision that nobody waits for is tried again when there was no room for it."""
GONE: Final = "its worker is gone"
"""Why deliveries failed whose member was dropped."""
TICK_MIN: Final = 0.01
"""Seconds between two calls of `tick`, whatever deadline a machine names."""

_T = TypeVar("_T")


class Machines(NamedTuple):
    """All read every record of the log, and take their own."""

    groups: GroupMachine
    transactions: TransactionMachine
    shares: ShareGroups

    def replay(self, record: Record) -> None:
        self.groups.replay(record)
        self.transactions.replay(record)
        self.shares.replay(record)

    def deadline(self) -> float | None:
        found = [machine.deadline() for machine in self]
        return min((each for each in found if each is not None), default=None)

    def doubt(self, seconds: float) -> None:
        """Delays every expiry by so many seconds beyond the time of the clock."""
        self.groups.doubt = self.transactions.doubt = seconds


class Life:
    """`notify` tells members that their assignment changed. `clock`: seconds, never set back;
    `doubt`: by so many it may be ahead of the time that passed. `cluster`: of a broker."""

    def __init__(
        self,
        machines: Machines,
        journal: Journal,
        mailbox: Mailbox,
        *,
        clock: Callable[[], float],
        doubt: Callable[[], float],
        pages: Callable[[], Mapping[bytes, Sequence[int]]],
        notify: Callable[[frozenset[str]], None],
        page: Callable[[int], StatePage],
        cluster: CoordinatorCluster | None = None,
    ) -> None:
        self.machines = machines
        self.arranged = ArrangedGroups(machines.shares)
        self.journal = journal
        self._mailbox = mailbox
        self._clock = clock
        self._doubt = doubt
        machines.doubt(doubt())
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._retries: set[asyncio.TimerHandle] = set()
        self._is_over = False
        carriage = OwnLanes(mailbox, page) if cluster is None else ToLeaders(mailbox, page, cluster)
        self.markers = Markers(machines.transactions, carriage, journal, pages, self._marked, page)
        self.sweep = Sweep(machines.transactions, self.markers, pages, page)
        self.decisions = self.records = 0

    # --- for requests ---
    async def carried_out(
        self,
        decide: Callable[[float], Decision[Any]],
        until: float,
        say: Callable[[Any], _T],
    ) -> _T:
        """Decide, and answer once that is safe. `say` makes the answer right after the decision.

        Raises what refuses it, and `PenstockTimeout` at `until` (monotonic): it may take effect.
        """
        found = self.carry_out(decide, until, say)
        return await found if isinstance(found, asyncio.Future) else found

    def carry_out(
        self,
        decide: Callable[[float], Decision[Any]],
        until: float,
        say: Callable[[Any], _T],
    ) -> _T | asyncio.Future[_T]:
        """As `carried_out`, decided when this returns: the answer, or a future of it."""
        left = max(0.0, until - time.monotonic())
        try:
            decision = self.decide(decide)
        except PenstockError as error:
            # The decision that refuses it may be of a moment ago, and may yet be lost.
            refusing = self.journal.settling(durable=False, timeout=left, result=error)
            if refusing is None:
                raise
            return refusing
        answer = say(decision.answer)
        waiting = self.journal.settling(durable=decision.durable, timeout=left, result=answer)
        return answer if waiting is None else waiting

    def decide(self, decide: Callable[[float], Decision[_T]]) -> Decision[_T]:
        """Take a decision, send it on its way, and make it true here. Raises what refuses it."""
        self._mailbox.check_room()
        decision = decide(self._clock())
        if decision.records:
            notify = decision.notify
            self.journal.append(
                decision.records,
                durable=decision.durable,
                then=(lambda: self._notify(notify)) if notify else None,
            )
            self._replay(decision.records)
            self.decisions += 1
            self.records += len(decision.records)
            if decision.durable:
                self.markers.look()
            for group, why in self.machines.shares.take_tripped():
                logger.warning(
                    "share group %s is paused: %s; `penstock group resume %s` goes on with it",
                    group, why, group, extra={"group": group, "reason": why},
                )  # fmt: skip
            self._return_leases()
        self.plan_tick()
        return decision

    def _return_leases(self) -> None:
        """Gives the leases of dropped share group members to others."""
        groups, shares = self.machines.groups, self.machines.shares
        for group, member_id in groups.take_gone():
            if group not in shares.names():
                continue
            if member_id:
                self.act(partial(shares.leave, name=group, member=member_id, reason=GONE))
            else:
                self.take_away(group)

    def take_away(self, group: str) -> None:
        """Drops all that is known of a share group, unless one of that name is made meanwhile."""
        groups, shares = self.machines.groups, self.machines.shares
        self._in_parts(
            lambda: shares.delete(group) if group not in groups.names() else Decision((), False)
        )

    def look_at_shares(self, topics: Collection[bytes]) -> None:
        """Drops the share state of members, groups and topics that are not there any more."""
        groups, shares = self.machines.groups, self.machines.shares
        groups.take_gone()
        for group in [name for name in shares.names() if name not in groups.names()]:
            self.take_away(group)
        for group, member_id in list(shares.holders()):
            if not groups.is_member(group, member_id):
                self.act(partial(shares.leave, name=group, member=member_id, reason=GONE))
        self.forget_topics(topics)

    def forget_topics(self, there: Collection[bytes]) -> None:
        """Drops what share groups have of topics that are gone."""
        shares = self.machines.shares
        for group, place in list(shares.forget_topics(there)):
            self._in_parts(partial(shares.drop, group, place))

    def _in_parts(self, decide: Callable[[], Decision[bool]]) -> None:
        """Act until the answer is that there is no more."""
        again = partial(self._in_parts, decide)
        while (made := self.act(lambda _: decide(), again)) is not None and made.answer:
            pass

    def _replay(self, records: tuple[Record, ...]) -> None:
        try:
            for record in records:
                self.machines.replay(record)
        except Exception as error:
            logger.exception("a decision cannot be replayed")
            self.journal.fail(f"a decision could not be replayed: {error!r}")
            raise

    # --- what nobody asked for ---
    def act(
        self,
        decide: Callable[[float], Decision[_T]],
        again: Callable[[], object] | None = None,
    ) -> Decision[_T] | None:
        """Decide what happened to members and topics, or with the time. None: it could not be.
        `again`: called later where there was no room, in place of this."""
        if self._is_over:
            return None
        try:
            return self.decide(decide)
        except ResourceLimitError as error:
            logger.warning("tried again in %g s: %s", AGAIN, error)
            self._later(AGAIN, again or partial(self.act, decide))
        except PenstockError as error:
            logger.error("the coordinator could not decide: %s", error)
        return None

    def _marked(self, producer_id: int, epoch: int, places: set[tuple[bytes, int]]) -> None:
        self.act(lambda _: self.machines.transactions.marked(producer_id, epoch, places))

    def _later(self, delay: float, work: Callable[[], object]) -> None:
        def run() -> None:
            self._retries.discard(handle)
            work()

        handle = self._loop.call_later(delay, run)
        self._retries.add(handle)

    def plan_tick(self, *, moved: bool = False) -> None:
        """Be called when the first deadline comes; one that is over comes at once. `moved`: the
        clock was moved."""
        deadline = None if self._is_over else self.machines.deadline()
        if self._timer is not None:
            if deadline == self._deadline and not moved:
                return
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None:
            delay = max(deadline - self._clock(), TICK_MIN)
            self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.machines.doubt(self._doubt())
        now = self._clock()
        for machine in self.machines:
            deadline = machine.deadline()
            if deadline is not None and deadline <= now:
                self.act(machine.tick)
        self.plan_tick()

    # --- the end ---
    def end(self, failure: PenstockError) -> None:
        """Nothing of this is true any more, but for what the log holds."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for handle in self._retries:
            handle.cancel()
        self._retries.clear()
        self.sweep.close()
        self.markers.close(failure)
