"""Requests to the coordinator by how they are answered, and what is said where nothing is decided.

Owns these lists and answers. Knows no machine.
"""

from __future__ import annotations

from typing import Final

from penstock.core.errors import NotLeaderError, UnknownMemberError
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms
from penstock.ipc import sharing
from penstock.server.coordinator.opening import TOPIC
from penstock.server.coordinator.share_requests import NOTHING_PEEKED

ASKS_AFTER: Final = (
    co.SyncGroup, co.LeaveGroup, co.CommitOffsets, co.ClaimOffsets, co.ListGroups,
    co.DescribeGroup, co.DeleteGroup, co.ListTransactions, sharing.AcquireRecords,
    sharing.BuryRecords, sharing.SeekShare, sharing.PauseShare, sharing.ResumeShare,
    sharing.DescribeShare, sharing.PeekShare,
)  # fmt: skip
"""Requests that do not make the topic: without it, the answer is that nothing is there."""
OF_MEMBERS: Final = (
    co.SyncGroup, co.LeaveGroup, co.CommitOffsets, co.ClaimOffsets, sharing.AcquireRecords,
    sharing.BuryRecords,
)  # fmt: skip
"""Requests of clients that a coordinator has answered before."""
DECIDED_AT_ONCE: Final = (co.CommitOffsets, co.ClaimOffsets)
"""Requests that wait for nothing but the log: they need no task of their own."""


def elsewhere() -> NotLeaderError:
    return NotLeaderError(
        "this broker is not the coordinator of groups and transactions: the one is that leads "
        f"{TOPIC}-0; ask there"
    )


def nothing_there(request: co.Request | sharing.Request) -> ms.NodeMessage | None:
    """The answer of a node that never had a share group or a transaction. None: the request is of
    groups. Raises UnknownMemberError."""
    if isinstance(request, sharing.DescribeShare):
        return sharing.ShareDescription(sharing.ShareSettings(), [], {}, {})
    if isinstance(request, sharing.PeekShare):
        return NOTHING_PEEKED
    if isinstance(request, sharing.Request):
        raise UnknownMemberError(f"there is no share group {request.group!r}: join again")
    return co.Transactions([], False) if isinstance(request, co.ListTransactions) else None
