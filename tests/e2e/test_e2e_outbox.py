"""The outbox: what commits is sent once and in order, what rolls back never; by real databases."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from cli_runner import call_cli, cli_process
from database_fixture import (
    Database,
    committed,
    config_of,
    outbox_in,
    postgresql_of,
    relaying,
    sqlite_at,
    values_of,
    wait_sent,
    write,
)
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from penstock import outbox
from penstock.core import errors as er
from penstock.outbox import Relay, RelayConfig
from penstock.outbox.progress import SentBatch
from penstock.outbox.store import open_store
from penstock.testing import Broker, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def database(any_database: Database) -> Database:
    return outbox_in(any_database)


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    return outbox_in(sqlite_at(tmp_path))


@pytest.fixture
def topic(broker: Broker, tmp_path: Path) -> str:
    name = tmp_path.name.replace("_", "-")
    broker.create_topic(name)
    return name


# --- the application's side -----------------------------------------------------------------------
def test_a_commit_sends_and_a_rollback_does_not(database, broker, topic):
    with closing(database.connect()) as connection:
        for value in (b"1", b"2"):
            outbox.enqueue(connection, topic, value, key=b"ann", table=database.name)
        connection.commit()
        outbox.enqueue(connection, topic, b"never", table=database.name)
        connection.rollback()
        outbox.enqueue_many(connection, topic, [b"3", None], keys=[b"ann"] * 2, table=database.name)
        connection.commit()
    with relaying(database, broker) as relay:
        found = committed(broker, topic, 4)
        wait_sent(relay, 4)
    assert [(record.key, record.value) for record in found] == [
        (b"ann", b"1"), (b"ann", b"2"), (b"ann", b"3"), (b"ann", None),
    ]  # fmt: skip
    assert database.state_of() == []
    assert values_of(broker, topic) == [b"1", b"2", b"3", None]


def test_a_record_keeps_all_that_send_takes(database, broker):
    name = f"whole-{database.name}"
    broker.create_topic(name, partitions=3)
    headers = [("trace", b"1"), ("raw", b"\xff\x00"), ("none", None), ("text", "é".encode())]
    with closing(database.connect()) as connection:
        outbox.enqueue(
            connection, name, b"\x00\xff", key=b"k", headers=headers, partition=2,
            timestamp=1_700_000_000_000_000, delay=3600, priority=7, dedup_id=b"\xfe",
            table=database.name,
        )  # fmt: skip
        connection.commit()
    with relaying(database, broker):
        [record] = committed(broker, name, 1)
    assert (record.partition, record.value, record.key) == (2, b"\x00\xff", b"k")
    assert record.timestamp == 1_700_000_000_000_000
    assert [(each, value) for each, value in record.headers] == headers
    assert (record.priority, record.dedup_id) == (7, b"\xfe")
    assert record.due is not None


def test_rows_that_other_languages_insert_are_sent(sqlite, broker, topic):
    with closing(sqlite.connect()) as connection:
        connection.execute(
            f"INSERT INTO {sqlite.name} (topic, key, value, headers) "
            """VALUES (?, 'ann', 'text', '{"trace": "1"}')""",
            (topic,),
        )
        connection.commit()
    with relaying(sqlite, broker):
        [record] = committed(broker, topic, 1)
    assert (record.key, record.value, list(record.headers)) == (b"ann", b"text", [("trace", b"1")])


def test_connections_of_sqlalchemy(database, broker, topic):
    engine = sa.create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        outbox.enqueue(connection, topic, b"core", headers={"a": b"b"}, table=database.name)
        outbox.enqueue_many(connection, topic, [b"many"], table=database.name)
        own = outbox.table(sa.MetaData(), database.name)
        connection.execute(sa.insert(own).values(topic=topic, value=b"own"))
    with suppress(ZeroDivisionError), engine.begin() as connection:
        outbox.enqueue(connection, topic, b"never", table=database.name)
        raise ZeroDivisionError
    with Session(engine) as session:
        outbox.enqueue(session, topic, b"orm", table=database.name)
        session.commit()
    engine.dispose()
    with relaying(database, broker):
        found = committed(broker, topic, 4)
    assert [record.value for record in found] == [b"core", b"many", b"own", b"orm"]


def test_connections_of_asyncio(database, broker, topic):
    async def enqueue_all() -> None:
        driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}[database.kind]
        engine = create_async_engine(f"{driver}{database.dsn[len(database.kind) :]}")
        async with engine.begin() as connection:
            await outbox.enqueue_async(connection, topic, b"1", table=database.name)
            await connection.run_sync(outbox.enqueue, topic, b"2", table=database.name)
        await engine.dispose()
        if database.kind == "sqlite":
            import aiosqlite

            path = database.dsn.removeprefix("sqlite:///")
            async with aiosqlite.connect(path) as plain:
                await outbox.enqueue_async(plain, topic, b"3", table=database.name)
                await plain.commit()
        else:
            import psycopg

            async with await psycopg.AsyncConnection.connect(database.dsn) as there:
                await outbox.enqueue_async(there, topic, b"3", table=database.name)

    asyncio.run(enqueue_all())
    with relaying(database, broker):
        found = committed(broker, topic, 3)
    assert [record.value for record in found] == [b"1", b"2", b"3"]


def test_wrong_arguments_are_told(sqlite):
    with closing(sqlite.connect()) as connection:
        with pytest.raises(TypeError, match="bytes, not str"):
            outbox.enqueue(connection, "t", "text", table=sqlite.name)  # type: ignore[arg-type]
        with pytest.raises(er.ConfigError, match="table='a; b' must be"):
            outbox.enqueue(connection, "t", b"", table="a; b")
        with pytest.raises(er.ConfigError, match="topic='' must have a name"):
            outbox.enqueue(connection, "", b"", table=sqlite.name)
        with pytest.raises(TypeError, match="no option 'delayed'"):
            outbox.enqueue(connection, "t", b"", table=sqlite.name, delayed=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="is no connection that is known here"):
        outbox.enqueue(object(), "t", b"")
    there = sqlite.dsn.replace("sqlite", "sqlite+aiosqlite", 1)
    with pytest.raises(TypeError, match="is a connection of asyncio"):
        outbox.enqueue(create_async_engine(there).connect(), "t", b"")
    with pytest.raises(er.ConfigError, match="names no database"):
        RelayConfig(dsn="mysql://there")


# --- order and latency ----------------------------------------------------------------------------
def test_a_lower_id_that_commits_later_is_sent(postgresql, broker, topic):
    """Ids are given before a commit. A relay that remembered the highest one would lose this."""
    database = outbox_in(postgresql_of(postgresql))
    with relaying(database, broker), closing(database.connect()) as late:
        outbox.enqueue(late, topic, b"late", table=database.name)
        write(database, topic, b"early")
        assert [record.value for record in committed(broker, topic, 1)] == [b"early"]
        late.commit()
        found = committed(broker, topic, 2)
    assert [record.value for record in found] == [b"early", b"late"]


def test_a_row_that_another_transaction_locks_is_not_passed_over(postgresql, broker, topic):
    """`SKIP LOCKED` would send later rows of its key first."""
    database = outbox_in(postgresql_of(postgresql))
    write(database, topic, b"1", b"2", key=b"ann")
    with closing(database.connect()) as other:
        other.execute(f"SELECT FROM {database.name} ORDER BY id LIMIT 1 FOR UPDATE")
        with relaying(database, broker) as relay:
            found = committed(broker, topic, 2)
            other.rollback()
            wait_sent(relay, 2)
    assert [record.value for record in found] == [b"1", b"2"]


def test_a_commit_wakes_the_relay(database, broker, topic):
    with relaying(database, broker, poll_interval=60.0 if database.kind != "sqlite" else None):
        for number, value in enumerate((b"1", b"2", b"3"), 1):
            write(database, topic, value)
            assert values_of(broker, topic, number)[-1] == value


def test_a_batch_is_bounded_in_bytes(database, monkeypatch):
    monkeypatch.setattr("penstock.outbox.store.BATCH_BYTES", 1000)
    write(database, "t", b"x" * 600, b"x" * 600, b"x" * 600)
    config = RelayConfig(dsn=database.dsn, table=database.name)
    with closing(open_store(config)) as store:
        assert [row.id for row in store.pending(10)] == [1, 2]


# --- rows that cannot be sent ---------------------------------------------------------------------
def test_dead_rows_hold_nobody_up_and_are_sent_once_they_can_be(database, broker, topic):
    late = f"late-{database.name}"
    with closing(database.connect()) as connection:
        outbox.enqueue(connection, late, b"no topic", key=b"ann", table=database.name)
        outbox.enqueue(connection, topic, bytes(2 << 20), key=b"ann", table=database.name)
        outbox.enqueue(connection, topic, b"good", key=b"ann", table=database.name)
        connection.execute(
            f"INSERT INTO {database.name} (topic, headers) VALUES ('{topic}', 'no json')"
        )
        connection.commit()
    with relaying(database, broker) as relay:
        assert [record.value for record in committed(broker, topic, 1)] == [b"good"]
        wait_until(lambda: relay.metrics()["dead"] == 3)
        where = ("--dsn", database.dsn, "--table", database.name)
        listed = call_cli("outbox", "list", *where, "--format", "json")
        assert [row["reason"].split(":")[0] for row in listed.objects] == [
            "UnknownTopicError", "RecordTooLargeError", "JSONDecodeError",
        ]  # fmt: skip
        assert [row["id"] for row in listed.objects] == [1, 2, 4]
        assert [line.split()[0] for line in call_cli("outbox", "list", *where).lines] == [
            "ID", "1", "2", "4",
        ]  # fmt: skip
        broker.create_topic(late)
        retried = call_cli("outbox", "retry", *where, "--topic", late)
        assert "1 rows are to be sent again" in retried.err
        assert [record.value for record in committed(broker, late, 1)] == [b"no topic"]
        purged = call_cli("outbox", "purge", *where, "2", "--yes")
        assert "1 rows removed" in purged.err
        assert call_cli("outbox", "purge", *where, "--yes").code == 2
    assert database.state_of() == [(2, 1)]


def test_a_row_that_cannot_be_sent_takes_no_other_with_it(sqlite, broker, topic):
    deep = "[" * 100_000
    with closing(sqlite.connect()) as connection:
        for headers, options in ((None, '{"partition": 7}'), (deep, None), (None, deep)):
            connection.execute(
                f"INSERT INTO {sqlite.name} (topic, headers, options) VALUES (?, ?, ?)",
                (topic, headers, options),
            )
        connection.commit()
    write(sqlite, topic, b"1")
    with relaying(sqlite, broker) as relay:
        wait_sent(relay, 1)
    assert values_of(broker, topic) == [b"1"]
    with closing(sqlite.connect()) as connection:
        reasons = [row.reason for row in outbox.dead_rows(connection, table=sqlite.name)]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "UnknownTopicError", "RecursionError", "RecursionError",
    ]  # fmt: skip


def test_rows_of_a_topic_that_is_deleted_die_and_others_go_on(sqlite, broker, topic):
    gone = f"gone-{sqlite.name}"
    broker.create_topic(gone)
    with relaying(sqlite, broker) as relay:
        write(sqlite, gone, b"1")
        wait_sent(relay, 1)
        with broker.connect() as client, client.admin() as admin:
            admin.delete_topic(gone)
        write(sqlite, gone, b"2", b"3")
        write(sqlite, topic, b"other")
        assert [record.value for record in committed(broker, topic, 1)] == [b"other"]
        wait_until(lambda: relay.metrics()["dead"] == 2)
    assert sqlite.state_of() == [(2, 2)]


# --- crashes --------------------------------------------------------------------------------------
def test_what_was_sent_and_not_settled_is_not_sent_again(postgresql, broker, topic):
    """The relay's database goes away between its two commits."""
    database = outbox_in(postgresql_of(postgresql))
    with relaying(database, broker) as relay, closing(database.connect()) as other:
        wait_until(lambda: relay.is_active)
        other.execute(f"SELECT FROM {database.name}_relay FOR UPDATE")
        write(database, topic, b"1", b"2")
        assert len(committed(broker, topic, 2)) == 2
        with closing(postgresql.connect()) as root:
            blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            [[pid]] = wait_until(lambda: root.execute(blocked).fetchall())
            root.execute("SELECT pg_terminate_backend(%s)", (pid,))
        other.rollback()
        wait_until(lambda: relay.metrics()["recovered"] == 2)
        write(database, topic, b"3")
        assert values_of(broker, topic, 3) == [b"1", b"2", b"3"]
        assert relay.metrics()["failures"] >= 1
    assert database.state_of() == []


def test_a_second_relay_stands_by_and_takes_over(database, broker, topic):
    with relaying(database, broker) as second:
        wait_until(lambda: second.is_active)
        with relaying(database, broker) as first:
            write(database, topic, b"1")
            wait_sent(second, 1)
            assert not first.is_active
            second.stop()
            wait_until(lambda: first.is_active)
            write(database, topic, b"2")
            wait_sent(first, 1)
    assert values_of(broker, topic) == [b"1", b"2"]


def test_a_relay_that_was_taken_for_dead_settles_nothing(database):
    config = RelayConfig(dsn=database.dsn, table=database.name)
    write(database, "t", b"1")
    with closing(open_store(config)) as old, closing(open_store(config)) as new:
        assert old.is_locked()
        assert not new.is_locked()
        [row] = old.pending(10)
        assert new.settle(1, [], ())
        assert not old.settle(1, [row.id], ())
        assert database.state_of() == [(0, 1)]


@pytest.mark.setting("outbox.accept_gap")
def test_an_older_copy_of_the_database_is_told(sqlite, broker, topic, tmp_path, caplog):
    file = sqlite.dsn.removeprefix("sqlite:///")
    with closing(sqlite.connect()) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    shutil.copy(file, tmp_path / "copy")
    for value in (b"1", b"2"):
        with relaying(sqlite, broker) as relay:
            write(sqlite, topic, value)
            wait_sent(relay, 1)
    shutil.copy(tmp_path / "copy", file)
    write(sqlite, topic, b"3")
    with pytest.raises(er.ConfigError, match=r"settled batch 0, but topic .* says 2"):
        Relay(config_of(sqlite), url=broker.url).run()
    with relaying(sqlite, broker, accept_gap=True) as relay:
        write(sqlite, topic, b"4")
        wait_sent(relay, 2)
    assert values_of(broker, topic) == [b"1", b"2", b"3", b"4"]
    assert "going on all the same" in caplog.text


def test_a_database_that_is_one_batch_older_loses_no_row(sqlite, broker, topic, tmp_path):
    """Other rows have the ids of sent ones."""
    file = sqlite.dsn.removeprefix("sqlite:///")
    with closing(sqlite.connect()) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    shutil.copy(file, tmp_path / "copy")
    with relaying(sqlite, broker) as relay:
        write(sqlite, topic, b"1")
        wait_sent(relay, 1)
    shutil.copy(tmp_path / "copy", file)
    write(sqlite, topic, b"2")
    assert sqlite.rows(f"SELECT id FROM {sqlite.name}") == [(1,)]
    with pytest.raises(er.ConfigError, match=r"settled batch 0, but topic .* says 1"):
        Relay(config_of(sqlite), url=broker.url).run()
    with relaying(sqlite, broker, accept_gap=True) as relay:
        wait_sent(relay, 1)
    assert values_of(broker, topic) == [b"1", b"2"]


def test_a_database_that_is_batches_older_sends_no_row_again(sqlite, broker, topic, tmp_path):
    """The rows of the last batch are there, as they were sent, and those before them too."""
    file = sqlite.dsn.removeprefix("sqlite:///")
    with closing(sqlite.connect()) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    write(sqlite, topic, b"1", b"2", b"3")
    shutil.copy(file, tmp_path / "copy")
    with relaying(sqlite, broker, batch_rows=1) as relay:
        wait_sent(relay, 3)
    shutil.copy(tmp_path / "copy", file)
    with pytest.raises(er.ConfigError, match=r"settled batch 0, but topic .* says 3"):
        Relay(config_of(sqlite), url=broker.url).run()
    assert values_of(broker, topic) == [b"1", b"2", b"3"]


# --- schema, settings, commands -------------------------------------------------------------------
def test_an_older_schema_is_migrated_with_its_rows(postgresql, broker, topic):
    database = postgresql_of(postgresql)
    steps = outbox.schema.SCHEMA.statements("postgresql", database.name)
    old = steps[: len(outbox.schema.SCHEMA.steps["postgresql"][0])]
    with closing(database.connect()) as connection:
        for statement in old:
            connection.execute(statement)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS penstock_schema (part VARCHAR(200) PRIMARY KEY, "
            "version INTEGER NOT NULL)"
        )
        connection.execute(
            "INSERT INTO penstock_schema VALUES (%s, 1)", (f"outbox:{database.name}",)
        )
        connection.commit()
    write(database, topic, b"old")
    with pytest.raises(er.ConfigError, match="version 1 of its schema, not 2"):
        Relay(config_of(database), url=broker.url).run()
    where = ("--dsn", database.dsn, "--table", database.name)
    assert "CREATE TRIGGER" in call_cli("outbox", "migrate", *where, "--dry-run").out.decode()
    assert "went from version 1 to version 2" in call_cli("outbox", "migrate", *where).err
    assert "has version 2" in call_cli("outbox", "migrate", *where).err
    with relaying(database, broker):
        assert [record.value for record in committed(broker, topic, 1)] == [b"old"]


def test_a_newer_schema_is_refused(database):
    with closing(database.connect()) as connection:
        connection.execute(
            f"UPDATE penstock_schema SET version = 99 WHERE part = 'outbox:{database.name}'"
        )
        connection.commit()
        with pytest.raises(er.ConfigError, match="a newer Penstock made it"):
            outbox.migrate(connection, table=database.name)


@pytest.mark.setting("outbox.dsn")
@pytest.mark.setting("outbox.table")
@pytest.mark.setting("outbox.keep_sent")
def test_the_relay_command_and_rows_that_are_kept(sqlite, broker, topic):
    where = ("--dsn", sqlite.dsn, "--table", sqlite.name)
    write(sqlite, topic, b"1")
    with cli_process(
        "outbox", "relay", *where, "--keep-sent", "--durability", "appended", url=broker.url
    ) as command:
        assert values_of(broker, topic, 1) == [b"1"]
        wait_until(lambda: sqlite.state_of() == [(1, 1)])
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 0
    assert (
        "1 rows removed"
        in call_cli("outbox", "purge", *where, "--state", "sent", "--all", "--yes").err
    )
    assert sqlite.state_of() == []
    missing = call_cli("outbox", "relay", "--dsn", sqlite.dsn, "--table", "none", url=broker.url)
    assert missing.code == 2
    assert "table 'none' is not there: run `penstock outbox migrate" in missing.err


@pytest.mark.setting("outbox.progress_topic")
@pytest.mark.setting("outbox.batch_rows")
def test_a_batch_and_its_progress(sqlite, broker, topic):
    progress = f"{topic}-progress"
    write(sqlite, topic, *[b"%d" % number for number in range(5)])
    with relaying(sqlite, broker, batch_rows=2, progress_topic=progress) as relay:
        wait_sent(relay, 5)
        assert relay.metrics()["batches"] == 3
    [[outbox_id]] = sqlite.rows(f"SELECT outbox_id FROM {sqlite.name}_relay")
    told = [
        SentBatch.decoded(record.value or b"")
        for record in committed(broker, progress)
        if record.key == outbox_id.encode()
    ]
    assert [(each.batch, list(each.ids())) for each in told] == [(1, [1, 2]), (2, [3, 4]), (3, [5])]


@pytest.mark.setting("outbox.poll_interval")
def test_an_empty_outbox_is_looked_at_by_its_interval(sqlite, broker, topic):
    with relaying(sqlite, broker, poll_interval=3600.0) as relay:
        wait_until(lambda: relay.is_active)
        write(sqlite, topic, b"1")
        assert relay.config.pause == 3600.0
        relay.stop()
    assert values_of(broker, topic) == []


@pytest.mark.setting("outbox.durability")
def test_a_batch_need_not_be_fsynced(sqlite, broker, topic):
    with relaying(sqlite, broker, durability="appended") as relay:
        write(sqlite, topic, b"1")
        wait_sent(relay, 1)
    with broker.connect() as client, client.admin() as admin:
        assert admin.describe_topic(topic).partitions[0].durable == 0


def test_metrics_of_a_relay(database, broker, topic):
    write(database, f"none-{database.name}", b"dead")
    with relaying(database, broker) as relay:
        write(database, topic, b"1")
        wait_sent(relay, 1)
        wait_until(lambda: relay.metrics()["dead"] == 1)
        found = {
            sample.name: sample.value
            for family in outbox.collector(relay).collect()
            for sample in family.samples
        }
    assert found["penstock_outbox_sent_total"] == 1
    assert found["penstock_outbox_active"] == 1
    assert found["penstock_outbox_dead_rows"] == 1
    assert found["penstock_outbox_pending_rows"] == 0
    write(database, topic, b"waits")
    ages = {
        sample.name: sample.value
        for family in outbox.collector(relay).collect()
        for sample in family.samples
    }
    assert ages["penstock_outbox_pending_rows"] == 1
    assert 0 <= ages["penstock_outbox_oldest_seconds"] < 600
