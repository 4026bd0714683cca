"""The transactional producer: what it sends, and what was consumed for it, counts together or not.

    begin ──send──> batches under (transactional producer id, epoch), invisible to read_committed,
      │             each partition registered before its first batch
      ├─commit: all acknowledged and on stable storage ──> EndTransaction, offsets ──> ready
      └─abort:  nothing more leaves                    ──> EndTransaction          ──> ready

Every transaction has an epoch of its own, and its markers the one after: what arrives late, from a
lane that was drained slowly or a producer that was stopped for hours, is refused by the log.
Lanes are those of this producer's own attachment; its transactional id only names its batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Unpack

from penstock.client.consumer.group.consumed import check_consumed, consumed_offsets, rewind
from penstock.client.producer.pipeline import Pipeline
from penstock.client.producer.producer import Producer
from penstock.client.remote.address import Place
from penstock.client.session import Session
from penstock.client.share.done_jobs import check_done, messages_for
from penstock.client.share.jobs import have_transacted
from penstock.client.transactions.coordinator_link import CoordinatorLink
from penstock.client.transactions.identified_producer import (
    Identity,
    TransactionDurability,
    TransactionPolicy,
    checked,
    lasting,
)
from penstock.client.transactions.inputs import NO_INPUTS, TransactionInputs
from penstock.client.transactions.retained import check_kept
from penstock.client.transactions.state_machine import TransactionLife, TransactionState
from penstock.client.typed import K, V
from penstock.client.validation import check_range, check_text
from penstock.core import errors as er
from penstock.ipc import coordination as co

if TYPE_CHECKING:
    from penstock.client.consumer.group.consumed import Consumed
    from penstock.client.options import ProducerOptions
    from penstock.client.share.done_jobs import Done
    from penstock.client.share.jobs import Job

logger = logging.getLogger("penstock.transactions")

TIMEOUT_MAX: Final = 900.0


class TransactionalProducer(Producer[V, K]):
    """Sends records in transactions. Made by `Client.producer(transactional_id=...)`.

    Records may be sent from any thread; transactions are begun and ended by one at a time.

    Args:
        transactional_id: who this is, across restarts. At most one producer has it: a new one
            aborts what an older left open, and fences it.
        transaction_timeout: seconds from a transaction's first record after which the coordinator
            aborts it.
        transaction_durability: "fsynced": a commit waits until all records of the transaction are
            on stable storage. "appended" does not: a power cut may take records of a committed
            transaction, though not its consumed offsets.
        options: as for every producer. `delivery_timeout` bounds each request to the coordinator,
            too. `acks=0`, `idempotent=False` and dropping records make no transactions.

    Raises `ConfigError`, `NotConnectedError`, `PenstockTimeout`.
    """

    def __init__(
        self,
        socket: Place,
        *,
        transactional_id: str,
        transaction_timeout: float = 60.0,
        transaction_durability: TransactionDurability = "fsynced",
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_text("transactional_id", transactional_id)
        check_range("transaction_timeout", transaction_timeout, 0.1, TIMEOUT_MAX)
        config = checked(transaction_durability, options)
        link = CoordinatorLink(socket, config.client_id)
        try:
            ready = link.ask(
                co.InitTransactions(transactional_id, transaction_timeout),
                co.TransactionReady,
                config.delivery_timeout,
            )
            self.life = TransactionLife(transactional_id)
            self._transacting = TransactionPolicy(
                socket,
                transactional_id,
                Identity(ready.producer_id, ready.producer_epoch),
                link,
                self.life.check_may_send,
            )
            kept = lasting(config, transaction_durability)
            super().__init__(Pipeline(socket, kept, self._transacting))
        except BaseException:
            link.close()
            raise
        self.transactional_id = transactional_id
        self._kept = transaction_durability
        self._consumed: Consumed | None = None
        self._done: list[Job] = []
        self._attached = link.attached  # when this transaction was begun
        self._is_asked = False  # for the end of this transaction, whether that was answered or not
        self._outcome: co.TransactionEnded | None = None  # the answer to that, until all follows it
        counts = self._pipeline.state.counts
        counts |= dict.fromkeys(("transactions_committed", "transactions_aborted"), 0)

    @property
    def epoch(self) -> int:
        """The producer epoch of the transaction that is open, or else of the next one."""
        return self._transacting.identity.epoch

    # --- the transaction -------------------------------------------------------------------------
    @contextmanager
    def transaction(
        self, *, consumed: Consumed | None = None, done: Done | None = None
    ) -> Iterator[None]:
        """A transaction around a block: left by an exception it is aborted, else committed together
        with the offsets behind `consumed`, a batch of a group's consumer, that consumer itself, or
        several of them. After an abort these are rewound, so that they come again.

        `done`: a job of a share consumer, or several, which the commit acknowledges. After an abort
        they still are their worker's, without an answer.

        Raises what `commit_transaction` raises.
        """
        consumed = check_consumed(consumed)  # before any work is done for it
        jobs = check_done(done)
        before = self.life.begun
        try:
            self.begin_transaction()
            yield
            self.commit_transaction(consumed=consumed, done=jobs)
        except BaseException:
            if self.life.is_undecided and self.life.begun != before:
                self._abort_quietly(consumed)
            raise

    def _abort_quietly(self, consumed: Consumed | None = None) -> None:
        """Where an error is on its way already, or nobody waits for one."""
        try:
            self.abort_transaction(consumed=consumed)
        except er.ProducerFencedError as error:
            logger.warning("%s", error)
        except er.PenstockError as error:
            logger.warning(
                "no answer to the abort of a transaction of %r, which times out now: %s",
                self.transactional_id,
                error,
            )

    def begin_transaction(self) -> None:
        """Opens a transaction. Costs nothing: the coordinator learns of it with the first record.

        Raises `TransactionError` while another one is open or its outcome is unknown, and where
        that was settled by this call and its input comes again; `ProducerFencedError`.
        """
        state = self._pipeline.state
        state.check_usable()
        if self.life.state is TransactionState.ABORTING:  # the answer to the last abort was lost
            late = self._consumed
            self.abort_transaction()
            if late is not None:
                raise poll_again(self.transactional_id)
        with state.lock:
            state.books.open()
            state.check_usable()
            self.life.check_may_begin()
            self._is_asked = False
            self._outcome = None
            self._attached = self._transacting.link.attached
            self._transacting.begin()
            self.life.begin()  # last: an interrupt above leaves none open
            state.books.close()

    def commit_transaction(
        self, *, consumed: Consumed | None = None, done: Done | None = None
    ) -> None:
        """Commits all that was sent since `begin_transaction`, the offsets behind `consumed` with
        it, and that these jobs are `done`. Returns once that is decided for good.

        Whatever is raised but `PenstockTimeout` and `NotConnectedError`, nothing of it counts, and
        the next transaction may begin: `TransactionError` (a record failed, or the transaction took
        too long), `StaleGenerationError` (a consumed partition, or a job, belongs to another member
        by now), `ProducerFencedError` (another producer has the id: end this one).
        `ResourceLimitError`: more offsets and jobs than one message takes; abort it.
        `PenstockTimeout`, `NotConnectedError`: nobody answered, so the outcome is not known. Called
        again this asks for it; a new producer with the same id settles it as well.
        """
        inputs = self.settling(consumed, done)
        self._pipeline.io.wait(self._transacting.is_settled, None)
        self.decide(inputs)

    def settling(self, consumed: Consumed | None, done: Done | None = None) -> TransactionInputs:
        """The first part of a commit: send what is open. The others are to wait until all of it is
        settled, and to `decide`. Blocks for nobody, and returns what is to be committed with it."""
        state = self._pipeline.state
        state.check_usable()
        consumed = self._consumed if consumed is None else check_consumed(consumed)
        jobs = self._done
        if self.life.state is not TransactionState.COMMITTING:  # else it was asked for with these
            jobs = check_done(jobs if done is None else done)
        inputs = TransactionInputs(consumed_offsets(consumed), messages_for(jobs))
        inputs.check_size(self.transactional_id)
        with state.lock:
            state.books.open()
            self.life.commit()
            self._consumed, self._done = consumed, jobs
            self._pipeline.io.seal_open(None)
            state.books.close()
        return inputs

    def call_when_settled(self, callback: Callable[[], object]) -> None:
        """Calls back once, when all that was sent is acknowledged or a delivery has failed; each
        has its delivery timeout, so that comes. See `penstock.client.producer.unthreaded` for what
        it may do."""
        state = self._pipeline.state
        with state.lock:
            state.books.open()
            state.check_usable()
            self._pipeline.io.watch(self._transacting.is_settled, callback)
            state.books.close()

    def decide(self, inputs: TransactionInputs) -> None:
        """The last part of a commit, once all is settled: ask for the end, and raise what came of
        it."""
        state, gate = self._pipeline.state, self._transacting.gate
        with state.lock:
            state.books.open()
            consumed, failure = self._consumed, gate.failure
            if failure is None:
                self.life.settled()
            else:
                self.life.cannot_commit()
            state.books.close()
        if failure is not None:
            self._abort(consumed)
            known = failure if isinstance(failure, er.TransactionError) else None
            raise known or er.TransactionError(
                f"the transaction of {self.transactional_id!r} was aborted, because a record of it "
                f"was not delivered: {failure}"
            ) from failure
        if not (any(inputs) or gate.is_touched):
            self._over(committed=True)
            return
        try:
            answer = self._end(True, inputs)
        except (er.PenstockTimeout, er.NotConnectedError, er.ProducerFencedError):
            raise
        except er.PenstockError:
            with state.lock:
                state.books.open()
                self.life.cannot_commit()
                state.books.close()
            if self._abort(consumed):
                raise
            return
        if not answer.committed:
            _brought_again(consumed)
            self._over(committed=False)
            raise er.TransactionError(
                f"the transaction of {self.transactional_id!r} was aborted by the coordinator: it "
                "took longer than transaction_timeout, or what it consumed belongs to others by now"
            )
        self._over(committed=True)

    def abort_transaction(self, *, consumed: Consumed | None = None) -> None:
        """Gives up all that was sent since `begin_transaction`: its deliveries fail, and readers of
        committed records never see it. `consumed` is rewound. Does nothing where none is open.

        Raises `ProducerFencedError`; `PenstockTimeout` or `NotConnectedError` where nobody answers.
        The transaction is aborted then all the same, once it times out.
        """
        state = self._pipeline.state
        state.check_usable()
        consumed = check_consumed(consumed)
        with state.lock:
            state.books.open()
            if not self.life.abort():
                return
            state.books.close()
        if not self._abort(consumed if consumed is not None else self._consumed):
            raise er.TransactionError(
                f"the transaction of {self.transactional_id!r} was committed before: that had no "
                "answer then"
            )

    def _abort(self, consumed: Consumed | None) -> bool:
        """Ends a transaction that is ABORTING. False if it turns out to be committed: it was asked
        for before, and that had no answer."""
        state, gate = self._pipeline.state, self._transacting.gate
        with state.lock:
            state.books.open()
            self._consumed = consumed
            may_count = self._is_asked
            is_known = self._is_asked or gate.is_touched
            self._transacting.drop_open(gate.failure or self._gone())
            state.books.close()
        try:
            committed = is_known and self._end(False, NO_INPUTS).committed
        except (er.PenstockTimeout, er.NotConnectedError):
            if not may_count:  # whatever the answer would have been: what is polled next is this
                _brought_again(consumed)
                self._consumed = None
            raise
        if not committed:
            _brought_again(consumed)
        self._over(committed=committed)
        return not committed

    def _end(self, commit: bool, inputs: TransactionInputs) -> co.TransactionEnded:
        """The coordinator's answer, which is the same however often it is asked."""
        if self._outcome is not None:
            return self._outcome  # an interrupt came between it and what follows from it
        who, epoch = self._transacting.identity
        opened = self._transacting.gate.opened
        patience = self.config.delivery_timeout
        request = co.EndTransaction(
            *(self.transactional_id, who, epoch, commit, inputs.offsets),
            *(opened if commit else 0, inputs.done),
        )
        wish = "commit" if commit else "abort"
        self._is_asked = True
        try:
            self._outcome = self._transacting.link.ask(
                request,
                co.TransactionEnded,
                patience,
                self._check_kept if commit and self._kept == "appended" else None,
            )
        except er.ProducerFencedError as error:
            state = self._pipeline.state
            with state.lock:
                state.books.open()
                self.life.fenced(str(error))
                self._transacting.drop_open(error)
                state.books.close()
            raise
        except (er.PenstockTimeout, er.NotConnectedError) as error:
            raise type(error)(
                f"nobody answered the {wish} of the transaction of {self.transactional_id!r} "
                f"(epoch {epoch}) within {patience} s: {error}. Its outcome is not "
                f"known: call {wish}_transaction() again to learn it, or make a new producer with "
                "the same transactional_id, which settles it"
            ) from error
        return self._outcome

    def _check_kept(self, session: Session, timeout: float) -> None:
        """Not synced, and over another session than when it was begun: the node's host may have
        lost its power in between. Its own clients died with it."""
        if session.is_clustered:
            return  # what was acknowledged is on all replicas that count
        if session.far is not None and self._transacting.link.attached != self._attached:
            check_kept(session, self._transacting.gate.sent_to, self.transactional_id, timeout)

    def _over(self, *, committed: bool) -> None:
        """The outcome is known."""
        state, transacting = self._pipeline.state, self._transacting
        with state.lock:
            state.books.open()
            transacting.drop_open(self._gone())
            if self._outcome is not None:
                who = transacting.identity.producer_id
                transacting.identity = Identity(who, self._outcome.next_epoch)
            if committed:
                have_transacted(self._done)
            self.life.ended()
            self._outcome = self._consumed = None
            self._done = []
            state.counts["transactions_committed" if committed else "transactions_aborted"] += 1
            state.books.close()

    def _gone(self) -> er.TransactionError:
        return er.TransactionError(
            f"the transaction of {self.transactional_id!r} was aborted before this was acknowledged"
        )

    # --- sending and life ------------------------------------------------------------------------
    def check_may_send(self) -> None:
        """Raises unless a transaction is open and well."""
        self._transacting.check_may_send()

    def close(self, timeout: float | None = 30.0) -> None:
        """Leaves. A transaction that is open is aborted."""
        if self._is_left or self._pipeline.state.forbidden:
            return
        if self.life.is_undecided:
            logger.warning(
                "%r is closed with a transaction open, which is aborted", self.transactional_id
            )
            self._abort_quietly()
        elif self.life.state is TransactionState.COMMITTING:
            logger.warning(
                "%r is closed without an answer to its last commit; a new producer with this id "
                "settles it",
                self.transactional_id,
            )
        self._flush_and_leave(timeout)


def poll_again(transactional_id: str) -> er.TransactionError:
    """The refusal of a begin with records that were polled before they come again."""
    return er.TransactionError(
        f"the transaction of {transactional_id!r} before this one is aborted only now, and what it "
        "consumed comes again: poll again, then begin"
    )


def _brought_again(consumed: Consumed | None) -> None:
    """An aborted transaction has consumed nothing. A closed consumer brings nothing any more."""
    with suppress(er.ClosedError):
        rewind(consumed)
