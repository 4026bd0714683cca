"""The guide's pages on Spark are true: their blocks print what they show, and the tables list the
options and columns that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from guide_blocks import GUIDE, first_cells, run_page

from penstock.core.errors import PenstockError
from penstock.spark import readoptions
from penstock.spark.columns import TYPES
from penstock.spark.readoptions import SINK, SOURCE, ReadOptions
from penstock.testing import drain, produce, wait_until
from penstock.testing.flights import find_archive

READING, WRITING, JOBS = (GUIDE / f"{name}.md" for name in ("spark", "spark-writing", "spark-jobs"))
SHARED = ("bootstrap", "transport", "keys")


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the tables with this heading."""
    found, inside = [], False
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == heading:
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_walk_through_does_what_it_shows(broker, tmp_path, monkeypatch):
    try:
        find_archive()
    except PenstockError as error:
        pytest.skip(str(error))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_page(READING, broker.url, {'"shm://"': repr(broker.url)})


@pytest.fixture
def named(broker, tmp_path, monkeypatch):
    """A reader's node and folders."""
    monkeypatch.setenv("PENSTOCK_URL", broker.url)
    monkeypatch.chdir(tmp_path)
    places = ("/data/", "/archive/")
    return {
        '"shm://"': repr(broker.url),
        # Spark's own processes have the environment in which the tests' session began.
        '.format("penstock")': f'.format("penstock").option("bootstrap", {broker.url!r})',
        **{each: f"{tmp_path}{each}" for each in places},
    }


def fill(broker, *names):
    """Those topics, empty ones made for these names again."""
    with broker.connect() as client, client.admin() as admin:
        for name in set(names) & set(admin.list_topics()):
            admin.delete_topic(name)
    for name in names:
        broker.create_topic(name, partitions=3)


@pytest.mark.slow
def test_the_blocks_on_writing_do_what_they_show(spark, broker, named, tmp_path):
    fill(broker, "orders", "shouted", "audit")
    rows = spark.range(100).selectExpr("id", "concat('c', id % 7) as customer")
    rows.write.parquet(f"{tmp_path}/data/orders")
    names = run_page(WRITING, broker.url, named)
    query = names["query"]
    wait_until(lambda: len(drain(broker, "shouted")) >= 100, 100, lambda: str(query.lastProgress))
    query.stop()
    orders = sorted(record.value or b"" for record in drain(broker, "orders"))
    assert orders == sorted(b'{"id":%d,"customer":"c%d"}' % (n, n % 7) for n in range(100))
    shouted = sorted(record.value or b"" for record in drain(broker, "shouted"))
    assert shouted == sorted(value.upper() for value in orders)
    frame = spark.createDataFrame([("again",)], "value STRING")
    for _ in range(2):  # a batch that comes again
        names["both"](frame, 0)
    assert [record.value for record in drain(broker, "audit")] == [b"again"]
    assert len(drain(broker, "orders")) == 101


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_blocks_on_jobs_do_what_they_show(broker, named, tmp_path):
    fill(broker, "orders", "clicks", "orders-again")
    for name in ("orders", "clicks"):
        produce(broker, name, [(b"c%d" % (n % 7), b"%d" % n) for n in range(300)])
    (tmp_path / "data" / "orders").mkdir(parents=True)
    for name in ("a", "b"):
        rows = "".join(f"{n},c{n % 7}\n" for n in range(50))
        (tmp_path / "data" / "orders" / f"{name}.csv").write_text(f"id,customer\n{rows}")
    run_page(JOBS, broker.url, named)
    assert len(drain(broker, "orders")) == 400
    again = [(each.key, each.value) for each in drain(broker, "orders-again")]
    assert sorted(again) == sorted((b"c%d" % (n % 7), b"%d" % n) for n in range(300))


def test_the_tables_of_options_are_those_of_the_code():
    assert sorted(first_cells(READING, "option")) == sorted(SOURCE)
    assert sorted(first_cells(WRITING, "option")) == sorted((*SHARED, *SINK))


def test_the_table_says_which_options_are_for_streams_and_which_for_batches():
    only = dict.fromkeys(readoptions._ONLY_STREAM, "stream")
    only |= dict.fromkeys(readoptions._ONLY_BATCH, "batch")
    for option, kind, *_ in rows(READING, "option"):
        assert kind == only.get(option.strip("`").lower(), "both"), option


def test_the_defaults_in_the_table_are_those_of_the_code():
    told = {
        option.strip("`"): default.strip("`") for option, _, default, *_ in rows(READING, "option")
    }
    plain = ReadOptions.of({"subscribe": "orders", "bootstrap": "shm://"}, streaming=True)
    assert told["transport"] == plain.address.transport
    assert told["batchRows"] == str(plain.batch_rows)
    assert told["maxTriggerDelay"] == f"{plain.trigger_delay / 60:.0f}m"
    assert told["failOnDataLoss"] == str(plain.fail_on_data_loss).lower()
    assert told["includeHeaders"] == str(plain.include_headers).lower()
    assert told["isolation"] == plain.isolation
    assert told["startingOffsetsByTimestampStrategy"] == (
        "error" if plain.is_late_error else "latest"
    )
    assert told["startingOffsets"] == "batch `earliest`, stream `latest"
    assert plain.starting.place == "latest"
    assert (plain.group, plain.offsets_max, plain.offsets_min) == (None, None, None)


def test_the_table_of_columns_is_that_of_the_code():
    told: dict[str, str] = {}
    for names, kind, *_ in rows(READING, "column"):
        told |= {name: re.sub(r"\s", "", kind).lower() for name in re.findall(r"`(\w+)`", names)}
    assert told == {name: kind.simpleString().lower() for name, kind in TYPES.items()}
