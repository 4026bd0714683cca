"""`penstock.sql` and `penstock sql`: DuckDB over topics of a real node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from cli_runner import call_cli

import penstock
from penstock import Client, Offset, TopicConfig, UnknownTopicError
from penstock.client.session import place_of
from penstock.client.sql import SqlScan, scans
from penstock.testing import Broker

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")

TIME = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def node(transport: str) -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Broker) -> Iterator[Client]:
    """A node with the topics of the tests below."""
    with node.connect() as client:
        admin = client.admin()
        admin.create_topic("orders", TopicConfig(partitions=3))
        admin.create_topic("my-topic.1")
        admin.create_topic("empty", TopicConfig(partitions=2))
        with client.producer() as producer:
            for n in range(300):
                value = b'{"n": %d}' % n if n % 10 else None
                producer.send(
                    "orders", value, key=b"k%d" % (n % 4), timestamp=TIME + n, headers={"h": b"1"}
                )
            producer.send("my-topic.1", b"one", key=b"k1")
        yield client


@pytest.fixture
def url(client: Client) -> str:
    return client.url


def test_a_topic_is_a_table_of_its_records(url):
    rows = penstock.sql('select * from orders order by "timestamp"', url=url)
    assert rows.columns == [
        "topic", "partition", "offset", "timestamp", "key", "value", "headers",
    ]  # fmt: skip
    found = rows.fetchall()
    assert len(found) == 300
    topic, _, _, stamp, key, value, headers = found[7]
    assert (topic, key, value) == ("orders", b"k3", b'{"n": 7}')
    assert stamp == datetime.fromtimestamp(TIME / 1e6, UTC).replace(microsecond=7)
    assert headers == [{"name": "h", "value": b"1"}]
    assert found[10][5] is None


def test_values_are_counted_and_topics_joined(url):
    query = """
        select decode(key) as who, sum(cast(decode(o.value) ->> 'n' as int)) as total
        from Orders as o join "my-topic.1" using (key) group by all
    """
    total = sum(n for n in range(300) if n % 10 and n % 4 == 1)
    assert penstock.sql(query, url=url).fetchall() == [("k1", total)]


def test_an_empty_topic_is_an_empty_table(url):
    assert penstock.sql("select count(*) from empty", url=url).fetchall() == [(0,)]


def test_a_relation_reads_the_span_of_its_call_again_and_again(client, url):
    client.admin().create_topic("growing", TopicConfig(partitions=2))
    with client.producer() as producer:
        producer.send_batch("growing", [b"a"] * 10, partition=0).result(45)
        counted = penstock.sql("select count(*) from growing", url=url)
        producer.send_batch("growing", [b"b"] * 10, partition=0).result(45)
        producer.send_batch("growing", [b"b"] * 10, partition=1).result(45)
    assert counted.fetchall() == counted.fetchall() == [(10,)]
    assert penstock.sql("select count(*) from growing", url=url).fetchall() == [(30,)]
    both = "select count(*) from growing a, growing b"
    assert penstock.sql(both, url=url).fetchall() == [(900,)]


@pytest.mark.parametrize(
    ("start", "count"),
    [("latest", 0), (Offset.from_end(2), 6), (datetime.fromtimestamp(TIME / 1e6 + 60, UTC), 0)],
)
def test_scans_begin_where_they_are_told(url, start, count):
    query = "select count(*) from orders"
    assert penstock.sql(query, url=url, start=start).fetchall() == [(count,)]


def test_batches_are_cut_at_the_hw_of_the_call(client, node):
    """Records in the same log batch as the last one of the span do not come."""
    client.admin().create_topic("cut")
    with client.producer() as producer:
        producer.send_batch("cut", [b"%d" % n for n in range(100)]).result(45)
    [scan] = scans(place_of(node.url), ["cut"], "earliest", 5.0).values()
    assert sum(map(len, scan.chunks())) == 100
    short = SqlScan(place_of(node.url), "cut", {("cut", 0): (20, 75)}, 5.0)
    assert [offset for chunk in short.chunks() for offset in chunk.offsets] == list(range(20, 75))


def test_scans_stream(client, node):
    """A scan that is left early has read no more than it gave, and attaches only when read."""
    client.admin().create_topic("long")
    with client.producer(batch_bytes=16 << 10) as producer:
        producer.send_arrow("long", pa.table({"value": [b"x" * 1000] * 5000})).result(45)
    [scan] = scans(place_of(node.url), ["long"], "earliest", 5.0).values()
    reader = pa.RecordBatchReader.from_stream(scan)
    first = reader.read_next_batch()
    assert 0 < len(first) < 5000
    query = "select count(*) from (select * from long limit 3)"
    assert penstock.sql(query, url=client.url).fetchall() == [(3,)]


def test_other_tables_can_be_joined(url):
    names = pa.table({"who": ["k1", "k2"], "name": ["Ann", "Bob"]})
    query = "select name, count(*) from orders join names on decode(key) = who group by all"
    found = penstock.sql(query, url=url, tables={"names": names}).fetchall()
    assert sorted(found) == [("Ann", 75), ("Bob", 75)]


def test_a_topic_that_is_not_there_is_told_with_those_that_are(url):
    nope = pa.table({"x": [1]})  # a variable of the caller is no table
    with pytest.raises(UnknownTopicError, match=r"nope does not exist.*my-topic\.1.*orders"):
        penstock.sql("select * from nope", url=url)
    assert len(nope) == 1


def test_other_mistakes_are_duckdbs_to_tell(url):
    with pytest.raises(duckdb.ParserException):
        penstock.sql("selec", url=url)
    with pytest.raises(duckdb.BinderException, match="nope"):
        penstock.sql("select nope from orders", url=url)


def test_a_topic_that_goes_while_it_is_read_fails_the_query(client, url):
    client.admin().create_topic("fleeting")
    with client.producer() as producer:
        producer.send_and_wait("fleeting", b"a")
    counted = penstock.sql("select count(*) from fleeting", url=url)
    client.admin().delete_topic("fleeting")
    with pytest.raises(duckdb.Error, match="fleeting"):
        counted.fetchall()


@pytest.mark.parametrize("missing", ["duckdb", "pytz", "pyarrow"])
def test_without_the_extra_the_error_names_it(url, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "pyarrow":
        monkeypatch.delitem(sys.modules, "penstock.client.arrow.export", raising=False)
    with pytest.raises(ImportError, match=r"penstock\[sql\]"):
        penstock.sql("select 1", url=url)
    ran = call_cli("sql", "select 1", url=url)
    assert (ran.code, "penstock[sql]" in ran.err) == (2, True)


# --- the command ----------------------------------------------------------------------------------
def test_the_command_writes_rows(url):
    query = "select decode(key) as who, count(*) as n from orders group by all order by who limit 2"
    assert call_cli("sql", query, url=url).lines == ["who   n", "k0   75", "k1   75"]
    ran = call_cli("sql", query, "--format", "json", url=url)
    assert ran.objects == [{"who": "k0", "n": 75}, {"who": "k1", "n": 75}]


def test_the_command_writes_what_json_lacks_as_text(url):
    query = (
        'select key, value, headers, "timestamp"::timestamp as t, null as none, 1.5 as x '
        'from orders where "timestamp" = make_timestamptz(1700000000000010)'
    )
    [row] = call_cli("sql", query, "--format", "json", url=url).objects
    assert row == {
        "key": "k2", "value": None, "headers": [{"name": "h", "value": "1"}],
        "t": "2023-11-14 22:13:20.000010", "none": None, "x": "1.5",
    }  # fmt: skip
    assert call_cli("sql", "select key from orders where false", url=url).lines == ["key"]


def test_the_command_begins_where_it_is_told(url):
    ran = call_cli("sql", "select count(*) as n from orders", "-o", "-1", url=url)
    assert ran.lines == ["n", "3"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from nope", "Topics at"),
        ("selec", "syntax error"),
        ("select max(offset) from orders", 'write the column as "offset", in double quotes'),
    ],
)
def test_the_command_tells_mistakes_in_one_line(url, query, message):
    ran = call_cli("sql", query, url=url)
    assert (ran.code, ran.out) == (1, b"")
    assert message in ran.err
    assert ran.err.count("\n") == 1
