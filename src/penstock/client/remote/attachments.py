"""All attachments of a carrier: who they are, what they ask, what is said to them, their lanes.

Owns which attachment a message is for, and the order in which what came is published, handed on and
rung. Leaves connections to `connections`, which tells when there is one (`connected`, `opened`) and
when there is none any more (`lost`). Used by the carrier's thread only; never blocks.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import Final

from penstock.client.remote.branches import Branch
from penstock.client.remote.connection import Wire
from penstock.client.remote.connections import Wires, identity_of
from penstock.client.remote.endpoint import ORPHAN_FOR, Endpoint, EndpointState
from penstock.client.remote.event_loop import EventLoop
from penstock.client.remote.failover import FailoverTimer
from penstock.client.remote.lanes import MirroredLane
from penstock.client.remote.leaders import COORDINATOR
from penstock.client.remote.link import Host, Link
from penstock.client.remote.mirror import MirroredPages
from penstock.client.remote.position_reports import PositionReports
from penstock.client.remote.produce import ProduceSender
from penstock.client.remote.receive import GatewayReceiver
from penstock.client.remote.view import ClusterView
from penstock.cluster.frames import messages as fr
from penstock.core.errors import PenstockError
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel
from penstock.ipc.lane import LaneCorruptError
from penstock.security.keys import KeyFile

logger = logging.getLogger("penstock.remote")

SHUN_FOR: Final = 0.25
"""Seconds until a broker is asked again that took an attachment in no branch, or ended it."""


class Attachments:
    """The attachments of one carrier, by connection and number. `name`: of their node or cluster,
    for messages; the other arguments are for the connections."""

    def __init__(
        self,
        loop: EventLoop,
        name: str,
        hosts: Sequence[Host],
        key: KeyFile | None,
        hello: fr.Hello,
    ) -> None:
        self._loop = loop
        self._name = name
        self._view = view = ClusterView()
        self._home: Wire | None = None
        self._endpoints: dict[int, Endpoint] = {}  # by the descriptor of its channel
        self._orphans: list[Endpoint] = []
        self._numbered: dict[int, tuple[Endpoint, Branch]] = {}  # by its number at its gateway
        self._numbers = 0
        self._sender = ProduceSender(self._view, self._reach, self._broken)
        self._reports = PositionReports()
        self._failover = FailoverTimer(self._view, self._reach, self._sender, self._lose)
        self._receiver = GatewayReceiver(
            view, self._numbered, self._sender, self._failover, self._reports
        )
        fetched = self._receiver.fetched
        self.wires = Wires(hosts, key, hello, name, view.brokers, self, fetched, loop)
        self._lost = 0

    @property
    def is_empty(self) -> bool:
        return not self._endpoints

    @property
    def are_waiting(self) -> bool:
        """Returns whether a connection is wanted."""
        return any(one.hello is not None for one in self._endpoints.values())

    @property
    def have_work(self) -> bool:
        return self._sender.has_work

    @property
    def open_now(self) -> int:
        return sum(branch.is_home for _, branch in list(self._numbered.values()))

    @property
    def counts(self) -> dict[str, float]:
        receiver = self._receiver
        return {
            **self._sender.counts, "throttles": receiver.throttles, "attachments_lost": self._lost,
            "throttled_seconds": receiver.throttled,
        }  # fmt: skip

    @property
    def in_flight(self) -> int:
        """Bytes of batches without an answer; from any thread."""
        found = [one for one, branch in list(self._numbered.values()) if branch.is_home]
        return sum(lane.in_flight for one in found for lane in list(one.lanes.values()))

    @property
    def identity(self) -> bytes | None:
        return None if self._view.pages is None else self._view.pages.node_uuid

    # --- time ---
    def due(self) -> float | None:
        """Returns when `mind` has something to do (monotonic)."""
        times = [one.orphaned_until for one in self._orphans]
        if self._reports.due is not None and self._home is not None:
            times.append(self._reports.due)
        if self._failover.due is not None:
            times.append(self._failover.due)
        return min(times, default=None)

    def mind(self, now: float) -> None:
        """Does the duties that are due by now."""
        if self._orphans:
            self._forget_orphans(now)
        if self._home is not None:
            self._reports.tell(now, self._attached, self._view.brokers)
        self._failover.mend(now, self._attached, self.wires)

    def _attached(self) -> list[Endpoint]:
        return list(dict.fromkeys(endpoint for endpoint, _ in self._numbered.values()))

    def _stir(self) -> None:
        """Looks at once at what waits."""
        if self._view.is_cluster:
            self._failover.stir()

    # --- connections ---
    def connected(self, wire: Wire, welcome: fr.Welcome) -> None:
        """Takes a new home connection and attaches all that wait."""
        identity, view = identity_of(welcome), self._view
        if view.pages is not None and self.identity != identity:
            view.pages.close()
            view.pages = None
        if view.pages is None:
            view.pages = MirroredPages(identity)
        self._home, view.boot_id = wire, welcome.boot_id
        view.is_cluster = bool(welcome.cluster)
        for endpoint in list(self._endpoints.values()):
            if endpoint.hello is not None:
                self._attach(endpoint)
        self._stir()

    def opened(self, broker: int) -> None:
        self._stir()

    def led_otherwise(self) -> None:
        now = time.monotonic()
        for endpoint in self._attached():
            self._sender.led_otherwise(endpoint, now)
            if endpoint.cursors is not None:
                endpoint.cursors.led_otherwise(now)
            endpoint.outlives(self._view.brokers.leader(COORDINATOR), now)
        self._stir()

    def lost(self, wire: Wire, why: str, *, home: bool) -> None:
        """Handles a lost connection: attachments at home there end, the others wait for the next
        one."""
        if home:
            self._home = None
        for endpoint, branch in [one for one in self._numbered.values() if one[1].wire is wire]:
            if branch.number in self._numbered:  # not gone with another one's end
                self._over(endpoint, branch, why)
        self._stir()

    def hopeless(self, error: str, said: str) -> None:
        """Refuses the waiting attachments: there is no connection for now."""
        for endpoint in list(self._endpoints.values()):
            if endpoint.state is EndpointState.WAITING and endpoint.hello is not None:
                endpoint.say(ms.Refused(error, said))
                self._forget(endpoint)

    def close(self) -> None:
        for endpoint in [*self._endpoints.values(), *self._orphans]:
            self._forget(endpoint)
        if self._view.pages is not None:
            self._view.pages.close()

    def abandon(self) -> None:
        """Gives up, in a forked child, copies of descriptors, and touches nothing else."""
        for endpoint in [*self._endpoints.values(), *self._orphans]:
            endpoint.close()
        if self._view.pages is not None:
            self._view.pages.close()

    # --- attachments ---
    def admit(self, link: Link, end: socket.socket) -> None:
        """Takes a new attachment, whose client speaks at the other end of that socket."""
        endpoint = Endpoint(link, Channel(end, inbound=ms.ClientMessage))
        fd = endpoint.channel.fileno()
        self._endpoints[fd] = endpoint
        self._loop.watch(fd, lambda: self._read(self._endpoints[fd]))

    def _read(self, endpoint: Endpoint) -> None:
        """Reads the messages of an attachment's client."""
        while not endpoint.channel.closed:
            try:
                received = endpoint.channel.recv_nowait()
            except BlockingIOError:
                break
            except (PenstockError, OSError) as error:
                logger.warning("an attachment said what it may not: %s", error)
                received = None
            if received is None:
                self._gone(endpoint, polite=False)
                return
            message, fds = received
            for fd in fds:
                os.close(fd)
            if isinstance(message, ms.Bye):
                self._gone(endpoint, polite=True)
                return
            if isinstance(message, ms.Hello):
                endpoint.hello = message
                endpoint = self._orphan_of(endpoint)
                self._attach(endpoint)
            elif endpoint.state is EndpointState.OPEN and not endpoint.requests.take(message):
                logger.warning("an attachment asks faster than it is answered: it is dropped")
                self._gone(endpoint, polite=True)
                return
        self._ask(endpoint)

    def _orphan_of(self, endpoint: Endpoint) -> Endpoint:
        """Returns the endpoint, or in its place the one that an earlier try of the same client
        left."""
        for orphan in self._orphans:
            if orphan.key == endpoint.key:
                self._orphans.remove(orphan)
                orphan.adopt(endpoint.link, endpoint.channel)
                self._endpoints[orphan.channel.fileno()] = orphan
                if orphan.state is EndpointState.OPEN:
                    self._greet(orphan)
                return orphan
        return endpoint

    def _attach(self, endpoint: Endpoint) -> None:
        """Asks for the home branch of an attachment."""
        wire = self._home
        if wire is None or endpoint.state is not EndpointState.WAITING:
            return
        assert endpoint.hello is not None
        token, resume = b"", endpoint.hello.resume
        if resume is not None:
            before = self._lost_one(resume)
            token = b"" if before is None or before.attached is None else before.attached.token
        endpoint.attach(self._new_branch(endpoint, wire, is_home=True), resume, token)

    def _new_branch(self, endpoint: Endpoint, wire: Wire, *, is_home: bool) -> Branch:
        self._numbers += 1
        branch = Branch(wire, self._numbers, is_home=is_home)
        self._numbered[branch.number] = endpoint, branch
        return branch

    def _reach(self, endpoint: Endpoint, broker: int) -> Branch | None:
        """Returns the branch to a broker, or asks for one (see `branches.Reach`)."""
        found = endpoint.branches.get(broker)
        if found is not None:
            return found if found.is_open else None
        wire = self.wires.to(broker)
        if wire is None or endpoint.shunned.get(broker, 0.0) > time.monotonic():
            return None
        assert endpoint.attached is not None
        resume = endpoint.producer_id or None
        branch = self._new_branch(endpoint, wire, is_home=False)
        endpoint.attach(branch, resume, endpoint.attached.token)
        return None

    def _lost_one(self, producer_id: int) -> Endpoint | None:
        """Returns the endpoint of that producer whose connection was lost and whose client is still
        there. Of several it takes the one with the most lanes."""
        found = (
            one
            for one in self._endpoints.values()
            if one.state is EndpointState.LOST and one.producer_id == producer_id
        )
        return max(found, key=lambda one: len(one.lanes), default=None)

    def _opened(self, endpoint: Endpoint, branch: Branch, attached: fr.Attached) -> None:
        """Opens a branch; with its home branch the attachment opens."""
        if branch.is_open:
            return
        if not branch.is_home:
            if attached.producer_id != endpoint.producer_id:
                self._refused(endpoint, branch, "AttachRefusedError", "it gave another producer id")
                return
            branch.opens(attached)
            self._stir()
            return
        assert endpoint.hello is not None
        number, loop, fetch = branch.number, self._loop, self._fetch
        try:
            endpoint.opened(
                branch, attached, lambda message: loop.post(lambda: fetch(number, message)),
                self._view, self._reach,
            )  # fmt: skip
        except PenstockError as error:  # out of descriptors, mostly
            endpoint.say(ms.Refused(type(error).__name__, str(error)))
            self._forget(endpoint)
            return
        assert endpoint.bell is not None
        self._loop.watch(endpoint.bell.fileno(), lambda: self._rang(endpoint))
        before = self._lost_one(attached.producer_id) if endpoint.hello.resume else None
        if (
            before is not None
            and before.attached is not None
            and (self._view.is_cluster or before.attached.writers == attached.writers)
            and before.pages is endpoint.pages
        ):
            endpoint.inherit(before)
        if not endpoint.orphaned_until:
            self._greet(endpoint)

    def _greet(self, endpoint: Endpoint) -> None:
        endpoint.greet(self._view.boot_id, self._name if self._view.is_cluster else "")
        self._sender.look_at(endpoint)

    def _refused(self, endpoint: Endpoint, branch: Branch, error: str, message: str) -> None:
        """Handles a gateway's refusal of a branch."""
        broker = branch.broker
        if branch.is_home:
            if endpoint.state is EndpointState.ATTACHING:
                del self._numbered[branch.number]  # the gateway has no such endpoint
                endpoint.say(ms.Refused(error, message))
                self._forget(endpoint)
            return
        logger.warning("broker %d takes %s not in: %s", broker, endpoint.key, message)
        self._part(endpoint, branch)
        now = time.monotonic()
        endpoint.shunned[broker] = now + SHUN_FOR
        if error not in ("NotConnectedError", "NotLeaderError"):
            endpoint.requests.refused(broker, error, message, now)
            if endpoint.cursors is not None and endpoint.cursors.refused(broker, error, message):
                self._receiver.rouse(endpoint)
        self._failover.wait_for(endpoint)

    def _rang(self, endpoint: Endpoint) -> None:
        assert endpoint.bell is not None
        endpoint.bell.clear()
        self._sender.look_at(endpoint)

    def _ask(self, endpoint: Endpoint) -> None:
        if endpoint.state is EndpointState.OPEN:
            endpoint.requests.pump(time.monotonic())
            self._failover.wait_for(endpoint)

    def _fetch(self, number: int, message: fr.Fetch | fr.More | fr.Drop) -> None:
        """Sends a consumer's request about its cursors."""
        found = self._numbered.get(number)
        if found is None:
            return
        endpoint, branch = found
        if endpoint.cursors is None:
            branch.send(message)
        else:
            endpoint.cursors.take(message, time.monotonic())
            self._failover.wait_for(endpoint)

    def _gone(self, endpoint: Endpoint, *, polite: bool) -> None:
        """Handles a client that has closed its attachment."""
        fd = endpoint.channel.fileno()
        self._loop.unwatch(fd)
        self._endpoints.pop(fd, None)
        unseen = endpoint.state is EndpointState.ATTACHING or (
            endpoint.state is EndpointState.OPEN and self._is_awaited(endpoint)
        )
        if unseen and not polite:
            endpoint.orphan()
            self._orphans.append(endpoint)
        else:
            self._forget(endpoint)

    def _is_awaited(self, endpoint: Endpoint) -> bool:
        """Returns whether the client that it goes on for still tries to attach."""
        resume = None if endpoint.hello is None else endpoint.hello.resume
        return resume is not None and self._lost_one(resume) is not None

    def _forget_orphans(self, now: float) -> None:
        for orphan in [one for one in self._orphans if one.orphaned_until <= now]:
            if self._is_awaited(orphan):
                orphan.orphaned_until = now + ORPHAN_FOR
            else:
                self._orphans.remove(orphan)
                self._forget(orphan)

    def _forget(self, endpoint: Endpoint) -> None:
        """Removes an attachment, here and at the gateways."""
        fd = endpoint.channel.fileno()
        if fd >= 0:
            self._loop.unwatch(fd)
            self._endpoints.pop(fd, None)
        for branch in endpoint.branches.values():
            if self._numbered.pop(branch.number, None) is not None:
                branch.send(fr.Detach(branch.number))
        if endpoint.bell is not None:
            self._loop.unwatch(endpoint.bell.fileno())
        self._sender.forget(endpoint)
        self._receiver.forget(endpoint)
        endpoint.close()

    # --- what gateways say ---
    def hear(self, wire: Wire, message: fr.GatewayMessage) -> None:
        """Handles a gateway's message for one attachment."""
        assert not isinstance(message, (fr.Welcome, fr.Leaders, fr.Pong, fr.Fetched))
        found = self._numbered.get(message.endpoint)
        if found is None or found[1].wire is not wire:
            return  # it is over at this end already
        endpoint, branch = found
        match message:
            case fr.Answer():
                self._receiver.publish(endpoint, branch, message.pages)
                endpoint.requests.answer(branch, message, time.monotonic())
                self._failover.wait_for(endpoint)
            case fr.Attached():
                self._opened(endpoint, branch, message)
            case fr.Refused():
                self._refused(endpoint, branch, message.error, message.message)
            case fr.Ended():
                self._over(endpoint, branch, f"{self._name}: {message.reason}", said=True)
            case _:
                self._receiver.hear(endpoint, branch, message)

    def _over(self, endpoint: Endpoint, branch: Branch, why: str, *, said: bool = False) -> None:
        """Handles the end of a branch; `said`: its gateway announced it."""
        now = time.monotonic()
        if not branch.is_home:
            self._sender.left(endpoint, branch, now)
            if endpoint.cursors is not None:
                endpoint.cursors.left(branch, now)
            if branch.serves_groups:
                endpoint.outlives(fr.NOBODY, now)
            self._part(endpoint, branch)
            endpoint.shunned[branch.broker] = now + SHUN_FOR
            endpoint.requests.left(branch, why, now)
            self._failover.wait_for(endpoint)
            return
        del self._numbered[branch.number]
        if said and endpoint.state is EndpointState.ATTACHING:
            endpoint.say(ms.Refused("NotConnectedError", why))
            self._forget(endpoint)
        elif endpoint in self._orphans:
            self._orphans.remove(endpoint)
            self._forget(endpoint)
        else:
            self._lose(endpoint, why)

    def _part(self, endpoint: Endpoint, branch: Branch) -> None:
        """Removes a branch that is over at its gateway."""
        del self._numbered[branch.number]
        del endpoint.branches[branch.broker]
        branch.close()

    def _lose(self, endpoint: Endpoint, why: str) -> None:
        """Tells a client that its attachment has ended.

        Gateways treat its branches as if its connection was lost.
        """
        self._lost += endpoint.state is EndpointState.OPEN
        for branch in endpoint.branches.values():
            if self._numbered.pop(branch.number, None) is not None:
                branch.send(fr.Detach(branch.number, returns=True))
        self._sender.forget(endpoint)
        endpoint.lose(why)

    def _broken(self, endpoint: Endpoint, lane: MirroredLane, error: LaneCorruptError) -> None:
        logger.error("lane %s is dropped: %s", lane.name, error)
        del endpoint.lanes[lane.writer]
        self._lose(endpoint, f"its lane {lane.name} is broken: {error}")
        lane.close()

    # --- lanes ---
    def pump(self, now: float) -> None:
        """Sends the batches in lanes."""
        if self._sender.has_work:
            if self._sender.pump(now):
                self._reports.stirred(now)
            if self._sender.holds_some:
                self._failover.wait()

    def wake(self) -> None:
        """Wakes sleeping clients for which there is something new."""
        self._receiver.wake()
