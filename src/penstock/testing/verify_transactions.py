"""The verifiable producer with a transactional id: its counts are those of committed records.

The events are those of `penstock.testing.verify`. A record's fate is reported with its
transaction's. `producer_send_success` comes once that is committed. `producer_send_error` comes
once it is aborted (with `TransactionAborted` where that was the plan) or without an answer, as the
exception says. After them comes `transaction_committed` or `transaction_aborted` with the number of
records.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.client.producer.delivery import Delivery
from penstock.client.transactions.producer import TransactionalProducer
from penstock.core.errors import (
    NotConnectedError,
    PenstockError,
    PenstockTimeout,
    ProducerFencedError,
    TransactionError,
)
from penstock.testing.verify import IN_FLIGHT_MAX, VerifiableProducer


class TransactionAborted(TransactionError):
    """It was the plan."""


@dataclass(slots=True)
class VerifiableTransactions(VerifiableProducer):
    """`duration`: seconds that a transaction is open for. Every `abort_every`-th is aborted."""

    duration: float = 0.1
    abort_every: int | None = None
    transactions: int = 0
    _open: list[tuple[str | None, str, Delivery]] = field(default_factory=list)

    def _send_all(self, begun: float) -> None:
        while not self.is_over:
            self.transactions += 1
            try:
                self._transaction(begun)
            except ProducerFencedError as error:
                self._tell_all(error)
                return
            except PenstockError as error:
                self._tell_all(error)

    def _transaction(self, begun: float) -> None:
        producer = self.producer
        assert isinstance(producer, TransactionalProducer)
        producer.begin_transaction()
        until = time.monotonic() + self.duration
        while not self.is_over and len(self._open) < IN_FLIGHT_MAX:
            self._send_one()
            self._pace(begun)
            if time.monotonic() >= until:
                break
        if self.abort_every and self.transactions % self.abort_every == 0:
            producer.abort_transaction()
            failed = self.failed
            self._tell_all(TransactionAborted("as planned"))
            self.failed = failed
            return
        try:
            producer.commit_transaction()
        except (PenstockTimeout, NotConnectedError):
            producer.commit_transaction()  # the node may be back: the answer is the same
        for key, value, delivery in self._open:
            self._tell_success(key, value, delivery.result(0.0))
        self._tell_end("committed")

    def _sent(self, key: str | None, value: str, delivery: Delivery) -> None:
        self._room.release()
        self._open.append((key, value, delivery))

    def _tell_all(self, error: PenstockError) -> None:
        for key, value, _ in self._open:
            self._tell_error(key, value, error)
        unknown = isinstance(error, (PenstockTimeout, NotConnectedError))
        self._tell_end("unknown" if unknown else "aborted")

    def _tell_end(self, how: str) -> None:
        self.events.emit(
            f"transaction_{how}", transaction=self.transactions, records=len(self._open)
        )
        self._open.clear()
