"""Dead letters: counts by reason, a list, one with its story, and what a replay or a purge does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.deadletters.replay import ReplayResult
from penstock.client.deadletters.stats import DeadLetterStats
from penstock.client.deadletters.story import DeadLetter
from penstock.console.pages.links import command, page_link
from penstock.console.pages.plans import ActionPlan, PageTable, table
from penstock.console.pages.records import preview
from penstock.operations.letters import LEFT, place_text, printable, time_text
from penstock.operations.wording import counted, human_bytes, iso_time

LETTERS_SHOWN: Final = 50
NAMES_SHOWN: Final = 10
"""Reasons, exceptions, groups and topics that are counted by name on a page."""


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter in a list; `place` is where it is, partition and offset."""

    place: str
    partition: int
    offset: int
    died: str
    origin: str
    group: str
    deliveries: int
    replays: int
    reason: str
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class LetterPageModel:
    """The dead letters of a topic. `left`: others fit as well, and are not shown."""

    topic: str
    rows: tuple[LetterRow, ...]
    left: bool
    counts: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    summary: str


@dataclass(frozen=True, slots=True)
class LetterStory:
    """One dead letter, with the failures that it had."""

    row: LetterRow
    letter: DeadLetter
    sent_at: str
    headers: tuple[tuple[str, str | None], ...]
    history: PageTable
    command: str


def letters_model(
    topic: str, letters: Iterable[DeadLetter], stats: DeadLetterStats | None
) -> LetterPageModel:
    """The page of a topic of dead letters. `letters` are one more than are shown, if there are."""
    found = list(letters)
    counts: list[tuple[str, tuple[tuple[str, int], ...]]] = []
    summary = ""
    if stats is not None:
        for name in ("reason", "exception", "group", "topic"):
            ranked = sorted(getattr(stats, f"by_{name}").items(), key=lambda item: -item[1])
            if ranked:
                counts.append((name, tuple((printable(what), count) for what, count
                                           in ranked[:NAMES_SHOWN])))  # fmt: skip
        size = human_bytes(stats.value_bytes)
        summary = (
            f"{counted(stats.open, 'dead letter')} ({size}); {stats.replayed} were sent again; "
            f"{stats.damaged} damaged"
        )
    return LetterPageModel(
        topic, tuple(row_of(one) for one in found[:LETTERS_SHOWN]), len(found) > LETTERS_SHOWN,
        tuple(counts), summary,
    )  # fmt: skip


def row_of(letter: DeadLetter) -> LetterRow:
    record = letter.record
    return LetterRow(
        place_text(letter), record.partition, record.offset, iso_time(record.timestamp),
        f"{letter.topic}-{letter.partition} at {letter.offset}", printable(letter.group),
        letter.deliveries, letter.replays, printable(letter.reason, 160), preview(letter.key),
        preview(letter.value),
    )  # fmt: skip


def story_of(url: str, topic: str, letter: DeadLetter) -> LetterStory:
    rows: list[tuple[object, ...]] = [
        (time_text(each.at), printable(each.member), printable(each.reason, 500))
        for each in letter.history
    ]
    return LetterStory(
        row_of(letter), letter,
        "-" if letter.timestamp is None else iso_time(letter.timestamp),
        tuple((name, None if value is None else preview(value)) for name, value in letter.headers),
        table(("When", "Worker", "Failure"), rows),
        command(url, "dlq", "show", topic, place_text(letter), "--exact"),
    )  # fmt: skip


# --- actions --------------------------------------------------------------------------------------
def words_of(form: Mapping[str, str]) -> list[object]:
    """Returns the choice of a form as options of the command line."""
    words: list[object] = [*form.get("places", "").split()]
    for name in ("partition", "where", "limit", "rate", "to"):
        if form.get(name, "").strip():
            words += [f"--{name}", form[name].strip()]
    return [*words, "--again"] if form.get("again") == "yes" else words


def replay_plan(
    url: str, topic: str, form: Mapping[str, str], told: ReplayResult, letters: list[DeadLetter]
) -> ActionPlan:
    """The plan of a replay, from its dry run."""
    says = [f"{counted(told.sent, 'dead letter')} would be sent again{_where_to(told)}."]
    if not told.is_whole:
        says.append("The dry run ended at its bound: there may be more.")
    says += left_texts(told)
    rows: list[tuple[object, ...]] = []
    for one in letters:
        row = row_of(one)
        rows.append((row.place, row.origin, row.group, row.reason))
    return ActionPlan(
        f"Send dead letters of {topic} again", tuple(says),
        command(url, "dlq", "replay", topic, *words_of(form), "--exact"), "Send them again",
        page_link("letters", topic=topic), table(("Place", "To", "Group", "Reason"), rows),
        is_empty=told.sent == 0,
    )  # fmt: skip


def left_texts(told: ReplayResult) -> list[str]:
    """Sentences about those that stay."""
    says = [f"{count:,} are left: they {LEFT[reason]}." for reason, count in told.left.items()]
    for count, what in (
        (told.already, "had been sent again before"),
        (told.unmatched, "did not match"),
        (told.foreign, "records are no dead letters"),
    ):
        if count:
            says.append(f"{count:,} {what}.")
    return says


def replay_note(told: ReplayResult) -> str:
    more = "" if told.is_whole else " More may be left: do it again to go on."
    return " ".join(
        [f"{counted(told.sent, 'dead letter')} sent again{_where_to(told)}.{more}",
         *left_texts(told)]
    )  # fmt: skip


def _where_to(told: ReplayResult) -> str:
    named = sorted(told.by_topic.items(), key=lambda item: -item[1])[:NAMES_SHOWN]
    return f" ({', '.join(f'{count:,} to {name}' for name, count in named)})" if named else ""
