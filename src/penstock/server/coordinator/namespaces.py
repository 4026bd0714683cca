"""Limits of namespaces on what the coordinator keeps: groups and transactional ids."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cluster.access import NamespaceLimits, check_one_more
from penstock.ipc import coordination as co
from penstock.server.coordinator.epoch import Machines


def check_namespaces(
    limits: Sequence[NamespaceLimits], machines: Machines, request: co.Request
) -> None:
    """Raise ResourceLimitError where a request would make one group or id too many. To be decided
    before anything else is."""
    if not limits:
        return
    match request:
        case co.JoinGroup() | co.SeekGroup():
            check_one_more(limits, "groups", request.group, machines.groups.names())
        case co.InitTransactions() | co.BeginStage() | co.CommitTransaction():
            there = machines.transactions.ids()
            check_one_more(limits, "transactional_ids", request.transactional_id, there)
        case _:
            pass
