"""The life of a transactional producer, as a machine without I/O.

    state       send  begin   commit      abort     what is known
    READY       no    OPEN    no          nothing   nothing is open
    OPEN        yes   no      SETTLING    ABORTING
    SETTLING    no    no      SETTLING    ABORTING  what was sent is on its way, nothing is decided
    COMMITTING  no    no      COMMITTING  no        a commit was asked for
    ABORTING    no    no      no          ABORTING  an abort was asked for
    FENCED      no    no      no          no        another producer has the id, for ever

COMMITTING and ABORTING end in READY by the coordinator's answer, whichever that is. Without an
answer they stay, and the same is asked again.

Owns which call fits when, and the words of the refusals.
"""

from __future__ import annotations

from enum import Enum

from penstock.core import errors as er


class TransactionState(Enum):
    """States of a transactional producer."""

    READY = "ready"
    OPEN = "open"
    SETTLING = "settling"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"


class TransactionLife:
    """Life of a transactional producer. Every method but the properties is a transition."""

    __slots__ = ("_transactional_id", "_why", "begun", "state")

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._why = ""
        self.state = TransactionState.READY
        self.begun = 0
        """How many have begun."""

    @property
    def is_undecided(self) -> bool:
        """Whether one is open of which nobody has asked for the end."""
        return self.state in (TransactionState.OPEN, TransactionState.SETTLING)

    def check_may_send(self) -> None:
        """Raises `TransactionError` unless a transaction is open."""
        if self.state is not TransactionState.OPEN:
            raise self._refused("send")

    def check_may_begin(self) -> None:
        """Raises `TransactionError` unless nothing is open."""
        if self.state is not TransactionState.READY:
            raise self._refused("begin a transaction")

    def begin(self) -> None:
        self.check_may_begin()
        self.begun += 1
        self.state = TransactionState.OPEN

    def commit(self) -> None:
        """A commit is wanted; it may be asked for once all that was sent is acknowledged."""
        if self.state not in (
            TransactionState.OPEN,
            TransactionState.SETTLING,
            TransactionState.COMMITTING,
        ):
            raise self._refused("commit")
        if self.state is TransactionState.OPEN:
            self.state = TransactionState.SETTLING

    def settled(self) -> None:
        """All is acknowledged. From now on a commit may be decided, answered or not."""
        assert self.state in (TransactionState.SETTLING, TransactionState.COMMITTING), self.state
        self.state = TransactionState.COMMITTING

    def abort(self) -> bool:
        """Whether there is something to abort."""
        if self.state is TransactionState.READY:
            return False
        if self.state not in (
            TransactionState.OPEN,
            TransactionState.SETTLING,
            TransactionState.ABORTING,
        ):
            raise self._refused("abort")
        self.state = TransactionState.ABORTING
        return True

    def cannot_commit(self) -> None:
        """A record was lost, or the commit was refused: it is aborted instead."""
        assert self.state in (TransactionState.SETTLING, TransactionState.COMMITTING), self.state
        self.state = TransactionState.ABORTING

    def ended(self) -> None:
        """The coordinator has answered."""
        assert self.state in (TransactionState.COMMITTING, TransactionState.ABORTING), self.state
        self.state = TransactionState.READY

    def fenced(self, why: str) -> None:
        self.state = TransactionState.FENCED
        self._why = why

    def _refused(self, wish: str) -> er.TransactionError:
        who = f"cannot {wish} with transactional id {self._transactional_id!r}"
        match self.state:
            case TransactionState.READY:
                return er.TransactionError(
                    f"{who}: no transaction is open; begin one by `with producer.transaction():` "
                    "or begin_transaction()"
                )
            case TransactionState.OPEN:
                return er.TransactionError(
                    f"{who}: one is open; commit or abort it first, there is one at a time"
                )
            case TransactionState.SETTLING | TransactionState.COMMITTING:
                return er.TransactionError(
                    f"{who}: the last one is being committed, or the answer to that is not known; "
                    "call commit_transaction() again to learn it"
                )
            case TransactionState.ABORTING:
                return er.TransactionError(
                    f"{who}: the last one is being aborted; call abort_transaction() again if that "
                    "had no answer"
                )
        return er.ProducerFencedError(
            f"{who}: another producer has taken the id over; end this one ({self._why})"
        )
