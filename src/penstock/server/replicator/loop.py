"""The replicator's loop: the node's lifeline, lanes, pages, followers, leaders, clocks; one thread.

    each turn:  orders, answers of writers, pages, followers' requests, leaders' answers;
                then messages to writers, leaders and followers; then sleep

Owns the order of a turn. An unforeseen error ends the process: the next life of the broker begins
from the logs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

import zmq

from penstock.client.session import Session
from penstock.core.errors import NotConnectedError
from penstock.core.storage import Storage
from penstock.ipc.channel import Channel, close_fds
from penstock.ipc.doorbell import Doorbell, fence
from penstock.ipc.lane import LaneSender
from penstock.security.keys import ServerKey
from penstock.server.config import NodeConfig
from penstock.server.gateway.endpoints import fresh_ticket
from penstock.server.gateway.events import Events
from penstock.server.replicator import messages as rm
from penstock.server.replicator import protocol
from penstock.server.replicator.checkpoint import Checkpoint
from penstock.server.replicator.counts import ReplicatorCounts
from penstock.server.replicator.curve import Secured
from penstock.server.replicator.follower_fetch import Copying
from penstock.server.replicator.lanes import Lanes
from penstock.server.replicator.leader_connection import LeaderLink
from penstock.server.replicator.leader_fetch import ANSWER_BYTES, NEWS_AFTER, Serving
from penstock.server.replicator.listener import Port
from penstock.server.replicator.partition import ReplicatedPartition
from penstock.server.replicator.replica_manager import Hosting

logger = logging.getLogger("penstock.replicator")

ORDERS_PER_TURN: Final = 256
SWEEP: Final = 0.1
"""Seconds between two looks at what nobody rings for."""
LIVES: Final = 0.5
"""Seconds between two signs of life."""
WRITE_DOWN: Final = 5.0
"""Seconds between two times that high watermarks are written down."""
RETRY_SEND: Final = 0.002
"""Seconds until a follower's full queue is tried again."""
DEAF_AFTER: Final = 0.5
"""Seconds without a turn after which nobody else's silence counts."""
LANE_TIMEOUT: Final = 10.0
LAST_WRITE: Final = 2.0


class Replicator:
    """Made, bound, then `run` until `stop`, or until the node is gone."""

    def __init__(
        self,
        config: NodeConfig,
        listen: str,
        key: ServerKey | None,
        lifeline: Channel,
        session: Session,
    ) -> None:
        self._lifeline = lifeline
        self._session = session
        self.counts = counts = ReplicatorCounts()
        self._events = Events()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._secured = Secured(self._context, key)
        storage = Storage()
        self._checkpoint = Checkpoint(storage, config.data_folder)
        self._lanes = Lanes(session.writers, self._open_lane)
        self._hosting = Hosting(
            storage, self._lanes, counts, self._checkpoint,
            state_of=session.page, lag_time=config.replica_lag_time, turned=self._turned,
            moved=self._moved, watch=self._watch, tell=self._tell,
        )  # fmt: skip
        partitions = self._hosting.partitions
        self._copying = Copying(
            self._lanes, counts, self._link_to, lambda: self._hosting.epoch, self._events.later
        )
        self._serving = Serving(storage, counts, partitions.get, self._hosting.asked)
        self._port = Port(
            self._context, config, listen, self._serving, counts,
            secure=self._secured.listening, admits=self._admits, welcome=self._welcome,
        )  # fmt: skip
        self._message_bytes_max = 2 * ANSWER_BYTES + config.batch_bytes_max
        self._cluster = rm.LivingBrokers(b"", -1, 0, {})
        self._links: dict[int, LeaderLink] = {}
        self._is_stopping = False
        self._turned_at = time.monotonic()
        self._has_orders = self._is_spoken_to = True

    def bind(self) -> str:
        """Listen: the URL with the real port."""
        return self._port.bind()

    # --- the loop ---
    def run(self) -> None:
        """Raises what nobody foresaw."""
        self._events.watch(self._port.fileno(), self._port.rang)
        self._events.watch(self._port.monitor_fileno(), self._port.look)
        self._events.watch(self._secured.fileno(), self._secured.serve)
        self._events.watch(self._lifeline.fileno(), self._ordered)
        self._events.watch(self._session.fileno(), self._spoken_to)
        self._events.watch(self._session.doorbell.fileno(), self._rung)
        due = dict.fromkeys((self._sweep, self._live, self._inform, self._write_down), 0.0)
        every = {self._sweep: SWEEP, self._live: LIVES, self._inform: NEWS_AFTER,
                 self._write_down: WRITE_DOWN}  # fmt: skip
        while not self._is_stopping:
            self.turn()
            now = self._hosting.now
            for what, when in due.items():
                if now >= when:
                    due[what] = now + every[what]
                    what()
            self._sleep(max(0.0, min(due.values()) - now))

    def stop(self) -> None:
        """Leave after this turn."""
        self._is_stopping = True

    def turn(self) -> None:
        """One round of everything."""
        now = self._hosting.now = time.monotonic()
        if now - self._turned_at > DEAF_AFTER:
            self._port.listened(now)
            for link in self._links.values():
                link.listened(now)
        self._turned_at = now
        self._obey()
        self._farewell()
        self._lanes.take()
        self._copying.look()
        self._hosting.look()
        self._port.receive(now)
        for link in list(self._links.values()):
            self._copying.receive(link, now)
        self._hosting.tell()
        self._lanes.ring()
        for link in self._links.values():
            self.counts.fetches_out += link.flush(now)
        self._port.flush(now)

    def _sleep(self, seconds: float) -> None:
        """Until something happens, at most so long (rule 13)."""
        if self._has_something:
            seconds = 0.0
        elif self._port.is_blocked:
            seconds = min(seconds, RETRY_SEND)
        if seconds:
            ticket = fresh_ticket()
            self._lanes.publish_sleeping(ticket)
            slot = self._session.slot
            if slot is not None:
                slot.publish_sleeping(ticket)
            fence()
            if self._lanes.have_acks or self._hosting.has_moved:
                seconds = 0.0
        self._events.poll(seconds)

    @property
    def _has_something(self) -> bool:
        # All are asked: from now on their descriptors tell of what comes.
        found = self._port.has_messages or self._port.is_pending or self._has_orders
        if not self._lanes.are_full:
            for link in self._links.values():
                found = link.has_messages or found
        return found

    # Ready descriptors are only noted: each turn checks them.
    def _rung(self) -> None:
        self._session.doorbell.clear()

    def _ordered(self) -> None:
        self._has_orders = True

    def _spoken_to(self) -> None:
        self._is_spoken_to = True

    # --- the node ---
    def _obey(self) -> None:
        """Take what the node says. Its end is ours."""
        if not self._has_orders:
            return
        for _ in range(ORDERS_PER_TURN):
            try:
                received = self._lifeline.recv_nowait()
            except BlockingIOError:
                self._has_orders = False
                return
            if received is None:
                self._is_stopping = True
                return
            order, fds = received
            close_fds(fds)
            self._hosting.take(order)
            if isinstance(order, rm.LivingBrokers):
                self._heard_of(order)

    def _farewell(self) -> None:
        """The node ends the session only where something is wrong."""
        if self._is_spoken_to:
            self._is_spoken_to = False
            why = self._session.farewell()
            if why is not None:
                raise NotConnectedError(f"the node serves this replicator no more: {why}")

    def _tell(self, report: rm.Report) -> None:
        try:
            self._lifeline.send_nowait(report)
        except BlockingIOError:
            logger.debug("the node reads nothing now, and is told again: %r", report)
        except NotConnectedError:
            self._is_stopping = True

    def _live(self) -> None:
        self._tell(rm.Lives(self.counts.as_dict(), self._hosting.lags()))

    def _heard_of(self, order: rm.LivingBrokers) -> None:
        """Brokers came, went, or live again."""
        self._cluster = order
        for broker, link in list(self._links.items()):
            epoch, url = order.brokers.get(broker, (0, ""))
            if (link.epoch, link.url) != (epoch, url):
                del self._links[broker]
                link.close()
                self._copying.lost(link)
        self._copying.links_changed()

    def _link_to(self, broker: int) -> LeaderLink | None:
        epoch, url = self._cluster.brokers.get(broker, (0, ""))
        if not url or broker == self._cluster.broker:
            return None
        link = self._links.get(broker)
        if link is None:
            link = self._links[broker] = LeaderLink(
                self._context, broker, epoch, url, bytes_max=self._message_bytes_max,
                secure=self._secured.connecting, hello=self._hello, lost=self._copying.lost,
                watch=self._events.watch, unwatch=self._events.unwatch,
            )  # fmt: skip
        return link

    # --- greetings ---
    def _hello(self, to: int) -> protocol.Hello:
        known = self._cluster
        return protocol.Hello(
            protocol.VERSION, known.cluster_id, known.broker, known.broker_epoch, to
        )

    def _welcome(self) -> protocol.Welcome:
        return protocol.Welcome(protocol.VERSION, self._cluster.broker, self._cluster.broker_epoch)

    def _admits(self, hello: protocol.Hello) -> str:
        known = self._cluster
        if hello.version != protocol.VERSION:
            return (
                f"version {hello.version} of the replication protocol, {protocol.VERSION} is here"
            )
        if known.broker < 0:
            return "this broker does not know its cluster yet"
        if hello.cluster_id != known.cluster_id:
            return f"cluster {hello.cluster_id.hex()}, another one is here"
        if hello.to != known.broker or hello.broker == known.broker:
            return f"broker {hello.to} is asked by {hello.broker}, and this is {known.broker}"
        if hello.broker_epoch < self._hosting.living.get(hello.broker, 0):
            return f"a later life of broker {hello.broker} is there"
        return ""

    # --- partitions ---
    def _open_lane(self, writer: int) -> tuple[LaneSender, Doorbell]:
        return self._session.open_lane(writer, LANE_TIMEOUT)

    def _turned(self, partition: ReplicatedPartition) -> None:
        self._serving.turned(partition)
        self._copying.turned(partition)

    def _moved(self, partition: ReplicatedPartition) -> None:
        self._serving.moved(partition)

    def _watch(self, pages: Iterable[int]) -> None:
        slot = self._session.slot
        if slot is not None:
            slot.watch(pages)

    # --- time ---
    def _sweep(self) -> None:
        now = self._hosting.now
        self._secured.serve()
        self._hosting.check()
        self._serving.check(now)
        self._copying.check(now)
        self._port.check(now)
        if not self._lanes.are_full:  # else it is us who do not listen
            for link in list(self._links.values()):
                link.check(now)
        else:
            for link in self._links.values():
                link.listened(now)

    def _inform(self) -> None:
        self._lanes.ring_late()
        self._serving.inform()

    def _write_down(self) -> None:
        self._hosting.write_down()

    def close(self) -> None:
        """Let go of everything; high watermarks are written down."""
        self._hosting.write_down()
        self._checkpoint.finish(LAST_WRITE)
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._port.close()
        self._secured.close()
        self._lanes.close()
        self._session.close()
        self._context.term()
        self._events.close()
