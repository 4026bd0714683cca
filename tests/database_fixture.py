"""Databases of tests, a real SQLite file and a real PostgreSQL, and relays beside a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from postgresql_server import PostgresqlServer

from penstock import outbox
from penstock.client.consumer.consumer import Start
from penstock.client.consumer.records import Record
from penstock.database.dsn import connect
from penstock.outbox import Relay, RelayConfig
from penstock.testing import Broker, wait_until

_NUMBERS = count()


@dataclass(frozen=True)
class Database:
    """One database, and a name for tables and topics that no other test has."""

    kind: str
    dsn: str
    name: str

    def connect(self) -> Any:
        """A connection of psycopg or sqlite3 that begins transactions by itself, as by default."""
        connection = connect(self.dsn)
        if self.kind == "sqlite":
            connection.isolation_level = "DEFERRED"
        return connection

    def rows(self, statement: str) -> list[Any]:
        with closing(self.connect()) as connection:
            return list(connection.execute(statement).fetchall())

    def state_of(self) -> list[tuple[int, int]]:
        """Rows of the outbox by their state."""
        found = self.rows(f"SELECT state, count(*) FROM {self.name} GROUP BY state ORDER BY state")
        return [tuple(row) for row in found]


def sqlite_at(folder: Path) -> Database:
    name = f"t{next(_NUMBERS)}"
    with closing(connect(f"sqlite:///{folder}/{name}.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return Database("sqlite", f"sqlite:///{folder}/{name}.db", name)


def postgresql_of(server: PostgresqlServer) -> Database:
    return Database("postgresql", server.dsn, f"t{next(_NUMBERS)}")


def config_of(database: Database, **options: Any) -> RelayConfig:
    """Of a quick relay: power cuts are not for these tests."""
    return RelayConfig(
        dsn=database.dsn, table=database.name, **{"durability": "appended", **options}
    )


@contextmanager
def relaying(database: Database, broker: Broker, **options: Any) -> Iterator[Relay]:
    """A relay in a thread of its own. Raises what ended it."""
    config = config_of(database, **options)
    failed: list[BaseException] = []
    with Relay(config, url=broker.url) as relay:

        def run() -> None:
            try:
                relay.run()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield relay
        finally:
            relay.stop()
            thread.join(60)
            assert not thread.is_alive()
    if failed:
        raise failed[0]


def outbox_in(database: Database) -> Database:
    with closing(database.connect()) as connection:
        outbox.migrate(connection, table=database.name)
    return database


def write(database: Database, topic: str, *values: bytes, key: bytes | None = None) -> None:
    """Rows in one transaction that commits."""
    with closing(database.connect()) as connection:
        for value in values:
            outbox.enqueue(connection, topic, value, key=key, table=database.name)
        connection.commit()


def wait_sent(relay: Relay, rows: int) -> None:
    wait_until(lambda: relay.metrics()["sent"] >= rows, timeout=30)


def committed(
    broker: Broker, topic: str, count: int | None = None, *, start: Start = "earliest"
) -> list[Record]:
    """Records that count: with `count` as soon as there are so many, else those there are now."""
    found: list[Record] = []
    deadline = time.monotonic() + 15.0
    with (
        broker.connect() as client,
        client.consumer(topic, start=start, isolation="read_committed") as consumer,
    ):
        ends = consumer.end_offsets()
        while time.monotonic() < deadline:
            found += consumer.poll(timeout=0.05)
            at = {name: consumer.position(*name) for name in ends}
            if len(found) >= (count or 0) and (count or all(at[n] >= ends[n] for n in ends)):
                return found
    raise AssertionError(f"{len(found)} records of {topic!r}, not {count}, after 15 s")


def values_of(broker: Broker, topic: str, count: int | None = None) -> list[bytes | None]:
    return [record.value for record in committed(broker, topic, count)]
