"""Effects in a database, each once: position and result commit in one database transaction.

    from penstock.dedup import once

    for record in consumer:
        with once(connection, "billing", record) as is_new:
            if is_new:
                connection.execute("INSERT INTO invoices ...")

SQLite and PostgreSQL. Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazily import loaded

_HOMES = {
    "forget": "schema",
    "migrate": "schema",
    "once": "once_blocks",
    "place_of": "once_blocks",
    "positions": "schema",
    "vacuum": "schema",
}

__all__ = ["forget", "migrate", "once", "place_of", "positions", "vacuum"]

if TYPE_CHECKING:
    from penstock.dedup.once_blocks import once, place_of
    from penstock.dedup.schema import forget, migrate, positions, vacuum

__getattr__, __dir__ = loaded(__name__, _HOMES)
