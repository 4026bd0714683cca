"""The guide's pages on Spark are true: the walk-through prints what it shows, and the tables list
the options and columns that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from guide_blocks import GUIDE, first_cells, run_page

from penstock.core.errors import PenstockError
from penstock.flights import find_archive
from penstock.spark import readoptions
from penstock.spark.columns import TYPES
from penstock.spark.readoptions import SINK, SOURCE, ReadOptions

READING, WRITING = GUIDE / "spark.md", GUIDE / "spark-writing.md"
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
