"""The coordinator as the node sees it: requests in, what happens to clients and topics, one log.

    absent ──first request, or the topic is there──► loading ──► serving
                                                        ▲           │ an append failed for good
                                                        └───────────┘ everything is discarded

In a cluster every broker has one, and it serves where the log's partition is led:

    elsewhere ──this broker leads──► loading ──► serving ──another leads, or epoch──► elsewhere

Elsewhere it refuses requests as NotLeaderError, once the topic is there, and puts control batches
of the one that serves into logs of its own broker (`port`).

Owns when a life of the machines begins and ends, and what is told to it. Nothing in here waits on
the event loop; requests are coroutines with bounds. A node whose clients never ask for a group or a
transaction has no topic, lane or timer of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

from penstock.cluster.decisions import Decision
from penstock.cluster.groups import GroupMachine
from penstock.core.errors import (
    NotConnectedError,
    NotLeaderError,
    PenstockError,
    PenstockTimeout,
)
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms
from penstock.ipc import sharing
from penstock.server.config import NodeConfig
from penstock.server.coordinator import brokers
from penstock.server.coordinator import request_kinds as kinds
from penstock.server.coordinator.brokers import CoordinatorCluster
from penstock.server.coordinator.clock import CoordinatorClock
from penstock.server.coordinator.epoch import Life
from penstock.server.coordinator.group_floors import NO_GROUP, floor_of
from penstock.server.coordinator.group_members import WatchedMember, WatchedMembers
from penstock.server.coordinator.group_requests import GroupRequests
from penstock.server.coordinator.namespaces import check_namespaces
from penstock.server.coordinator.offset_checks import OffsetChecks
from penstock.server.coordinator.opening import (
    CLUSTER_SETTINGS,
    SETTINGS,
    TOPIC,
    CoordinatorOpening,
)
from penstock.server.coordinator.orphan_transactions import Suspecting
from penstock.server.coordinator.patterns import learn
from penstock.server.coordinator.port import ControlPort
from penstock.server.coordinator.producer_holders import Holders
from penstock.server.coordinator.share_requests import ShareRequests
from penstock.server.coordinator.transaction_requests import REQUESTS as OF_TRANSACTIONS
from penstock.server.coordinator.transaction_requests import TransactionRequests
from penstock.server.coordinator.turns import PrincipalTurns
from penstock.server.health.histogram import Histogram
from penstock.server.node.attach_server import Answer, Reply
from penstock.server.node.attached_client import AttachedClient, Owner
from penstock.server.node.data_folder import DataFolder
from penstock.server.node.lane_grants import Grants
from penstock.server.node.lanes import Lane
from penstock.server.node.tables import Tables
from penstock.server.node.topics import TopicRequests
from penstock.server.process.writer import Order
from penstock.server.process.writers import Supervisor

logger = logging.getLogger("penstock.coordinator")

RETRY_FIRST: Final = 0.05
RETRY_LAST: Final = 5.0


class Coordinator:
    """All that a node knows of groups and transactions."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        tables: Tables,
        writers: int,
        topics: TopicRequests,
        grants: Grants,
        supervisor: Supervisor,
        clock: CoordinatorClock,
        *,
        topic_made: Callable[[], None],
        cluster: CoordinatorCluster | None = None,
    ) -> None:
        """`cluster`: of a broker, whose glue then calls `role_changed` and `take_control`."""
        self._cluster = cluster
        self._settings = SETTINGS if cluster is None else CLUSTER_SETTINGS
        self._leads_in: int | None = None
        """The leader epoch in which this broker leads the log's partition, in a cluster."""
        self._is_admitting = False
        self._opening = CoordinatorOpening(
            config, folder, tables, writers, grants, supervisor, cluster,
            broken=self._broken, woken=self._woken, leads_in=lambda: self._leads_in,
        )  # fmt: skip
        self._suspecting = Suspecting(self._pages_now, tables.page, self._suspect)
        self._port = ControlPort(
            partial(self._opening.make_mailbox, folder.coordinator_id), tables.page
        )
        self._config = config
        self._folder = folder
        self._tables = tables
        self._topics = topics
        self._topic_made, self._loop = topic_made, asyncio.get_running_loop()
        self._now = clock.now
        clock.begin(folder.clock.now_us() / 1e6)
        clock.moved = self._clock_moved
        self._life: Life | None = None
        """The life that serves now."""
        self._attempt: asyncio.Future[None] = self._loop.create_future()
        self._loading: asyncio.Task[None] | None = None
        self._complaint = ""
        self._stopping = False
        self._pages: dict[bytes, list[int]] = {}
        self._names: dict[bytes, str] = {}
        """Both by topic id, as of the last change of topics."""
        self._turns = PrincipalTurns()
        self._checks = OffsetChecks(lambda: self._pages, tables.page)
        self._holders = Holders(grants, self._abandon)
        self._members = WatchedMembers(
            tables.clients,
            folder.record.boot_id,
            config.stall_timeout,
            died=self._died,
            stalled=self._stalled,
        )
        self.seconds = Histogram()
        """Of answers, refusals among them."""
        self._counts = dict.fromkeys(("loads", "failures", "died", "stalled"), 0)

    def begin(self) -> None:
        """Clients are admitted: what is there already is opened in the background."""
        self._is_admitting = True
        if self._cluster is not None:
            self._suspecting.begin()
        if self._topics.has(TOPIC) if self._cluster is None else self._leads_in is not None:
            self._load_soon()

    # --- of a broker ---
    def role_changed(self, leads: bool, leader_epoch: int) -> None:
        """Takes the leader state of the log's partition: whether this broker leads it, and in which
        leader epoch. Repeated calls are allowed. The broker calls it before it reports deleted
        topics, and after it reports new ones."""
        epoch = leader_epoch if leads else None
        if epoch == self._leads_in or self._stopping:
            return
        self._leads_in = epoch
        if self._life is None or self._life.journal.leader_epoch != epoch:
            self._step_down()
        if leads and self._is_admitting and self._life is None:
            self._load_soon()

    def _step_down(self) -> None:
        """Whatever is decided from now on is another's business, or another life's."""
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        self._opening.abort()
        if self._leads_in is not None:
            return  # who waits for the next life goes on waiting
        attempt, self._attempt = self._attempt, self._loop.create_future()
        attempt.set_exception(kinds.elsewhere())
        attempt.exception()  # nobody may be waiting
        self._members.clear()
        self._holders.forget()

    async def take_control(self, request: bytes) -> bytes:
        """Control batches of the cluster's coordinator for partitions that are led here. Raises
        `PenstockError`: it is tried again."""
        if self._stopping:
            raise NotConnectedError("this broker is stopping: ask again when it is back")
        asked = brokers.decode_request(request)
        if isinstance(asked, brokers.ControlRequest):
            return await self._port.take(asked)
        if isinstance(asked, brokers.FloorAsked):
            return brokers.encode(await self._floor(asked.topic_id, asked.partition))
        if self._life is not None:
            self._life.journal.check()
            self._life.sweep.judge(asked.suspects)
        return brokers.NOTHING

    async def floor_of(self, request: ms.FindFloor) -> ms.FloorFound:
        """How far all groups of the cluster are in a partition. Raises `PenstockError` where that
        is not known now."""
        topic_id, partition = request.topic_id, request.partition
        if not self._topics.has(TOPIC):
            return ms.FloorFound(NO_GROUP)
        if self._cluster is None or self._leads_in is not None:
            return ms.FloorFound(await self._floor(topic_id, partition))
        topic = await self._topics.ensure_internal(TOPIC, self._settings)
        leader = self._cluster.leader_of(topic.pages[0])
        if leader is None:
            raise kinds.elsewhere()
        told = brokers.encode(brokers.FloorAsked(topic_id, partition))
        timeout = self._config.coordinator_timeout
        answer = await self._cluster.send_control(leader, told, timeout)
        return ms.FloorFound(brokers.decode_floor(answer))

    async def _floor(self, topic_id: bytes, partition: int) -> int:
        """By what is decided and cannot be lost any more."""
        until = time.monotonic() + self._config.coordinator_timeout
        life = await self._serving(until)
        found = floor_of(life.machines, topic_id, partition)
        await life.journal.settled(durable=False, timeout=max(0.0, until - time.monotonic()))
        return found

    async def _suspect(self, suspects: list[brokers.Suspect]) -> None:
        """Tells the coordinator, where that is another broker."""
        if self._cluster is None or self._leads_in is not None or not self._topics.has(TOPIC):
            return
        topic = await self._topics.ensure_internal(TOPIC, self._settings)
        leader = self._cluster.leader_of(topic.pages[0])
        if leader is not None and leader != self._cluster.broker:
            request = brokers.encode(brokers.Suspects(suspects))
            await self._cluster.send_control(leader, request, self._config.coordinator_timeout)

    def orders_for(self, writer: int) -> Iterator[Order]:
        """Yields the orders that a new writer needs."""
        yield from self._opening.orders()
        yield from self._port.orders()

    async def _not_here(
        self, client: AttachedClient, request: co.Request | sharing.Request
    ) -> ms.NodeMessage | None:
        """The answer of a broker that does not lead; None if it does by now. The first request
        makes the topic."""
        if not self._topics.has(TOPIC) and not isinstance(request, kinds.OF_MEMBERS):
            if isinstance(request, kinds.ASKS_AFTER):
                return self._nothing(client, request)
            await self._topics.ensure_internal(TOPIC, self._settings)
            if self._leads_in is not None:
                return None
        raise kinds.elsewhere()

    def _clock_moved(self) -> None:
        if self._life is not None:
            self._life.plan_tick(moved=True)

    def counts(self) -> dict[str, int]:
        """For `node describe`; empty while nobody has used it, and where another broker leads."""
        mailbox, journal = self._opening.mailbox, self._opening.journal
        if mailbox is None or (self._cluster is not None and self._leads_in is None):
            return {}
        life = self._life
        found = {
            "serving": int(life is not None),
            "epoch": journal.epoch if journal is not None else 0,
            "in_flight": mailbox.in_flight,
            "members": len(self._members),
            "notices": self._members.notices,
            **self._counts,
        }
        if life is not None:
            found |= {"decisions": life.decisions, "records": life.records}
            found |= {"markers": life.markers.sent, "markers_refused": life.markers.refused}
            found["swept"] = life.sweep.swept
            found |= life.machines.transactions.counts
            found |= {f"share_{what}": n for what, n in life.machines.shares.totals().items()}
        return found

    def names(self) -> tuple[Collection[str], Collection[str]] | None:
        """Groups and transactional ids; None where another broker knows them, or it is loading."""
        if self._life is None:
            is_here = self._cluster is None and not self._topics.has(TOPIC)
            return ((), ()) if is_here else None
        machines = self._life.machines
        return machines.groups.names(), machines.transactions.ids()

    # --- requests ---
    def answer(self, client: AttachedClient, request: co.Request | sharing.Request) -> Answer:
        """Decides what a client asks for. Raises what refuses it, now or by the answer."""
        began, leads = time.monotonic(), self._cluster is None or self._leads_in is not None
        if self._life is None or not leads or not isinstance(request, kinds.DECIDED_AT_ONCE):
            return self._answer_later(client, request, began)
        try:
            until = began + self._config.coordinator_timeout
            found = self._life.carry_out(*self._planned(self._life, client, request, until))
        except PenstockError:
            self._observe(began)
            raise
        if isinstance(found, asyncio.Future):
            found.add_done_callback(lambda _: self._observe(began))
            return found
        self._observe(began)
        return Reply(found)

    def _observe(self, began: float) -> None:
        self.seconds.observe(time.monotonic() - began)

    async def _answer_later(
        self, client: AttachedClient, request: co.Request | sharing.Request, began: float
    ) -> ms.NodeMessage:
        try:
            return await self._answer(client, request)
        finally:
            self._observe(began)

    async def _answer(
        self, client: AttachedClient, request: co.Request | sharing.Request
    ) -> ms.NodeMessage:
        if self._cluster is not None:
            if self._leads_in is None and (told := await self._not_here(client, request)):
                return told
        elif isinstance(request, kinds.ASKS_AFTER) and not self._topics.has(TOPIC):
            return self._nothing(client, request)
        until = time.monotonic() + self._config.coordinator_timeout
        if isinstance(request, co.JoinGroup) and request.pattern is not None:
            names = (info.name for info in self._infos())
            async with self._turns.of(str(client.permits)) as turn:
                await learn(turn, request.pattern, names)
        life = await self._serving(until)
        if client.connection is None:
            raise NotConnectedError(f"{client} has gone before its request was decided")
        if isinstance(request, sharing.Request):  # of members, who have joined
            views = (self._members, self._pages, self._names, self._tables.page)
            return await ShareRequests(life, *views, self._now, until).answer(client, request)
        check_namespaces(self._topics.limits(), life.machines, request)
        if isinstance(request, OF_TRANSACTIONS):
            parts = (self._folder, self._holders, self._now, until, self._checks, self._turns)
            requests = TransactionRequests(life, *parts, self._names)
            return await requests.answer(client, request)
        return await life.carried_out(*self._planned(life, client, request, until))

    def _planned(
        self, life: Life, client: AttachedClient, request: co.Request, until: float
    ) -> tuple[Callable[[float], Decision[Any]], float, Callable[[Any], ms.NodeMessage]]:
        known = (life.machines.groups, self._members, self._pages, self._checks)
        plan = GroupRequests(*known).plan(client, request)
        return plan.decide, until, plan.say

    def _nothing(
        self, client: AttachedClient, request: co.Request | sharing.Request
    ) -> ms.NodeMessage:
        """The answer of a node that never had a group or a transaction."""
        if (told := kinds.nothing_there(request)) is not None:
            return told
        assert isinstance(request, co.Request)
        groups = self._opening.machines().groups
        groups.topics_changed(self._now(), {})
        plan = GroupRequests(groups, self._members, self._pages, self._checks).plan(client, request)
        return plan.say(plan.decide(self._now()).answer)

    async def _serving(self, until: float) -> Life:
        """The life that serves, waited for. Raises what keeps it from that."""
        if self._life is None:
            self._load_soon()
            left = until - time.monotonic()
            try:
                await asyncio.wait_for(asyncio.shield(self._attempt), left)
            except PenstockError:
                raise  # what keeps it from loading
            except TimeoutError:
                raise PenstockTimeout(
                    f"the node's coordinator does not serve yet after {left:.1f} s "
                    "(coordinator_timeout): it reads its log; ask again"
                ) from None
        if self._life is None:
            raise PenstockTimeout("the node's coordinator lost its log just now; ask again")
        return self._life

    def limits_changed(self) -> None:
        """Settings of groups are others now."""
        if self._life is not None:
            self._life.machines.groups.limit(self._now(), self._opening.group_limits())
            self._life.plan_tick()

    # --- what happens to clients ---
    def client_ended(self, client: AttachedClient, *, goodbye: bool) -> None:
        """Its connection is over: members that took their leave have left, others may be back."""
        for member in self._members.of_client(client):
            member.client = None
            if goodbye:
                self._members.left(member.member_id)
                self._tell(GroupMachine.leave, member)
            elif self._life is not None:
                groups = self._life.machines.groups
                groups.disconnected(self._now(), member.group, member.member_id)
                self._life.plan_tick()

    def _tell(
        self, event: Callable[..., Decision[None]], member: WatchedMember, *more: str
    ) -> None:
        """Have the machine decide what follows for a member. While nothing serves it is left out:
        loading looks at everybody again."""
        if self._life is not None:
            groups = self._life.machines.groups
            self._life.act(lambda now: event(groups, now, member.group, member.member_id, *more))

    def process_died(self, process: Owner) -> None:
        """A process with any attachment is dead, as its pidfd says, or a remote client is away for
        too long."""
        self._holders.process_died(process)

    def lane_gone(self, lane: Lane) -> None:
        """A lane that was retired is drained and unlinked."""
        self._holders.lane_gone(lane)

    def _abandon(self, producer_id: int) -> bool:
        """Its process is dead and its lanes are drained: what it had open is aborted (rule 19)."""
        if self._life is None:
            return False
        transactions = self._life.machines.transactions
        self._life.act(lambda now: transactions.abandon(now, producer_id))
        return True

    def _died(self, member: WatchedMember) -> None:
        """Its process is gone, whatever it was doing."""
        logger.info(
            "member %s of group %s died", member.member_id, member.group,
            extra={"group": member.group, "member": member.member_id, "reason": "died"},
        )  # fmt: skip
        self._counts["died"] += 1
        self._tell(GroupMachine.died, member)

    def _stalled(self, member: WatchedMember) -> None:
        if self._life is None:
            return  # nobody could decide it now, and the next look finds it again
        bound = self._config.stall_timeout
        why = f"its process was stopped for longer than stall_timeout={bound:g} s"
        logger.warning(
            "member %s of group %s is fenced: %s", member.member_id, member.group, why,
            extra={"group": member.group, "member": member.member_id, "reason": why},
        )  # fmt: skip
        self._counts["stalled"] += 1
        self._members.left(member.member_id)
        self._tell(GroupMachine.fence, member, why)

    def topics_changed(self) -> None:
        """The catalogue is another one."""
        if self._life is not None:
            self._learn_topics(self._life)

    def _infos(self) -> list[ms.TopicInfo]:
        return self._topics.infos if self._cluster is None else list(self._cluster.topics())

    def _pages_now(self) -> dict[bytes, list[int]]:
        return {info.topic_id: info.pages for info in self._infos()}

    def _learn_topics(self, life: Life) -> None:
        infos = self._infos()
        self._pages = {info.topic_id: info.pages for info in infos}
        self._names = {info.topic_id: info.name for info in infos}
        known = {info.name: (info.topic_id, len(info.pages)) for info in infos}
        life.act(lambda now: life.machines.groups.topics_changed(now, known))
        life.forget_topics(self._pages)
        life.markers.look()

    # --- loading ---
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
                life = await self._open()
                self._life = life
                self._begin_life(life)
                life.journal.check()
                break
            except Exception as error:
                self._failed_to_load(error, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_LAST)
        self._loading, self._complaint = None, ""
        attempt, self._attempt = self._attempt, self._loop.create_future()
        attempt.set_result(None)

    def _failed_to_load(self, error: Exception, delay: float) -> None:
        known = isinstance(error, (PenstockError, OSError))
        repeated, self._complaint = str(error) == self._complaint, str(error)
        logger.log(
            logging.DEBUG if repeated else logging.ERROR,
            "the coordinator cannot serve, tried again in %g s: %s", delay, error,
            exc_info=None if known else error, extra={"reason": str(error)},
        )  # fmt: skip
        self._counts["failures"] += 1
        failure = (
            error if isinstance(error, PenstockError)
            else PenstockError(f"the node's coordinator cannot serve: {error!r}")
        )  # fmt: skip
        if self._life is not None:
            self._life.end(failure)
            self._life = None
        attempt, self._attempt = self._attempt, self._loop.create_future()
        attempt.set_exception(failure)
        attempt.exception()  # nobody may be waiting

    async def _open(self) -> Life:
        is_new = not self._topics.has(TOPIC)
        topic = await self._topics.ensure_internal(TOPIC, self._settings)
        if is_new:
            self._topic_made()
        opened = await self._opening.open(topic)
        self._counts["loads"] += 1
        return Life(
            *opened,
            clock=self._now,
            doubt=lambda: max(0.0, self._now() - self._folder.clock.now_us() / 1e6),
            pages=lambda: self._pages,
            notify=self._members.notify,
            page=self._tables.page,
            cluster=self._cluster,
        )

    def _begin_life(self, life: Life) -> None:
        """Takes in changes of topics and members since the last life. Connected members go on,
        living ones may join again, dead ones are fenced at once."""
        self._learn_topics(life)
        groups = life.machines.groups

        def died(group: str, member_id: str) -> None:
            logger.info("member %s of group %s has died meanwhile", member_id, group)
            self._counts["died"] += 1
            life.act(lambda now: groups.died(now, group, member_id))

        life.look_at_shares(self._pages)
        known = list(groups.members())
        self._members.keep_only(member_id for _, member_id, _ in known)
        for group, member_id, identity in known:
            try:
                member = self._members.found(group, member_id, identity)
            except PenstockError as error:  # not seen is not dead: its session timeout runs
                logger.warning("member %s of %s is not watched: %s", member_id, group, error)
                groups.disconnected(self._now(), group, member_id)
                continue
            if member is None:
                died(group, member_id)
            elif member.client is None:
                groups.disconnected(self._now(), group, member_id)
            else:
                groups.connected(self._now(), group, member_id)
        self._holders.look()
        life.markers.look()
        life.sweep.look()
        life.plan_tick()

    # --- the log ---
    def _woken(self) -> None:
        if self._life is not None:
            self._life.markers.look_at_syncs()

    def _broken(self, failure: PenstockError) -> None:
        """The log takes no more of this epoch: what was decided since may not be in it."""
        if self._life is None:
            return  # loading finds out by itself
        if isinstance(failure, NotLeaderError):
            logger.info("the coordinator is another broker from now on")
        else:
            logger.error("%s", failure, extra={"reason": str(failure)})
        self._counts["failures"] += 1
        life, self._life = self._life, None
        life.end(failure)
        if not self._stopping and (self._cluster is None or self._leads_in is not None):
            self._load_soon()

    # --- the end ---
    async def stop(self, timeout: float) -> None:
        """Decide nothing more, and have what was decided in the log. Before the writers stop."""
        self._stopping = True
        if self._loading is not None:
            self._loading.cancel()
        if self._life is not None:
            try:
                await self._life.journal.settled(durable=False, timeout=timeout)
            except PenstockError as error:
                logger.warning("the coordinator stops with decisions in its lane: %s", error)
        self._let_go(retire=True)

    def close(self) -> None:
        """Lets go of everything; lanes stay as they are for the next node."""
        self._stopping = True
        if self._loading is not None:
            self._loading.cancel()
        self._let_go(retire=False)

    def _let_go(self, *, retire: bool) -> None:
        if self._life is not None:
            self._life.end(NotConnectedError("this node is stopping: ask again when it is back"))
            self._life = None
        self._members.close()
        self._suspecting.close()
        self._port.close(retire=retire)
        self._opening.close(retire=retire)
