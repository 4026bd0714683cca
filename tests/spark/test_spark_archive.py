"""An archive: all of a topic by date, each record once, whatever a run before it left."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from penstock.core.errors import ConfigError
from penstock.spark.jobs import archive
from penstock.testing import produce


def archived(spark, folder) -> list[tuple[str, int, int, bytes]]:
    rows = spark.read.parquet(str(folder)).orderBy("topic", "partition", "offset").collect()
    return [(row.topic, row.partition, row.offset, bytes(row.value)) for row in rows]


def test_each_record_is_archived_once_and_a_later_run_goes_on(spark, broker, tmp_path):
    broker.create_topic("archived", partitions=2)
    produce(broker, "archived", [b"%d" % n for n in range(50)])
    said: list[str] = []
    out = str(tmp_path / "out")
    first = archive(spark, broker.url, ["archived"], out, offsets_max=30, say=said.append)
    assert (first.records, first.batches, first.swept, len(said)) == (50, 2, 0, 2)

    # What a batch that was killed leaves is nobody's, and is gone after the next run.
    file = next((tmp_path / "out").rglob("*.parquet"))
    orphan = file.with_name("part-99999-killed.parquet")
    orphan.write_bytes(file.read_bytes())
    assert len(archived(spark, out)) == 50
    produce(broker, "archived", [b"%d" % n for n in range(50, 60)])
    second = archive(spark, broker.url, ["archived"], out)
    assert (second.records, second.batches, second.swept) == (10, 1, 1)
    assert not orphan.exists()
    third = archive(spark, broker.url, ["archived"], out)
    assert (third.records, third.batches, third.swept) == (0, 0, 0)
    rows = archived(spark, out)
    assert sorted(int(row[3]) for row in rows) == list(range(60))
    assert len({row[:3] for row in rows}) == 60
    schema = spark.read.parquet(out).schema
    assert [field.name for field in schema] == [
        *("key", "value", "partition", "offset", "timestamp", "timestampType", "headers"),
        *("topic", "date"),
    ]
    (tmp_path / "out" / "_spark_metadata").rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="has lost _spark_metadata"):
        archive(spark, broker.url, ["archived"], out)
    assert file.exists()


def test_a_folder_with_other_files_is_refused(spark, broker, tmp_path):
    broker.create_topic("refused")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds files and no checkpoint of an archive"):
        archive(spark, broker.url, ["refused"], str(tmp_path))
    with pytest.raises(ConfigError, match="no topic given"):
        archive(spark, broker.url, [], str(tmp_path / "new"))
