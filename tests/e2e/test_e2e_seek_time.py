"""A time means the first record at or after it, on every way that users name one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cli_runner import call_cli
from node_helpers import eventually

import penstock
from penstock import Offset

pytestmark = pytest.mark.over_tcp

BEGIN = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
FIRST = round(BEGIN.timestamp() * 1e6)
SECOND = 1_000_000


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


@pytest.fixture(scope="module", params=["none", "lz4"])
def topic(node, request) -> str:
    """1,000 records of one batch, a second apart."""
    name = f"seconds-{request.param}"
    node.create_topic(name)
    with node.connect() as client, client.producer(compression=request.param) as producer:
        stamps = [FIRST + number * SECOND for number in range(1000)]
        producer.send_batch(name, [b"%d" % n for n in range(1000)], timestamps=stamps).result(45)
    return name


@pytest.fixture
def client(node):
    with node.connect() as made:
        yield made


def read(client, *topics, **options):
    with client.consumer(*topics, follow=False, **options) as consumer:
        return [record.offset for record in consumer]


@pytest.mark.setting("consumer.start")
def test_a_consumer_starts_and_seeks_at_the_record(client, topic):
    assert read(client, topic, start=at(500)) == list(range(500, 1000))
    assert read(client, topic, start=at(499.5))[0] == 500
    assert read(client, topic, start=at(-1))[0] == 0
    assert read(client, topic, start=at(1000)) == []
    with client.consumer(topic) as consumer:
        assert consumer.seek(topic, 0, Offset.at(at(250))) == 250
        assert consumer.seek(topic, 0, at(999)) == 999
        assert consumer.seek(topic, 0, at(5000)) == 1000


def test_a_group_begins_seeks_and_is_reset_at_the_record(client, topic):
    group = f"timed-{topic}"
    with client.consumer(topic, group=group, start=at(700), follow=False) as consumer:
        assert [record.offset for record in consumer] == list(range(700, 1000))
        consumer.seek(topic, 0, at(990))
        assert [record.offset for record in consumer] == list(range(990, 1000))
    admin = client.admin()
    [done] = admin.reset_offsets(group, topic, to=at(640))
    assert done.after == 640
    assert read(client, topic, group=group)[0] == 640


def test_the_command_line_names_times_alike(node, client, topic):
    when = at(500).isoformat()
    ran = call_cli("consume", topic, "-o", f"@{when}", "-n", "1", url=node.url)
    assert (ran.code, ran.lines) == (0, ["500"])
    group = f"cli-{topic}"
    assert read(client, topic, group=group)[0] == 0
    sought = call_cli("group", "seek", group, topic, "--to", f"@{when}", "--yes", url=node.url)
    assert sought.code == 0, sought.err
    assert read(client, topic, group=group)[0] == 500


def test_sql_begins_at_the_record(client, topic):
    query = f'select min("offset"), count(*) from "{topic}"'
    assert penstock.sql(query, url=client.url, start=at(800)).fetchall() == [(800, 200)]


def test_a_trim_by_time_takes_what_is_older(client, node):
    name = "trimmed"
    node.create_topic(name)
    with client.producer() as producer:
        stamps = [FIRST + number * SECOND for number in range(100)]
        producer.send_batch(name, [b"x"] * 100, timestamps=stamps).result(45)
    [done] = client.admin().trim(name, before=at(40))
    assert done.log_start == 40
    assert read(client, name, start=at(10)) == list(range(40, 100))


def test_who_reads_committed_records_begins_at_one(client, node):
    name = "decided"
    node.create_topic(name)
    stamps = [FIRST + number * SECOND for number in range(10)]
    with client.producer(transactional_id=name) as producer:
        for first, ends in ((0, "abort"), (5, "commit")):
            producer.begin_transaction()
            times = [stamp + first * SECOND for stamp in stamps]
            producer.send_batch(name, [b"%d" % n for n in range(10)], timestamps=times).result(45)
            getattr(producer, f"{ends}_transaction")()
    admin = client.admin()
    eventually(lambda: all(each.state == "ready" for each in admin.list_transactions()), "markers")
    with client.consumer(name, isolation="read_committed", start=at(8), follow=False) as consumer:
        assert next(iter(consumer)).value == b"3"
        assert consumer.seek(name, 0, at(2)) < consumer.seek(name, 0, at(6))
    with client.consumer(name, isolation="read_uncommitted", start=at(8), follow=False) as consumer:
        assert next(iter(consumer)).value == b"8"
