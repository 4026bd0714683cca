"""A worker's talk with the coordinator: one request under way at a time, known by its ticket.

A request is posted and its answer collected later, perhaps by the next call: an interrupt between
the two loses neither leases nor answers. After each join the first request tells the group's
settings, and which leases this worker knows of: others of its were granted by an answer that was
lost with its connection.
"""

from __future__ import annotations

import select
import time
from typing import Final, NamedTuple

from penstock.client.consumer.group.membership import GroupMembership
from penstock.client.consumer.group.reader import GroupReader
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.session import Session
from penstock.client.share.claims import NO_CLAIMS, SentClaims
from penstock.client.share.leases import NOTHING, OpenLeases, Outgoing
from penstock.core import errors as er
from penstock.ipc import sharing as sh
from penstock.ipc.messages import Done
from penstock.ipc.waits import Wait, Waits

SEND_RETRY: Final = 0.001
"""Seconds between two tries to hand a request to a node that reads none."""


class RequestUnderWay(NamedTuple):
    """A request whose answer is still to come. `partitions`: those of its `ends`. `is_repeated`:
    its answers may have been sent before. `at`: when it was made (monotonic)."""

    session: Session
    ticket: int
    records_max: int
    partitions: list[TopicPartition]
    sent: Outgoing
    is_repeated: bool
    at: float
    claims: SentClaims = NO_CLAIMS


class ShareExchange:
    """Requests of a worker. `under_way`: the one that was asked and not taken in yet."""

    def __init__(
        self,
        reader: GroupReader,
        member: GroupMembership,
        leases: OpenLeases,
        settings: sh.ShareSettings,
        timeout: float,
    ) -> None:
        self._reader = reader
        self._member = member
        self._leases = leases
        self._settings = settings
        self._timeout = timeout
        self._told: Session | None = None
        """By which the coordinator has heard of the settings since this worker joined."""
        self._is_repeating = False
        self.has_lost = False
        """Whether the coordinator may take this worker for the holder of leases it never saw."""
        self.under_way: RequestUnderWay | None = None
        self._answer: sh.RecordsAcquired | None = None

    @property
    def group(self) -> str:
        return self._member.group

    def forget(self) -> None:
        """The coordinator does not know this member any more: it joins as a new one."""
        self._member.forget()
        self._told = self.under_way = self._answer = None
        self.has_lost = False

    def joining(self) -> Waits[None]:
        yield from self._member.joining()

    def posting(
        self,
        records_max: int,
        partitions: list[TopicPartition],
        ends: list[sh.PartitionEnds],
        sent: Outgoing = NOTHING,
        claims: SentClaims = NO_CLAIMS,
    ) -> Waits[None]:
        """Asks, and does not wait for the answer. Nothing may be under way."""
        assert self.under_way is None, "one request at a time"
        deadline = time.monotonic() + self._timeout
        session = yield from self._member.being_known(self._timeout)
        settings = holds = None
        if self._told is not session:
            # The others go with the next one: all of it may be more than a message takes.
            self._leases.waiting += len(sent.answers)
            sent, claims = NOTHING, NO_CLAIMS
            settings, holds = self._settings, self._holds()
        request = sh.AcquireRecords(
            self._member.group, self._member.member_id, records_max, ends, sent.answers, settings,
            holds, claims.claims,
        )  # fmt: skip
        while True:
            # First: where an interrupt strikes, `collecting` finds out whether it was sent.
            self.under_way = RequestUnderWay(
                session, session.next_ticket, records_max, partitions, sent, self._is_repeating,
                time.monotonic(), claims,
            )  # fmt: skip
            try:
                session.post(request)
                return
            except BlockingIOError:
                self.under_way = None
                if time.monotonic() >= deadline:
                    raise er.PenstockTimeout(
                        f"group {self._member.group!r}: the node has read no request for "
                        f"{self._timeout:g} s"
                    ) from None
            except BaseException as error:
                if isinstance(error, er.PenstockError | OSError):
                    self.under_way = None
                raise
            yield Wait(SEND_RETRY)

    def collecting(self) -> Waits[tuple[RequestUnderWay, sh.RecordsAcquired] | None]:
        """Returns the request under way and its answer; None without one, or if the answer is lost.

        The leases of a lost answer come to light after the next join. `taken` follows once the
        answer is taken in.
        """
        asked = self.under_way
        if asked is None:
            return None
        if self._answer is None:
            if asked.session is not self._reader.session:
                self._lose()
                return None
            try:
                self._answer = yield from asked.session.collecting(
                    asked.ticket, sh.RecordsAcquired, self._timeout
                )
            except er.PenstockError:
                # Another coordinator may answer next time, or a part of it was decided before.
                self._lose()
                raise
            if self._answer is None:
                self._lose()
                return None
        self._told, self.has_lost = asked.session, False
        return asked, self._answer

    def _holds(self) -> list[sh.HeldLease] | None:
        """All leases that this worker knows, where a message takes them."""
        names = self._leases.names()
        return [sh.HeldLease(*name) for name in names] if len(names) <= sh.HELD_MAX else None

    def _lose(self) -> None:
        """The answer is lost, with its connection, by an interrupt, or comes too late: what it
        granted nobody works on, and its answers go again."""
        self._told, self._is_repeating, self.has_lost = None, True, True
        self.under_way = None

    def disown(self) -> None:
        """The answer under way brings leases that this worker has no use for: the next request
        tells which ones it holds, and these are not among them."""
        self._told, self.has_lost = None, True

    @property
    def has_answer(self) -> bool:
        """Whether what is under way can be taken in without waiting."""
        asked = self.under_way
        if asked is None:
            return False
        if self._answer is not None or asked.session is not self._reader.session:
            return True
        ready = select.poll()
        ready.register(asked.session.fileno(), select.POLLIN)
        return bool(ready.poll(0))

    def taken(self) -> None:
        """The answer is taken in."""
        if self.under_way is not None and self.under_way.sent.answers:
            self._is_repeating = False
        self.under_way, self._answer = None, None

    def burying(self, topic_id: bytes, partition: int, runs: list[tuple[int, int]]) -> Waits[None]:
        """These dead letters are written. Nothing may be under way."""
        session = yield from self._member.being_known(self._timeout)
        request = sh.BuryRecords(
            self._member.group, self._member.member_id, topic_id, partition, runs
        )
        yield from session.requesting(request, Done, self._timeout)
