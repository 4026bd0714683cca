"""Looks now and then at attachments that wait for a leader, and begins them again if need be.

Owns when attachments of a cluster's client are looked at without an event, and how long one that is
adrift waits. Nothing is looked at while nothing waits. Used by the carrier's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from penstock.client.remote.branches import Branch
from penstock.client.remote.connections import Wires
from penstock.client.remote.endpoint import Endpoint, EndpointState
from penstock.client.remote.leaders import COORDINATOR
from penstock.client.remote.produce import ProduceSender
from penstock.client.remote.view import ClusterView
from penstock.cluster.frames import messages as fr

MEND_EVERY: Final = 0.05
"""Seconds between two looks whether there is a leader for what waits for one."""
ADRIFT_MAX: Final = 3.0
"""Seconds after which an attachment that is adrift begins again, leader or not."""


class FailoverTimer:
    """The timer of attachments that wait for a leader. `reach` finds an attachment's branch to a
    broker. `lose` has it begin again, and tells its client why."""

    def __init__(
        self,
        view: ClusterView,
        reach: Callable[[Endpoint, int], Branch | None],
        sender: ProduceSender,
        lose: Callable[[Endpoint, str], None],
    ) -> None:
        self._view = view
        self._reach = reach
        self._sender = sender
        self._lose = lose
        self.due: float | None = None
        """When `mend` has something to do (monotonic)."""

    def stir(self) -> None:
        """Looks at once: something has changed for those that wait."""
        self.due = 0.0

    def wait(self) -> None:
        """Looks again in a while, because something waits."""
        if self.due is None:
            self.due = time.monotonic() + MEND_EVERY

    def wait_for(self, endpoint: Endpoint) -> None:
        """Looks at it again in a while, if it waits for something."""
        cursors = endpoint.cursors
        if (
            endpoint.adrift
            or (endpoint.requests.is_known and not self._is_at_coordinator(endpoint))
            or endpoint.requests.is_waiting
            or (cursors is not None and cursors.are_waiting)
            or self._sender.holds(endpoint)
        ):
            self.wait()

    def mend(self, now: float, endpoints: Callable[[], Iterable[Endpoint]], wires: Wires) -> None:
        """Goes on with what waits, if it is time for that."""
        if self.due is None or now < self.due:
            return
        self.due = None
        for endpoint in endpoints():
            if endpoint.state is not EndpointState.OPEN:
                continue
            if endpoint.adrift and _is_ashore(endpoint, wires, now):
                if now - endpoint.adrift_since > ADRIFT_MAX:
                    self._sender.strand(endpoint)
                self._lose(endpoint, "what it was using is led by another broker by now")
                continue
            if endpoint.requests.is_known:
                broker = self._view.brokers.settled(COORDINATOR, now)
                if broker != fr.NOBODY:
                    self._reach(endpoint, broker)
            endpoint.requests.pump(now)
            if endpoint.cursors is not None:
                endpoint.cursors.pump(now)
            if self._sender.holds(endpoint):
                self._sender.look_at(endpoint)
            self.wait_for(endpoint)

    def _is_at_coordinator(self, endpoint: Endpoint) -> bool:
        branch = endpoint.branches.get(self._view.brokers.leader(COORDINATOR))
        return branch is not None and branch.is_open


def _is_ashore(endpoint: Endpoint, wires: Wires, now: float) -> bool:
    """Returns whether it is time to begin again: there is a leader to go to, or has been none for
    long."""
    for what in endpoint.adrift:
        broker = wires.brokers.settled(what, now)
        if broker != fr.NOBODY and wires.to(broker) is not None:
            return True
    return now - endpoint.adrift_since > ADRIFT_MAX
