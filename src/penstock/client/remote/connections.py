"""All connections of a carrier: its home connection, and one to each broker it needs.

    home      to any node or broker; the first that answers is taken
    others    in a cluster: to the brokers that lead what is used; opened when they are asked for,
              and one at least, which reports a home broker that is cut off or stopped

Each connection is a `Wire` for one try. Owns which hosts are tried and when: at first those that
the client named, in a cluster then also the brokers that it has heard of. For a home the next one
is tried beside one that keeps silent, which may be stopped: the first that greets is taken. It
leaves a broker that the others count as gone, even before its silence shows. Used by the carrier's
thread only; never blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import zmq

from penstock.client.backoff import SOON, Retries
from penstock.client.remote.connection import LINGER_MAX, TakeFetched, Wire
from penstock.client.remote.event_loop import EventLoop
from penstock.client.remote.leaders import Brokers
from penstock.client.remote.link import Host, host_text
from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.messages import NOBODY
from penstock.core.errors import PenstockError
from penstock.security.keys import ClientKey, KeyFile

logger = logging.getLogger("penstock.remote")

RETRY_FIRST: Final = 0.05
RETRY_LAST: Final = 2.0
HEALTHY_AFTER: Final = 1.0
"""Seconds for which a connection lasts before it counts as one that worked."""
WITNESS_AFTER: Final = 1.0
"""Seconds after which a client with only a home connection opens another one. A client that is
done by then spares it."""
NEXT_AFTER: Final = 0.5
"""Seconds without a greeting after which the next host is tried beside those that are under way."""
MESSAGES_A_TURN: Final = 256
REASONS_MAX: Final = 8

_HINT: Final = ": is one started there with `penstock serve --listen`, and is the way to it open?"
COUNTED: Final = ("connects", "reconnects", "failed_connects", "bytes_sent", "bytes_received")


class User(Protocol):
    """The owner of the connections, which hears of their events."""

    @property
    def identity(self) -> bytes | None:
        """The node, or the cluster, that it has got to know; None before that."""

    def connected(self, wire: Wire, welcome: fr.Welcome) -> None:
        """Takes the home connection."""

    def opened(self, broker: int) -> None:
        """Handles a new connection to a broker that was asked for."""

    def lost(self, wire: Wire, why: str, *, home: bool) -> None:
        """Handles the loss of a connection that was up."""

    def hopeless(self, error: str, said: str) -> None:
        """Handles a home connection that cannot be made for now."""

    def led_otherwise(self) -> None:
        """Handles a change of leaders, as the cluster's brokers report it."""

    def hear(self, wire: Wire, message: fr.GatewayMessage) -> None:
        """Handles any other message."""


class _Way:
    """To one broker that is not home. `wire` may be on its way still."""

    __slots__ = ("is_needed", "retries", "retry_at", "up_since", "was_up", "wire")

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.is_needed = False
        self.was_up = False
        self.up_since = 0.0
        self.retry_at = 0.0
        self.retries = Retries(RETRY_FIRST, RETRY_LAST, growth=SOON)


class Wires:
    """The connections of a carrier. `name`: of the node or cluster, for messages. `brokers` is kept
    up to date with what brokers say. `fetched`: see `Wire`."""

    def __init__(
        self,
        hosts: Sequence[Host],
        key: KeyFile | None,
        hello: fr.Hello,
        name: str,
        brokers: Brokers,
        user: User,
        fetched: TakeFetched,
        loop: EventLoop,
    ) -> None:
        self._bootstrap = tuple(hosts)
        self._key = key
        self._hello = hello
        self._name = name
        self._user = user
        self._fetched = fetched
        self._loop = loop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.home: Wire | None = None
        """The connection that is up, for all that needs no certain broker."""
        self.brokers = brokers
        self._coming: list[Wire] = []  # what may become the home connection
        self._ways: dict[int, _Way] = {}
        self._at = 0  # the host that is tried
        self._tried: list[str] = []
        self._up_since = 0.0
        self._met_other = self._takes_other = False  # another node than the one before
        self.is_somebody_there = False
        """Whether a host was reached that did not take this client in."""
        self._reasons: list[str] = []
        self._retries = Retries(RETRY_FIRST, RETRY_LAST, growth=SOON)
        self._retry_at = 0.0
        self.counts = dict.fromkeys(COUNTED, 0)

    # --- what others ask ---
    def why(self) -> str:
        """Says which brokers were tried last, and with what result."""
        trying = [f"{host_text(wire.host)}: no answer yet" for wire in list(self._coming)]
        return "; ".join(self._reasons or [*self._tried, *trying])

    def hopeless(self) -> str:
        """Says why no broker is connected, for a client that waits for one."""
        if self.home is not None:
            return f"the gateway at {self._name} answers, but its node does not in time"
        why = self.why()
        said = f"no broker answers at {self._name}" + (f" ({why})" if why else "")
        return said if self.is_somebody_there else said + _HINT

    def metrics(self) -> dict[str, float]:
        """Counters since it was made, and gauges of now; from any thread."""
        home, found = self.home, list(self._all())
        return {
            **self.counts,
            "bytes_sent": self.counts["bytes_sent"] + sum(wire.bytes_sent for wire in found),
            "bytes_received": self.counts["bytes_received"]
            + sum(wire.bytes_received for wire in found),
            "connected": float(home is not None),
            "round_trip": home.round_trip if home is not None else 0.0,
        }

    def to(self, broker: int) -> Wire | None:
        """Returns the connection to that broker. None while it is not up: it is opened then."""
        way = self._ways.get(broker)
        if way is None:
            if broker not in self.brokers.hosts:
                return None
            way = self._ways[broker] = _Way()
        if way.wire is not None:
            return way.wire if way.wire.is_up else None
        way.is_needed = True
        return None

    def _all(self) -> Iterator[Wire]:
        for way in list(self._ways.values()):
            if way.wire is not None:
                yield way.wire
        yield from list(self._coming)
        home = self.home
        if home is not None and home.broker == NOBODY:
            yield home

    # --- time ---
    @property
    def has_news(self) -> bool:
        """Returns whether `mind` has something to do at once."""
        return any(wire.failed is not None or wire.has_news for wire in self._all())

    def due(self, now: float, *, wanted: bool) -> float:
        """Returns when `mind` has to be called next, at the latest; `now` means never."""
        times = [wire.due() for wire in self._all()]
        if wanted and self.home is None and self._has_next:
            times.append(self._retry_at)
        times += [way.retry_at for way in self._ways.values() if way.is_needed and way.wire is None]
        return min(times, default=now)

    def mind(self, now: float, *, wanted: bool) -> None:
        """Connects where need be, reads messages, notices ends. `wanted`: a home connection is,
        too."""
        is_homeless = wanted and self.home is None and not self._move_in()
        if is_homeless and self._has_next and now >= self._retry_at:
            self._try_next(now)
        if wanted and self.home is not None and now - self._up_since > WITNESS_AFTER:
            self._have_witness(self.home)
        for broker, way in list(self._ways.items()):
            if way.is_needed and way.wire is None and now >= way.retry_at:
                way.is_needed = False
                host = self.brokers.hosts.get(broker)
                way.wire = None if host is None else self._connect(host, broker)
        for wire in list(self._all()):
            if wire.is_closed:
                continue  # another one was taken
            if wire.is_to_be_looked_at(now):
                wire.look(now)
            if wire.may_have_messages:
                for message in wire.messages(MESSAGES_A_TURN):
                    self._hear(wire, message)
            wire.end_if_hung_up(now)
            if wire.failed is not None:
                self._lose(wire, wire.failed)

    def _have_witness(self, home: Wire) -> None:
        """Opens a second connection, where there is a cluster. Other brokers notice a broker that
        is cut off or stopped long before its own silence shows."""
        others = [broker for broker in self.brokers.hosts if broker != home.broker]
        if not others or any(way.wire is not home for way in self._ways.values() if way.wire):
            return
        later = [broker for broker in others if broker > home.broker]
        chosen = min(
            later or others,
            key=lambda broker: self._ways[broker].retry_at if broker in self._ways else 0.0,
        )
        self.to(chosen)

    def _hear(self, wire: Wire, message: fr.GatewayMessage) -> None:
        if isinstance(message, fr.Welcome):
            self._greeted(wire, message)
        elif isinstance(message, fr.Ended) and message.endpoint == NOBODY:
            wire.failed = message.reason
        elif isinstance(message, fr.Leaders):
            self._told(wire, message)
        elif wire not in self._coming:
            self._user.hear(wire, message)

    # --- coming ---
    @property
    def _hosts(self) -> tuple[Host, ...]:
        """Returns the hosts to try: the brokers of a cluster first."""
        return tuple(dict.fromkeys((*self.brokers.hosts.values(), *self._bootstrap)))

    def _move_in(self) -> bool:
        """Makes another connection that is up the home, where there is one."""
        for way in self._ways.values():
            wire = way.wire
            if wire is not None and wire.is_up and wire.welcome is not None:
                self._settle(wire, wire.welcome)
                return True
        return False

    @property
    def _has_next(self) -> bool:
        """Returns whether this round, which takes each host once, has one left to try for a
        home."""
        return not self._coming or len(self._tried) + len(self._coming) < len(self._hosts)

    def _try_next(self, now: float) -> None:
        self._retry_at = now + NEXT_AFTER
        hosts = self._hosts
        host = hosts[self._at % len(hosts)]
        self._at = (self._at + 1) % len(hosts)
        wire = self._connect(host)
        if wire is not None:
            self._coming.append(wire)

    def _connect(
        self, host: Host, broker: int = NOBODY, refused: tuple[str, ...] = ()
    ) -> Wire | None:
        """Begins to connect. `refused`: public keys that the host did not have just now."""
        key: ClientKey | None = None if self._key is None else self._key.key
        try:
            wire = Wire(self._context, host, key, self._hello, self._fetched, refused)
        except (zmq.ZMQError, OSError, PenstockError) as error:
            if broker == NOBODY:
                self._came_to_nothing(host, str(error))
            else:
                self._put_off(broker, f"{host_text(host)}: {error}")
            return None
        wire.broker = broker
        for fd, came in wire.filenos().items():
            self._loop.watch(fd, came)  # the next turn looks
        return wire

    def _greeted(self, wire: Wire, welcome: fr.Welcome) -> None:
        known, is_coming = self._user.identity, wire in self._coming
        identity = identity_of(welcome)
        if known is not None and known != identity and not (is_coming and self._takes_other):
            self._met_other |= is_coming  # the one before may answer at another of the addresses
            what = "cluster" if welcome.cluster else "node (another data folder)"
            wire.failed = f"another {what} answers there now"
            return
        if not is_coming and welcome.broker != wire.broker:
            wire.failed = f"broker {welcome.broker} answers there, and not {wire.broker}"
            return
        if known != identity:
            self._forget_brokers()
        counts = self.counts
        now = time.monotonic()
        if welcome.cluster:
            if is_coming:
                self._replace(wire, welcome.broker)
            way = self._ways[welcome.broker]
            counts["reconnects"] += way.was_up
            way.was_up, way.up_since = True, now
        else:
            counts["reconnects"] += counts["connects"] > 0
        counts["connects"] += 1
        wire.is_accepted = True
        logger.info("connected to %s", host_text(wire.host))
        if is_coming:
            self._coming.remove(wire)
            self._up_since = now
            self._settle(wire, welcome)
        else:
            self._user.opened(wire.broker)

    def _forget_brokers(self) -> None:
        """Forgets all brokers: they belong to another cluster."""
        self.brokers.forget()
        for way in self._ways.values():
            if way.wire is not None:
                self._drop(way.wire)
        self._ways.clear()

    def _replace(self, wire: Wire, broker: int) -> None:
        """Makes this the connection to the broker, and drops one that is on its way."""
        way = self._ways.setdefault(broker, _Way())
        if way.wire is not None:
            self._drop(way.wire)
        way.wire, way.is_needed = wire, False
        wire.broker = broker

    def _settle(self, wire: Wire, welcome: fr.Welcome) -> None:
        self.home = wire
        for other in self._coming:
            self._drop(other)
        self._coming.clear()
        if wire.host in self._hosts:
            self._at = self._hosts.index(wire.host)  # the first to be tried when it is lost
        self._tried, self._reasons = [], []
        self._met_other = self._takes_other = self.is_somebody_there = False
        self._user.connected(wire, welcome)

    def _told(self, wire: Wire, said: fr.Leaders) -> None:
        if wire.welcome is None or not wire.welcome.cluster:
            wire.failed = "it spoke of leaders, and is of no cluster"
            return
        if not self.brokers.take(said):
            return
        for broker, way in self._ways.items():
            other = way.wire
            if broker in self.brokers.hosts or other is None or other is wire:
                continue
            if other.failed is None:
                other.failed = "the other brokers of the cluster count it as gone"
        self._user.led_otherwise()

    # --- going ---
    def _drop(self, wire: Wire) -> None:
        for fd in wire.filenos():
            self._loop.unwatch(fd)
        self.counts["bytes_sent"] += wire.bytes_sent
        self.counts["bytes_received"] += wire.bytes_received
        wire.close()

    def lose_all(self, why: str) -> None:
        for wire in list(self._all()):
            self._lose(wire, why)

    def _lose(self, wire: Wire, why: str) -> None:
        """Handles a connection that is over, or was never made."""
        is_home, is_coming = wire is self.home, wire in self._coming
        if is_coming:
            self._coming.remove(wire)
        refused = wire.refused
        self._drop(wire)
        now = time.monotonic()
        way = self._ways.get(wire.broker)
        if way is not None and way.wire is wire:
            way.wire = None
        if wire.is_unlike and self._tried_another_key(wire, way, is_coming=is_coming):
            return
        if not wire.is_accepted:
            self.counts["failed_connects"] += 1
            if is_coming:
                self.is_somebody_there |= wire.was_reached
                self._came_to_nothing(wire.host, why, refused)
            else:
                self._put_off(wire.broker, f"{host_text(wire.host)}: {why}")
            return
        said = f"lost the connection to {host_text(wire.host)}: {why}"
        logger.log(logging.INFO if why == fr.GOODBYE else logging.WARNING, "%s", said)
        if way is not None:
            if now - way.up_since > HEALTHY_AFTER:
                way.retries.reset()
            way.retry_at = now + way.retries.next()
        if is_home:
            self.home = None
            self._reasons = [said]
            if now - self._up_since > HEALTHY_AFTER:
                self._retries.reset()
            self._retry_at = now + self._retries.next()
        self._user.lost(wire, said, home=is_home)

    def _tried_another_key(self, wire: Wire, way: _Way | None, *, is_coming: bool) -> bool:
        """Tries the same broker with another key that it may have: while keys are changed, and
        after the client's file was. Returns whether it did."""
        if self._key is None:
            return False
        self._key.look()
        if set(self._key.key.servers) <= set(wire.servers_tried):
            return False
        again = self._connect(wire.host, wire.broker, wire.servers_tried)
        if again is None:
            return False
        if is_coming:
            self._coming.append(again)
        elif way is not None:
            way.wire = again
        return True

    def _put_off(self, broker: int, why: str) -> None:
        """Puts off the connection to a broker; a caller that needs it asks again."""
        way = self._ways[broker]
        way.retry_at = time.monotonic() + way.retries.next()
        logger.info("broker %d: %s", broker, why)

    def _came_to_nothing(self, host: Host, why: str, refused: fr.Refused | None = None) -> None:
        """Tries the next host at once, and after the last one reports to those who wait."""
        self._tried.append(f"{host_text(host)}: {why}")
        if len(self._tried) < len(self._hosts):
            self._retry_at = 0.0
            return
        if self._coming:
            return
        self._reasons, self._tried = self._tried[:REASONS_MAX], []
        self._met_other, self._takes_other = False, self._met_other
        self._retry_at = time.monotonic() + self._retries.next()
        error = "NotConnectedError" if refused is None else refused.error
        said = self.hopeless() if refused is None else refused.message
        logger.info("%s", said)
        self._user.hopeless(error, said)

    def close(self) -> None:
        for wire in list(self._all()):
            wire.close(linger=LINGER_MAX if wire.is_up else 0.0)
        self._context.term()

    def abandon(self) -> None:
        """Abandons all connections in a forked child."""
        for wire in list(self._all()):
            wire.abandon()


def identity_of(welcome: fr.Welcome) -> bytes:
    """Returns the identity of the peer: its cluster, or a node that is alone."""
    return welcome.cluster or welcome.node_uuid
