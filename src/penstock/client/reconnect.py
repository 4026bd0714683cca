"""A consumer's attachment to its node, across the node's restarts: asked, slept at, found again.

Owns the session and the sleeping ticket. Never blocks: whatever has to wait is a generator of waits
(see `penstock.ipc.waits`), for a thread and an event loop alike. Knows no positions.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.remote.address import Place, RemoteAddress, lost_level
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Backoff, fence, spin
from penstock.ipc.messages import TopicInfo
from penstock.ipc.waits import Wait, Waits

logger = logging.getLogger("penstock.consumer")

RECONNECT_EVERY: Final = 0.5
RECONNECT_MIN: Final = 0.02
RECONNECT_MAX: Final = 0.25
"""Seconds that one try may take, within what is left of the poll that makes it."""
RECONNECT_FAR_MAX: Final = 10.0
"""The same to another host, where a try goes on over as many polls as it takes."""
NO_SLOT_NAP: Final = 0.02
"""Seconds between two looks of a consumer that the node gave no slot, so that nobody rings it."""


class Reader(Protocol):
    """The consumer that uses an attachment."""

    def paging(self, session: Session, timeout: float) -> Waits[dict[TopicPartition, int]]:
        """Returns the pages of its partitions in this session, which is not in use yet."""

    def moved(self, session: Session, pages: dict[TopicPartition, int]) -> None:
        """This session is in use now."""


class _OtherNodeError(er.NotConnectedError):
    """The node that answers at the address has another data folder."""

    retriable = False


class Attachment:
    """A consumer's attachment, across restarts of the node.

    Each call names the reader, so that a reader can be forgotten without a close.
    """

    def __init__(self, session: Session, *, client_id: str, node_timeout: float) -> None:
        self.session = session
        self._socket = session.socket
        self._client_id = client_id
        self._node_timeout = node_timeout
        self._ticket = time.monotonic_ns()  # never one that a predecessor used
        self._lost_at: float | None = None
        self._lost_why = ""
        self._retry_at = 0.0
        self._try: Waits[None] | None = None
        """A try to attach to another host that the last poll has left unfinished."""

    @property
    def is_lost(self) -> bool:
        """Whether the node went away and did not come back yet."""
        return self._lost_at is not None

    @staticmethod
    def attaching(socket: Place, *, client_id: str, timeout: float) -> Waits[Session]:
        return Session.attaching(socket, lo.KIND_CONSUMER, client_id=client_id, timeout=timeout)

    def sleeping(self, bound: float, spin_for: float, found: Callable[[], bool]) -> Waits[None]:
        """Waits for a doorbell by the protocol of rule 13."""
        slot, doorbell = self.session.slot, self.session.doorbell
        if slot is None:
            yield Wait(min(bound, NO_SLOT_NAP))
            return
        # A thread brings the records of another host, and a spinning one would hold it up.
        if spin_for and self.session.far is None:
            until = time.monotonic() + bound
            if spin(min(spin_for, bound), found):
                return
            bound = until - time.monotonic()
            if bound <= 0:
                return
        doorbell.clear()
        self._ticket += 1
        slot.publish_sleeping(self._ticket)
        fence()
        try:
            if not found():
                yield Wait(bound, doorbell)
        finally:
            slot.publish_sleeping(0)

    def minding(self, reader: Reader, left: float) -> Waits[None]:
        """Notices that the node went away; looks for it again now and then."""
        now = time.monotonic()
        if self._lost_at is None:
            farewell = self.session.farewell()
            if farewell is None:
                return
            self._lost_at, self._lost_why = now, farewell
            logger.log(lost_level(self._socket), "lost the node at %s: %s", self._socket, farewell)
        if now < self._retry_at and self._try is None:
            return
        self._retry_at = now + RECONNECT_EVERY * random.uniform(0.5, 1.5)  # not all in step
        bound = min(max(left, RECONNECT_MIN), RECONNECT_MAX)
        try:
            if isinstance(self._socket, RemoteAddress):
                yield from self._going_on(reader, now + bound)
            else:
                yield from self.reconnecting(reader, bound)
        except (_OtherNodeError, er.UnknownTopicError):
            raise
        except er.PenstockError as error:
            if self._lost_at is not None and now - self._lost_at > self._node_timeout:
                raise er.NotConnectedError(
                    f"no node at {self._socket} for {now - self._lost_at:.0f} s "
                    f"({self._lost_why}); last try: {error}"
                ) from error

    def _going_on(self, reader: Reader, until: float) -> Waits[None]:
        """`reconnecting`, as far as it gets until then; the next call goes on with it."""
        steps = self._try or self.reconnecting(reader, RECONNECT_FAR_MAX)
        self._try = None
        while True:
            try:
                wait = next(steps)
            except StopIteration:
                return
            left = until - time.monotonic()
            if left <= 0.0:
                self._try = steps
                return
            try:
                yield Wait(min(wait.seconds, left), wait.on)
            except BaseException:
                steps.close()
                raise

    def give_up(self) -> None:
        """Leaves a try that is unfinished: what it would have found is not wanted any more."""
        steps, self._try = self._try, None
        if steps is not None:
            steps.close()

    def reconnecting(self, reader: Reader, timeout: float) -> Waits[None]:
        """Attaches again, and goes on with the same topics. When it raises, nothing changed."""
        session = yield from self.attaching(
            self._socket, client_id=self._client_id, timeout=timeout
        )
        old = self.session
        try:
            if session.node_uuid != old.node_uuid:
                raise _OtherNodeError(
                    f"another node (another data folder) answers at {self._socket} now; make a new "
                    "consumer to read from it"
                )
            pages = yield from reader.paging(session, timeout)
        except BaseException:
            session.close()
            raise
        self.session = session
        self._lost_at = None
        reader.moved(session, pages)
        old.close(polite=False)

    def finding(
        self, reader: Reader, topics: Collection[str], timeout: float
    ) -> Waits[dict[str, TopicInfo]]:
        """Returns what the node knows of these topics.

        All of it comes from one attachment, so the pages belong together. It continues across
        a restart of the node, within `timeout`.
        """
        self.give_up()  # it knows of fewer topics
        deadline = time.monotonic() + timeout
        pauses = Backoff(first=0.005, last=0.25)  # what hangs up on every try is not asked at once
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                found = {}
                for topic in topics:
                    found[topic] = yield from self.session.finding_topic(topic, left)
                return found
            except er.NotConnectedError:
                if left <= 0.0:
                    raise
            yield Wait(min(pauses.bound(), left))
            yield from self.reconnecting(reader, left)
