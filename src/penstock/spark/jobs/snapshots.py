"""`snapshot`: the latest value of each key, as Parquet.

Within a partition the latest is the one with the highest offset. A key that is in several
partitions (they were added, or named by the producer) has the one with the highest timestamp there.
A key whose latest value is null (a tombstone) is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.spark.clients import NodeAddress
from penstock.spark.jobs.common import Say, read_topics, replace_parquet, silent, told


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of one run: `keys` rows out of `records` with a key; `keyless` were left out."""

    out: str
    keys: int
    records: int
    keyless: int


def snapshot(
    spark: SparkSession,
    bootstrap: str,
    topics: Sequence[str],
    out: str,
    *,
    include_headers: bool = False,
    keys: str | None = None,
    say: Say = silent,
) -> Snapshot:
    """Writes the latest value of each key of `topics` to the folder `out`, in place of the table
    that is there. Columns as the source has them, by topic. `keys`: the client's key file, which is
    to be found at that path on every host.
    """
    seen, written = Observation(), Observation()
    with told(f"taking a snapshot of {', '.join(topics)}"):
        frame = read_topics(
            spark, NodeAddress(bootstrap, keys=keys), topics,
            options={"includeHeaders": str(include_headers).lower()},
        )  # fmt: skip
        counted = frame.observe(
            seen, F.count(F.lit(1)).alias("records"), F.count("key").alias("keyed")
        )
        result = latest(counted).observe(written, F.count(F.lit(1)).alias("keys"))
        replace_parquet(spark, result, out)
    keyed = int(seen.get["keyed"])
    keyless = int(seen.get["records"]) - keyed
    done = Snapshot(out, int(written.get["keys"]), keyed, keyless)
    say(f"{done.keys:,} keys of {done.records:,} records with a key")
    return done


def latest(frame: DataFrame) -> DataFrame:
    """Returns one row for each key of a topic. In two steps, so that each partition shrinks where
    it is read, before any row moves between hosts."""
    rest = [name for name in frame.columns if name not in ("topic", "key", "partition")]
    row = F.struct(*rest)
    by_partition = (
        frame.where("key IS NOT NULL")
        .groupBy("topic", "key", "partition")
        .agg(F.max_by(row, "offset").alias("row"))
    )
    of_all = by_partition.groupBy("topic", "key").agg(
        F.max_by(
            F.struct("partition", "row"), F.struct("row.timestamp", "row.offset", "partition")
        ).alias("found")
    )
    columns = [
        F.col("topic"),
        F.col("key"),
        F.col("found.partition").alias("partition"),
        *(F.col(f"found.row.{name}").alias(name) for name in rest),
    ]
    return of_all.where("found.row.value IS NOT NULL").select(*columns)
