"""Handles gateways' messages about pages, batches and cursors: publishes, hands on, then rings.

Owns which clients are to be woken. Ends nothing: `attachments` ends branches and connections. Used
by the carrier's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.client.remote.branches import Branch
from penstock.client.remote.connection import Wire
from penstock.client.remote.endpoint import Endpoint
from penstock.client.remote.failover import FailoverTimer
from penstock.client.remote.lanes import AnswerError
from penstock.client.remote.position_reports import PositionReports
from penstock.client.remote.produce import ProduceSender
from penstock.client.remote.view import ClusterView
from penstock.cluster.frames import messages as fr
from penstock.cluster.frames.codec import Piece
from penstock.ipc.doorbell import fence


class GatewayReceiver:
    """The handler of gateways' messages about pages, batches and cursors. `numbered`: the branches
    of all attachments by their numbers; it changes in place."""

    def __init__(
        self,
        view: ClusterView,
        numbered: Mapping[int, tuple[Endpoint, Branch]],
        sender: ProduceSender,
        failover: FailoverTimer,
        reports: PositionReports,
    ) -> None:
        self._view = view
        self._numbered = numbered
        self._sender = sender
        self._failover = failover
        self._reports = reports
        self._awake: dict[Endpoint, None] = {}  # whose clients have something new
        self.throttles = 0
        self.throttled = 0.0

    def hear(self, endpoint: Endpoint, branch: Branch, message: fr.GatewayMessage) -> None:
        """Handles a message for that branch of an attachment."""
        match message:
            case fr.Acks():
                self.publish(endpoint, branch, message.pages)
                self._acknowledged(endpoint, branch, message)
            case fr.Pages():
                self.publish(endpoint, branch, message.pages)
            case fr.CursorFailed():
                self._failed(endpoint, branch, message)
            case fr.Notice():
                slot, branch.notice = endpoint.slot, message.notice
                if slot is not None and (branch.serves_groups or not self._view.is_cluster):
                    slot.give_notice(message.notice)
            case fr.Throttled():
                self.throttles += 1
                self.throttled += message.seconds

    def publish(self, endpoint: Endpoint, branch: Branch, states: list[fr.PageState]) -> None:
        """Publishes the states of partitions, as that branch's broker knows them."""
        states = self._view.publish(states, branch.broker)
        if states:
            if endpoint.far is not None:
                endpoint.far.heard(states)
            self._awake[endpoint] = None

    def _acknowledged(self, endpoint: Endpoint, branch: Branch, message: fr.Acks) -> None:
        try:
            self._sender.answered(endpoint, branch, message, time.monotonic())
        except AnswerError as error:
            branch.wire.failed = str(error)
            return
        self._awake[endpoint] = None
        self._failover.wait_for(endpoint)

    def fetched(self, wire: Wire, message: fr.Fetched, payload: Piece | None) -> None:
        """Puts batches into their cursor."""
        found = self._numbered.get(message.endpoint)
        if found is None or found[1].wire is not wire:
            return  # it is over at this end already
        endpoint, branch = found
        self.publish(endpoint, branch, message.pages)
        number: int | None = message.cursor
        if endpoint.cursors is not None:
            size = 0 if payload is None else len(payload)
            number = endpoint.cursors.fetched(branch, message, size)
        if number is None or endpoint.far is None:
            return
        cursor = endpoint.far.cursors.get(number)
        if cursor is not None:  # else it was closed meanwhile
            cursor.put(message, payload)
        self._awake[endpoint] = None
        self._reports.stirred(time.monotonic())

    def _failed(self, endpoint: Endpoint, branch: Branch, message: fr.CursorFailed) -> None:
        if endpoint.cursors is not None:
            if not endpoint.cursors.failed(branch, message, time.monotonic()):
                self._failover.wait_for(endpoint)
                return
        elif endpoint.far is not None:
            endpoint.far.fail(message.cursor, message)
        self._awake[endpoint] = None

    # --- waking ---
    def rouse(self, endpoint: Endpoint) -> None:
        """Notes that there is something new for its client."""
        self._awake[endpoint] = None

    def forget(self, endpoint: Endpoint) -> None:
        self._awake.pop(endpoint, None)

    def wake(self) -> None:
        """Wakes sleeping clients for which there is something new."""
        if self._awake:
            fence()
            for endpoint in self._awake:
                endpoint.ring()
            self._awake = {}
