"""A backfill: each row of files once, however often it is run and wherever a run ended."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("pyspark")

from penstock.core.errors import ConfigError, PenstockError
from penstock.spark.jobs import archive, backfill
from penstock.spark.jobs.backfilling import (
    InputFile,
    Mapping,
    cut,
    format_of,
    found_files,
    read_files,
    reading_session,
    to_records,
    txn_id_of,
)
from penstock.spark.jobs.common import SparkJobError
from penstock.testing import drain


def keyed(broker, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in drain(broker, topic)]


def test_files_are_cut_into_slices_and_named_by_what_they_are():
    files = [InputFile(f"/in/{name}", 40, 1) for name in "abcd"]
    slices = cut(files, 100)
    assert [[file.path[-1] for file in part] for part in slices] == [["a", "b"], ["c", "d"]]
    assert [len(part) for part in cut(files, 1)] == [1, 1, 1, 1]
    name = txn_id_of("t", Mapping("csv"), files, slices)
    assert name == txn_id_of("t", Mapping("csv"), files, slices)
    others = {
        txn_id_of("u", Mapping("csv"), files, slices),
        txn_id_of("t", Mapping("csv", key="k"), files, slices),
        txn_id_of("t", Mapping("csv"), files[:3], slices),
        txn_id_of("t", Mapping("csv"), [*files[:3], InputFile("/in/d", 40, 2)], slices),
        txn_id_of("t", Mapping("csv"), files, cut(files, 1)),
    }
    assert len(others | {name}) == 6


def test_the_format_is_told_by_endings_or_asked_for():
    def of(*names: str) -> str:
        return format_of([InputFile(f"file:/in/{name}", 1, 1) for name in names])

    assert (of("a.csv", "b.csv.gz"), of("a.snappy.parquet"), of("a.jsonl")) == (
        *("csv", "parquet", "ndjson"),
    )
    with pytest.raises(ConfigError, match="say which of parquet, ndjson, csv"):
        of("a.csv", "b.parquet")
    with pytest.raises(ConfigError, match="do not tell one format"):
        of("a.txt")


def test_csv_rows_are_sent_once_in_the_order_of_their_file(spark, broker, tmp_path):
    broker.create_topic("rows", partitions=1)
    for part in range(2):
        lines = [f"{part},{number},é" for number in range(100)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["part,number,name", *lines]) + "\n")
    said: list[str] = []
    first = backfill(
        spark, broker.url, [str(tmp_path)], "rows", key="part", slice_bytes=1, say=said.append
    )
    assert (first.files, first.slices, first.done_before, first.records) == (2, 2, 0, 200)
    assert len(said) == 2
    found = keyed(broker, "rows")
    assert [key for key, _ in found] == [b"0"] * 100 + [b"1"] * 100
    rows = [json.loads(value or b"") for _, value in found]
    assert rows[:100] == [
        {"part": "0", "number": str(number), "name": "é"} for number in range(100)
    ]
    again = backfill(spark, broker.url, [str(tmp_path)], "rows", key="part", slice_bytes=1)
    assert (again.done_before, again.records, again.txn_id) == (2, 0, first.txn_id)
    assert len(keyed(broker, "rows")) == 200


def test_a_csv_value_may_hold_anything(spark, tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,"a ""b"", c\n d"\n2, x \n3,\n')
    mapping = Mapping("csv")
    rows = read_files(
        reading_session(spark, ordered=True), found_files(spark, [str(tmp_path)]), mapping
    )
    assert [row.text for row in rows.collect()] == ['a "b", c\n d', " x ", None]
    values = [row.value for row in to_records(rows, mapping).collect()]
    assert [json.loads(value)["text"] for value in values] == ['a "b", c\n d', " x ", None]
    lines = [row.value for row in to_records(rows, Mapping("csv", encoding="csv")).collect()]
    assert lines == ['1,"a ""b"", c\n d"', "2, x ", "3,"]


def test_a_run_that_ended_early_goes_on_with_the_slice_that_is_missing(spark, broker, tmp_path):
    broker.create_topic("resumed")
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": "{name}", "n": 1}}\n\n')
    files = found_files(spark, [str(tmp_path)])
    mapping = Mapping("ndjson", key="id")
    name = txn_id_of("resumed", mapping, files, cut(files, 1))
    with broker.connect() as client:  # as the run that was killed behind its first slice
        with client.stage(name, 0) as stage:
            stage.send("resumed", b"sent before")
        client.commit_transaction(name, 0, [stage.name])
    done = backfill(spark, broker.url, [str(tmp_path)], "resumed", key="id", slice_bytes=1)
    assert (done.done_before, done.records) == (1, 1)
    assert keyed(broker, "resumed") == [(None, b"sent before"), (b"b", b'{"id": "b", "n": 1}')]

    os.utime(tmp_path / "a.jsonl", (1, 1))  # another backfill, which somebody gives up
    files = found_files(spark, [str(tmp_path)])
    name = txn_id_of("resumed", mapping, files, cut(files, 1))
    with broker.connect() as client:
        client.commit_transaction(name, 0, [], commit=False)
    with pytest.raises(PenstockError, match="is not to be sent"):
        backfill(spark, broker.url, [str(tmp_path)], "resumed", key="id", slice_bytes=1)


def test_an_archive_comes_back_as_it_was(spark, broker, tmp_path):
    broker.create_topic("there", partitions=2)
    broker.create_topic("back", partitions=2)
    with broker.connect() as client, client.producer() as producer:
        for number in range(20):
            producer.send(
                "there", b"%d" % number, key=b"\xff%d" % (number % 5), headers=[("h", b"\x00")]
            )
    out = str(tmp_path / "out")
    archive(spark, broker.url, ["there"], out)
    done = backfill(spark, broker.url, [out], "back", partition="partition")
    assert done.records == 20

    def whole(topic: str):
        """In the order of each partition; offsets differ by where transactions ended."""
        records = sorted(drain(broker, topic), key=lambda record: (record.partition, record.offset))
        return [
            (record.partition, record.key, record.value, tuple(record.headers))
            for record in records
        ]

    assert whole("back") == whole("there")


def test_a_column_that_is_not_there_is_named(spark, broker, tmp_path):
    broker.create_topic("wrong")
    (tmp_path / "a.csv").write_text("id,name\n1,x\n")
    with pytest.raises(ConfigError, match="there is no column 'idd': the files have id, name"):
        backfill(spark, broker.url, [str(tmp_path)], "wrong", key="idd")
    with pytest.raises(SparkJobError, match="Path does not exist"):
        backfill(spark, broker.url, [str(tmp_path / "none*")], "wrong")
    assert keyed(broker, "wrong") == []
