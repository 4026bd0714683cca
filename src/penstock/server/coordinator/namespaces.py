"""Limits of namespaces on what the coordinator keeps: groups and transactional ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.cluster.access import NamespaceLimits, check_one_more, names_in
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
            groups = machines.groups.names()
            if request.group not in groups:
                check_one_more(limits, "groups", request.group, lambda it: _inside(groups, it))
        case co.InitTransactions() | co.BeginStage() | co.CommitTransaction():
            name, ids = request.transactional_id, machines.transactions.ids()
            if name not in ids:
                check_one_more(limits, "transactional_ids", name, ids.in_namespace)
        case _:
            pass


def _inside(groups: Collection[str], namespace: str) -> int:
    """By a look at all of them: there are `groups_max` at most."""
    return len(names_in(namespace, groups))
