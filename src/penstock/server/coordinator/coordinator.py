"""The coordinator: one decision at a time, appended and replayed at once, answered when it is safe.

    absent ──first request, or the topic is there──► loading ──► serving
                                                        ▲           │ an append failed for good
                                                        └───────────┘ everything is discarded

Owns the machines and that order (rule 17). An answer waits until all that was decided before it is
acknowledged, and where rule 15 asks, durable: so nobody hears of what a failed append would undo.
Nothing in here waits on the event loop; requests are coroutines with bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.groups import GroupLimits, Groups
from penstock.core.errors import (
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
    ResourceLimitError,
)
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms
from penstock.server.clients import Client
from penstock.server.config import NodeConfig
from penstock.server.coordinator.journal import Journal
from penstock.server.coordinator.loading import fence, replay
from penstock.server.coordinator.mailbox import Mailbox
from penstock.server.coordinator.members import Member, Members
from penstock.server.coordinator.requests import GroupRequests, Plan
from penstock.server.datafolder import DataFolder
from penstock.server.grants import Grants
from penstock.server.supervisor import Supervisor
from penstock.server.tables import Tables
from penstock.server.topics import Topics

logger = logging.getLogger("penstock.coordinator")

TOPIC: Final = "__coordinator"
SETTINGS: Final = ms.TopicSettings(
    durability="interval", cleanup="compact", segment_bytes=8 << 20, flush_interval=1.0
)
"""Compaction takes closed segments only, and a start replays what is left and the open one."""

RETRY_FIRST: Final = 0.05
RETRY_LAST: Final = 5.0
TICK_MIN: Final = 0.01
"""Seconds between two calls of `tick`, whatever deadline a machine names."""
_MAKES_THE_TOPIC: Final = (
    co.JoinGroup, co.SeekGroup, co.InitTransactions, co.BeginStage, co.CommitTransaction,
)  # fmt: skip

_T = TypeVar("_T")


class Coordinator:
    """All that a node knows of groups and transactions."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        writers: int,
        topics: Topics,
        grants: Grants,
        supervisor: Supervisor,
        *,
        topic_made: Callable[[], None],
    ) -> None:
        self._config = config
        self._folder = folder
        self._tables = tables
        self._writers = writers
        self._topics = topics
        self._grants = grants
        self._supervisor = supervisor
        self._topic_made = topic_made
        self._loop = asyncio.get_running_loop()
        self._clock = time.time() - time.monotonic()
        self._groups: Groups | None = None
        """None unless serving."""
        self._journal: Journal | None = None
        self._mailbox: Mailbox | None = None
        self._attempt: asyncio.Future[None] = self._loop.create_future()
        self._loading: asyncio.Task[None] | None = None
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._retries: set[asyncio.TimerHandle] = set()
        self._pages: dict[bytes, list[int]] = {}
        self._members = Members(
            tables.clients,
            folder.record.boot_id,
            config.stall_timeout,
            died=self._died,
            stalled=self._stalled,
        )
        self._counts = dict.fromkeys(
            ("decisions", "records", "loads", "failures", "died", "stalled", "ticks"), 0
        )

    def begin(self) -> None:
        """Clients are admitted: what is there already is opened in the background."""
        if self._topics.has(TOPIC):
            self._load_soon()

    @property
    def _now(self) -> float:
        """Wall clock at the start, and from then on what really passed."""
        return self._clock + time.monotonic()

    def counts(self) -> dict[str, int]:
        """For `node describe`; empty while nobody has used it."""
        if self._mailbox is None:
            return {}
        return {
            "epoch": self._journal.epoch if self._journal is not None else 0,
            "serving": int(self._groups is not None),
            "in_flight": self._mailbox.in_flight,
            "members": len(self._members),
            "notices": self._members.notices,
            **self._counts,
        }

    # --- requests ---
    async def answer(self, client: Client, request: co.Request) -> ms.NodeMessage:
        """Decide what a client asks for; raises what refuses it, or `PenstockTimeout`."""
        if not self._topics.has(TOPIC) and not isinstance(request, _MAKES_THE_TOPIC):
            empty = GroupRequests(self._make_groups(), self._members, {}).plan(client, request)
            return empty.say(empty.decide(self._now).answer)
        until = time.monotonic() + self._config.coordinator_timeout
        await self._ready()
        if client.connection is None:
            raise NotConnectedError(f"{client} has gone before its request was decided")
        assert self._groups is not None
        plan = GroupRequests(self._groups, self._members, self._pages).plan(client, request)
        return await self._carried_out(plan, until)

    async def _carried_out(self, plan: Plan, until: float) -> ms.NodeMessage:
        journal = self._journal
        assert journal is not None
        left = max(0.0, until - time.monotonic())
        try:
            decision = self._decide(plan.decide)
        except PenstockError:
            # What refuses it may have been decided a moment ago, and may yet come to nothing.
            await journal.settled(durable=False, timeout=left)
            raise
        message = plan.say(decision.answer)
        await journal.settled(durable=decision.durable, timeout=left)
        return message

    async def _ready(self) -> None:
        """Until this serves. Raises what keeps it from that."""
        if self._groups is not None:
            return
        self._load_soon()
        timeout = self._config.coordinator_timeout
        try:
            await asyncio.wait_for(asyncio.shield(self._attempt), timeout)
        except TimeoutError:
            raise PenstockTimeout(
                f"the node's coordinator does not serve yet after {timeout:g} s "
                "(coordinator_timeout): it reads its log; ask again"
            ) from None

    # --- decisions ---
    def _decide(self, decide: Callable[[float], Decision[_T]]) -> Decision[_T]:
        """Take a decision, send it on its way, and make it true here. Raises what refuses it."""
        assert self._mailbox is not None
        assert self._journal is not None
        assert self._groups is not None
        self._mailbox.check_room()
        decision = decide(self._now)
        if decision.records:
            notify = decision.notify
            self._journal.append(
                decision.records,
                durable=decision.durable,
                then=(lambda: self._members.notify(notify)) if notify else None,
            )
            self._replay(self._groups, decision.records)
            self._counts["decisions"] += 1
            self._counts["records"] += len(decision.records)
        self._plan_tick()
        return decision

    def _replay(self, groups: Groups, records: tuple[Record, ...]) -> None:
        try:
            for record in records:
                groups.replay(record)
        except Exception as error:
            logger.exception("a decision cannot be replayed")
            assert self._journal is not None
            self._journal.fail(f"a decision could not be replayed: {error!r}")
            raise

    def _act(self, decide: Callable[[Groups, float], Decision[Any]]) -> None:
        """Decide what nobody asked for. While nothing serves it is left out: loading looks at
        everything anew."""
        groups = self._groups
        if groups is None:
            return
        try:
            self._decide(lambda now: decide(groups, now))
        except ResourceLimitError as error:
            logger.warning("tried again in %g s: %s", RETRY_LAST, error)
            self._later(RETRY_LAST, lambda: self._act(decide))
        except PenstockError as error:
            logger.error("the coordinator could not decide: %s", error)

    def _later(self, delay: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._retries.discard(handle)
            work()

        handle = self._loop.call_later(delay, run)
        self._retries.add(handle)

    # --- time ---
    def _plan_tick(self) -> None:
        """Be called when the first deadline comes, one that is over at once."""
        if self._groups is None or self._stopping:
            return
        deadline = self._groups.deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            delay = max(deadline - self._now, TICK_MIN)
            self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._counts["ticks"] += 1
        self._act(lambda groups, now: groups.tick(now))

    # --- what happens to clients and topics ---
    def client_ended(self, client: Client, *, goodbye: bool) -> None:
        """Its connection is over: members that took their leave have left, others may be back."""
        for member in self._members.of_client(client):
            member.client = None
            group, member_id = member.group, member.member_id
            if goodbye:
                self._members.left(member_id)
                self._act(lambda groups, now, g=group, m=member_id: groups.leave(now, g, m))  # type: ignore[misc]
            elif self._groups is not None:
                self._groups.disconnected(self._now, group, member_id)
        self._plan_tick()

    def _died(self, member: Member) -> None:
        logger.info(
            "member %s of group %s died", member.member_id, member.group,
            extra={"group": member.group, "member": member.member_id, "reason": "died"},
        )  # fmt: skip
        self._counts["died"] += 1
        self._act(lambda groups, now: groups.died(now, member.group, member.member_id))

    def _stalled(self, member: Member) -> None:
        why = f"its process was stopped for longer than {self._config.stall_timeout:g} s"
        logger.warning(
            "member %s of group %s is fenced: %s (stall_timeout)",
            member.member_id, member.group, why,
            extra={"group": member.group, "member": member.member_id, "reason": why},
        )  # fmt: skip
        self._counts["stalled"] += 1
        self._members.left(member.member_id)
        self._act(lambda groups, now: groups.fence(now, member.group, member.member_id, why))

    def topics_changed(self) -> None:
        """The catalogue is another one."""
        if self._groups is not None:
            self._learn_topics()

    def _learn_topics(self) -> None:
        infos = self._topics.infos
        self._pages = {info.topic_id: info.pages for info in infos}
        known = {info.name: (info.topic_id, len(info.pages)) for info in infos}
        self._act(lambda groups, now: groups.topics_changed(now, known))

    # --- loading ---
    def _make_groups(self) -> Groups:
        return Groups(GroupLimits(offsets_retention=self._config.offsets_retention))

    def _load_soon(self) -> None:
        if self._stopping:
            raise NotConnectedError("this node is stopping: ask again when it is back")
        if self._loading is None:
            self._loading = self._loop.create_task(self._load())

    async def _load(self) -> None:
        """Try until it serves, each time in a new epoch."""
        delay = RETRY_FIRST
        while True:
            try:
                await self._open()
                break
            except Exception as error:
                known = isinstance(error, (PenstockError, OSError))
                logger.error(
                    "the coordinator cannot serve, tried again in %g s: %s", delay, error,
                    exc_info=None if known else error, extra={"reason": str(error)},
                )  # fmt: skip
                self._counts["failures"] += 1
                attempt, self._attempt = self._attempt, self._loop.create_future()
                attempt.set_exception(
                    error if known else PenstockError(f"the coordinator failed: {error!r}")
                )
                attempt.exception()  # nobody may be waiting
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_LAST)
        self._loading = None
        attempt, self._attempt = self._attempt, self._loop.create_future()
        attempt.set_result(None)

    async def _open(self) -> None:
        """The fence, the replay, and what the world did in the meantime."""
        begun = time.monotonic()
        is_new = not self._topics.has(TOPIC)
        topic = await self._topics.ensure_internal(TOPIC, SETTINGS)
        if is_new:
            self._topic_made()
        if self._mailbox is None:
            self._mailbox = self._make_mailbox()
        state = self._tables.page(topic.pages[0])
        journal = self._journal = Journal(
            self._mailbox,
            topic,
            state,
            self._folder.coordinator_id,
            self._folder.next_coordinator_epoch(),
            self._broken,
        )
        boot_id = self._folder.record.boot_id
        end = await fence(journal, boot_id, os.getpid())
        groups = self._make_groups()
        place = f"{self._folder.path}/{topic.topic_id.hex()}-0"
        count = await replay(place, state, end, groups.replay)
        journal.check()
        self._groups = groups
        self._counts["loads"] += 1
        self._take_up_members(groups)
        self._learn_topics()
        self._plan_tick()
        logger.info(
            "the coordinator serves in epoch %d: %d records replayed up to offset %d in %.3f s",
            journal.epoch, count, end, time.monotonic() - begun,
            extra={"epoch": journal.epoch, "records": count},
        )  # fmt: skip

    def _make_mailbox(self) -> Mailbox:
        return Mailbox(
            self._grants,
            self._supervisor,
            self._writers,
            self._folder.coordinator_id,
            woken=self._woken,
            lost=self._lost,
            is_waited=lambda: self._journal is not None and self._journal.is_waited,
        )

    def _take_up_members(self, groups: Groups) -> None:
        """Members that the log knows: connected ones go on, living ones may join again, dead ones
        are fenced at once."""
        known = list(groups.members())
        for group, member_id, identity in known:
            member = self._members.found(group, member_id, identity)
            if member is None:
                logger.info("member %s of group %s has died meanwhile", member_id, group)
                self._counts["died"] += 1
                self._act(lambda groups, now, g=group, m=member_id: groups.died(now, g, m))  # type: ignore[misc]
            elif member.client is None:
                groups.disconnected(self._now, group, member_id)
            else:
                groups.connected(self._now, group, member_id)
        self._members.keep_only(member_id for _, member_id, _ in known)

    # --- the log ---
    def _woken(self) -> None:
        if self._journal is not None:
            self._journal.look()

    def _lost(self, why: str) -> None:
        if self._journal is not None:
            self._journal.fail(f"its lane was dropped: {why}")

    def _broken(self, error: PenstockError) -> None:
        """The log took no more of this epoch: what was decided since may not be in it."""
        if self._groups is None:
            return  # loading finds out by itself
        logger.error("%s", error, extra={"reason": str(error)})
        self._counts["failures"] += 1
        self._groups = None
        with contextlib.suppress(NotConnectedError):
            self._load_soon()

    # --- the end ---
    async def stop(self, timeout: float) -> None:
        """Decide nothing more, and have what was decided in the log. Before the writers stop."""
        self._stopping = True
        self._cancel_timers()
        if self._loading is not None:
            self._loading.cancel()
        if self._journal is not None and self._groups is not None:
            try:
                await self._journal.settled(durable=False, timeout=timeout)
            except PenstockError as error:
                logger.warning("the coordinator stops with decisions in its lane: %s", error)
        self._groups = None
        self._members.close()
        if self._mailbox is not None:
            self._mailbox.close(retire=True)

    def _cancel_timers(self) -> None:
        for handle in (self._timer, *self._retries):
            if handle is not None:
                handle.cancel()

    def close(self) -> None:
        """Let go of everything; lanes stay as they are for the next node."""
        self._stopping = True
        self._cancel_timers()
        if self._loading is not None:
            self._loading.cancel()
        self._groups = None
        self._members.close()
        if self._mailbox is not None:
            self._mailbox.close(retire=False)
