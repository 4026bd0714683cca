"""Executors that are processes of their own (`local-cluster`): a worker finds Penstock on its path,
or in what the driver ships to it; topics are read and written by several of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cli_runner import SOURCE, environment

pytest.importorskip("pyspark")

from penstock.spark.errors import JavaMissingError
from penstock.spark.java import java_home

ROWS = 2_000
PARTITIONS = 4
PROGRAM = """
import json
import os
import sys

from pyspark.sql import functions as F

from penstock.spark import register, session

url, way, shipped, source, sink, folder = sys.argv[1:]
conf = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": 2,
    "spark.scheduler.minRegisteredResourcesRatio": 1,  # both executors before the first task
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
if shipped:
    conf["spark.executorEnv.PYTHONPATH"] = ""
spark = session("cluster", "local-cluster[2,1,1024]", conf)
if shipped:
    spark.sparkContext.addPyFile(shipped)
    register(spark)  # what the format's tasks are sent is noted when it is registered
options = {"bootstrap": url, "transport": way}


@F.udf("STRING")
def executor(_):
    import penstock

    return f"{os.getppid()} {penstock.__file__}"


def read(topic):
    return spark.read.format("penstock").options(**options, subscribe=topic).load()


where = [
    row[0].split() for row in read(source).select(executor("offset")).distinct().collect()
]
query = (
    spark.readStream.format("penstock")
    .options(**options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="900")
    .load()
    .select("key", "value")
    .writeStream.format("penstock")
    .options(**options, topic=sink, checkpointLocation=folder)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
values = [int(row[0]) for row in read(sink).selectExpr("string(value)").collect()]
executors, homes = map(set, zip(*where))
print(json.dumps({"executors": len(executors), "homes": list(homes), "values": sorted(values)}))
spark.stop()
"""


def zipped(folder: Path) -> str:
    """The package as it is shipped: with the floors in their places, not as links."""
    path = folder / "penstock.zip"
    with zipfile.ZipFile(path, "w") as out:
        for place, _, names in os.walk(SOURCE, followlinks=True):
            for name in names:
                if name.endswith(".py"):
                    file = Path(place, name)
                    out.write(file, file.relative_to(SOURCE))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["auto", "tcp"])
@pytest.mark.parametrize("is_shipped", [False, True], ids=["on the path", "shipped"])
def test_executors_of_their_own_read_and_write(broker, tmp_path, is_shipped, way):
    try:
        java_home()
    except JavaMissingError as error:
        pytest.skip(str(error))
    source, sink = (broker.create_topic(partitions=PARTITIONS) for _ in range(2))
    with broker.connect() as client, client.producer() as producer:
        for number in range(ROWS):
            producer.send(source, b"%d" % number, partition=number % PARTITIONS)
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM, broker.tcp_url, way),
            *(zipped(tmp_path) if is_shipped else "", source, sink, str(tmp_path / "checkpoint")),
        ],
        env=environment(broker.url),
        stdout=subprocess.PIPE,
        timeout=100,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["executors"], found["values"]) == (2, list(range(ROWS)))
    [home] = found["homes"]
    assert ("penstock.zip" in home) == is_shipped
