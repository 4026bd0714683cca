"""The thread that registers partitions with a transaction before records go there.

Records of a partition that is not registered yet wait in the sender; nobody who sends waits for
the coordinator. All partitions that are wanted by the time it is free are asked for at once.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Final

from penstock.client import threads
from penstock.client.producer.io_thread import Minder
from penstock.client.producer.sender import Sender
from penstock.client.producer.state import ProducerState
from penstock.client.transactions.coordinator_link import CoordinatorLink
from penstock.client.transactions.gate import TransactionGate
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms

if TYPE_CHECKING:
    from penstock.client.producer.routes import PartitionRoute

logger = logging.getLogger("penstock.transactions")

JOIN_MAX: Final = 1.0


class Registrar:
    """Registrar of partitions. `want` is called with the producer's lock held."""

    def __init__(
        self,
        state: ProducerState,
        transactional_id: str,
        link: CoordinatorLink,
        gate: TransactionGate,
        sender: Sender,
        io: Minder,
    ) -> None:
        self._transactional_id = transactional_id
        self._producer_id = state.terms.producer_id
        self._patience = state.config.delivery_timeout
        self._books = state.books
        self._lock = state.lock
        self._link = link
        self._gate = gate
        self._sender = sender
        self._io = io
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
        """Ends the thread, without the lock. One that waits for an answer ends with its link."""
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
                    routes = self._gate.take_wanted(co.PARTITIONS_MAX)
                    epoch = self._gate.epoch
                    self._books.close()
                if not routes:
                    break
                self._register(routes, epoch)

    def _register(self, routes: list[PartitionRoute], epoch: int) -> None:
        request = co.AddPartitions(
            self._transactional_id,
            self._producer_id,
            epoch,
            [(route.topic_id, route.partition) for route in routes],
        )
        try:
            self._link.ask(request, ms.Done, self._patience)
        except Exception as error:  # nobody else would notice, and records wait for this
            logger.warning(
                "transaction of %r at epoch %d: %s", self._transactional_id, epoch, error
            )
            with self._lock:
                self._books.open()
                if epoch == self._gate.epoch:
                    self._gate.fail(self._told(routes, error))
                    self._sender.sweep()
                    self.awake()
                self._books.close()
            return
        with self._lock:
            self._books.open()
            for route in self._gate.admit(routes, epoch):
                self._sender.pump(route)
            self.awake()
            self._books.close()

    def awake(self) -> None:
        """Wakes the waiting threads, which look again (lock held)."""
        self._io.posted()
        self._io.nudge()

    def _told(self, routes: list[PartitionRoute], error: Exception) -> Exception:
        if isinstance(error, er.TransactionError):
            return error
        more = "" if len(routes) == 1 else f" and {len(routes) - 1} others"
        return er.TransactionError(
            f"{routes[0]!r}{more} could not become part of the transaction of "
            f"{self._transactional_id!r}: {error}"
        )
