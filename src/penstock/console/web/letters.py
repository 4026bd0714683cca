"""The pages of dead letters, their replay and their purge."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.client.admin.admin import topic_page
from penstock.client.deadletters.choice import LetterChoice
from penstock.client.deadletters.queue import REPLAYED, DeadLetterQueue
from penstock.client.deadletters.replay import MAX_REPLAYS, Replay
from penstock.client.deadletters.story import SUFFIX
from penstock.console.link import ANSWER_SECONDS
from penstock.console.pages.letters import (
    LETTERS_SHOWN,
    letters_model,
    replay_note,
    replay_plan,
    story_of,
)
from penstock.console.pages.links import page_link
from penstock.console.pages.plans import ActionDone, ActionPlan
from penstock.console.pages.topics import trim_plan
from penstock.console.topic_search import find_topics
from penstock.console.web.shell import Action, Form, integer, wanted
from penstock.core import errors as er
from penstock.operations import values
from penstock.operations.letters import spots

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.client.deadletters.story import DeadLetter
    from penstock.console.link import ConsoleSeat
    from penstock.console.web.shell import ConsoleShell

COUNTED_MAX: Final = 100_000
"""Offsets of a topic up to which its dead letters are counted by reason without being asked to."""
DRY_SECONDS: Final = 4.0
REPLAY_SECONDS: Final = 20.0
"""After which a dry run, and a replay, end where they are; done again a replay goes on."""
TOLD_MAX: Final = 1000
"""Dead letters that a dry run keeps to show."""


# --- pages ----------------------------------------------------------------------------------------
async def letters(shell: ConsoleShell, request: Request) -> Response:
    query = request.query_params
    topic = query.get("topic", "").strip()
    if not topic:
        behind = query.get("after", "")
        found = await shell.ask(
            lambda seat: find_topics(
                partial(topic_page, seat.admin), lambda name: name.endswith(SUFFIX), behind
            )
        )
        return shell.page(request, "letters.html", topics=found, model=None, given={})
    given = {name: query.get(name, "").strip() for name in ("where", "partition", "places")}
    is_asked = query.get("counts") == "yes"
    model = await shell.ask(lambda seat: _letters(seat, topic, given, is_asked))
    return shell.page(request, "letters.html", topics=None, model=model, given=given)


def _letters(seat: ConsoleSeat, topic: str, given: dict[str, str], is_asked: bool) -> Any:
    dead = _queue(seat, topic)
    options = _options(given)
    described = seat.admin.describe_topic(topic)
    size = sum(part.high_watermark - part.log_start for part in described.partitions)
    found = list(islice(dead.letters(limit=LETTERS_SHOWN + 1, **options), LETTERS_SHOWN + 1))
    stats = None
    if options["only"] is None and (is_asked or size <= COUNTED_MAX):
        stats = dead.stats(where=options["where"], partition=options["partition"])
    return letters_model(topic, found, stats)


def _queue(seat: ConsoleSeat, topic: str) -> DeadLetterQueue:
    return seat.client.dead_letters(topic, exact=True, timeout=ANSWER_SECONDS)


def _options(given: Form) -> dict[str, Any]:
    return {
        "where": given.get("where", "").strip() or None,
        "partition": integer(given.get("partition"), "partition", 0, 1 << 20),
        "only": spots(given.get("places", "").split()),
    }


async def letter(shell: ConsoleShell, request: Request) -> Response:
    query = request.query_params
    topic = wanted(query, "topic")
    partition = integer(query.get("partition"), "partition")
    offset = integer(query.get("offset"), "offset")
    if partition is None or offset is None:
        raise er.ConfigError("name the partition and the offset of the dead letter")
    found = await shell.ask(lambda seat: _queue(seat, topic).letter(partition, offset))
    story = story_of(shell.config.url, topic, found)
    return shell.page(request, "letter.html", story=story, topic=topic)


# --- actions --------------------------------------------------------------------------------------
def _replaying(seat: ConsoleSeat, form: Form, *, dry_run: bool) -> Replay:
    options = _options(form)
    choice = LetterChoice.of(options["partition"], options["only"], options["where"])
    rate = form.get("rate", "").strip()
    try:
        bound = float(rate) if rate else None
    except ValueError:
        raise er.ConfigError(f"rate {rate!r:.50} is no number of records a second") from None
    return _queue(seat, wanted(form, "topic")).replaying(
        choice, limit=integer(form.get("limit"), "limit", 1), rate=None if dry_run else bound,
        max_replays=MAX_REPLAYS, again=form.get("again") == "yes", dry_run=dry_run,
        to=form.get("to", "").strip() or None, topics=None,
    )  # fmt: skip


def _until(seconds: float) -> Callable[[float], bool]:
    """A pause that says from then on that it is enough."""
    deadline = time.monotonic() + seconds

    def pause(wait: float) -> bool:
        if wait > 0:
            time.sleep(min(wait, max(0.0, deadline - time.monotonic())))
        return time.monotonic() >= deadline

    return pause


def plan_replay(seat: ConsoleSeat, form: Form) -> ActionPlan:
    run = _replaying(seat, form, dry_run=True)
    found: list[DeadLetter] = []
    for _ in run.run(_until(DRY_SECONDS)):
        found += run.take_letters()
        if len(found) >= TOLD_MAX:
            break
    return replay_plan(seat.url, wanted(form, "topic"), form, run.result, found)


def do_replay(seat: ConsoleSeat, form: Form) -> ActionDone:
    run = _replaying(seat, form, dry_run=False)
    for _ in run.run(_until(REPLAY_SECONDS)):
        pass
    return ActionDone(replay_note(run.result), page_link("letters", topic=wanted(form, "topic")))


def _purge(seat: ConsoleSeat, form: Form, *, dry_run: bool) -> Any:
    before = wanted(form, "before")
    return _queue(seat, wanted(form, "topic")).purge(
        before=before if before == REPLAYED else values.place(before),
        partition=integer(form.get("partition"), "partition", 0, 1 << 20), dry_run=dry_run,
    )  # fmt: skip


def plan_purge(seat: ConsoleSeat, form: Form) -> ActionPlan:
    topic, before = wanted(form, "topic"), wanted(form, "before")
    partition = integer(form.get("partition"), "partition", 0, 1 << 20)
    words = ["dlq", "purge", topic, "--before", before, "--exact"]
    words += [] if partition is None else ["-p", str(partition)]
    return trim_plan(
        seat.url, topic, before, partition, _purge(seat, form, dry_run=True),
        page_link("letters", topic=topic), f"Remove dead letters of {topic}", tuple(words),
    )  # fmt: skip


def do_purge(seat: ConsoleSeat, form: Form) -> ActionDone:
    gone = sum(one.records for one in _purge(seat, form, dry_run=False))
    page = page_link("letters", topic=wanted(form, "topic"))
    return ActionDone(f"{gone:,} records are removed.", page)


PAGES: Final = (("/letters", letters), ("/letter", letter))
ACTIONS: Final = (
    Action("/letters/replay", plan_replay, do_replay),
    Action("/letters/purge", plan_purge, do_purge, typed="topic"),
)
