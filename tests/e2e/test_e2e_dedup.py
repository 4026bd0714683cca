"""The dedup store: results in a database and the position commit together; by real databases."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import sqlalchemy as sa
from cli_runner import call_cli
from database_fixture import Database, postgresql_of, sqlite_at
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from penstock import Record, dedup
from penstock.core import errors as er
from penstock.dedup import once, place_of
from penstock.testing import Broker, produce, wait_until


@pytest.fixture
def database(any_database: Database) -> Database:
    return store_in(any_database)


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    return store_in(sqlite_at(tmp_path))


def store_in(database: Database) -> Database:
    with closing(database.connect()) as connection:
        dedup.migrate(connection, table=database.name)
        connection.execute(f"CREATE TABLE {database.name}_results (v INTEGER)")
        connection.commit()
    return database


def record(offset: int, partition: int = 0, topic: str = "orders") -> Record:
    return Record(topic, partition, offset, 0, None, b"%d" % offset)


def keep(connection: Any, database: Database, offset: int) -> None:
    connection.execute(f"INSERT INTO {database.name}_results VALUES ({offset})")


def fail(connection: Any, database: Database, offset: int) -> None:
    """Writes a result, and fails before it commits."""
    with once(connection, "g", record(offset), table=database.name) as is_new:
        assert is_new
        keep(connection, database, offset)
        raise ZeroDivisionError


def results(database: Database) -> list[int]:
    return [row[0] for row in database.rows(f"SELECT v FROM {database.name}_results ORDER BY v")]


# --- one record, many records ---------------------------------------------------------------------
def test_a_result_and_its_position_commit_together(database):
    with closing(database.connect()) as connection:
        for offset in (0, 1, 1, 0, 5, 4):
            with once(connection, "g", record(offset), table=database.name) as is_new:
                if is_new:
                    keep(connection, database, offset)
        with pytest.raises(ZeroDivisionError):
            fail(connection, database, 6)
        assert dedup.positions(connection, "g", table=database.name) == {("orders", 0): 6}
        with once(connection, "other", record(0), table=database.name) as is_new:
            assert is_new
    assert results(database) == [0, 1, 5]


@pytest.mark.parametrize("is_core", [False, True])
def test_an_error_that_stays_in_the_block_is_told_where_nothing_commits(postgresql, is_core):
    """PostgreSQL answers the commit by a rollback, and no error."""
    database = store_in(postgresql_of(postgresql))
    engine = sa.create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://"))
    wrong: Any = sa.text("SELECT 1 / 0") if is_core else "SELECT 1 / 0"
    with closing(engine.connect() if is_core else database.connect()) as connection:
        for batch in (record(0), [record(0)]):
            with (
                pytest.raises(er.TransactionError, match="savepoint"),
                once(connection, "g", batch, table=database.name),
                suppress(Exception),
            ):
                connection.execute(wrong)
        with once(connection, "g", record(0), table=database.name) as is_new:
            assert is_new
    engine.dispose()


def test_a_batch_commits_as_one(database):
    batch = [record(offset, partition) for offset in range(3) for partition in (1, 0)]
    with closing(database.connect()) as connection:
        with once(connection, "g", batch[:2], table=database.name) as fresh:
            assert len(fresh) == 2
        found = list(once(connection, "g", batch, table=database.name))
        assert [(each.partition, each.offset) for each in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
        assert list(once(connection, "g", batch, table=database.name)) == []
        for each in once(connection, "g", [record(3), record(4)], table=database.name):
            keep(connection, database, each.offset)
            break  # before all is done: nothing counts
        assert dedup.positions(connection, "g", table=database.name)[("orders", 0)] == 3
    assert results(database) == []


def test_records_in_no_order_are_known_by_an_id(database):
    with closing(database.connect()) as connection:
        for offset, wanted in ((5, True), (3, True), (5, False), (3, False), (4, True)):
            with once(
                connection, "g", record(offset), id_of=place_of, table=database.name
            ) as is_new:
                assert is_new == wanted
        both = [record(4), record(9), record(9)]
        fresh = list(once(connection, "g", both, id_of=place_of, table=database.name))
        assert [each.offset for each in fresh] == [9]
        assert dedup.vacuum(connection, ttl=timedelta(days=1), table=database.name) == 0
        assert dedup.vacuum(connection, ttl=0, table=database.name) == 4
        connection.commit()
        with once(connection, "g", record(5), id_of=place_of, table=database.name) as is_new:
            assert is_new


def test_of_two_consumers_with_one_record_the_second_waits_and_skips_it(database):
    found: list[bool] = []

    def second() -> None:
        with (
            closing(database.connect()) as connection,
            once(connection, "g", record(7), table=database.name) as is_new,
        ):
            found.append(is_new)

    with closing(database.connect()) as connection:
        with once(connection, "g", record(7), table=database.name) as is_new:
            thread = Thread(target=second)
            thread.start()
            found.append(is_new)
        thread.join(30)
    assert found == [True, False]


# --- connections ----------------------------------------------------------------------------------
def test_connections_of_sqlalchemy(database):
    engine = sa.create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://"))
    insert = sa.text(f"INSERT INTO {database.name}_results VALUES (:v)")
    with engine.connect() as connection:
        for offset in (0, 0, 1):
            with once(connection, "g", record(offset), table=database.name) as is_new:
                if is_new:
                    connection.execute(insert, {"v": offset})
    with Session(engine) as session, once(session, "g", record(2), table=database.name) as is_new:
        assert is_new
        session.execute(insert, {"v": 2})
    with engine.begin() as connection, once(
        connection, "g", record(3), table=database.name, commit=False
    ) as is_new:  # fmt: skip
        assert is_new
        connection.execute(insert, {"v": 3})
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(er.ConfigError, match="commits each statement by itself"),
        once(connection, "g", record(4), table=database.name),
    ):
        pass
    engine.dispose()
    assert results(database) == [0, 1, 2, 3]


def test_connections_of_asyncio(database):
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}[database.kind]

    def handle(connection: sa.Connection, each: Record) -> None:
        with once(connection, "g", each, table=database.name, commit=False) as is_new:
            if is_new:
                connection.execute(
                    sa.text(f"INSERT INTO {database.name}_results VALUES (:v)"), {"v": each.offset}
                )

    async def handle_all() -> None:
        engine = create_async_engine(f"{driver}{database.dsn[len(database.kind) :]}")
        for offset in (0, 0, 1):
            async with engine.begin() as connection:
                await connection.run_sync(handle, record(offset))
        await engine.dispose()

    asyncio.run(handle_all())
    assert results(database) == [0, 1]


def test_connections_in_autocommit_mode(database):
    """A transaction of its own, unless it is the caller's to commit."""
    with closing(database.connect()) as connection:
        if database.kind == "sqlite":
            connection.isolation_level = None
        else:
            connection.autocommit = True
        with pytest.raises(ZeroDivisionError):
            fail(connection, database, 0)
        with once(connection, "g", record(0), table=database.name) as is_new:
            assert is_new
            keep(connection, database, 0)
        with (
            pytest.raises(er.ConfigError, match="commits each statement by itself"),
            once(connection, "g", record(1), table=database.name, commit=False),
        ):
            pass
    assert results(database) == [0]


def test_wrong_arguments_are_told(sqlite):
    with closing(sqlite.connect()) as connection:
        with pytest.raises(er.ConfigError, match="must have 1 to 255 characters"):
            once(connection, "", record(0), table=sqlite.name)
        with (
            pytest.raises(er.ConfigError, match="an id is 1 to 1024 bytes"),
            once(connection, "g", record(0), id_of=lambda _: b"", table=sqlite.name),
        ):
            pass
        with pytest.raises(er.ConfigError, match="ttl=-1 must be 0 or more"):
            dedup.vacuum(connection, ttl=-1, table=sqlite.name)
        with (
            pytest.raises(sqlite3.OperationalError, match="no such table"),
            once(connection, "g", record(0), table="none"),
        ):
            pass


# --- a consumer, and a topic that is made again ---------------------------------------------------
def test_a_topic_that_is_made_again_begins_anew(sqlite):
    """Its offsets do, and its batches say which topic they are of."""
    with Broker() as broker, closing(sqlite.connect()) as connection:
        for values in ([b"1", b"2"], [b"3"]):
            broker.create_topic("orders")
            produce(broker, "orders", values)
            with (
                broker.connect() as client,
                client.consumer("orders", group="g", guarantee="at-least-once") as consumer,
            ):
                batch = wait_until(lambda: consumer.poll(timeout=1.0))
                for each in once(connection, "g", batch, table=sqlite.name):
                    keep(connection, sqlite, int(each.value or b""))
            with broker.connect() as client, client.admin() as admin:
                admin.delete_topic("orders")
    assert results(sqlite) == [1, 2, 3]


def test_the_commands(database):
    where = ("--dsn", database.dsn, "--table", database.name)
    assert "has version 1" in call_cli("dedup", "migrate", *where).err
    with closing(database.connect()) as connection:
        with once(connection, "g", record(41), table=database.name):
            pass
        with once(connection, "g", record(1), id_of=place_of, table=database.name):
            pass
    shown = call_cli("dedup", "positions", "g", *where, "--format", "json")
    assert shown.objects == [{"topic": "orders", "partition": 0, "next_offset": 42}]
    assert "1 ids forgotten" in call_cli("dedup", "vacuum", *where, "--ttl", "0").err
    assert call_cli("dedup", "forget", "g", *where).code == 2
    forgotten = call_cli("dedup", "forget", "g", *where, "--topic", "orders", "--yes")
    assert "1 positions forgotten" in forgotten.err
    with closing(database.connect()) as connection:
        assert dedup.positions(connection, "g", table=database.name) == {}
