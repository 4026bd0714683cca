"""The cost of a stream's trigger: batches of few rows, and runs that find nothing new.

Beside it the same from a folder of Parquet files, one file a batch: Spark's own cost of a trigger
without a source in Python.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.bench.errors import BenchTimeout
from penstock.bench.sparktopics import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.bench.sparktopics import SparkOptions, SparkTopics

EMPTY_RUNS: Final = 3
STEPS: Final = (
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "addBatch",
    "commitOffsets",
)
"""Of a trigger, as Spark's progress names them."""


def measure(options: SparkOptions, topics: SparkTopics, folder: Path) -> dict[str, Any]:
    """Milliseconds of one trigger, and of a run with `AvailableNow` that finds nothing."""
    rows = options.rows * options.triggers
    with topics.new() as source, topics.new() as out:
        values = topics.spark.range(0, rows, 1, 1).selectExpr("cast(id as string) as value")
        writer = values.write.format("penstock").options(**topics.options, topic=source)
        writer.mode("append").save()
        files = str(folder / "small")
        values.selectExpr("cast(value as binary) as value").repartition(
            options.triggers
        ).write.parquet(files)
        streams = {
            "penstock": _topic(options, topics, source),
            "parquet": topics.spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(files),
        }
        found: dict[str, Any] = {}
        for name, frame in streams.items():
            steps, empty = _measured(frame, folder / f"checkpoints-{name}", options, {})
            found[f"{name}_ms"] = steps.pop("triggerExecution")
            found[f"{name}_empty_run_ms"] = empty
            found[f"{name}_steps"] = steps
        sink = {"format": "penstock", **topics.options, "topic": out}
        place = folder / "checkpoints-sink"
        steps, _ = _measured(streams["penstock"], place, options, sink)
        found["topic_to_topic_ms"] = steps.pop("triggerExecution")
        found["topic_to_topic_steps"] = steps
    return found


def _topic(options: SparkOptions, topics: SparkTopics, topic: str) -> DataFrame:
    reader = topics.spark.readStream.format("penstock").options(**topics.options, subscribe=topic)
    reader = reader.option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", options.rows).schema(SCHEMA).load()


def _measured(
    frame: DataFrame, folder: Path, options: SparkOptions, sink: dict[str, str]
) -> tuple[dict[str, float], float]:
    """Medians of the steps of a trigger with rows in it, and of runs that find none."""
    _run(frame, folder / "warm", options, sink)
    events, _ = _run(frame, folder / "counted", options, sink)
    told = [event["durationMs"] for event in events if event["numInputRows"]]
    steps = {
        name: float(statistics.median(each.get(name, 0) for each in told))
        for name in ("triggerExecution", *STEPS)
    }
    empty = [_run(frame, folder / "counted", options, sink)[1] for _ in range(EMPTY_RUNS)]
    return steps, round(statistics.median(empty) * 1000, 1)


def _run(
    frame: DataFrame, checkpoint: Path, options: SparkOptions, sink: dict[str, str]
) -> tuple[list[Any], float]:
    """Runs one query with `AvailableNow` over all that is there. Returns its progress events, and
    its seconds."""
    settings = dict(sink)
    writer = frame.writeStream.format(settings.pop("format", "noop")).options(**settings)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    begun = time.perf_counter()
    query = writer.start()
    try:
        if not query.awaitTermination(options.timeout):  # type: ignore[arg-type]
            raise BenchTimeout(f"a query was not done within {options.timeout:g} s")
    finally:
        query.stop()
    return list(query.recentProgress), time.perf_counter() - begun
