"""Figures of outbox and dedup store: `make test ARGS="-m bench -n0 -k database_figures"`.

Run it where nothing else runs. Each figure has one of the same machine and moment beside it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cli_runner import COMMAND, environment
from database_fixture import Database, outbox_in, postgresql_of, sqlite_at
from postgresql_server import PostgresqlServer, started_or_skipped
from seeds import tell

from penstock import Record, dedup
from penstock.dedup import once
from penstock.outbox import enqueue, enqueue_many
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.bench
ROWS = 100_000
PROBES = 500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    server = started_or_skipped(durable=True)
    yield server
    server.close()


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return sqlite_at(tmp_path)
    server: PostgresqlServer = request.getfixturevalue("server")
    return postgresql_of(server)


@contextmanager
def relay_of(database: Database, broker: Broker, *options: str) -> Iterator[None]:
    where = ("--dsn", database.dsn, "--table", database.name, "-q")
    relay = subprocess.Popen(
        [*COMMAND, "outbox", "relay", *where, *options], env=environment(broker.url)
    )
    try:
        yield
    finally:
        relay.terminate()
        relay.wait(30)


def batch_of(database: Database) -> int:
    return int(database.rows(f"SELECT batch FROM {database.name}_relay")[0][0])


def test_rows_a_second(database, broker, capsys):
    outbox_in(database)
    topic = f"rate-{database.name}"
    broker.create_topic(topic)
    keys = [b"%d" % (number % 100) for number in range(5000)]
    with closing(database.connect()) as connection:
        for _ in range(ROWS // 5000):
            enqueue_many(connection, topic, [bytes(200)] * 5000, keys=keys, table=database.name)
            connection.commit()
    with relay_of(database, broker):
        wait_until(lambda: batch_of(database) > 0)
        begun, [[left]] = time.monotonic(), database.rows(f"SELECT count(*) FROM {database.name}")
        wait_until(lambda: database.state_of() == [], 120)
        rate = left / (time.monotonic() - begun)
    with capsys.disabled():
        tell(f"\n{database.kind}: {rate:,.0f} rows/s")


@pytest.mark.parametrize("durability", ["fsynced", "appended"])
def test_commit_to_consumer(database, broker, durability, capsys):
    """Beside a transaction of Penstock alone, from its beginning to its consumer."""
    outbox_in(database)
    topic = f"latency-{durability}-{database.name}"
    broker.create_topic(topic)
    with (
        relay_of(database, broker, "--durability", durability),
        broker.connect() as client,
        client.producer(
            transactional_id=topic, transaction_durability=durability, linger=0.0
        ) as producer,
        client.consumer(topic, isolation="read_committed") as consumer,
        closing(database.connect()) as connection,
    ):

        def by_outbox() -> float:
            enqueue(connection, topic, b"1", table=database.name)
            connection.commit()
            return time.perf_counter()

        def alone() -> float:
            begun = time.perf_counter()
            with producer.transaction():
                producer.send(topic, b"1")
            return begun

        def probe(send: Callable[[], float]) -> float:
            begun = send()
            while not consumer.poll(timeout=10.0):
                pass
            return (time.perf_counter() - begun) * 1000

        for send in (by_outbox, alone):
            probe(send)
        took = [(probe(by_outbox), probe(alone)) for _ in range(PROBES)]
    for name, times in zip(("outbox", "alone"), zip(*took, strict=True), strict=True):
        p50, p99 = sorted(times)[PROBES // 2], sorted(times)[PROBES * 99 // 100]
        with capsys.disabled():
            tell(f"\n{database.kind} {durability} {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def test_the_cost_of_once(database, capsys):
    name = database.name
    with closing(database.connect()) as connection:
        dedup.migrate(connection, table=name)
        connection.execute(f"CREATE TABLE {name}_results (v INTEGER)")
        connection.commit()
        records = [Record("orders", 0, offset, 0, None, b"") for offset in range(20_000)]
        insert = f"INSERT INTO {name}_results VALUES (1)"

        def plain() -> None:
            for _ in range(500):
                connection.execute(insert)
                connection.commit()

        def one() -> None:
            for record in records[:500]:
                with once(connection, "one", record, table=name) as is_new:
                    assert is_new
                    connection.execute(insert)

        def plain_batch() -> None:
            for _ in records:
                connection.execute(insert)
            connection.commit()

        def batch() -> None:
            for _ in once(connection, "batch", records, table=name):
                connection.execute(insert)

        told = []
        for work, count in ((plain, 500), (one, 500), (plain_batch, 20_000), (batch, 20_000)):
            begun = time.perf_counter()
            work()
            told.append(f"{work.__name__} {(time.perf_counter() - begun) / count * 1e6:.0f} us")
    with capsys.disabled():
        tell(f"\n{database.kind}: {', '.join(told)} a record")
