"""One task's rows, as Arrow batches, into one stage of a transaction.

Nothing here publishes: rows that are staged count once their stage is named by a commit, and a task
may end early, twice, or never. Columns go to the producer as they are; rows for several topics or
partitions are put in order by sorting, never one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import errors as er
from penstock.spark.writeoptions import WriteOptions

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.client.transactions.stages import Stage

logger = logging.getLogger("penstock.spark")

CLOSE_WITHIN: Final = 120.0
"""Seconds for the last rows of a task to be on stable storage."""
NO_PARTITION: Final = -1


@dataclass(frozen=True, slots=True)
class Transaction:
    """Of which transaction a task's rows are a part. `attempt` sorts by when it was begun."""

    transactional_id: str
    epoch: int
    attempt: str


@dataclass(frozen=True, slots=True)
class Staged:
    """`stage`: its name, None where nothing was staged. `is_decided`: the epoch was decided before,
    and these `rows` are left out: they were committed by an earlier attempt."""

    stage: str | None
    rows: int
    is_decided: bool = False


def stage_batches(
    client: Client,
    options: WriteOptions,
    transaction: Transaction,
    batches: Iterable[pa.RecordBatch],
) -> Staged:
    """Stages all rows. An error ends the stage, as far as there is one.

    All batches are taken, also when the rows are left out: Spark's state stores keep only what was
    read to its end.
    """
    stage: Stage | None = None
    rows, is_decided = 0, False
    try:
        for batch in batches:
            rows += batch.num_rows
            if batch.num_rows == 0 or is_decided:
                continue
            if stage is None:
                stage = _begun(client, options, transaction)
                is_decided = stage is None
            if stage is not None:
                _send(stage, options, batch)
        if stage is not None:
            stage.close(CLOSE_WITHIN)
    except BaseException:
        if stage is not None:
            stage.give_up()
        raise
    if is_decided:
        logger.info(
            "epoch %d of %r is decided already: %d rows of a task are left out",
            transaction.epoch, transaction.transactional_id, rows,
        )  # fmt: skip
    return Staged(None if stage is None else stage.name, rows, is_decided)


def _begun(client: Client, options: WriteOptions, transaction: Transaction) -> Stage | None:
    """Begins a stage. Returns None if the epoch is decided."""
    try:
        return client.stage(
            transaction.transactional_id,
            transaction.epoch,
            attempt=transaction.attempt,
            transaction_durability=options.durability,
            compression=options.compression,
        )
    except er.StageDecidedError:
        return None


def _send(stage: Stage, options: WriteOptions, batch: pa.RecordBatch) -> None:
    for topic, partition, part in parts(batch, options):
        stage.send_arrow(
            topic,
            part,
            key_column="key" if "key" in options.columns else None,
            headers_column="headers" if "headers" in options.columns else None,
            partition=partition,
        )


def parts(
    batch: pa.RecordBatch, options: WriteOptions
) -> Iterator[tuple[str, int | None, pa.RecordBatch]]:
    """Yields (topic, partition or None for the key's, its rows in order)."""
    names = [name for name in ("value", "key", "headers") if name in options.columns]
    columns = batch.select(names)
    topics, codes = _topics(batch, options.topic)
    least, count = 0, 1
    if "partition" in options.columns:
        chosen = _partitions(batch)
        least = int(chosen.min())
        count = int(chosen.max()) - least + 1
        codes = codes * count + (chosen - least)
    first = int(codes[0])
    edges = [0, len(codes)]
    if (codes != first).any():
        order = np.argsort(codes, kind="stable")
        codes, columns = codes[order], columns.take(pa.array(order))
        edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for start, stop in pairwise(edges):
        topic, place = divmod(int(codes[start]), count)
        partition = place + least if "partition" in options.columns else NO_PARTITION
        part = columns.slice(start, stop - start)
        yield topics[topic], None if partition == NO_PARTITION else partition, part


def _topics(batch: pa.RecordBatch, option: str | None) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Returns names, and int64[rows]: the index of each row's name."""
    if option is not None:
        return [option], np.zeros(batch.num_rows, np.int64)
    column = batch.column("topic")
    if column.null_count:
        raise er.ConfigError(
            f"{column.null_count} of {batch.num_rows} rows have no topic (null): fill the column "
            "'topic', filter them out, or set the option 'topic', which overrides it"
        )
    encoded = pc.dictionary_encode(column)
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _partitions(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Returns the partition that each row asks for, or `NO_PARTITION`, as int64[rows]."""
    column = batch.column("partition")
    if column.null_count < len(column) and (least := pc.min(column).as_py()) < 0:
        raise er.ConfigError(
            f"column 'partition' has {least}: partitions are numbered from 0; null leaves the "
            "choice to the key"
        )
    chosen: npt.NDArray[np.int64] = pc.fill_null(column, NO_PARTITION).to_numpy().astype(np.int64)
    return chosen
