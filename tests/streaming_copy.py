"""A streaming job from one topic to another, as a process (and process group) of its own.

    streaming_copy.py URL INPUT OUTPUT CHECKPOINT ROWS_A_BATCH

It ends when all that was there is copied. `tests/spark_workers/sitecustomize.py`, on its
PYTHONPATH, kills it.
"""

from __future__ import annotations

import sys

from quick_java import QUICK_JAVA

from penstock.spark import session


def main() -> None:
    url, source, target, checkpoint, most = sys.argv[1:]
    spark = session(
        "streaming-copy",
        master="local[2]",
        conf={"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "512m", **QUICK_JAVA},
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("penstock")
        .option("bootstrap", url)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most)
        .load()
    )
    query = (
        rows.select("key", "value")
        .writeStream.format("penstock")
        .option("bootstrap", url)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
