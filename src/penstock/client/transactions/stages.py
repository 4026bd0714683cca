"""Stages: one transaction of many producers, in many processes, that a driver commits (rule 20).

    worker   with client.stage("job-7", epoch=3) as stage: stage.send(...)   -> stage.name
    worker   ...                                                            -> stage.name
    driver   client.commit_transaction("job-7", 3, [names of the stages that are to count])

Who commits decides once for the epoch: the listed stages count, all others of the id up to this
epoch do not. Repeating it changes nothing and answers what was decided first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from penstock.client import process_exit
from penstock.client.producer.pipeline import Pipeline
from penstock.client.producer.producer import Producer
from penstock.client.remote.address import Place
from penstock.client.transactions.coordinator_link import CoordinatorLink
from penstock.client.transactions.identified_producer import (
    Identity,
    TransactionDurability,
    TransactionPolicy,
    checked,
    lasting,
)
from penstock.client.validation import check_integer, check_text
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms

if TYPE_CHECKING:
    from penstock.client.options import ProducerOptions

logger = logging.getLogger("penstock.transactions")


@dataclass(frozen=True, slots=True)
class StagesOutcome:
    """Decision on stages.

    `committed`: whether the epoch is committed, as the first request decided. `decided`: the last
    epoch of the transaction id that is decided.
    """

    committed: bool
    decided: int


class Stage(Producer):
    """A producer whose records wait for `commit_transaction`. Made by `Client.stage`. Thread-safe.

    Args:
        transactional_id, epoch: the transaction of which this is a part. The epochs of an id are
            decided in growing order, each once.
        attempt: a text for this try of the epoch, one for all its stages, that sorts behind those
            of earlier tries. Beginning a stage ends what those left open. Empty: no such thing.
        transaction_durability: "fsynced": closing waits until all records are on stable storage.
            Only so does what is committed later survive a power cut.
        options: as for every producer, but for `acks=0`, `idempotent=False` and dropping records.

    Raises `StageDecidedError` where the epoch is decided already: its work is done, or given up.
    """

    def __init__(
        self,
        socket: Place,
        transactional_id: str,
        epoch: int,
        *,
        attempt: str = "",
        transaction_durability: TransactionDurability = "fsynced",
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_text("transactional_id", transactional_id)
        check_integer("epoch", epoch)
        if attempt:
            check_text("attempt", attempt)
        config = checked(transaction_durability, options)
        link = CoordinatorLink(socket, config.client_id)
        try:
            ready = link.ask(
                co.BeginStage(transactional_id, epoch, attempt),
                co.TransactionReady,
                config.delivery_timeout,
            )
            self.epoch = epoch
            self._name = ready.stage
            self._is_whole = False
            self.transactional_id = transactional_id
            identity = Identity(ready.producer_id, ready.producer_epoch)
            self._transacting = TransactionPolicy(socket, transactional_id, identity, link)
            kept = lasting(config, transaction_durability)
            super().__init__(Pipeline(socket, kept, self._transacting))
        except BaseException:
            link.close()
            raise
        self._transacting.begin()

    @property
    def name(self) -> str:
        """Name of the stage for `commit_transaction`. Raises `TransactionError` before the stage
        is closed, and for one that lost a record: it is not to be committed."""
        if not self._is_whole:
            raise er.TransactionError(
                f"the stage of {self.transactional_id!r} (epoch {self.epoch}) has no name to "
                "commit: "
                + ("it was given up" if self._pipeline.state.is_closed else "close it first")
            )
        return self._name

    def check_may_send(self) -> None:
        """Raises once a record of the stage was lost."""
        self._transacting.check_may_send()

    def close(self, timeout: float | None = 30.0) -> None:
        """Waits until all records are acknowledged (and on stable storage), then leaves; `name` is
        there after it. Raises `TransactionError` if one of them failed, `PenstockTimeout`."""
        state = self._pipeline.state
        if self._is_left or state.forbidden:
            return
        if process_exit.is_over():  # nobody asks for its name any more
            return self.give_up()
        try:
            if not state.is_closed:  # else an interrupt has ended `_leave`
                self.flush(timeout)
                with state.lock:
                    state.books.open()
                    self.check_may_send()  # failures that somebody has looked at count as well
                    state.books.close()
                self._is_whole = True
        finally:
            self._leave()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.give_up()

    def give_up(self) -> None:
        """Leaves without sending what is open. Never raises. No record of the stage ever counts."""
        state, transacting = self._pipeline.state, self._transacting
        if self._is_left or state.forbidden:
            return
        with state.lock:
            state.books.open()
            transacting.drop_open(er.TransactionError(f"the stage {self._name!r} was given up"))
            state.books.close()
        request = co.EndTransaction(self.transactional_id, *transacting.identity, commit=False)
        try:
            transacting.link.ask(request, co.TransactionEnded, self.config.timeout)
        except er.PenstockError as failure:
            logger.warning("stage %r is swept once it timed out: %s", self._name, failure)
        self._leave()


def commit_stages(
    socket: Place,
    transactional_id: str,
    epoch: int,
    stages: Iterable[str],
    *,
    commit: bool,
    is_last: bool,
    client_id: str,
    timeout: float,
) -> StagesOutcome:
    """See `Client.commit_transaction`."""
    check_text("transactional_id", transactional_id)
    check_integer("epoch", epoch)
    request = co.CommitTransaction(transactional_id, epoch, _names(stages), commit, is_last)
    with closing(CoordinatorLink(socket, client_id)) as link:
        answer = link.ask(request, co.TransactionEnded, timeout)
    return StagesOutcome(answer.committed, answer.decided)


def end_stages(
    socket: Place, transactional_id: str, stages: Iterable[str], *, client_id: str, timeout: float
) -> None:
    """See `Client.end_stages`."""
    check_text("transactional_id", transactional_id)
    names = _names(stages)
    with closing(CoordinatorLink(socket, client_id)) as link:
        for start in range(0, len(names), co.STAGES_MAX):
            part = names[start : start + co.STAGES_MAX]
            link.ask(co.EndStages(transactional_id, part), ms.Done, timeout)


def _names(stages: Iterable[str]) -> list[str]:
    if isinstance(stages, str):
        raise TypeError(f"stages={stages!r} must be a list of names, as `Stage.name` gives them")
    names = list(stages)
    for name in names:
        check_text("the name of a stage", name)
    return names
