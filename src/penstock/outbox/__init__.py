"""The transactional outbox: records that an application writes into its own database, in its own
transaction, and a relay that brings them to their topics.

    from penstock.outbox import enqueue

    with engine.begin() as connection:
        connection.execute(orders.insert().values(id=42))
        enqueue(connection, "orders", b"42", key=b"ann")

Commit or rollback decides. `penstock outbox relay --dsn postgresql://...` sends each committed row
once, in order of its key, whatever is killed. Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazily import loaded

_HOMES = {
    "DeadRow": "dead_row",
    "Relay": "relay",
    "RelayConfig": "config",
    "collector": "metrics",
    "dead_rows": "dead_row",
    "enqueue": "enqueuing",
    "enqueue_async": "enqueuing",
    "enqueue_many": "enqueuing",
    "migrate": "schema",
    "purge_rows": "dead_row",
    "retry_rows": "dead_row",
    "table": "tables",
}

__all__ = [
    "DeadRow",
    "Relay",
    "RelayConfig",
    "collector",
    "dead_rows",
    "enqueue",
    "enqueue_async",
    "enqueue_many",
    "migrate",
    "purge_rows",
    "retry_rows",
    "table",
]

if TYPE_CHECKING:
    from penstock.outbox.config import RelayConfig
    from penstock.outbox.dead_row import DeadRow, dead_rows, purge_rows, retry_rows
    from penstock.outbox.enqueuing import enqueue, enqueue_async, enqueue_many
    from penstock.outbox.metrics import collector
    from penstock.outbox.relay import Relay
    from penstock.outbox.schema import migrate
    from penstock.outbox.tables import table

__getattr__, __dir__ = loaded(__name__, _HOMES)
