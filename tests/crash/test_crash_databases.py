"""Databases beside Penstock under kill -9: an outbox whose relays, node and database die, and
consumers that write each record's result once.

By default some rounds; PENSTOCK_CRASH_ROUNDS asks for more, PENSTOCK_SEED=n begins with a seed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli_runner import environment
from crash.node_under_test import NodeUnderTest
from database_fixture import Database, postgresql_of, sqlite_at
from outbox_trial import OutboxTrial
from postgresql_server import PostgresqlServer, started_or_skipped
from seeds import seed_of, tell

from penstock import dedup
from penstock.testing import wait_until

ASKED = min(int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "0")), 500)
FEW = {"relay": 2, "node": 1, "database": 1}
KILLS = ASKED or 4
CONSUMER = Path(__file__).with_name("once_consumer.py")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0 if ASKED else 180)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    server = started_or_skipped()
    yield server
    server.close()


@pytest.fixture(scope="module")
def node() -> Iterator[NodeUnderTest]:
    with NodeUnderTest(
        writers_max=2, restart_backoff=0.001, restart_backoff_max=0.02, stall_timeout=0.3
    ) as node:
        yield node


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return sqlite_at(tmp_path)
    server: PostgresqlServer = request.getfixturevalue("server")
    return postgresql_of(server)


def test_committed_rows_are_sent_once_whoever_is_killed(database, node, request, capsys):
    seed, begun = seed_of(f"outbox in {database.kind}"), time.monotonic()

    def kill_database() -> None:
        server: PostgresqlServer = request.getfixturevalue("server")
        server.kill()
        server.start()

    has_server = database.kind == "postgresql"
    trial = OutboxTrial(
        node, database, seed, relays=2 if has_server else 1,
        kill_database=kill_database if has_server else None,
    )  # fmt: skip
    try:
        if ASKED:
            for _ in range(ASKED):
                trial.round()
        else:
            for fault, times in FEW.items():
                for _ in range(times if has_server or fault != "database" else 0):
                    trial.round(fault)
        rows = trial.end()
    except Exception as error:
        told = f"{node.tail()}\n--- relays ---\n{trial.tail()}"
        raise AssertionError(f"PENSTOCK_SEED={seed}: {error}\n{told}") from error
    finally:
        trial.close()
    assert rows > 20
    with capsys.disabled():
        took = time.monotonic() - begun
        tell(f"\noutbox in {database.kind}: {dict(trial.struck)}; {rows} rows in {took:.0f} s")


def test_results_are_the_topics_records_whoever_is_killed(database, node, capsys):
    seed, begun = seed_of(f"dedup in {database.kind}"), time.monotonic()
    chance = random.Random(seed)
    name, topic = database.name, f"once-{database.name}"
    with closing(database.connect()) as connection:
        dedup.migrate(connection, table=name)
        connection.execute(f"CREATE TABLE {name}_results (p INTEGER, o BIGINT, v INTEGER)")
        connection.commit()
    with node.connect() as client, client.admin() as admin:
        admin.create_topic(topic, partitions=3)

    def consumer() -> subprocess.Popen[bytes]:
        mode = chance.choice(["one", "batch"])
        return subprocess.Popen(
            [sys.executable, CONSUMER, node.url, database.dsn, name, topic, mode],
            env=environment(), stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def count() -> int:
        return int(database.rows(f"SELECT count(*) FROM {name}_results")[0][0])

    consumers = [consumer(), consumer()]
    sent = 0
    try:
        with node.connect() as client, client.producer() as producer:
            for _ in range(KILLS):
                before = count()
                for _ in range(100):
                    producer.send(topic, b"%d" % sent, key=b"%d" % (sent % 7))
                    sent += 1
                producer.flush(30)
                wait_until(lambda: count() > before, 60, "a consumer goes on")  # noqa: B023
                place = chance.randrange(2)
                consumers[place].kill()
                consumers[place].wait(10)
                consumers[place] = consumer()
        while (before := count()) < sent:
            wait_until(lambda: count() > before, 60, "a consumer goes on")
    finally:
        for process in consumers:
            process.kill()
            process.wait(10)
    found = sorted(row[0] for row in database.rows(f"SELECT v FROM {name}_results"))
    assert found == list(range(sent)), f"PENSTOCK_SEED={seed}"
    with capsys.disabled():
        took = time.monotonic() - begun
        tell(f"\ndedup in {database.kind}: {KILLS} kills; {sent} records in {took:.0f} s")
