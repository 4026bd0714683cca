"""The answers of the transaction machine, and its orders to its shell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.cluster.decisions import Record
from penstock.cluster.transactions.records import ASKED, STALE, TAKEN_OVER, Place
from penstock.core.errors import (
    PenstockError,
    ProducerFencedError,
    StaleGenerationError,
    TransactionError,
)


class ProducerIdentity(NamedTuple):
    """The identity of a producer in its next transaction."""

    producer_id: int
    epoch: int


class EndedTransaction(NamedTuple):
    """The decision on a transaction. `why`: empty when it ended as its producer first asked; else
    `stale`, `timeout`, `taken over`, `gone` or `forgotten`. `detail`: the first answer's words on
    that."""

    committed: bool
    next_epoch: int
    why: str = ASKED
    detail: str = ""

    def error(self, transactional_id: str, commit: bool) -> PenstockError | None:
        """Returns the error for a producer that asked for `commit`. None: it got that, or it asked
        for an abort, and every transaction that is not committed is aborted."""
        if self.committed or not commit:
            return None
        said = f"the transaction of {transactional_id!r} was aborted"
        if self.why == STALE:
            detail = self.detail or "what it consumed belongs to another member by now"
            return StaleGenerationError(f"{said}: {detail}")
        if self.why == TAKEN_OVER:
            return ProducerFencedError(f"{said}: another producer took this id over")
        reason = {
            "timeout": "it was open for too long",
            "gone": "its producer was gone",
            "forgotten": "the node's host lost power, and with it where the transaction was open",
        }
        return TransactionError(f"{said}: {reason.get(self.why, 'an abort was asked for first')}")


class StagesDecided(NamedTuple):
    """The decision on the requested epoch, and the last epoch that is decided."""

    committed: bool
    epoch: int


class Marking(NamedTuple):
    """Markers that are missing. `epoch` is the transaction's: its markers carry `epoch + 1`."""

    producer_id: int
    epoch: int
    commit: bool
    places: frozenset[Place]


class Listed(NamedTuple):
    """`state`: ready, open, committing, aborting or staged. `opened_at`: of the oldest open one.
    `topics`: by id, those of its partitions."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    partitions: int
    opened_at: float | None
    topics: frozenset[bytes]


class ConsumedOffsets(NamedTuple):
    """Offsets of a group that are committed with a transaction, as the group machine takes them."""

    group: str
    member_id: str
    offsets: Sequence[Any]


class OffsetKeeper(Protocol):
    """The group machine's methods for transactions."""

    def check_offsets(self, group: str, member_id: str, offsets: Sequence[Any]) -> None:
        """Raises StaleGenerationError, UnknownMemberError or GroupError if one does not count."""

    def offset_records(
        self, now: float, group: str, offsets: Sequence[Any]
    ) -> tuple[Record, ...]: ...


class JobKeeper(Protocol):
    """The part of the share groups' machine that transactions need."""

    def check_done(self, done: Sequence[Any]) -> None:
        """Raises StaleGenerationError if one of these leases is not held any more."""

    def done_records(self, done: Sequence[Any]) -> tuple[tuple[Record, ...], frozenset[str]]:
        """The records that say so, and the members to be told."""
        ...
