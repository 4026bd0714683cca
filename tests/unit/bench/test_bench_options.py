"""Which node a run takes place on: what contradicts itself is said before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import environment

from penstock.bench import sparktopics
from penstock.bench.cli import main
from penstock.bench.commits import CommitsOptions
from penstock.bench.compare import CompareOptions
from penstock.bench.connections import ConnectionsOptions
from penstock.bench.errors import BenchError
from penstock.bench.groups import GroupsOptions
from penstock.bench.options import LatencyOptions, Options, ThroughputOptions, Where
from penstock.bench.sparktopics import SparkOptions
from penstock.bench.suite import PAGES, Row, shorter

URL = "tcp://127.0.0.1:9640"
KINDS = (ThroughputOptions, LatencyOptions, GroupsOptions, ConnectionsOptions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": Path("/tmp")}, "--data and --writers"),
        ({"writers": 2}, "--data and --writers"),
        ({"transport": "curve"}, "--transport curve is for a node of the run's own"),
    ],
)
def test_a_node_that_is_there_has_its_own_folder_writers_and_way(kind, given, said):
    with pytest.raises(BenchError, match=said):
        kind(bootstrap=URL, **given).check()
    kind(bootstrap=URL).check()
    kind(**given).check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_is_for_a_node_that_is_there(kind):
    with pytest.raises(BenchError, match="--transport curve"):
        kind(key_file=Path("key.json")).check()
    kind(bootstrap=URL, key_file=Path("key.json")).check()


def test_the_way_is_stated_once():
    assert Options().stated()["transport"] == "shm"
    assert Options(transport="curve").stated()["transport"] == "curve"
    there = Options(bootstrap=URL).stated()
    assert there["bootstrap"] == URL
    assert not {"transport", "data", "key_file", "writers", "timeout"} & set(there)


def test_a_producer_that_has_another_thread_to_run_does_not_spin_unless_told_to():
    assert LatencyOptions().stated()["spin"] > 0
    for by_tcp in ({"transport": "tcp"}, {"brokers": 3}, {"bootstrap": URL}):
        assert LatencyOptions(**by_tcp).stated()["spin"] == 0
        assert LatencyOptions(**by_tcp, spin=0.001).stated()["spin"] == 0.001
    assert LatencyOptions(bootstrap="penstock://name").stated()["spin"] > 0


@pytest.mark.parametrize(
    "options",
    [
        ConnectionsOptions(connections=0),
        ConnectionsOptions(connections=1001),
        ConnectionsOptions(size=4),
        ConnectionsOptions(size=1024, list_records=1000),
        ConnectionsOptions(rate=0),
        ConnectionsOptions(rate=1, seconds=0.5),
        ConnectionsOptions(processes=0),
        CompareOptions(transport="tcp", against="tcp"),
        CompareOptions(turns=0),
        CommitsOptions(clients=0),
        CommitsOptions(seconds=0),
        CommitsOptions(clients=2, partitions=3, kind="transaction"),
        CommitsOptions(partitions=2),
        SparkOptions(size=4),
        SparkOptions(turns=0),
        SparkOptions(triggers=101),
        SparkOptions(bootstrap=URL, writers=2),
    ],
)
def test_what_cannot_be_run_is_refused(options):
    with pytest.raises(BenchError):
        options.check()


@pytest.mark.parametrize(("count", "processes"), [(1, 4), (3, 4), (4, 4), (10, 4), (500, 3)])
def test_connections_are_shared_among_processes(count, processes):
    shares = ConnectionsOptions(connections=count, processes=processes).shares
    assert [number for share in shares for number in share] == list(range(count))
    assert len(shares) == min(count, processes)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("row", [row for page in PAGES.values() for row in page.rows], ids=str)
def test_every_row_of_the_suite_can_be_run_and_made_shorter(row: Row):
    for options in (row.options, shorter(row.options)):
        assert type(options) is type(row.options)
        check = getattr(options, "check", None)
        if check is not None:
            check()
        assert Row(row.name, options, row.rank).command[0] == row.command[0]
    if isinstance(row.options, Where) and row.options.transport != "shm":
        assert row.options.transport in [*row.command, "tcp"]


def test_benchmarks_load_spark_only_when_they_run_it():
    program = (
        "import sys, penstock.bench.cli, penstock.bench.sparktriggers; "
        "print([name for name in sys.modules if name.startswith(('pyspark', 'penstock.spark'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, timeout=30,
        check=True,
    )  # fmt: skip
    assert done.stdout == b"[]\n"


def test_a_run_of_spark_says_what_it_lacks(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sparktopics, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match=r"pip install 'penstock\[spark\]'"):
        SparkOptions().check()
    assert main(["suite", "--page", "spark.md", "--output", str(tmp_path)]) == 1
    assert "spark.md is left out: this run needs PySpark" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
