"""The thread that registers partitions with a transaction before records go there.

Records of a partition that is not registered yet wait in the outbox; nobody who sends waits for
the coordinator. All partitions that are wanted by the time it is free are asked for at once.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Final, Protocol

from penstock.client import threads
from penstock.client.producer.books import Books
from penstock.client.transactions.coordinator_link import CoordinatorLink
from penstock.client.transactions.sender import TransactionalOutbox
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms

if TYPE_CHECKING:
    from penstock.client.producer.routes import PartitionRoute

logger = logging.getLogger("penstock.transactions")

JOIN_MAX: Final = 1.0


class Owner(Protocol):
    """The producer for whom this registers. `awake` is for who holds the lock: something moved."""

    transactional_id: str

    @property
    def producer_id(self) -> int: ...

    def awake(self) -> None: ...


class Registrar:
    """See the module. `want` is called with the producer's lock held."""

    def __init__(
        self,
        owner: Owner,
        link: CoordinatorLink,
        books: Books,
        outbox: TransactionalOutbox,
        *,
        patience: float,
    ) -> None:
        self._owner = owner
        self._link = link
        self._books = books
        self._lock = books.lock
        self._outbox = outbox
        self._patience = patience
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """There are partitions to register."""
        thread = self._thread
        if thread is None:
            thread = self._thread = threading.Thread(
                target=self._run, name="penstock-transaction", daemon=True
            )
        if thread.ident is None:
            threads.start(thread)
        self._wanted.put(None)

    def stop(self) -> None:
        """End the thread, without the lock. One that waits for an answer ends with its link."""
        self._stopping = True
        self._wanted.put(None)
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(JOIN_MAX)

    def _run(self) -> None:
        while True:
            self._wanted.get()
            while not self._wanted.empty():
                self._wanted.get()
            if self._stopping:
                return
            while True:
                with self._lock:
                    self._books.open()
                    routes = self._outbox.take_wanted(co.PARTITIONS_MAX)
                    epoch = self._outbox.epoch
                    self._books.close()
                if not routes:
                    break
                self._register(routes, epoch)

    def _register(self, routes: list[PartitionRoute], epoch: int) -> None:
        owner = self._owner
        request = co.AddPartitions(
            owner.transactional_id,
            owner.producer_id,
            epoch,
            [(route.topic_id, route.partition) for route in routes],
        )
        try:
            self._link.ask(request, ms.Done, self._patience)
        except Exception as error:  # nobody else would notice, and records wait for this
            logger.warning(
                "transaction of %r at epoch %d: %s", owner.transactional_id, epoch, error
            )
            with self._lock:
                self._books.open()
                if epoch == self._outbox.epoch:
                    self._outbox.fail(self._told(routes, error))
                    self._outbox.sweep()
                    owner.awake()
                self._books.close()
            return
        with self._lock:
            self._books.open()
            self._outbox.admitted(routes, epoch)
            owner.awake()
            self._books.close()

    def _told(self, routes: list[PartitionRoute], error: Exception) -> Exception:
        if isinstance(error, er.TransactionError):
            return error
        more = "" if len(routes) == 1 else f" and {len(routes) - 1} others"
        return er.TransactionError(
            f"{routes[0]!r}{more} could not become part of the transaction of "
            f"{self._owner.transactional_id!r}: {error}"
        )
