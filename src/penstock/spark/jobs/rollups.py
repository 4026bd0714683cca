"""`rollup`: the traffic of topics, by windows of time, as Parquet and as a picture.

| column                                 | what                                                  |
|----------------------------------------|-------------------------------------------------------|
| window_start, window_end, topic        | by the records' timestamps, in UTC                    |
| records, bytes, partitions             | keys and values; partitions that got any              |
| records_per_second, bytes_per_second   | over the whole window, the last one too               |
| size_mean, size_p50, size_p99, size_max| of key and value together (percentiles within 0.1 %)  |
| unread                                 | by group: how many of them it has not committed yet   |
| sent, dropped, drop_rate               | by producer ledgers; null without one                 |

The log does not know what a producer dropped: ledgers (`penstock verify producer`) do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.core.errors import ConfigError
from penstock.spark.clients import NodeAddress
from penstock.spark.jobs.auditing import ERROR, LEDGER, SUCCESS
from penstock.spark.jobs.common import Say, read_topics, replace_parquet, silent, told
from penstock.spark.jobs.picture import draw, needs_matplotlib

COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
)
MINUTE: Final = 60.0
WINDOW_MIN: Final = 1e-3
ACCURACY: Final = 1000
DRAWN_MAX: Final = 200_000
"""Rows (windows times topics) that are drawn at most: a picture cannot show more."""

Committed = dict[str, dict[tuple[str, int], int]]
"""By group, topic and partition: the offset up to which it has committed."""


@dataclass(frozen=True, slots=True)
class RolledUp:
    """The result of one run: `rows` of a window and topic each, `records` in them."""

    out: str
    png: str | None
    rows: int
    records: int


def rollup(
    spark: SparkSession,
    bootstrap: str,
    topics: Sequence[str],
    out: str,
    *,
    window: float = MINUTE,
    png: str | None = None,
    groups: Sequence[str] = (),
    ledgers: Sequence[str] = (),
    keys: str | None = None,
    say: Say = silent,
) -> RolledUp:
    """Writes the table on `topics` to the folder `out`, in place of the one that is there.

    Args:
        window: seconds.
        png: a local file for the picture, which needs matplotlib.
        groups: consumer groups whose unread records are counted.
        ledgers: files with producers' reports of their sends.
        keys: the client's key file, which is to be found at that path on every host.

    Raises `ConfigError`, `SparkJobError`.
    """
    if window < WINDOW_MIN:
        raise ConfigError(f"window={window}: at least {WINDOW_MIN:g} seconds")
    if png is not None:
        needs_matplotlib()
    node = NodeAddress(bootstrap, keys=keys)
    committed = committed_offsets(node, groups)
    with told(f"rolling up {', '.join(topics)}"):
        table = rolled(read_topics(spark, node, topics, COLUMNS), window, committed)
        fates = None
        if ledgers:
            events = spark.read.schema(LEDGER).json(list(ledgers))
            fates = drops(events.where(F.col("topic").isin(list(topics))), window)
        table = with_drops(table, fates).orderBy("window_start", "topic").coalesce(1)
        replace_parquet(spark, table, out)
        written = spark.read.parquet(out)
        [sums] = written.agg(F.count("*"), F.coalesce(F.sum("records"), F.lit(0))).collect()
        rows, records = int(sums[0]), int(sums[1])
        say(f"{rows:,} rows, {records:,} records")
        if png is not None:
            if rows > DRAWN_MAX:
                raise ConfigError(
                    f"{rows} rows are too many for a picture ({DRAWN_MAX}): choose a longer window"
                )
            draw([row.asDict() for row in written.collect()], png, window)
    return RolledUp(out, png, rows, records)


def committed_offsets(node: NodeAddress, groups: Sequence[str]) -> Committed:
    """Returns the committed offsets of groups."""
    if not groups:
        return {}
    with node.connect("penstock-rollup") as client, client.admin() as admin:
        return {
            group: {
                (part.topic, part.partition): part.committed or 0
                for part in admin.describe_group(group).partitions
            }
            for group in groups
        }


def rolled(frame: DataFrame, window: float, committed: Committed) -> DataFrame:
    """Returns counts, rates, sizes and unread records of groups, by window and topic."""
    length = [F.coalesce(F.length(name), F.lit(0)).cast("bigint") for name in ("key", "value")]
    sized = frame.select(
        *("topic", "partition", "offset", "timestamp"), (length[0] + length[1]).alias("size")
    )
    seconds = F.lit(float(window))
    sums = sized.groupBy(_window("timestamp", window), "topic").agg(
        F.count("*").alias("records"),
        F.sum("size").alias("bytes"),
        F.count_distinct("partition").alias("partitions"),
        (F.count("*") / seconds).alias("records_per_second"),
        (F.sum("size") / seconds).alias("bytes_per_second"),
        F.avg("size").alias("size_mean"),
        F.percentile_approx("size", [0.5, 0.99], ACCURACY).alias("sizes"),
        F.max("size").alias("size_max"),
        _unread(committed).alias("unread"),
    )
    return sums.select(
        *_bounds(),
        *("topic", "records", "bytes", "partitions", "records_per_second", "bytes_per_second"),
        "size_mean",
        F.col("sizes")[0].alias("size_p50"),
        F.col("sizes")[1].alias("size_p99"),
        *("size_max", "unread"),
    )


def drops(events: DataFrame, window: float) -> DataFrame:
    """Returns sends and failed sends of ledgers, by window and topic."""
    moment = events.where(F.col("name").isin(SUCCESS, ERROR)).withColumn(
        "moment", F.timestamp_millis("timestamp")
    )
    return (
        moment.groupBy(_window("moment", window), "topic")
        .agg(F.count("*").alias("sent"), F.count_if(F.col("name") == ERROR).alias("dropped"))
        .select(*_bounds(), "topic", "sent", "dropped")
    )


def with_drops(table: DataFrame, fates: DataFrame | None) -> DataFrame:
    """Windows in which all sends failed have no records, and are in the table too."""
    if fates is None:
        nothing = F.lit(None)
        return table.withColumns(
            {
                "sent": nothing.cast("bigint"),
                "dropped": nothing.cast("bigint"),
                "drop_rate": nothing.cast("double"),
            }
        )
    both = table.join(fates, ["window_start", "window_end", "topic"], "full")
    filled = both.fillna(0, ["records", "bytes", "records_per_second", "bytes_per_second"])
    return filled.withColumn("drop_rate", F.try_divide("dropped", "sent"))


def _window(column: str, seconds: float) -> Column:
    return F.window(column, f"{round(seconds * 1e6)} microseconds").alias("window")


def _bounds() -> list[Column]:
    return [F.col(f"window.{name}").alias(f"window_{name}") for name in ("start", "end")]


def _unread(committed: Committed) -> Column:
    if not committed:
        return F.lit(None).cast("map<string,bigint>")
    counts: list[Column] = []
    for group, offsets in committed.items():
        is_read = F.lit(False)
        for (topic, partition), offset in offsets.items():
            is_read = is_read | (
                (F.col("topic") == topic)
                & (F.col("partition") == partition)
                & (F.col("offset") < offset)
            )
        counts += [F.lit(group), F.count_if(~is_read)]
    return F.create_map(*counts)
