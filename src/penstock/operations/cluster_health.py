"""Says what is not well with a cluster, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.operations.wording import counted

if TYPE_CHECKING:
    from penstock.client.admin.cluster import ClusterDescription


def summary(found: ClusterDescription) -> str:
    """Returns how many partitions are not well, and why."""
    if not found.ill_partitions:
        return "all replicas in sync"
    return (
        f"{found.ill_partitions} not well, {found.leaderless} of them without a leader, "
        f"{found.below_min_insync} below min_insync_replicas"
    )


def troubles(found: ClusterDescription) -> list[str]:
    """Lists the faults, one line each; the last one tells of partitions, where it is about them."""
    said = []
    if found.controller < 0:
        said.append("no controller is active: most brokers of controller_quorum must be up")
    reasons = {member.node: f": {member.trouble}" for member in found.quorum if member.trouble}
    away = {each.broker for each in found.brokers if each.state != "up"}
    for each in found.brokers:
        if each.broker in away:
            why = reasons.get(each.broker, "")
            said.append(f"broker {each.broker} is {each.state} ({each.url}){why}")
    registered = {each.broker for each in found.brokers}
    for member in found.quorum:
        if member.node in away:
            continue  # told of already
        if member.trouble:
            who = (
                f"broker {member.node} does not hear the controller"
                if member.role == "learner"
                else f"member {member.node} of the quorum"
            )
            said.append(f"{who}: {member.trouble}")
        elif member.node not in registered:
            said.append(f"broker {member.node} is not registered: it is starting")
    if found.ill_partitions:
        said.append(f"{counted(found.partitions, 'partition')}: {summary(found)}")
    return said
