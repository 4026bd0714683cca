"""The pages of topics, and their actions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.client.admin.admin import found as find_topic
from penstock.client.admin.admin import topic_page
from penstock.client.admin.topic_config import TopicConfig
from penstock.console.pages.links import command, page_link
from penstock.console.pages.plans import ActionDone, ActionPlan
from penstock.console.pages.topics import (
    alter_plan,
    create_plan,
    delete_plan,
    hot_rows,
    readers,
    topic_model,
    trim_plan,
)
from penstock.console.topic_search import find_topics
from penstock.console.web.shell import Action, Form, integer, wanted
from penstock.core import errors as er
from penstock.operations import values
from penstock.operations.topic_settings import read_settings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.client.admin.admin import Admin, GroupDescription
    from penstock.client.admin.hot_keys import HotPartition
    from penstock.console.link import ConsoleSeat
    from penstock.console.web.shell import ConsoleShell

HOT_PARTITIONS_MAX: Final = 16
"""Partitions of a topic that are looked at for hot keys."""
GROUPS_MAX: Final = 50
"""Groups that are asked whether they read a topic."""
SETTINGS: Final = (
    "retention", "retention_bytes", "cleanup", "durability", "replication_factor",
    "min_insync_replicas",
)  # fmt: skip


# --- pages ----------------------------------------------------------------------------------------
async def topics(shell: ConsoleShell, request: Request) -> Response:
    query = request.query_params
    search, after = query.get("q", "").strip(), query.get("after", "")
    part = search.lower()
    found = await shell.ask(
        lambda seat: find_topics(
            partial(topic_page, seat.admin), lambda name: part in name.lower(), after
        )
    )
    rates = shell.sampler.rates
    return shell.page(request, "topics.html", found=found, search=search, rates=rates)


async def topic(shell: ConsoleShell, request: Request) -> Response:
    query = request.query_params
    name, first = wanted(query, "name"), integer(query.get("from"), "from") or 0
    ill = query.get("only") == "ill"

    def look(seat: ConsoleSeat) -> Any:
        described = seat.admin.describe_topic(name)
        groups, left = reading(seat.admin)
        return topic_model(described, groups, first, left, ill=ill)

    model = await shell.ask(look)
    rate = shell.sampler.rates.get(name)
    return shell.page(request, "topic.html", topic=model, rate=rate)


def reading(admin: Admin) -> tuple[list[GroupDescription], int]:
    """The first groups, and how many there are besides; none where they may not be seen."""
    try:
        names = [each.group for each in admin.list_groups()]
        return [admin.describe_group(name) for name in names[:GROUPS_MAX]], max(
            0, len(names) - GROUPS_MAX
        )
    except er.AccessDeniedError:
        return [], 0


async def hot(shell: ConsoleShell, request: Request) -> Response:
    """The hot keys of a topic, by a sample of its newest records."""
    topic = wanted(request.query_params, "topic")

    def look(seat: ConsoleSeat) -> tuple[int, list[HotPartition]]:
        count = len(find_topic(seat.admin, topic).pages)
        numbers = range(min(count, HOT_PARTITIONS_MAX))
        return count, seat.admin.hot_keys(topic, partitions=numbers)

    count, found = await shell.ask(look)
    return shell.page(
        request, "hot.html", topic=topic, parts=hot_rows(found),
        left=max(0, count - HOT_PARTITIONS_MAX),
        command=command(shell.config.url, "topic", "describe", topic, "--hot"),
    )  # fmt: skip


# --- actions --------------------------------------------------------------------------------------
def _settings(form: Form) -> dict[str, Any]:
    given = [f"{key}={form[key].strip()}" for key in SETTINGS if form.get(key, "").strip()]
    more = [line.strip() for line in form.get("settings", "").splitlines() if line.strip()]
    return read_settings([*given, *more])


def _create(form: Form) -> tuple[str, int, dict[str, Any]]:
    partitions = integer(form.get("partitions"), "partitions", 1, 1 << 20) or 1
    return wanted(form, "name"), partitions, _settings(form)


def plan_create(seat: ConsoleSeat, form: Form) -> ActionPlan:
    name, partitions, settings = _create(form)
    TopicConfig(partitions=partitions, **settings).settings()
    return create_plan(seat.url, name, partitions, settings)


def do_create(seat: ConsoleSeat, form: Form) -> ActionDone:
    name, partitions, settings = _create(form)
    seat.admin.create_topic(name, TopicConfig(partitions=partitions, **settings))
    return ActionDone(f"Topic {name} is created.", page_link("topic", name=name))


def _changes(form: Form) -> tuple[str, dict[str, Any]]:
    changes = _settings(form)
    grows = integer(form.get("partitions"), "partitions", 1, 1 << 20)
    if grows is not None:
        changes["partitions"] = grows
    if not changes:
        raise er.ConfigError("no change is given: write KEY=VALUE, one a line")
    return wanted(form, "name"), changes


def plan_alter(seat: ConsoleSeat, form: Form) -> ActionPlan:
    name, changes = _changes(form)
    return alter_plan(seat.url, seat.admin.describe_topic(name), changes)


def do_alter(seat: ConsoleSeat, form: Form) -> ActionDone:
    name, changes = _changes(form)
    seat.admin.alter_topic(name, **changes)
    return ActionDone(f"Changed {', '.join(changes)}.", page_link("topic", name=name))


def plan_delete(seat: ConsoleSeat, form: Form) -> ActionPlan:
    described = seat.admin.describe_topic(wanted(form, "name"))
    groups, _ = reading(seat.admin)
    return delete_plan(seat.url, described, readers(described, groups))


def do_delete(seat: ConsoleSeat, form: Form) -> ActionDone:
    name = wanted(form, "name")
    seat.admin.delete_topic(name)
    return ActionDone(f"Topic {name} is deleted.", "/topics")


def plan_trim(seat: ConsoleSeat, form: Form) -> ActionPlan:
    name, before, partition = _trim(form)
    told = seat.admin.trim(name, partition, before=values.place(before), dry_run=True)
    words = ("topic", "trim", name, "--before", before, *_partition_words(partition))
    back = page_link("topic", name=name)
    return trim_plan(seat.url, name, before, partition, told, back, f"Trim topic {name}", words)


def do_trim(seat: ConsoleSeat, form: Form) -> ActionDone:
    name, before, partition = _trim(form)
    told = seat.admin.trim(name, partition, before=values.place(before))
    gone = sum(one.records for one in told)
    return ActionDone(f"{gone:,} records are removed.", page_link("topic", name=name))


def _trim(form: Form) -> tuple[str, str, int | None]:
    partition = integer(form.get("partition"), "partition")
    return wanted(form, "name"), wanted(form, "before"), partition


def _partition_words(partition: int | None) -> tuple[object, ...]:
    return () if partition is None else ("-p", partition)


PAGES: Final = (("/topics", topics), ("/topic", topic), ("/hot", hot))
ACTIONS: Final = (
    Action("/topic/create", plan_create, do_create),
    Action("/topic/alter", plan_alter, do_alter),
    Action("/topic/delete", plan_delete, do_delete, typed="name"),
    Action("/topic/trim", plan_trim, do_trim, typed="name"),
)
