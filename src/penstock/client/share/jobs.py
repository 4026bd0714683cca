"""Jobs of a share group: a worker gets one record, and answers for it.

    leaves its `with` block       `ack`
    a `DecodeError` leaves it     `reject`: no further delivery would help
    another Exception leaves it   `nack`, with the exception as the reason; it goes on
    any other, such as Ctrl-C     `release`: others get it, and this delivery does not count
    `transaction(done=job)`       `ack`, with what the transaction sent, or nothing yet

Only the first answer counts. Never waits: answers are collected and sent by the consumer.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.client.share.leases import (
    FAILED,
    REJECTED,
    RELEASED,
    OpenLease,
    OpenLeases,
    runs_of,
)
from penstock.client.typed import K_co, Typed, V_co
from penstock.client.validation import check_range, check_text
from penstock.ipc.sharing import REASON_MAX
from penstock.serializers.serializer import DecodeError

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.client.consumer.records import Record
    from penstock.core.columns import HeaderList

DELAY_MAX = 365 * 86_400.0
"""Seconds that a failed record may be made to wait, and a job be extended by."""
EXTEND_MIN = 0.001


class Job(Typed[V_co, K_co]):
    """A record that this worker has, and nobody else, until it answers or ends. `deliveries`: how
    often it was delivered by now, 1 for the first time. Answers may be given by any thread."""

    __slots__ = ("_held", "_is_answered", "_leases", "deliveries", "record")

    def __init__(
        self, record: Record[V_co, K_co], deliveries: int, held: OpenLease, leases: OpenLeases
    ) -> None:
        self.record = record
        self.deliveries = deliveries
        self._held = held
        self._leases = leases
        self._is_answered = False

    # --- the record's fields ---
    @property
    def value(self) -> V_co:
        return self.record.value

    @property
    def key(self) -> K_co:
        return self.record.key

    @property
    def headers(self) -> HeaderList:
        return self.record.headers

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def timestamp(self) -> int:
        """Microseconds since the epoch."""
        return self.record.timestamp

    @property
    def datetime(self) -> datetime:
        """The timestamp as an aware datetime (UTC)."""
        return self.record.datetime

    # --- answers ---
    @property
    def is_answered(self) -> bool:
        """Whether an answer was given; the consumer sends it soon."""
        return self._is_answered

    def ack(self) -> None:
        """It is done."""
        if not self._is_answered:
            self._leases.accept(self._held, self.record.offset)
            self._is_answered = True

    def nack(self, delay: float | None = None, reason: str = "") -> None:
        """This delivery failed. It comes again after `delay` seconds; None: after a time of the
        group's backoff. After `max_deliveries` it becomes a dead letter."""
        if delay is not None:
            check_range("delay", delay, 0.0, DELAY_MAX)
        self._answer(FAILED, reason, None if delay is None else float(delay))

    def extend(self, seconds: float) -> bool:
        """It takes longer: where the group has a `max_lease`, others get it in so many seconds at
        the earliest. Returns whether this worker has it still, as far as is known; without it the
        worker had better stop. The thread that polls waits for the coordinator's word, and raises
        what `flush` does; any other has that thread, or the event loop, send it."""
        check_range("seconds", seconds, EXTEND_MIN, DELAY_MAX)
        if self._is_answered:
            return False
        return self._leases.extend(self._held, self.record.offset, float(seconds))

    def is_over(self, now: float) -> bool:
        """Whether others may have it by now (monotonic), unless it was extended."""
        return self._held.ends_at <= now

    def release(self) -> None:
        """It was not begun with: others get it at once, and this delivery does not count."""
        self._answer(RELEASED)

    def reject(self, reason: str = "") -> None:
        """No further delivery would help: it becomes a dead letter now."""
        self._answer(REJECTED, reason)

    def _answer(self, kind: int, reason: str = "", delay: float | None = None) -> None:
        check_text("reason", reason)
        if not self._is_answered:
            offset = self.record.offset
            self._leases.answer(self._held, kind, offset, offset + 1, said(reason), delay)
            self._is_answered = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.ack()
        elif issubclass(kind, DecodeError):
            self.reject(reason=told_of(error))
        elif issubclass(kind, Exception):
            self.nack(reason=told_of(error))
        else:
            self.release()

    def __repr__(self) -> str:
        one = self.record
        return (
            f"<Job {one.topic}-{one.partition} at {one.offset}, delivery {self.deliveries}"
            f"{', answered' if self._is_answered else ''}>"
        )


def by_lease(jobs: Iterable[Job[Any, Any]]) -> dict[tuple[OpenLease, OpenLeases], list[int]]:
    """Their offsets, by lease and worker."""
    found: dict[tuple[OpenLease, OpenLeases], list[int]] = {}
    for job in jobs:
        found.setdefault((job._held, job._leases), []).append(job.offset)
    return found


def have_transacted(jobs: Iterable[Job[Any, Any]]) -> None:
    """A transaction that is committed has done them: nobody need answer for them."""
    new = [job for job in jobs if not job.is_answered]
    for (held, leases), offsets in by_lease(new).items():
        leases.transacted(held, runs_of(offsets))
    for job in new:
        job._is_answered = True


def said(reason: str) -> str:
    """As much of it as travels; what cannot be encoded is replaced."""
    return reason[:REASON_MAX].encode(errors="replace").decode()


def told_of(error: BaseException | None) -> str:
    """An exception as a reason. One whose own text fails is named by its type."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
