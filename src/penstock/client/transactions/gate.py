"""The gate of a transaction, before its sender: nothing leaves for a partition before that is
registered, and what fails fails the transaction.

All batches of a transaction carry its epoch, and sequences from 0 on in each partition. That epoch
is never raised on the way: a batch that is refused, or that took too long, cannot be made good
within the transaction, so nothing more of it leaves.

    batch for a partition     ──not registered──> wanted ──take_wanted──> asked ──admit──> lane
    any failure               ──> `failure`; what is not acknowledged fails with it

Under the producer's lock, like the sender. Owns no batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.client.producer.routes import Batch, PartitionRoute
from penstock.client.remote.address import Place
from penstock.core import errors as er


class TransactionGate:
    """Gate of a transaction. `want` is called when there are partitions for `take_wanted`."""

    def __init__(self, socket: Place, want: Callable[[], None]) -> None:
        self._socket = socket
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
    def begin(self, epoch: int, routes: Iterable[PartitionRoute]) -> None:
        """A new transaction; nothing of the last one is in the sender any more."""
        self.epoch = epoch
        self.failure = None
        self._wanted.clear()
        self._asked.clear()
        self._admitted.clear()
        self.adopt(routes)

    def adopt(self, routes: Iterable[PartitionRoute]) -> None:
        """Begins partitions in the transaction's epoch."""
        for route in routes:
            route.link = None  # until it is admitted, so that no record takes the short way
            route.begin(self.epoch)

    def end(self, error: Exception) -> None:
        """Nothing more leaves."""
        self.failure = error
        self._wanted.clear()

    # --- registration ----------------------------------------------------------------------------
    def lets(self, route: PartitionRoute) -> bool:
        """Whether batches may leave for a partition. One that is not registered is wanted then."""
        if self.failure is not None:
            return False
        if route in self._admitted:
            return True
        if route not in self._asked:
            self._wanted[route] = None
            self._want()
        return False

    def take_wanted(self, most: int) -> list[PartitionRoute]:
        """Partitions to register now, all that batches wait for, up to so many."""
        taken = list(self._wanted)[:most]
        for route in taken:
            del self._wanted[route]
        self._asked.update(taken)
        return taken

    def admit(self, routes: Sequence[PartitionRoute], epoch: int) -> Sequence[PartitionRoute]:
        """The transaction of this epoch is open on these. Returns those that may be sent to now."""
        if epoch != self.epoch or self.failure is not None:
            return ()
        self._admitted.update(routes)
        return routes

    # --- failure ---------------------------------------------------------------------------------
    def fail(self, error: Exception) -> None:
        """The transaction can only be aborted. The first reason counts."""
        if self.failure is None:
            self.failure = error

    def loss(self) -> Exception | None:
        """The error of all that is not acknowledged, once something has failed."""
        cause = self.failure
        if cause is None or isinstance(cause, er.TransactionError):
            return cause
        return er.TransactionError(f"another record of the transaction failed: {cause}")

    def refusal(self, batch: Batch, code: er.ErrorCode) -> er.PenstockError | None:
        """The error of a refused batch, where it means the transaction; else None."""
        if code not in (er.ErrorCode.TRANSACTION_NOT_OPEN, er.ErrorCode.STALE_PRODUCER_EPOCH):
            return None
        return er.TransactionError(
            f"{batch.route!r} at {self._socket} refused {batch.count} records: the transaction is "
            "not open any more; it took longer than transaction_timeout, or another producer has "
            f"taken the transactional id over ({code.name.lower()})"
        )
