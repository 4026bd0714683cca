"""A relay's side of the database: rows that wait, its lock, and the number of its last batch.

    pending      the oldest rows that wait, by one statement: one snapshot, in order of their ids
    settle       one transaction: rows that were sent go, dead ones get a reason, the batch a number

`settle` changes nothing unless the last batch's number is the one that the relay knows. So a relay
that was taken
for dead settles nothing. Never sends.
"""

from __future__ import annotations

import fcntl
import os
import select
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import ConfigError
from penstock.database import dsn as dsns
from penstock.database.migrations import check_version
from penstock.database.statements import execute
from penstock.outbox.config import RelayConfig
from penstock.outbox.rows import OutboxRow
from penstock.outbox.schema import SCHEMA, RowState

if TYPE_CHECKING:
    import psycopg

_COLUMNS: Final = "id, topic, key, value, headers, options, created"
BATCH_BYTES: Final = 16 << 20
"""Bytes of the values of one batch, but for its last row."""


class Position(NamedTuple):
    """Where an outbox is: its id, and the number of the last batch that was settled."""

    outbox_id: str
    batch: int


class DeadLetterRow(NamedTuple):
    """A row that cannot be sent, with the reason."""

    id: int
    reason: str


class OutboxStore(ABC):
    """An outbox in a database, by a connection of the relay's own."""

    now: str
    """The time, in SQL."""
    columns: str
    """`_COLUMNS`, in SQL."""
    created: str
    """When a row was inserted, as a text that is the same in each session, in SQL."""

    def __init__(self, config: RelayConfig) -> None:
        self._table = config.table
        self._keeps = config.keep_sent
        self.connection: Any = None

    def check(self) -> None:
        """Raises `ConfigError` where the tables are not those of this version."""
        advice = f"run `penstock outbox migrate --table {self._table}` with the same --dsn"
        check_version(self.connection, SCHEMA, self._table, advice)

    def position(self) -> Position:
        [[outbox_id, batch]] = execute(
            self.connection, f"SELECT outbox_id, batch FROM {self._table}_relay", {}
        ).fetchall()
        return Position(str(outbox_id).replace("-", ""), batch)

    def pending(self, most: int) -> list[OutboxRow]:
        """Returns the oldest rows that wait: the first one, and more while their values have room
        in `BATCH_BYTES`."""
        found = self.connection.execute(
            f"SELECT {_COLUMNS} FROM (SELECT {self.columns}, sum(coalesce(length(value), 0)) "
            "OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) "
            "- coalesce(length(value), 0) AS before "
            f"FROM {self._table} WHERE state = 0 ORDER BY id LIMIT {most}) AS oldest "
            f"WHERE before < {BATCH_BYTES} ORDER BY id"
        ).fetchall()
        return [OutboxRow(*row) for row in found]

    def created_of(self, ids: Sequence[int]) -> list[tuple[int, str]]:
        """Returns those of these rows that wait, and when each was inserted, by id."""
        among, given = self._among(ids)
        return [
            (row_id, created)
            for row_id, created in self.connection.execute(
                f"SELECT id, {self.created} FROM {self._table} WHERE state = 0 AND {among} "
                "ORDER BY id",
                given,
            ).fetchall()
        ]

    def settle(self, batch: int, sent: Sequence[int], dead: Sequence[DeadLetterRow]) -> bool:
        """Settles the rows of this batch. False, with nothing changed: another relay has done
        it."""
        with self._transaction():
            moved = execute(
                self.connection,
                f"UPDATE {self._table}_relay SET batch = :batch WHERE batch = :before",
                {"batch": batch, "before": batch - 1},
            )
            if moved.rowcount != 1:
                return False
            if sent:
                self._forget(sent)
            self._bury(dead)
        return True

    def bury(self, dead: Sequence[DeadLetterRow]) -> None:
        """Marks rows as dead, where no row of their batch was sent."""
        with self._transaction():
            self._bury(dead)

    def force(self, batch: int) -> None:
        """Sets the number of the last batch, whatever it was."""
        with self._transaction():
            execute(self.connection, f"UPDATE {self._table}_relay SET batch = :b", {"b": batch})

    def _forget(self, sent: Sequence[int]) -> None:
        among, given = self._among(sent)
        if self._keeps:
            done = f"UPDATE {self._table} SET state = {RowState.SENT}, settled_at = {self.now}"
        else:
            done = f"DELETE FROM {self._table}"
        self.connection.execute(f"{done} WHERE {among}", given)

    def _bury(self, dead: Sequence[DeadLetterRow]) -> None:
        for row_id, reason in dead:
            execute(
                self.connection,
                f"UPDATE {self._table} SET state = {RowState.DEAD}, settled_at = {self.now}, "
                "reason = :reason WHERE id = :id AND state = 0",
                {"id": row_id, "reason": reason},
            )

    @abstractmethod
    def is_locked(self) -> bool:
        """Takes the lock of the relay, unless another one has it; it ends with the connection."""

    @abstractmethod
    def wait(self, seconds: float, wake: int) -> None:
        """Waits for rows, for so long at most; less, once the descriptor `wake` is readable."""

    @abstractmethod
    def _among(self, ids: Sequence[int]) -> tuple[str, tuple[Any, ...]]: ...

    @abstractmethod
    def _transaction(self) -> Any: ...

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class PostgresqlStore(OutboxStore):
    """By psycopg. A second connection listens, so that no notice is missed between two looks."""

    now = "clock_timestamp()"
    created = "CAST(extract(epoch FROM created_at) AS TEXT)"
    columns = f"id, topic, key, value, headers, options, {created} AS created"

    def __init__(self, config: RelayConfig) -> None:
        super().__init__(config)
        self._listener: psycopg.Connection[Any] | None = None
        try:
            self.connection = dsns.connect_postgresql(config.dsn, autocommit=True)
            # A commit here has to last before the next batch is sent.
            self.connection.execute("SET synchronous_commit = on")
            self._listener = dsns.connect_postgresql(config.dsn, autocommit=True)
            self._listener.execute(f'LISTEN "{config.table}"')
        except BaseException:
            self.close()
            raise

    def is_locked(self) -> bool:
        [[got]] = self.connection.execute(
            "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))",
            (f"penstock.outbox {self._table}",),
        ).fetchall()
        return bool(got)

    def wait(self, seconds: float, wake: int) -> None:
        assert self._listener is not None
        raw = self._listener.pgconn
        if raw.notifies() is None:
            poller = select.poll()
            poller.register(wake, select.POLLIN)
            poller.register(raw.socket, select.POLLIN)
            poller.poll(seconds * 1000)
            raw.consume_input()  # raises once the server is gone
        while raw.notifies() is not None:
            pass

    def _among(self, ids: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return "id = ANY(%s)", (list(ids),)

    def _transaction(self) -> Any:
        return self.connection.transaction()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        super().close()


class SqliteStore(OutboxStore):
    """By sqlite3. Nobody is told of new rows there; `data_version` changes with each commit of
    others, and costs microseconds to look at."""

    now = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
    # Applications may have written text there, as SQLite allows.
    columns = (
        "id, topic, CAST(key AS BLOB) AS key, CAST(value AS BLOB) AS value, headers, options, "
        "created_at AS created"
    )
    created = "created_at"

    def __init__(self, config: RelayConfig) -> None:
        super().__init__(config)
        self._step = config.pause
        self._lock = -1
        self._lock_file = dsns.path_of(config.dsn)
        self._lock_file = self._lock_file.with_name(f"{self._lock_file.name}-{config.table}.relay")
        self.connection = dsns.connect_sqlite(config.dsn)
        self._seen = -1

    def is_locked(self) -> bool:
        if self._lock < 0:
            self._lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def pending(self, most: int) -> list[OutboxRow]:
        self._seen = self._version()  # before: a commit in between is seen by the next wait
        return super().pending(most)

    def wait(self, seconds: float, wake: int) -> None:
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        while seconds > 0 and self._version() == self._seen:
            if poller.poll(min(seconds, self._step) * 1000):
                return
            seconds -= self._step

    def _version(self) -> int:
        [[version]] = self.connection.execute("PRAGMA data_version").fetchall()
        return int(version)

    def _among(self, ids: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
        return "id IN (SELECT value FROM json_each(?))", (f"[{','.join(map(str, ids))}]",)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_store(config: RelayConfig) -> OutboxStore:
    """Raises `ConfigError`, `NotConnectedError`."""
    if dsns.dialect_of_dsn(config.dsn) == "postgresql":
        return PostgresqlStore(config)
    if not dsns.path_of(config.dsn).is_file():
        raise ConfigError(
            f"there is no file {dsns.path_of(config.dsn)}: `penstock outbox migrate` makes it"
        )
    return SqliteStore(config)


def is_passing(error: BaseException) -> bool:
    """Whether a database's error may be gone with the next connection."""
    if isinstance(error, sqlite3.OperationalError):
        return True
    for kind in type(error).__mro__:
        if kind.__module__.startswith("psycopg") and kind.__name__ == "OperationalError":
            return True
    return False
