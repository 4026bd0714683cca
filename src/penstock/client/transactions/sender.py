"""The outbox of a transaction: nothing leaves for a partition before that is registered, and what
fails fails the transaction.

All batches of a transaction carry its epoch, and sequences from 0 on in each partition. That epoch
is never raised on the way: a batch that is refused, or that took too long, cannot be made good
within the transaction, so nothing more of it leaves.

    batch for a partition     ──not registered──> wanted ──take_wanted──> asked ──admitted──> lane
    any failure               ──> `failure`; what is not acknowledged fails with it

Under the producer's lock, like its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.client.producer.routes import Batch, LaneLink, PartitionRoute, TopicRoutes
from penstock.client.producer.sender import Outbox
from penstock.client.session import Session
from penstock.core import errors as er


class TransactionalOutbox(Outbox):
    """Outbox of a transaction. `want` is called when there are partitions for `take_wanted`."""

    def __init__(self, *args: Any, want: Callable[[], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._want = want
        self.epoch = 0
        self.failure: Exception | None = er.TransactionError("no transaction is open")
        """Why nothing may leave; None while a transaction is open and well."""
        self._wanted: dict[PartitionRoute, None] = {}
        self._asked: set[PartitionRoute] = set()
        self._admitted: set[PartitionRoute] = set()

    @property
    def is_touched(self) -> bool:
        """Whether the coordinator may know of the transaction: a partition was asked for. So it
        stays until the next one begins, however often its end has to be asked for."""
        return bool(self._asked)

    @property
    def opened(self) -> int:
        """On how many partitions the coordinator has opened the transaction."""
        return len(self._admitted)

    @property
    def sent_to(self) -> list[PartitionRoute]:
        """The partitions on which it is open."""
        return list(self._admitted)

    # --- its beginning and end -------------------------------------------------------------------
    def begin(self, epoch: int) -> None:
        """A new transaction; nothing of the last one is here any more."""
        assert not self.buffered, self.buffered
        self.epoch = epoch
        self.failure = None
        self._wanted.clear()
        self._asked.clear()
        self._admitted.clear()
        for route in self.routes():
            self._at_its_start(route)

    def end(self, error: Exception) -> None:
        """Nothing more leaves; what is not acknowledged fails with `error`."""
        self.failure = error
        for route in self.routes():
            self._lose(route, error)
        self._wanted.clear()

    def _at_its_start(self, route: PartitionRoute) -> None:
        route.link = None  # until it is admitted, so that no record takes the short way
        route.begin(self.epoch)

    def adopt(self, topic: TopicRoutes) -> None:
        for route in topic.routes:
            self._at_its_start(route)

    # --- registration ----------------------------------------------------------------------------
    def _pump(self, route: PartitionRoute, touched: list[LaneLink]) -> None:
        if self.failure is not None:
            return
        if route in self._admitted:
            super()._pump(route, touched)
        elif route not in self._asked:
            self._wanted[route] = None
            self._want()

    def take_wanted(self, most: int) -> list[PartitionRoute]:
        """Partitions to register now, all that batches wait for, up to so many."""
        taken = list(self._wanted)[:most]
        for route in taken:
            del self._wanted[route]
        self._asked.update(taken)
        return taken

    def admitted(self, routes: Iterable[PartitionRoute], epoch: int) -> None:
        """The transaction of this epoch is open on these."""
        if epoch != self.epoch or self.failure is not None:
            return
        for route in routes:
            self._admitted.add(route)
            self.pump(route)

    # --- failure ---------------------------------------------------------------------------------
    def fail(self, error: Exception) -> None:
        """The transaction can only be aborted. The first reason counts."""
        if self.failure is None:
            self.failure = error

    def sweep(self) -> bool:
        """Fails all batches without an acknowledgement after a failure. True if there were any.

        Batches in a lane may still be written. They are never shown, since nobody commits the
        transaction.
        """
        if self.failure is None or not self.buffered:
            return False
        cause = self.failure
        known = cause if isinstance(cause, er.TransactionError) else None
        error = known or er.TransactionError(f"another record of the transaction failed: {cause}")
        for route in self.routes():
            self._lose(route, error)
        return True

    def reap(self) -> bool:
        moved = super().reap()
        return self.sweep() or moved

    def expire(self, now: float) -> None:
        super().expire(now)
        self.sweep()

    def resume(self, session: Session, *, same: bool) -> None:
        super().resume(session, same=same)
        self.sweep()

    def _refused(self, batch: Batch, code: er.ErrorCode) -> None:
        batch.route.in_flight.pop(batch, None)
        self.finish(batch, self._refusal(batch, code))

    def _refusal(self, batch: Batch, code: er.ErrorCode) -> er.PenstockError:
        if code not in (er.ErrorCode.TRANSACTION_NOT_OPEN, er.ErrorCode.STALE_PRODUCER_EPOCH):
            return super()._refusal(batch, code)
        return er.TransactionError(
            f"{batch.route!r} at {self._socket} refused {batch.count} records: the transaction is "
            "not open any more; it took longer than transaction_timeout, or another producer has "
            f"taken the transactional id over ({code.name.lower()})"
        )

    def finish(self, batch: Batch, error: Exception | None) -> None:
        if error is not None:
            self.fail(error)
        super().finish(batch, error)

    def _next_epoch(self, route: PartitionRoute) -> None:
        """A transaction has one epoch: what would need another has failed."""
