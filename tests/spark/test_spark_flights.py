"""The flight records, end to end: backfilled from CSV, archived by runs that are killed with -9,
and audited: nothing lost, doubled or reordered, in the topic and in the archive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cli_runner import COMMAND, environment

pytest.importorskip("pyspark")

from penstock.client.producer.partitioner import partition_of
from penstock.spark.jobs import archive, audit, backfill
from penstock.testing import Broker, flights, wait_until

PARTITIONS = 4
KILLED_MAX = 60.0


def write_files(folder: Path, rows: int) -> list[bytes]:
    """The first rows as three CSV files with the head of the original; their lines."""
    with zipfile.ZipFile(flights.find_archive()) as files, files.open("flights.csv") as file:
        head = file.readline()
    lines = flights.read_rows(rows)
    part = -(-rows // 3)
    for number in range(3):
        text = b"\n".join(lines[number * part : (number + 1) * part])
        (folder / f"{number}.csv").write_bytes(head + text + b"\n")
    return lines


def write_ledger(file: Path, lines: list[bytes]) -> None:
    """What a producer would have said that sent these lines by tail number."""
    with file.open("w") as out:
        for line in lines:
            key = line.split(b",")[flights.TAIL_NUMBER]
            event = {
                "timestamp": 0, "name": "producer_send_success", "topic": "flights", "offset": -1,
                "partition": partition_of(key, PARTITIONS), "key": key.decode(),
                "value": line.decode(),
            }  # fmt: skip
            out.write(json.dumps(event) + "\n")


def kill_when(out: Path, url: str, has_come: Callable[[], bool], batch: int) -> bool:
    """Start an archive as a process of its own; kill all of it once something has come. Whether it
    was still at work."""
    process = subprocess.Popen(
        [
            *(*COMMAND, "spark", "archive", "flights", "-o", str(out), "--batch", str(batch)),
            *("--master", "local[2]", "-c", "spark.driver.memory=1g"),
        ],
        env=environment(url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: has_come() or process.poll() is not None, timeout=KILLED_MAX)
        return process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(45)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "kills"),
    [pytest.param(6_000, 1, id="short"), pytest.param(flights.ROWS, 3, id="all")],
)
@pytest.mark.timeout(600)
def test_flights_are_archived_once_whatever_is_killed(spark, tmp_path, rows, kills):
    given, out = tmp_path / "given", tmp_path / "archive"
    given.mkdir()
    lines = write_files(given, rows)
    write_ledger(tmp_path / "ledger.jsonl", lines)
    batch = rows // 12
    with Broker(partitions=PARTITIONS) as broker:
        broker.create_topic("flights")
        sent = backfill(
            spark, broker.url, [str(given)], "flights", key="tailnum", encoding="csv",
            slice_bytes=1,
        )  # fmt: skip
        assert (sent.records, sent.slices) == (rows, 3)

        def written() -> int:
            return sum(1 for _ in out.glob("topic=*/date=*/*.parquet"))

        def reached(files: int) -> bool:
            return written() >= files

        for number in range(kills):  # in the middle of the first, fourth, seventh batch to come
            goal = written() + 1 + number * 3 * PARTITIONS
            assert kill_when(out, broker.url, partial(reached, goal), batch)
        done = archive(spark, broker.url, ["flights"], str(out), offsets_max=batch)
        assert done.records > 0
        assert written() == len(spark.read.parquet(str(out)).inputFiles())
        for place in ({"bootstrap": broker.url}, {"bootstrap": None, "archive": str(out)}):
            found = audit(spark, ledgers=[str(tmp_path / "ledger.jsonl")], **place)
            assert found.totals() == {
                "acked": rows, "found": rows, "expired": 0, "unsure": 0, "lost": 0, "doubled": 0,
                "reordered": 0, "misplaced": 0, "phantom": 0, "failed": 0,
            }, found.findings  # fmt: skip
