"""The page of the cluster, or of the node that is alone, and its actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.console.pages.cluster import (
    cluster_model,
    drain_plan,
    elect_plan,
    reassign_plan,
)
from penstock.console.pages.plans import ActionDone, ActionPlan
from penstock.console.web.shell import Action, Form, integer, wanted
from penstock.core import errors as er

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.console.link import ConsoleSeat
    from penstock.console.pages.cluster import ClusterPageModel
    from penstock.console.web.shell import ConsoleShell

BROKER_MAX: Final = 65_535


async def cluster(shell: ConsoleShell, request: Request) -> Response:
    model = await shell.ask(_look)
    lately = reversed(shell.sampler.changes)
    return shell.page(request, "cluster.html", model=model, node=model.node, lately=[*lately])


def _look(seat: ConsoleSeat) -> ClusterPageModel:
    node = seat.admin.describe_node()
    return cluster_model(node, seat.admin.describe_cluster() if node.cluster else None)


# --- actions --------------------------------------------------------------------------------------
def plan_elect(seat: ConsoleSeat, form: Form) -> ActionPlan:
    return elect_plan(seat.url, form.get("topic", "").strip() or None)


def do_elect(seat: ConsoleSeat, form: Form) -> ActionDone:
    changed = seat.admin.elect_leaders(form.get("topic", "").strip() or None)
    return ActionDone(f"{changed} partitions have another leader.", "/cluster")


def _drain(form: Form) -> tuple[int, bool]:
    broker = integer(wanted(form, "broker"), "broker", 1, BROKER_MAX)
    return broker or 0, form.get("undo") == "yes"


def plan_drain(seat: ConsoleSeat, form: Form) -> ActionPlan:
    broker, undo = _drain(form)
    return drain_plan(seat.url, broker, undo, seat.admin.describe_drain(broker).leads)


def do_drain(seat: ConsoleSeat, form: Form) -> ActionDone:
    broker, undo = _drain(form)
    seat.admin.drain_broker(broker, undo=undo)
    what = "may lead again" if undo else "hands over what it leads"
    return ActionDone(f"Broker {broker} {what}.", "/cluster")


def _reassign(form: Form) -> tuple[str, int | None, list[int]]:
    try:
        brokers = [int(word) for word in wanted(form, "brokers").split(",")]
    except ValueError:
        raise er.ConfigError("write brokers by their numbers, like 2,3,1") from None
    partition = integer(form.get("partition"), "partition", 0, 1 << 20)
    return wanted(form, "topic"), partition, brokers


def plan_reassign(seat: ConsoleSeat, form: Form) -> ActionPlan:
    topic, partition, brokers = _reassign(form)
    now = seat.admin.describe_partitions(topic)
    return reassign_plan(seat.url, topic, partition, brokers, now)


def do_reassign(seat: ConsoleSeat, form: Form) -> ActionDone:
    topic, partition, brokers = _reassign(form)
    if partition is None:
        seat.admin.reassign_topic(topic, brokers)
    else:
        seat.admin.reassign_partition(topic, partition, brokers)
    return ActionDone(f"Partitions of {topic} move; targets are shown until then.", "/cluster")


PAGES: Final = (("/cluster", cluster),)
ACTIONS: Final = (
    Action("/cluster/elect", plan_elect, do_elect),
    Action("/cluster/drain", plan_drain, do_drain),
    Action("/cluster/reassign", plan_reassign, do_reassign),
)
