"""`df.write` and `df.writeStream`: rows are staged by the tasks and published by one commit.

| | transactional id | epoch | after a crash of the driver |
|---|---|---|---|
| stream | the query's id (behind `txnId`) | the batch's number | Spark runs the batch again |
| batch with `txnId` | `txnId` | `txnEpoch`, else 0 | the writer may write it again |
| batch without | one of its own | 0 | nothing was published, or all of it |

An epoch is decided once (rule 20). Before that no reader sees any of it, however many attempts
staged rows. After it, rows that an attempt would stage again are left out, and its commit hears
that it is done. `abort` may come after a commit went through, or after one without an answer. So it
gives up stages by their names, which decides nothing. Only an id that no other writer has is
decided against.

A writer is made on the driver for each attempt of a batch and travels to the tasks. The commit of a
stream runs in a process of its own, with a writer made again, which knows only the messages.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.core import errors as er
from penstock.spark.clients import client_of
from penstock.spark.staging import Staged, Transaction, stage_batches
from penstock.spark.writeoptions import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("penstock.spark")

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that a streaming query sets for the tasks of its batches."""
COMMIT_WITHIN: Final = 60.0
"""Seconds for the node to decide, a restart of it included."""
ABORT_WITHIN: Final = 10.0


@dataclass(frozen=True, slots=True)
class StageMessage(WriterCommitMessage):
    """The report of a task to the driver."""

    transaction: Transaction
    staged: Staged


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._transaction = Transaction(
            options.txn_id or f"spark-{os.urandom(16).hex()}", options.txn_epoch or 0, new_attempt()
        )

    @property
    def _is_alone(self) -> bool:
        """Returns whether no other writer can have the transactional id."""
        return self._options.txn_id is None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._is_alone and self._options.txn_epoch is None and local(BATCH_ID) is not None:
            raise er.ConfigError(
                f"txnId {self._options.txn_id!r} without txnEpoch in a streaming query: every "
                "batch after the first would be taken for a repetition. Set txnEpoch to the batch "
                "id that foreachBatch hands over"
            )
        return stage(self._options, self._transaction, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._options, self._transaction, complete(messages), is_last=self._is_alone)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._is_alone:
            give_up(self._options, known(messages))
            return
        name, epoch = self._transaction.transactional_id, self._transaction.epoch
        try:
            client_of(self._options.address).commit_transaction(
                name, epoch, [], commit=False, is_last=True, timeout=ABORT_WITHIN
            )
        except er.PenstockError as error:
            logger.warning("what %r staged is swept once it timed out: %s", name, error)


class StreamWriter(DataSourceStreamArrowWriter):
    """The batches of one streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._attempt = new_attempt()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = local(QUERY_ID), local(BATCH_ID)
        if query is None or batch is None:
            raise er.PenstockError(
                f"the local properties {QUERY_ID} and {BATCH_ID} are not set in this task, so "
                "nothing tells its rows from those of another batch: is this a streaming query "
                "of PySpark 4.2 or newer?"
            )
        prefix = self._options.txn_id or "spark"
        transaction = Transaction(f"{prefix}-{query}", int(batch), self._attempt)
        return stage(self._options, transaction, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = complete(messages)
        if not told:
            return  # no task, no rows, and nothing that would say whose they were
        transaction = told[0].transaction
        if any(each.transaction.epoch != batchId for each in told):
            raise er.PenstockError(
                f"batch {batchId} is to be committed with rows of epoch {transaction.epoch} of "
                f"{transaction.transactional_id!r}: nothing was committed"
            )
        publish(self._options, transaction, told, is_last=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        give_up(self._options, known(messages))


# --- what both do ---------------------------------------------------------------------------------
def new_attempt() -> str:
    """Sorts behind those made before. Where clocks of drivers differ, more than that is lost by
    nobody: an attempt may have to be made again."""
    return f"{time.time_ns():020d}-{os.urandom(4).hex()}"


def local(name: str) -> str | None:
    """Returns a local property of the job of which this process runs a task."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def stage(
    options: WriteOptions, transaction: Transaction, batches: Iterator[pa.RecordBatch]
) -> StageMessage:
    staged = stage_batches(client_of(options.address), options, transaction, batches)
    return StageMessage(transaction, staged)


def known(messages: Sequence[WriterCommitMessage | None]) -> list[StageMessage]:
    """Returns the messages without those of tasks that failed: these gave their stages up
    themselves."""
    return [each for each in messages if isinstance(each, StageMessage)]


def complete(messages: Sequence[WriterCommitMessage | None]) -> list[StageMessage]:
    """Returns all messages. Raises where one is missing: its rows would be missing too."""
    told = known(messages)
    if len(told) < len(messages):
        raise er.PenstockError(
            f"{len(messages) - len(told)} of {len(messages)} tasks did not say what they staged: "
            "nothing was committed"
        )
    return told


def publish(
    options: WriteOptions, transaction: Transaction, messages: list[StageMessage], *, is_last: bool
) -> None:
    """Commits the stages of the messages, once. If it was done before, this changes nothing."""
    name, epoch = transaction.transactional_id, transaction.epoch
    others = {(each.transaction.transactional_id, each.transaction.epoch) for each in messages} - {
        (name, epoch)
    }
    if others:
        raise er.PenstockError(
            f"a commit of epoch {epoch} of {name!r} with rows of {sorted(others)}: nothing was "
            "committed"
        )
    stages = [each.staged.stage for each in messages if each.staged.stage is not None]
    try:
        outcome = client_of(options.address).commit_transaction(
            name, epoch, stages, is_last=is_last, timeout=COMMIT_WITHIN
        )
    except er.PenstockError as error:
        if error.retriable:
            error.add_note(
                f"epoch {epoch} of {name!r}: whether it was committed is not known here. Written "
                "again under the same name it is there once; with a new name, maybe twice"
            )
        raise
    if not outcome.committed:
        raise er.TransactionError(
            f"epoch {epoch} of {name!r} was decided before, and as an abort: none of its rows is "
            "there, and none can be. Write them under another txnId or txnEpoch; a stream needs a "
            "new checkpoint"
        )
    left_out = sum(each.staged.rows for each in messages if each.staged.is_decided)
    if left_out:
        logger.warning(
            "epoch %d of %r had been committed before: %d rows of this run are left out. If these "
            "are other rows than those, they need another txnId or a higher txnEpoch",
            epoch, name, left_out,
        )  # fmt: skip


def give_up(options: WriteOptions, messages: list[StageMessage]) -> None:
    """Ends stages that will not be committed, so that they hold no reader back. Never raises."""
    names: dict[str, list[str]] = {}
    for each in messages:
        if each.staged.stage is not None:
            names.setdefault(each.transaction.transactional_id, []).append(each.staged.stage)
    for name, stages in names.items():
        try:
            client_of(options.address).end_stages(name, stages, timeout=ABORT_WITHIN)
        except er.PenstockError as error:
            logger.warning(
                "%d stages of %r end with the next attempt, or are swept once they timed out: %s",
                len(stages), name, error,
            )  # fmt: skip
