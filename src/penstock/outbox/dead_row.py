"""Dead rows of an outbox: those that cannot be sent. Operators look, retry or remove them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from penstock.client.validation import check_integer, check_range
from penstock.database.statements import Parameters, check_table, execute
from penstock.outbox.schema import TABLE, RowState

LIST_MAX: Final = 10_000
_NONE_NAMED: Final = "name rows by ids, or topic, or say everything=True"


class DeadRow(NamedTuple):
    """A row that could not be sent. Times are texts as the database writes them."""

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    reason: str
    created_at: str
    died_at: str


def dead_rows(
    connection: Any, *, table: str = TABLE, topic: str | None = None, limit: int = 100
) -> list[DeadRow]:
    """Returns dead rows, oldest first; `limit` is 10,000 at most."""
    check_integer("limit", limit)
    check_range("limit", limit, 1, LIST_MAX)
    found = execute(
        connection,
        "SELECT id, topic, key, value, reason, CAST(created_at AS TEXT), CAST(settled_at AS TEXT) "
        f"FROM {check_table(table)} WHERE state = {RowState.DEAD} "
        "AND (CAST(:topic AS TEXT) IS NULL OR topic = :topic) ORDER BY id LIMIT :most",
        {"topic": topic, "most": limit},
    ).fetchall()
    return [
        DeadRow(number, name, _bytes(key), _bytes(value), *rest)
        for number, name, key, value, *rest in found
    ]


def _bytes(value: Any) -> bytes | None:
    """Some drivers give a view."""
    return None if value is None else bytes(value)


def retry_rows(
    connection: Any,
    *,
    table: str = TABLE,
    topic: str | None = None,
    ids: Collection[int] | None = None,
    everything: bool = False,
) -> int:
    """Has dead rows sent again, in the caller's transaction, and returns how many. They come behind
    what was sent of their keys meanwhile."""
    where, given = _chosen(topic, ids, everything)
    return _changed(
        connection,
        f"UPDATE {check_table(table)} SET state = {RowState.PENDING}, reason = NULL, "
        f"settled_at = NULL WHERE state = {RowState.DEAD}{where}",
        given,
        ids,
    )


def purge_rows(
    connection: Any,
    *,
    table: str = TABLE,
    state: RowState = RowState.DEAD,
    topic: str | None = None,
    ids: Collection[int] | None = None,
    everything: bool = False,
) -> int:
    """Removes dead rows, or those that were sent and kept, for ever, in the caller's transaction.
    Returns how many."""
    if state is RowState.PENDING:
        raise ValueError("rows that wait are not removed: only dead and sent ones")
    where, given = _chosen(topic, ids, everything)
    return _changed(
        connection, f"DELETE FROM {check_table(table)} WHERE state = {state}{where}", given, ids
    )


def _chosen(
    topic: str | None, ids: Collection[int] | None, everything: bool
) -> tuple[str, dict[str, Any]]:
    if topic is None and ids is None and not everything:
        raise ValueError(_NONE_NAMED)
    where = "" if ids is None else " AND id = :id"
    return (where + " AND topic = :topic", {"topic": topic}) if topic is not None else (where, {})


def _changed(
    connection: Any, statement: str, given: Parameters, ids: Collection[int] | None
) -> int:
    if ids is None:
        return int(execute(connection, statement, given).rowcount)
    return sum(int(execute(connection, statement, {**given, "id": each}).rowcount) for each in ids)
