"""Transactions and stages in an event loop.

The blocking producers do the work. The loop waits until all records before an end have left. The
end itself, which is rare and asks the coordinator, goes to the loop's executor.

    commit:  line ──> settling ──> deciding     abort:  deciding
             └── may be given up ──┘ └── goes on to its end, also when nobody waits for it ┘

Nothing is decided before a commit is at `deciding`, and there one request decides it all. So an end
that is cancelled is undecided, or one that is known as soon as the next call asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Self

from penstock.client.aio.consumed import Consumed, Held, hold
from penstock.client.aio.producer import Producer, in_line, leave
from penstock.client.aio.waits import going_on, in_thread
from penstock.client.options import StageOptions, TransactionOptions
from penstock.client.producer.encoding import Encoders
from penstock.client.remote.address import Place
from penstock.client.share.done_jobs import Done, check_done
from penstock.client.transactions.inputs import TransactionInputs
from penstock.client.transactions.producer import (
    TransactionalProducer as BlockingTransactionalProducer,
)
from penstock.client.transactions.producer import poll_again
from penstock.client.transactions.stages import Stage as BlockingStage
from penstock.client.transactions.state_machine import TransactionState
from penstock.client.typed import K, V
from penstock.core import errors as er

logger = logging.getLogger("penstock.transactions")
END: Final = "penstock: end of a transaction"


class Transacting(Producer[V, K]):
    """A producer whose records are part of a transaction: one that is refused, also while it waits
    in line, fails all of it."""

    _core: BlockingTransactionalProducer | BlockingStage

    @property
    def transactional_id(self) -> str:
        return self._core.transactional_id

    def _check_may_send(self) -> None:
        super()._check_may_send()
        self._core.check_may_send()

    async def _leave(self, *, flushed: bool) -> None:
        await in_thread(self._core.close if flushed else self._core.leave)


class TransactionalProducer(Transacting[V, K]):
    """Sends records in transactions. Made by `Client.producer(transactional_id=...)`; options,
    verbs, guarantees and errors are those of `penstock.TransactionalProducer`.

    A commit that is cancelled before all records are acknowledged has decided nothing: call it
    again, or abort (`transaction` aborts). Later it goes on without you, and commits all or
    nothing: call `commit_transaction` again to learn which; until then no other transaction begins.
    An abort that is cancelled goes on, and the next transaction waits for it.
    """

    _core: BlockingTransactionalProducer

    def __init__(
        self,
        core: BlockingTransactionalProducer,
        *,
        waits: bool,
        encoders: Encoders | None = None,
    ) -> None:
        super().__init__(core, waits=waits, encoders=encoders)
        self._turn = asyncio.Lock()  # held by the task that begins or ends
        self._held: list[Held] = []
        self._committing: asyncio.Task[None] | None = None  # until somebody knows what came of it
        self._aborting: asyncio.Task[None] | None = None
        self._shut()

    @classmethod
    async def make_transactional(cls, socket: Place, options: TransactionOptions) -> Self:
        """Attaches, and takes the id over, in a thread of the loop's."""
        options, waits, encoders = in_line(options)
        core = await in_thread(
            lambda: BlockingTransactionalProducer(socket, **options), discard=leave
        )
        return cls(core, waits=waits, encoders=encoders)

    @property
    def epoch(self) -> int:
        """The producer epoch of the transaction that is open, or else of the next one."""
        return self._core.epoch

    # --- the transaction -------------------------------------------------------------------------
    @asynccontextmanager
    async def transaction(
        self, *, consumed: Consumed | None = None, done: Done | None = None
    ) -> AsyncIterator[None]:
        """A transaction around a block: left by an exception, cancellation too, it is aborted, else
        committed with the offsets behind `consumed`, and that the jobs are `done`. See
        `penstock.TransactionalProducer`."""
        held, jobs = hold(consumed), check_done(done)
        await self.begin_transaction()
        try:
            yield
            await self._commit(held, jobs)
        except BaseException:
            if self._is_undecided:
                await self._abort_quietly(held)
            raise

    async def begin_transaction(self) -> None:
        """Opens a transaction. Waits only for an abort that had no answer yet. Raises as
        `penstock.TransactionalProducer.begin_transaction`."""
        async with self._turn:
            self._check_usable()
            self._check_learnt("begin a transaction")
            if self._aborting is not None or self._core.life.state is TransactionState.ABORTING:
                late = [each for each in self._held if not each.is_brought]
                await self._abort([])
                if late:
                    raise poll_again(self.transactional_id)
            self._core.begin_transaction()
            self._held = []
            self._send = self._core.send

    async def commit_transaction(
        self, *, consumed: Consumed | None = None, done: Done | None = None
    ) -> None:
        """Commits all that was sent since `begin_transaction`, the offsets behind `consumed` with
        it, and that these jobs are `done`. Raises as
        `penstock.TransactionalProducer.commit_transaction`; cancelled, see the class."""
        await self._commit(hold(consumed), done)

    async def abort_transaction(self, *, consumed: Consumed | None = None) -> None:
        """Gives up all that was sent since `begin_transaction`, and rewinds `consumed`."""
        held = hold(consumed)
        async with self._turn:
            self._check_usable()
            self._check_learnt("abort")
            await self._abort(held)

    # --- its end ---------------------------------------------------------------------------------
    @property
    def _is_undecided(self) -> bool:
        return self._core.life.is_undecided and self._committing is None and self._aborting is None

    def _check_learnt(self, wish: str) -> None:
        if self._committing is not None:
            raise er.TransactionError(
                f"cannot {wish} with transactional id {self.transactional_id!r}: the commit of the "
                "last transaction was cancelled, and went on; call commit_transaction() again to "
                "learn what came of it"
            )

    def _shut(self) -> None:
        """Refuses further records: they would be part of no transaction."""
        self._send = self._refuse

    def _check_may_send(self) -> None:
        super()._check_may_send()
        if self._send == self._refuse:
            raise er.TransactionError(
                f"cannot send with transactional id {self.transactional_id!r}: its transaction is "
                "being ended by another task, or that was cancelled; end it first"
            )

    async def _commit(self, held: list[Held], done: Done | None = None) -> None:
        async with self._turn:
            self._check_usable()
            if self._committing is None:
                if self._aborting is not None:
                    await self._abort([])
                inputs = await self._settled(held, done)
                self._committing = going_on(self._decided(inputs), END)
            try:
                await asyncio.shield(self._committing)
            except asyncio.CancelledError:
                raise  # the next call learns it
            except BaseException:
                self._committing = None
                raise
            self._committing = None

    async def _settled(self, held: list[Held], done: Done | None) -> TransactionInputs:
        """Waits until all that was sent is acknowledged, or something has failed."""
        self._shut()
        self._held = held or self._held
        await self._lines.empty()
        inputs = self._core.settling(self._held or None, done)
        await self._called(self._core.call_when_settled)
        return inputs

    async def _decided(self, inputs: TransactionInputs) -> None:
        try:
            await in_thread(partial(self._core.decide, inputs))
        finally:
            await self._bring_again()

    async def _abort(self, held: list[Held]) -> None:
        if self._aborting is None:
            self._shut()
            self._held = held or self._held
            if self._core.life.is_undecided:  # it is aborted for certain, whenever that is answered
                for each in self._held:
                    each.rewind()
            self._aborting = going_on(self._aborted(), END)
        try:
            await asyncio.shield(self._aborting)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._aborting = None
            raise
        self._aborting = None

    async def _aborted(self) -> None:
        try:
            await self._bring_again()
        finally:
            await self._lines.give_up(
                er.TransactionError(
                    f"the transaction of {self.transactional_id!r} was aborted before this was sent"
                )
            )
            try:
                await in_thread(partial(self._core.abort_transaction, consumed=self._held or None))
            finally:
                await self._bring_again()

    async def _bring_again(self) -> None:
        for each in self._held:
            await each.bring_again()

    async def _abort_quietly(self, held: list[Held]) -> None:
        """Where an error is on its way already, or nobody waits for one."""
        async with self._turn:
            try:
                await self._abort(held)
            except er.PenstockError as error:
                logger.warning("aborting a transaction of %r: %s", self.transactional_id, error)

    # --- life ------------------------------------------------------------------------------------
    async def close(self, timeout: float | None = 30.0) -> None:
        """Leaves. A transaction that is open is aborted."""
        if self._closed:
            return
        if not self._forked:
            await self._end_quietly()
        await super().close(timeout)

    async def _end_quietly(self) -> None:
        if self._committing is not None:
            try:
                await self._commit([])
            except er.PenstockError as error:
                logger.warning("a commit that was cancelled: %s", error)
        if self._core.life.is_undecided and self._aborting is None:
            logger.warning(
                "%r is closed with a transaction open, which is aborted", self.transactional_id
            )
        if self._core.life.is_undecided or self._aborting is not None:
            await self._abort_quietly([])


class Stage(Transacting):
    """A producer whose records wait for `commit_transaction`. Made by `Client.stage`; options,
    verbs and errors are those of `penstock.Stage`. One that nobody has closed, to the end, has no
    name and is never committed."""

    _core: BlockingStage

    @classmethod
    async def make_stage(
        cls, socket: Place, transactional_id: str, epoch: int, options: StageOptions
    ) -> Self:
        """Attaches, and begins, in a thread of the loop's."""
        options, waits, encoders = in_line(options)
        making = partial(BlockingStage, socket, transactional_id, epoch, **options)
        core = await in_thread(making, discard=lambda made: made.give_up())
        return cls(core, waits=waits, encoders=encoders)

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def name(self) -> str:
        """Name of the stage for `commit_transaction`; it exists once the stage is closed."""
        return self._core.name

    async def give_up(self) -> None:
        """Leaves without sending what is open. Never raises. No record of the stage ever counts."""
        if self._closed or self._forked:
            return
        await self._end(
            er.TransactionError(
                f"the stage of {self.transactional_id!r} (epoch {self.epoch}) was given up"
            ),
            partial(in_thread, self._core.give_up),
        )

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            await self.close()
        else:
            await self.give_up()
