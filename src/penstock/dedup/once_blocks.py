"""`once`: a record's effects in a database, and that it was handled, in one transaction.

    position    the next offset of (group, topic, partition): a record below it was handled
    id          a row for each record, where records come in no order: work queues, several topics

The first statement writes the position, so of two consumers that have the same record one waits for
the other's commit, and then skips it. Never reads or commits anything of Penstock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, overload

from penstock.client.consumer.group.consumed import GroupBatch
from penstock.client.consumer.records import RecordPlace
from penstock.client.validation import check_flag, check_text
from penstock.core.errors import ConfigError, TransactionError
from penstock.database.statements import check_table, dialect_of, driver_of, execute
from penstock.dedup.schema import NOW, TABLE

GROUP_MAX: Final = 255
ID_MAX: Final = 1024
"""Bytes of an id."""
FAILED: Final = 3
"""A transaction's state in psycopg and psycopg2: INERROR."""
FAILED_PG8000: Final = b"E"


IdOf = Callable[[Any], bytes]


def place_of(record: RecordPlace) -> bytes:
    """The id of a record by its place, for `id_of`: where records come in no order."""
    return f"{record.topic}/{record.partition}/{record.offset}".encode()


class StoreTransaction:
    """The transaction that result and position share."""

    def __init__(
        self, connection: Any, group: str, table: str, id_of: IdOf | None, *, commit: bool
    ) -> None:
        check_text("group", group)
        if not 0 < len(group) <= GROUP_MAX:
            raise ConfigError(f"group={group[:80]!r} must have 1 to {GROUP_MAX} characters")
        check_flag("commit", commit)
        self._connection = connection
        self._group = group
        self._table = check_table(table)
        self._id_of = id_of
        self.by_id = id_of is not None
        self._commits = commit
        self._now = NOW[dialect_of(connection)]

    def begin(self) -> None:
        """Raises `ConfigError` where each statement would commit by itself."""
        driver = driver_of(self._connection)
        is_sqlite = hasattr(driver, "in_transaction")
        mode = getattr(driver, "autocommit", None)  # of sqlite3: from Python 3.12 on
        if is_sqlite:
            by_itself = mode is True or driver.isolation_level is None
            is_begun = driver.in_transaction
        else:
            by_itself = mode is True
            is_begun = bool(getattr(getattr(driver, "info", None), "transaction_status", 0))
        if not by_itself or is_begun:
            return
        can_begin = mode is not True if is_sqlite else hasattr(driver, "pgconn")
        if driver is not self._connection or not self._commits or not can_begin:
            raise ConfigError(
                "this connection commits each statement by itself, so result and position would "
                "not commit together: use one without autocommit"
            )
        driver.execute("BEGIN IMMEDIATE" if is_sqlite else "BEGIN")

    def end(self, kind: type[BaseException] | None) -> None:
        """Raises `TransactionError` where nothing can commit, though nobody was told."""
        if not self._commits:
            return
        is_failed = kind is None and self._is_failed()
        if kind is None and not is_failed:
            self._connection.commit()
            return
        self._connection.rollback()
        if is_failed:
            raise TransactionError(
                "a statement in this block failed, and its error did not leave the block: the "
                "database has given the whole transaction up, and its commit would be a rollback. "
                "Let the error leave the block, or run that statement in a savepoint"
            )

    def _is_failed(self) -> bool:
        """Whether PostgreSQL waits for a rollback; it answers a commit by one, with no error."""
        driver = driver_of(self._connection)
        status = getattr(getattr(driver, "info", None), "transaction_status", None)
        return status == FAILED or getattr(driver, "_transaction_status", None) == FAILED_PG8000

    def is_new_id(self, record: Any) -> bool:
        assert self._id_of is not None
        known = self._id_of(record)
        if not isinstance(known, bytes) or not 0 < len(known) <= ID_MAX:
            raise ConfigError(f"id_of gave {known!r:.80}: an id is 1 to {ID_MAX} bytes")
        done = execute(
            self._connection,
            f"INSERT INTO {self._table}_ids (consumer_group, record_id, seen_at) "
            f"VALUES (:name, :id, {self._now}) ON CONFLICT (consumer_group, record_id) DO NOTHING",
            {"name": self._group, "id": known},
        )
        return bool(done.rowcount == 1)

    def moved(self, topic: str, partition: int, next_offset: int) -> bool:
        """Moves the position on. False: it is there already, or further."""
        done = execute(
            self._connection,
            f"INSERT INTO {self._table} AS known "
            "(consumer_group, topic, partition_number, next_offset, changed_at) "
            f"VALUES (:name, :topic, :partition, :next, {self._now}) "
            "ON CONFLICT (consumer_group, topic, partition_number) DO UPDATE "
            "SET next_offset = excluded.next_offset, changed_at = excluded.changed_at "
            "WHERE known.next_offset < excluded.next_offset",
            {"name": self._group, "topic": topic, "partition": partition, "next": next_offset},
        )
        return bool(done.rowcount == 1)

    def locked(self, topic: str, partition: int, topic_id: str | None) -> int:
        """Returns the position, which nobody else changes until the transaction ends. That of an
        earlier topic of the same name is none."""
        [[position]] = execute(
            self._connection,
            f"INSERT INTO {self._table} AS known "
            "(consumer_group, topic, partition_number, topic_id, next_offset, changed_at) "
            f"VALUES (:name, :topic, :partition, :id, 0, {self._now}) "
            "ON CONFLICT (consumer_group, topic, partition_number) DO UPDATE "
            "SET changed_at = excluded.changed_at, "
            "topic_id = coalesce(excluded.topic_id, known.topic_id), "
            "next_offset = CASE WHEN known.topic_id <> excluded.topic_id THEN 0 "
            "ELSE known.next_offset END RETURNING next_offset",
            {"name": self._group, "topic": topic, "partition": partition, "id": topic_id},
        ).fetchall()
        return int(position)


class OnceRecord(AbstractContextManager[bool]):
    """See `once`: a transaction around the handling of one record."""

    def __init__(self, record: RecordPlace, transaction: StoreTransaction) -> None:
        self._record = record
        self._transaction = transaction

    def __enter__(self) -> bool:
        record = self._record
        try:
            self._transaction.begin()
            if self._transaction.by_id:
                return self._transaction.is_new_id(record)
            return self._transaction.moved(record.topic, record.partition, record.offset + 1)
        except BaseException as error:
            self._transaction.end(type(error))
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transaction.end(kind)


class OnceBatch(AbstractContextManager[list[Any]]):
    """See `once`: a transaction around the handling of a batch."""

    def __init__(self, batch: Iterable[RecordPlace], transaction: StoreTransaction) -> None:
        self._batch = batch
        self._transaction = transaction

    def __enter__(self) -> list[Any]:
        try:
            self._transaction.begin()
            if self._transaction.by_id:
                return [record for record in self._batch if self._transaction.is_new_id(record)]
            return self._behind_positions()
        except BaseException as error:
            self._transaction.end(type(error))
            raise

    def _behind_positions(self) -> list[Any]:
        ids = _topic_ids(self._batch)
        by_partition: dict[tuple[str, int], list[Any]] = {}
        for record in self._batch:
            by_partition.setdefault((record.topic, record.partition), []).append(record)
        found: list[Any] = []
        for name in sorted(by_partition):  # in one order, so that no two wait for each other
            records = by_partition[name]
            position = self._transaction.locked(*name, ids.get(name))
            fresh = [record for record in records if record.offset >= position]
            if fresh:
                self._transaction.moved(*name, max(record.offset for record in fresh) + 1)
            found += fresh
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transaction.end(kind)

    def __iter__(self) -> Iterator[Any]:
        """Those that are new. All of them commit when the loop is over; one that is left before,
        by `break` or an exception, rolls all of them back."""
        with self as fresh:
            yield from fresh


def _topic_ids(batch: object) -> dict[tuple[str, int], str]:
    """Returns which topics these are, as far as a group's batch knows: names may be given again."""
    if not isinstance(batch, GroupBatch):
        return {}
    return {name: owned.topic_id.hex() for name, owned in batch.ownership.owned.items()}


@overload
def once(
    connection: Any, group: str, record: RecordPlace, *, id_of: IdOf | None = None,
    table: str = TABLE, commit: bool = True,
) -> OnceRecord: ...  # fmt: skip
@overload
def once(
    connection: Any, group: str, record: Iterable[RecordPlace], *, id_of: IdOf | None = None,
    table: str = TABLE, commit: bool = True,
) -> OnceBatch: ...  # fmt: skip
def once(
    connection: Any,
    group: str,
    record: RecordPlace | Iterable[RecordPlace],
    *,
    id_of: IdOf | None = None,
    table: str = TABLE,
    commit: bool = True,
) -> OnceRecord | OnceBatch:
    """A transaction of the database in which a record is handled, once for each group.

        with once(connection, "billing", record) as is_new:     # one record
        with once(connection, "billing", batch) as fresh:       # those of a batch that are new
        for record in once(connection, "billing", batch):       # the same as a loop

    The end of the block commits, an exception rolls back: the record comes again then.

    Args:
        connection: as for `penstock.outbox.enqueue`, with no work in hand that should not commit.
        record: one record, or a batch of them in order of offsets.
        id_of: the id by which a record is known. Without it its offset counts, so records have to
            come in order of their partition, as they do from a group. `place_of` is for work
            queues.
        table: the store, as `penstock.dedup.migrate` made it.
        commit: False leaves commit and rollback to the caller.

    Raises `ConfigError` for a connection in autocommit mode, `TransactionError` where the end of
    the block cannot commit, and what the driver raises.
    """
    transaction = StoreTransaction(connection, group, table, id_of, commit=commit)
    if isinstance(record, Iterable):
        return OnceBatch(record, transaction)
    return OnceRecord(record, transaction)
