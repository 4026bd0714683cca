"""The cluster, or the node that is alone, and what changes leaders and replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.admin.cluster import BrokerInfo, ClusterDescription, PartitionPlace
from penstock.console.pages.links import command, page_link
from penstock.console.pages.plans import ActionPlan, PageTable, table
from penstock.ipc.messages import NodeDescription
from penstock.operations.cluster_health import troubles
from penstock.operations.wording import counted


@dataclass(frozen=True, slots=True)
class BrokerRow:
    info: BrokerInfo
    state: str
    is_controller: bool


@dataclass(frozen=True, slots=True)
class ClusterPageModel:
    """`cluster` None: the node is alone. `said`: what is not well, one line each."""

    node: NodeDescription
    cluster: ClusterDescription | None
    brokers: tuple[BrokerRow, ...]
    said: tuple[str, ...]
    ill: PageTable | None
    settings: tuple[tuple[str, Any], ...]


def cluster_model(node: NodeDescription, found: ClusterDescription | None) -> ClusterPageModel:
    brokers: list[BrokerRow] = []
    if found is not None:
        for each in found.brokers:
            is_drained = each.broker in found.drained and each.state == "up"
            state = "drained" if is_drained else each.state
            brokers.append(BrokerRow(each, state, each.broker == found.controller))
    said = () if found is None else tuple(troubles(found))
    ill = None if found is None or not found.ill else places(found.ill)
    settings = tuple(sorted(node.settings.items()))
    return ClusterPageModel(node, found, tuple(brokers), said, ill, settings)


def places(found: Sequence[PartitionPlace]) -> PageTable:
    """Where partitions are. A target is where a reassignment ends."""
    return table(
        ("Partition", "Leader", "Epoch", "Replicas", "In sync", "Target", "Offline"),
        [
            (f"{one.topic}-{one.partition}", "none" if one.leader < 0 else one.leader,
             one.leader_epoch, _numbers(one.replicas), _numbers(one.isr), _numbers(one.target),
             _numbers(one.offline))
            for one in found
        ],
    )  # fmt: skip


def changes(before: ClusterDescription, now: ClusterDescription) -> list[str]:
    """Tells the changes between two looks, one line each."""
    said = []
    known = {each.broker: each for each in before.brokers}
    for each in now.brokers:
        was = known.get(each.broker)
        if was is not None and was.state != each.state:
            said.append(_moved(was, each))
    if before.controller != now.controller:
        who = "no broker" if now.controller < 0 else f"broker {now.controller}"
        said.append(f"{who} is the active controller, in term {now.term}")
    if now.leaderless != before.leaderless:
        said.append(f"{counted(now.leaderless, 'partition')} without a leader: none of their "
                    "in-sync replicas is up" if now.leaderless
                    else "each partition has a leader again")  # fmt: skip
    if before.ill_partitions and not now.ill_partitions:
        said.append("all replicas are in sync again")
    if before.broker != now.broker:
        said.append(f"the console asks broker {now.broker} now, and no longer {before.broker}")
    return said


def _moved(was: BrokerInfo, now: BrokerInfo) -> str:
    if now.state == "up":
        return f"broker {now.broker} is back"
    told = f"broker {now.broker} is {'gone' if now.state == 'fenced' else now.state}"
    if not was.leads:
        return told
    return f"{told}: it led {counted(was.leads, 'partition')}, and leads {now.leads} now"


def _numbers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers)) or "-"


# --- actions --------------------------------------------------------------------------------------
def elect_plan(url: str, topic: str | None) -> ActionPlan:
    where = "each partition" if topic is None else f"each partition of {topic}"
    return ActionPlan(
        "Elect preferred leaders",
        (f"The first replica of {where} leads again, where it is in sync.",
         "Producers and consumers follow within moments; nothing is lost."),
        command(url, "cluster", "elect", topic), "Elect them", "/cluster",
    )  # fmt: skip


def drain_plan(url: str, broker: int, undo: bool, leads: int) -> ActionPlan:
    if undo:
        says: tuple[str, ...] = (f"Broker {broker} may lead again.",)
    else:
        says = (
            f"Broker {broker} leads {counted(leads, 'partition')}: other replicas in sync take "
            "over what they can, and it leads nothing that they could until it restarts.",
        )
    return ActionPlan(
        f"{'Undrain' if undo else 'Drain'} broker {broker}", says,
        command(url, "cluster", "drain", broker, "--undo" if undo else None),
        "Let it lead" if undo else "Drain it", "/cluster",
    )  # fmt: skip


def reassign_plan(
    url: str, topic: str, partition: int | None, brokers: list[int], now: Sequence[PartitionPlace]
) -> ActionPlan:
    chosen = [one for one in now if partition in (None, one.partition)]
    target = ",".join(map(str, brokers))
    return ActionPlan(
        f"Move partitions of {topic}",
        (f"{counted(len(chosen), 'partition')} get the replicas {target}: those that are new copy "
         "all records first, then the others let go. It goes on in the background.",),
        command(url, "cluster", "reassign", topic, "all" if partition is None else partition,
                target),
        "Move them", page_link("cluster"), places(chosen),
    )  # fmt: skip
