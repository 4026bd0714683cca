"""The jobs that a message queue's users need, on Spark; `penstock spark ...` runs the same.

    from penstock.spark import jobs, session

    jobs.archive(session("nightly"), "shm://", ["orders"], "/archive/orders")

Each may be run again at any time, after it was killed too: it goes on, or finds nothing to do.
Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazily import loaded

_HOMES = {
    "Audit": "auditing",
    "audit": "auditing",
    "Archived": "archiving",
    "archive": "archiving",
    "Backfilled": "backfilling",
    "backfill": "backfilling",
    "HotKeys": "hotkeys",
    "hot_keys": "hotkeys",
    "RolledUp": "rollups",
    "rollup": "rollups",
    "Snapshot": "snapshots",
    "snapshot": "snapshots",
}

__all__ = [
    "Archived",
    "Audit",
    "Backfilled",
    "HotKeys",
    "RolledUp",
    "Snapshot",
    "archive",
    "audit",
    "backfill",
    "hot_keys",
    "rollup",
    "snapshot",
]

if TYPE_CHECKING:
    from penstock.spark.jobs.archiving import Archived, archive
    from penstock.spark.jobs.auditing import Audit, audit
    from penstock.spark.jobs.backfilling import Backfilled, backfill
    from penstock.spark.jobs.hotkeys import HotKeys, hot_keys
    from penstock.spark.jobs.rollups import RolledUp, rollup
    from penstock.spark.jobs.snapshots import Snapshot, snapshot

__getattr__, __dir__ = loaded(__name__, _HOMES)
