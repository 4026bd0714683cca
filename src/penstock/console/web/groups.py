"""The pages of groups and queues (share groups), and their actions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from penstock.client.admin.admin import is_near
from penstock.client.admin.groups import SHARED
from penstock.client.consumer.offsets import Offset
from penstock.console.pages.groups import forget_plan, group_list, group_model, seek_plan
from penstock.console.pages.links import page_link
from penstock.console.pages.overview import Trouble
from penstock.console.pages.plans import ActionDone, ActionPlan
from penstock.console.pages.queues import STATES, pause_plan, queue_model, resume_plan
from penstock.console.web.shell import Action, Form, integer, wanted
from penstock.core import errors as er
from penstock.operations import values
from penstock.operations.judgement import judge_group, stopped_readers

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.client.admin.groups import GroupDescription, OffsetReset
    from penstock.client.admin.peek import PeekedJob
    from penstock.console.link import ConsoleSeat
    from penstock.console.pages.groups import GroupPageModel
    from penstock.console.web.shell import ConsoleShell

PEEKED_TOPICS: Final = 8
PEEKED_PARTITIONS: Final = 16
"""Partitions of a topic whose jobs are looked at, and jobs of each."""
PEEKED_JOBS: Final = 20


# --- pages ----------------------------------------------------------------------------------------
async def groups(shell: ConsoleShell, request: Request) -> Response:
    return await _list(shell, request, shared=False)


async def queues(shell: ConsoleShell, request: Request) -> Response:
    return await _list(shell, request, shared=True)


async def _list(shell: ConsoleShell, request: Request, *, shared: bool) -> Response:
    search, after = request.query_params.get("q", "").strip(), request.query_params.get("after", "")
    listed = await shell.ask(lambda seat: seat.admin.list_groups())
    found = group_list(listed, shell.sampler.groups, search, after, shared=shared)
    return shell.page(request, "groups.html", found=found, shared=shared)


async def group(shell: ConsoleShell, request: Request) -> Response:
    name = wanted(request.query_params, "name")
    model = await shell.ask(lambda seat: _group(seat, name))
    return shell.page(request, "group.html", model=model, group=model.group)


def _group(seat: ConsoleSeat, name: str) -> GroupPageModel:
    described = _described(seat, name)
    stopped: dict[int, set[tuple[str, int]]] = {}
    if is_near(seat.admin):
        try:
            stopped = stopped_readers(seat.admin.describe_node())
        except (er.PenstockError, OSError):
            stopped = {}  # the node's folder is not this user's to look into
    troubles = [Trouble(one.subject, one.what, one.advice, "", one.is_wrong)
                for one in judge_group(described, stopped)]  # fmt: skip
    return group_model(described, troubles)


def _described(seat: ConsoleSeat, name: str) -> GroupDescription:
    described = seat.admin.describe_group(name)
    if not (described.generation or described.partitions):
        raise er.GroupError(f"there is no group {name!r}: one comes with its first member")
    return described


async def queue(shell: ConsoleShell, request: Request) -> Response:
    name = wanted(request.query_params, "name")
    state = request.query_params.get("state", "leased")
    if state not in STATES:
        raise er.ConfigError(f"{state!r:.50} is no state of a job: one of {', '.join(STATES)}")

    def look(seat: ConsoleSeat) -> Any:
        described = _described(seat, name)
        shares = seat.admin.describe_share_group(name)
        return queue_model(described, shares, state, _peeked(seat, name, state))

    model = await shell.ask(look)
    return shell.page(request, "queue.html", model=model, states=STATES)


def _peeked(seat: ConsoleSeat, name: str, state: Any) -> list[PeekedJob]:
    """Jobs in that state, of the first topics and partitions that have some."""
    shares = seat.admin.describe_share_group(name)
    wanted_of: dict[str, list[int]] = {}
    for one in shares.partitions:
        count = one.end - one.frontier if state == "new" else getattr(one, state)
        numbers = wanted_of.setdefault(one.topic, []) if count else []
        if count and len(numbers) < PEEKED_PARTITIONS:
            numbers.append(one.partition)
    found: list[PeekedJob] = []
    for topic, numbers in list(wanted_of.items())[:PEEKED_TOPICS]:
        try:
            found += seat.admin.peek_share_group(
                name, topic, state=state, partitions=numbers, limit=PEEKED_JOBS
            )
        except er.AccessDeniedError:
            found += seat.admin.peek_share_group(
                name, topic, state=state, partitions=numbers, limit=PEEKED_JOBS, values=False
            )
    return found


# --- actions --------------------------------------------------------------------------------------
def _seek(seat: ConsoleSeat, form: Form, *, dry_run: bool) -> tuple[list[OffsetReset], str, str]:
    name, topic, text = wanted(form, "name"), wanted(form, "topic"), wanted(form, "to")
    partition = integer(form.get("partition"), "partition", 0, 1 << 20)
    told = seat.admin.reset_offsets(
        name, topic, to=_place(text), partitions=partition, dry_run=dry_run,
        allow_redelivery=form.get("allow_redelivery") == "yes",
    )  # fmt: skip
    return told, name, topic


def _place(text: str) -> Offset:
    """A place; `by 5` and `by -5` count from what is committed."""
    by = re.fullmatch(r"by\s*([+-]?[0-9]{1,18})", text)
    return Offset.relative(int(by[1])) if by else values.place(text)


def plan_seek(seat: ConsoleSeat, form: Form) -> ActionPlan:
    described = _described(seat, wanted(form, "name"))
    told, name, topic = _seek(seat, form, dry_run=True)
    text = form["to"].strip()
    by = re.fullmatch(r"by\s*([+-]?[0-9]+)", text)
    words: list[object] = ["--by", by[1]] if by else ["--to", text]
    partition = form.get("partition", "").strip()
    words += ["-p", partition] if partition else []
    words += ["--allow-redelivery"] if form.get("allow_redelivery") == "yes" else []
    return seek_plan(seat.url, name, topic, tuple(words), told, _page(described))


def do_seek(seat: ConsoleSeat, form: Form) -> ActionDone:
    described = _described(seat, wanted(form, "name"))
    told, name, topic = _seek(seat, form, dry_run=False)
    return ActionDone(f"{name} goes on in {len(told)} partitions of {topic}.", _page(described))


def _page(group: GroupDescription) -> str:
    return page_link("queue" if group.guarantee == SHARED else "group", name=group.group)


def plan_forget(seat: ConsoleSeat, form: Form) -> ActionPlan:
    return forget_plan(seat.url, _described(seat, wanted(form, "name")))


def do_forget(seat: ConsoleSeat, form: Form) -> ActionDone:
    name = wanted(form, "name")
    seat.admin.delete_group(name)
    return ActionDone(f"Group {name} is deleted.", "/groups")


def plan_pause(seat: ConsoleSeat, form: Form) -> ActionPlan:
    return pause_plan(seat.url, wanted(form, "name"), form.get("reason", "").strip())


def do_pause(seat: ConsoleSeat, form: Form) -> ActionDone:
    name = wanted(form, "name")
    seat.admin.pause_share_group(name, reason=form.get("reason", "").strip())
    return ActionDone(f"{name} is paused.", page_link("queue", name=name))


def plan_resume(seat: ConsoleSeat, form: Form) -> ActionPlan:
    return resume_plan(seat.url, wanted(form, "name"))


def do_resume(seat: ConsoleSeat, form: Form) -> ActionDone:
    name = wanted(form, "name")
    seat.admin.resume_share_group(name)
    return ActionDone(f"{name} delivers again.", page_link("queue", name=name))


PAGES: Final = (("/groups", groups), ("/group", group), ("/queues", queues), ("/queue", queue))
ACTIONS: Final = (
    Action("/group/seek", plan_seek, do_seek),
    Action("/group/delete", plan_forget, do_forget, typed="name"),
    Action("/queue/pause", plan_pause, do_pause),
    Action("/queue/resume", plan_resume, do_resume),
)
