"""`audit`: compares the sends that producers report with the log.

A ledger is the JSON lines of `penstock verify producer`. A record is known by its topic, key and
value; where several are equal, the n-th of a partition in the ledger is the n-th in its log.

| kind       | what it is                                                                         |
|------------|------------------------------------------------------------------------------------|
| lost       | acknowledged, and not in the log                                                   |
| doubled    | in the log more often than it was sent                                             |
| reordered  | behind a record in the ledger and before it in the log of the same partition       |
| misplaced  | acknowledged with an offset at which it is not                                     |
| phantom    | in the log, and in no ledger, or there as one that was certainly not written       |

A send that failed may be in the log or not, unless the error says that it is not. Records that
retention or a trim took (acknowledged below the log's start) count as expired and are not judged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from penstock.core.errors import ConfigError
from penstock.spark.clients import NodeAddress
from penstock.spark.jobs.backfilling import reading_session
from penstock.spark.jobs.common import Say, read_topics, silent, told

KINDS: Final = ("lost", "doubled", "reordered", "misplaced", "phantom")
SUCCESS: Final = "producer_send_success"
ERROR: Final = "producer_send_error"
LEDGER: Final = (
    "timestamp BIGINT, name STRING, key STRING, value STRING, topic STRING, partition INT, "
    "offset BIGINT, exception STRING"
)
LOG: Final = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"
NOT_WRITTEN: Final = (
    "TransactionAborted", "DroppedError", "BufferFullError", "RecordTooLargeError",
    "UnknownTopicError", "AccessDeniedError", "ConfigError",
)  # fmt: skip
"""Errors after which readers of committed records certainly do not see the record."""
SAMPLES: Final = 10

Starts = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """The findings in one partition. `acked` counts the ledger, `found` the log."""

    topic: str
    partition: int
    acked: int
    found: int
    expired: int
    unsure: int
    lost: int
    doubled: int
    reordered: int
    misplaced: int
    phantom: int


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One record that is not as it should be."""

    kind: str
    topic: str
    partition: int
    offset: int | None
    key: str | None
    value: str | None
    ledger: str | None


@dataclass(frozen=True, slots=True)
class Audit:
    """The report. `failed`: sends that the ledgers tell as failed."""

    partitions: list[PartitionAudit]
    failed: int
    findings: list[AuditFinding] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Returns the sum of one of the counts of `PartitionAudit`."""
        return sum(getattr(partition, name) for partition in self.partitions)

    def is_clean(self, tolerated: Collection[str] = ()) -> bool:
        """Returns whether nothing was found of the kinds that are not tolerated."""
        return not any(self.total(kind) for kind in KINDS if kind not in tolerated)

    def totals(self) -> dict[str, int]:
        counts = ("acked", "found", "expired", "unsure", *KINDS)
        return {**{name: self.total(name) for name in counts}, "failed": self.failed}

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(partition) for partition in self.partitions]


def audit(
    spark: SparkSession,
    bootstrap: str | None,
    ledgers: Sequence[str],
    *,
    topics: Sequence[str] = (),
    archive: str | None = None,
    samples: int = SAMPLES,
    keys: str | None = None,
    say: Say = silent,
) -> Audit:
    """Judges the log of `topics` (none: those that the ledgers name) by ledgers.

    Args:
        archive: a folder of `archive` that is read instead of the topics.
        samples: findings of each kind that the report shows.
        keys: the client's key file, which is to be found at that path on every host.

    Raises `ConfigError`, `SparkJobError`.
    """
    if not ledgers or isinstance(ledgers, str):
        raise ConfigError(f"ledgers={ledgers!r}: a list of files is wanted")
    if (bootstrap is None) == (archive is None):
        raise ConfigError("an audit reads either topics (bootstrap) or an archive: name one")
    with told(f"reading {', '.join(ledgers)}"):
        book = read_ledgers(spark, ledgers)
        names = sorted(topics) or topics_of(book)
    if not names:
        raise ConfigError(
            f"{', '.join(ledgers)}: no event tells of a topic; a ledger is what `penstock verify "
            "producer` prints"
        )
    say(f"judging {', '.join(names)}")
    starts: dict[tuple[str, int], int] = {}
    with told(f"auditing {', '.join(names)}"):
        if archive is not None:
            log = spark.read.parquet(archive)
        else:
            assert bootstrap is not None
            node = NodeAddress(bootstrap, keys=keys)
            starts = log_starts(node, names)
            log = read_topics(spark, node, names, LOG)
        return judge(book, log.where(F.col("topic").isin(names)), names, starts, samples)


def log_starts(node: NodeAddress, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Returns where the logs begin now."""
    with node.connect("penstock-audit") as client, client.admin() as admin:
        return {
            (topic, part.partition): part.log_start
            for topic in topics
            for part in admin.describe_topic(topic).partitions
        }


# --- ledgers ------------------------------------------------------------------------------------
def read_ledgers(spark: SparkSession, ledgers: Sequence[str]) -> DataFrame:
    """Reads the fates of sends, with the file (`ledger`) and the order in it (`line`)."""
    own = reading_session(spark, ordered=True)  # one task for each file: its order is the ids'
    events = own.read.schema(LEDGER).json(list(ledgers))
    return events.select(
        "*",
        F.col("_metadata.file_path").alias("ledger"),
        F.monotonically_increasing_id().alias("line"),
        _identity(F.col("key"), F.col("value")).alias("id"),
    ).where(F.col("name").isin(SUCCESS, ERROR))


def topics_of(book: DataFrame) -> list[str]:
    rows = book.select("topic").where("topic IS NOT NULL").distinct().collect()
    return sorted(str(row[0]) for row in rows)


def _identity(key: Column, value: Column) -> Column:
    """Returns one text for both; null differs from empty."""
    parts = [F.coalesce(F.concat(F.lit("+"), column), F.lit("-")) for column in (key, value)]
    return F.concat(F.length(parts[0]).cast("string"), F.lit(":"), *parts)


# --- the judgement ------------------------------------------------------------------------------
def judge(
    book: DataFrame, log: DataFrame, topics: Sequence[str], starts: Starts, samples: int = SAMPLES
) -> Audit:
    """Returns the report on `log` (columns topic, partition, offset, key, value) by `book`."""
    spark = book.sparkSession
    book = book.where(F.col("topic").isin(list(topics))).persist(StorageLevel.DISK_ONLY)
    begins = spark.createDataFrame(
        [(topic, number, start) for (topic, number), start in starts.items()],
        "topic STRING, partition INT, start BIGINT",
    )
    acked = book.where(F.col("name") == SUCCESS).join(
        F.broadcast(begins), ["topic", "partition"], "left"
    )
    is_expired = (F.col("offset") >= 0) & (F.col("offset") < F.coalesce("start", F.lit(0)))
    acked = acked.withColumn("is_expired", is_expired)
    judged = matched(acked.where(~F.col("is_expired")), log, book).persist(StorageLevel.DISK_ONLY)
    try:
        counts = judged.groupBy("topic", "partition").agg(
            F.count("line").alias("acked"),
            F.count("at").alias("found"),
            *(F.count_if(F.array_contains("kinds", kind)).alias(kind) for kind in KINDS),
            F.count_if(F.array_contains("kinds", "unsure")).alias("unsure"),
        )
        expired = (
            acked.where("is_expired")
            .groupBy("topic", "partition")
            .agg(F.count("*").alias("expired"))
        )
        rows = counts.join(expired, ["topic", "partition"], "full").fillna(0)
        partitions = [
            PartitionAudit(**row.asDict()) for row in rows.orderBy("topic", "partition").collect()
        ]
        for_all = [
            PartitionAudit(**{**asdict(one), "acked": one.acked + one.expired})
            for one in partitions
        ]
        failed = book.where(F.col("name") == ERROR).count()
        return Audit(for_all, failed, _findings(judged, for_all, samples))
    finally:
        judged.unpersist()
        book.unpersist()


def matched(acked: DataFrame, log: DataFrame, book: DataFrame) -> DataFrame:
    """Returns each record of ledger or log, with the `kinds` of its findings. `line` is null for a
    record that is only in the log, `at` (its offset there) for one that is not there."""
    same = Window.partitionBy("topic", "partition", "id")
    left = acked.select(
        *("topic", "partition", "id", "ledger", "line"),
        F.col("offset").alias("told"),
        F.row_number().over(same.orderBy("ledger", "line")).alias("n"),
    )
    text = log.select(
        *("topic", "partition"),
        F.col("offset").alias("at"),
        F.col("key").cast("string").alias("log_key"),
        F.col("value").cast("string").alias("log_value"),
    )
    right = text.withColumn("id", _identity(F.col("log_key"), F.col("log_value"))).select(
        *("topic", "partition", "id", "at"),
        F.row_number().over(same.orderBy("at")).alias("n"),
    )
    both = left.join(right, ["topic", "partition", "id", "n"], "full")
    return _with_kinds(both, _sent(book))


def _sent(book: DataFrame) -> DataFrame:
    """Returns for each record whether it is `known` to be sent, and how often the outcome is
    unknown (`unsure`)."""
    is_unsure = (F.col("name") == ERROR) & ~F.coalesce("exception", F.lit("")).isin(*NOT_WRITTEN)
    return book.groupBy("topic", "id").agg(
        F.count_if(is_unsure | (F.col("name") == SUCCESS)).alias("known"),
        F.count_if(is_unsure).alias("unsure"),
    )


def _with_kinds(both: DataFrame, sent: DataFrame) -> DataFrame:
    is_extra = F.col("line").isNull()
    extra = Window.partitionBy("topic", "id", is_extra).orderBy("partition", "at")
    before = (
        Window.partitionBy("ledger", "topic", "partition")
        .orderBy("line")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    known = both.join(sent, ["topic", "id"], "left").select(
        *("topic", "partition", "id", "ledger", "line", "told", "at"),
        F.row_number().over(extra).alias("nth"),
        F.max("at").over(before).alias("highest"),
        F.coalesce("known", F.lit(0)).alias("known"),
        F.coalesce("unsure", F.lit(0)).alias("unsure"),
    )
    is_there = F.col("at").isNotNull()
    is_excused = is_extra & (F.col("nth") <= F.col("unsure"))
    kinds = {
        "lost": ~is_there,
        "unsure": is_excused,
        "doubled": is_extra & ~is_excused & (F.col("known") > 0),
        "phantom": is_extra & (F.col("known") == 0),
        "reordered": ~is_extra & is_there & (F.col("at") < F.col("highest")),
        "misplaced": ~is_extra & is_there & (F.col("told") >= 0) & (F.col("told") != F.col("at")),
    }
    named = F.array(*(F.when(test, F.lit(kind)) for kind, test in kinds.items()))
    return known.withColumn("kinds", F.array_compact(named))


def _findings(
    judged: DataFrame, partitions: Sequence[PartitionAudit], samples: int
) -> list[AuditFinding]:
    found = []
    for kind in KINDS:
        if samples and any(getattr(partition, kind) for partition in partitions):
            rows = judged.where(F.array_contains("kinds", kind)).orderBy("topic", "partition", "at")
            found += [_finding(kind, row.asDict()) for row in rows.limit(samples).collect()]
    return found


def _finding(kind: str, row: dict[str, Any]) -> AuditFinding:
    length, _, parts = row["id"].partition(":")
    key, value = parts[: int(length)], parts[int(length) :]
    return AuditFinding(
        kind=kind,
        topic=row["topic"],
        partition=row["partition"],
        offset=row["told"] if row["at"] is None else row["at"],
        key=key[1:] if key[0] == "+" else None,
        value=value[1:] if value[0] == "+" else None,
        ledger=row["ledger"],
    )
