"""A streaming job from topic to topic that is killed (`kill -9`) again and again, with its JVM: in
its tasks, before, within and after its commits. In the end each record was copied once.

Each life of the job has a JVM to start, so that this takes minutes: `-m slow`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from node_helpers import ROOT, environment
from spark_workers.sitecustomize import POINTS

from penstock.spark.errors import JavaMissingError
from penstock.spark.java import java_home

KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "10"))
RECORDS, ROWS_A_BATCH = 6_000, 200

pytestmark = [pytest.mark.slow, pytest.mark.crash]


def committed(checkpoint: Path) -> int:
    """The last batch that Spark's own log says is done."""
    logs = (checkpoint / "commits").glob("[0-9]*")
    return max((int(log.name) for log in logs), default=-1)


def run(url: str, checkpoint: Path, log: Path, die_at: str | None = None) -> int:
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "spark_workers"), env["PYTHONPATH"]])
    if die_at is not None:
        env["DIE_AT"] = die_at
    program = 'export DIE_GROUP=$$; exec "$@"'
    script = str(ROOT / "tests" / "streaming_copy.py")
    arguments = [sys.executable, script, url, "in", "out", str(checkpoint), str(ROWS_A_BATCH)]
    with log.open("ab") as out:
        return subprocess.run(
            ["/bin/sh", "-c", program, "sh", *arguments],
            env=env,
            stdout=out,
            stderr=out,
            timeout=100,
            check=False,
            start_new_session=True,
        ).returncode


@pytest.mark.timeout(1500)
def test_a_copying_stream_that_is_killed_ten_times_copies_each_record_once(broker, tmp_path):
    try:
        java_home()
    except JavaMissingError as error:
        pytest.skip(str(error))
    broker.create_topic("in", partitions=2)
    broker.create_topic("out", partitions=3)
    numbers = [b"%d" % number for number in range(RECORDS)]
    keys = [b"k%d" % (number % 17) for number in range(RECORDS)]
    checkpoint, log = tmp_path / "checkpoint", tmp_path / "job.log"
    with broker.connect() as client:
        with client.producer() as producer:
            producer.send_batch("in", numbers, keys=keys)
        for point in islice(cycle(POINTS), KILLS):
            batch = committed(checkpoint) + 2
            died = run(broker.url, checkpoint, log, f"{point}:{batch}")
            assert died == -signal.SIGKILL, log.read_text()[-4000:]
            print(f"killed {point} of batch {batch}; {committed(checkpoint)} is done")
        assert run(broker.url, checkpoint, log) == 0, log.read_text()[-4000:]
        with client.consumer("out", isolation="read_committed", follow=False) as reader:
            found = list(reader)
        counts = Counter(record.value for record in found)
        assert [counts[number] for number in numbers] == [1] * RECORDS
        assert len(found) == RECORDS
        in_order: dict[bytes | None, list[int]] = {}
        for record in found:
            in_order.setdefault(record.key, []).append(int(record.value or b"-1"))
        assert all(values == sorted(values) for values in in_order.values())
        with (
            client.consumer("out", isolation="read_committed") as reader,
            client.consumer("out", isolation="read_uncommitted") as other,
        ):
            assert reader.end_offsets() == other.end_offsets(), "something is open still"
