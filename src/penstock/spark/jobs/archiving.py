"""`archive`: topics as Parquet files, by topic and date, each record exactly once.

A streaming query keeps its checkpoint beside the files. Spark notes a batch's offsets before it and
its files after it. So an interrupted batch is written again from the same offsets, and the files
that it left are not on the list of `_spark_metadata`. Spark reads by that list; for other readers
such files are removed when the job is run again (on a local folder).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.core.errors import ConfigError
from penstock.spark.clients import NodeAddress
from penstock.spark.jobs.common import (
    LOCK,
    Say,
    alone_in,
    checked_topics,
    follow,
    local_path,
    silent,
    told,
)
from penstock.spark.source import FORMAT

logger = logging.getLogger("penstock.spark")

CHECKPOINT: Final = "_checkpoint"
COMMITS: Final = f"{CHECKPOINT}/commits"
METADATA: Final = "_spark_metadata"
BY: Final = ("topic", "date")
OFFSETS_MAX: Final = 5_000_000
"""Records of a batch unless told otherwise: what a killed job has to read again at most."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of one run. `swept`: files that an interrupted run had left."""

    out: str
    batches: int
    records: int
    swept: int


def archive(
    spark: SparkSession,
    bootstrap: str,
    topics: Sequence[str],
    out: str,
    *,
    offsets_max: int = OFFSETS_MAX,
    every: float | None = None,
    include_headers: bool = True,
    keys: str | None = None,
    say: Say = silent,
) -> Archived:
    """Writes the new records of `topics` since the last run, from their beginning on at the first.

    Args:
        out: the folder; with the same one a later run goes on.
        offsets_max: records of a batch, which is one file for each partition and date.
        every: seconds between batches, to go on for ever; None ends when all is written that was
            there at the beginning.
        include_headers: whether headers are kept too. Always the same for one folder.
        keys: the client's key file, which is to be found at that path on every host.

    Raises `ConfigError` for a folder with other files in it, `SparkJobError`.
    """
    names = checked_topics(topics)
    folder = local_path(out)
    with nullcontext() if folder is None else alone_in(spark, folder):
        swept = 0 if folder is None else sweep(spark, folder)
        with told(f"archiving {names} to {out}"):
            reader = spark.readStream.format(FORMAT).options(
                **NodeAddress(bootstrap, keys=keys).options()
            )
            frame = (
                reader.option("subscribe", names)
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", offsets_max)
                .option("includeHeaders", include_headers)
                .load()
            )
            writer = dated(frame).writeStream.format("parquet").partitionBy(*BY)
            writer = writer.option("checkpointLocation", f"{out}/{CHECKPOINT}").queryName(
                f"archive {names}"
            )
            if every is None:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{every} seconds")
            batches, records = follow(writer.start(out), say)
    return Archived(out, batches, records, swept)


def dated(frame: DataFrame) -> DataFrame:
    """Adds the column `date`, in UTC."""
    return frame.withColumn("date", F.to_date("timestamp"))


def sweep(spark: SparkSession, folder: Path) -> int:
    """Removes the files that no finished batch has written; returns how many."""
    files = [
        file
        for file in folder.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)
    ]
    is_ours = (folder / CHECKPOINT).is_dir()
    if not is_ours and any(item.name != LOCK for item in folder.iterdir()):
        raise ConfigError(
            f"{folder} holds files and no checkpoint of an archive: choose an empty folder, or put "
            f"{CHECKPOINT} back (without it each record would be written again, or left out)"
        )
    known: set[Path] = set()
    if files and not (folder / METADATA).is_dir() and any((folder / COMMITS).glob("[0-9]*")):
        raise ConfigError(
            f"{folder} has lost {METADATA}, which says which of its files count: put it back, or "
            "archive to a new folder"
        )
    if (folder / METADATA).is_dir():
        with told(f"listing the archive {folder}"):
            listed = spark.read.schema("offset BIGINT").parquet(str(folder)).inputFiles()
        known = {path for name in listed if (path := local_path(name)) is not None}
        known = {path.resolve() for path in known}
    left = [file for file in files if file.resolve() not in known]
    for file in left:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    if left:
        logger.warning("%s: removed %d files of a batch that was interrupted", folder, len(left))
    return len(left)
