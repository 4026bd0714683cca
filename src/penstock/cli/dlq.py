"""`penstock dlq ...`: list, show, stats, replay, purge: dead letters of share groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, ExitCode, command
from penstock.cli.progress import ProgressBar
from penstock.cli.trim import show_trimmed
from penstock.core import errors as er
from penstock.operations import values, wording
from penstock.operations.letters import LEFT, place_text, printable, spot, spots, text_of, time_text
from penstock.operations.record_json import json_fields

if TYPE_CHECKING:
    from penstock.client.deadletters.queue import DeadLetterQueue
    from penstock.client.deadletters.replay import Replay, ReplayResult
    from penstock.client.deadletters.story import DeadLetter

PAGE: Final = 1000
"""Dead letters whose columns are aligned with each other."""
NAMES_SHOWN: Final = 20
"""Topics, groups and reasons that `stats` shows of each, the most frequent ones."""


Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Of which they are; they are in TOPIC.dlq."),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="TOPIC is the one that they are in, whatever its name is.")
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only those for which this is true, over value, key, text, header, topic, "
        'partition, "offset", timestamp, "group", worker, reason, exception, deliveries, replays, '
        "died_at. Example: \"exception = 'TimeoutError' and header['tenant'] = 'acme'\"",
    ),
]
Partition = Annotated[
    list[int] | None,
    typer.Option("-p", "--partition", min=0, help="Only this one of TOPIC.dlq; may be repeated."),
]
Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PLACE]...", help="Only those at PARTITION:OFFSET, or PARTITION:FIRST-LAST."
    ),
]
Count = Annotated[
    int | None, typer.Option("-n", "--limit", min=1, metavar="N", help="So many at most.")
]


def make(settings: dict[str, Any]) -> typer.Typer:
    """The command group."""
    app = typer.Typer(help="Dead letters: look at them, send them again.", **settings)
    command(app, "list")(list_letters)
    command(app, "show")(show)
    command(app, "stats")(stats)
    command(app, "replay")(replay)
    command(app, "purge")(purge)
    return app


@contextmanager
def queue_of(env: Env, topic: str, exact: bool) -> Iterator[DeadLetterQueue]:
    """The queue of a command. DuckDB that is missing is an error of usage."""
    with env.connect() as client:
        try:
            yield client.dead_letters(topic, exact=exact, timeout=env.timeout)
        except ImportError as error:
            raise er.ConfigError(str(error)) from error


def list_letters(
    env: Env,
    topic: Topic,
    places: Places = None,
    where: Where = None,
    partition: Partition = None,
    limit: Count = None,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Those that were sent again, instead of the others.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were sent again.")
    ] = False,
    exact: Exact = False,
) -> None:
    """Show dead letters that were not sent again, oldest first."""
    with queue_of(env, topic, exact) as queue:
        found = queue.letters(
            where=where, partition=partition or None, only=spots(places), limit=limit,
            replayed=None if everything else replayed,
        )  # fmt: skip
        is_empty = True
        while page := list(islice(found, PAGE)):
            is_empty = False
            write_letters(env, page)
        if is_empty:
            env.say(f"no dead letters in {queue.topic} that are meant")


def write_letters(env: Env, letters: Iterable[DeadLetter]) -> None:
    if env.is_json:
        for letter in letters:
            output.write_json(letter_fields(letter))
        return
    heads = ["PLACE", "DIED", "TOPIC", "PARTITION", "OFFSET", "GROUP", "TRIES", "REPLAYS", "KEY"]
    if env.is_wide:
        heads += ["WORKER", "AGAIN", "VALUE"]
    rows = []
    for one in letters:
        row = [place_text(one), wording.iso_time(one.record.timestamp), printable(one.topic),
               one.partition, one.offset, printable(one.group), one.deliveries, one.replays,
               printable(one.key)]  # fmt: skip
        if env.is_wide:
            again = "yes" if one.is_replayed else "no"
            row += [printable(one.worker), again, printable(one.value)]
        rows.append([*row, printable(one.reason)])
    output.write_columns([*heads, "REASON"], rows)


def show(
    env: Env,
    topic: Topic,
    place: Annotated[str, typer.Argument(metavar="PLACE", help="PARTITION:OFFSET, as list shows.")],
    exact: Exact = False,
) -> None:
    """Show one dead letter with its story."""
    partition, span = spot(place)
    if len(span) != 1:
        raise er.ConfigError(f"{place!r} is more than one: write PARTITION:OFFSET")
    with queue_of(env, topic, exact) as queue:
        one = queue.letter(partition, span.start)
    if env.is_json:
        output.write_json(letter_fields(one))
        return
    sent = " (none of its content could be read)" if one.is_damaged else ""
    lines = [
        f"dead letter  {place_text(one)} of {queue.topic}{sent}",
        f"record       {one.topic}-{one.partition} at {one.offset}",
        f"sent at      {'-' if one.timestamp is None else wording.iso_time(one.timestamp)}",
        f"died at      {wording.iso_time(one.record.timestamp)}",
        f"group        {one.group}, tried {wording.counted(one.deliveries, 'time')}",
        f"sent again   {one.replays} before, {'and since' if one.is_replayed else 'not since'}",
        f"reason       {one.reason}",
        f"key          {text_of(one.key)}",
        f"value        {text_of(one.value)}",
    ]
    lines += [f"header       {name}={text_of(value)}" for name, value in one.headers]
    if one.headers_left_out:
        lines.append(f"header       ({one.headers_left_out} more had no room)")
    for each in one.history:
        lines.append(f"failed       {time_text(each.at)} {each.member}: {each.reason}")
    for line in lines:
        output.write_line(printable(line, None))


def stats(
    env: Env,
    topic: Topic,
    where: Where = None,
    partition: Partition = None,
    exact: Exact = False,
) -> None:
    """Count dead letters by topic, group, exception, reason and age."""
    with queue_of(env, topic, exact) as queue, ProgressBar(env, "offsets", 1) as progress:
        found = queue.stats(where=where, partition=partition or None, on_progress=progress.at_of)
    if env.is_json:
        output.write_json(asdict(found))
        return
    age = "" if found.oldest is None else f", oldest {wording.iso_time(int(found.oldest * 1e6))}"
    output.write_line(
        f"{queue.topic}: {wording.counted(found.open, 'dead letter')} "
        f"({wording.human_bytes(found.value_bytes)}){age}; {found.replayed} sent again; "
        f"{found.damaged} damaged; {found.foreign} other records"
    )
    rows = []
    for name in ("topic", "group", "exception", "reason", "age"):
        counts = getattr(found, f"by_{name}")
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        rows += [[name, printable(what), count] for what, count in ranked[:NAMES_SHOWN]]
        if len(ranked) > NAMES_SHOWN:
            rest = sum(count for _, count in ranked[NAMES_SHOWN:])
            rows.append([name, f"({len(ranked) - NAMES_SHOWN} more)", rest])
    if rows:
        output.write_columns(["BY", "WHICH", "COUNT"], rows)


def replay(
    env: Env,
    topic: Topic,
    places: Places = None,
    where: Where = None,
    partition: Partition = None,
    limit: Count = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, metavar="N", help="Records a second, at most."),
    ] = None,
    max_replays: Annotated[
        int, typer.Option(min=1, metavar="N", help="Leave what was sent again so often before.")
    ] = 3,
    again: Annotated[
        bool, typer.Option("--again", help="Also what an earlier replay has sent.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Send to this topic, not to where they came from."),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME", help="May be sent to; repeatable. Default: of x.dlq it is x."
        ),
    ] = None,
    exact: Exact = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be sent.")
    ] = False,
) -> int:
    """Send dead letters again to the topics they came from, each once: run again it goes on."""
    from penstock.cli.stopping import Stopper
    from penstock.client.deadletters.choice import LetterChoice

    with Stopper() as stopper, queue_of(env, topic, exact) as queue:
        choice = LetterChoice.of(partition or None, spots(places), where)
        run = queue.replaying(
            choice, limit=limit, rate=rate, max_replays=max_replays, again=again,
            dry_run=dry_run, to=to, topics=topics or None,
        )  # fmt: skip
        try:
            with ProgressBar(env, "offsets", 0 if dry_run else 1) as progress:
                for _ in run.run(stopper.wait):
                    if run.reader is not None:
                        progress.at_of(run.reader.done, run.reader.whole)
                    letters = run.take_letters()
                    if dry_run and letters:
                        write_letters(env, letters)
        except er.PenstockError:
            env.say(f"{run.result.sent:,} records were sent before that; run again, it goes on")
            raise
        is_stopped = bool(stopper.requested)
    _tell(env, queue.topic, run, is_stopped)
    return ExitCode.PARTLY if is_stopped or run.result.left else ExitCode.DONE


def _tell(env: Env, name: str, run: Replay, is_stopped: bool) -> None:
    result = run.result
    if env.is_json:
        output.write_json(asdict(result))
    verb = "would be sent" if result.dry_run else "sent"
    what = "dead letter" if result.sent == 1 else "dead letters"
    env.say(f"{result.sent:,} {what} of {name} {verb} again" + _where_to(result))
    for reason, count in result.left.items():
        partition, offset = result.examples[reason]
        env.say(f"{count:,} left: they {LEFT[reason]}; one is at {partition}:{offset}")
    for count, what in (
        (result.doubled, "were of records that were sent already"),
        (result.already, "had been sent again before (--again sends them once more)"),
        (result.unmatched, "did not match"),
        (result.foreign, "records are no dead letters, and were passed over"),
        (result.incomplete, "were sent without those of their headers that had no room"),
    ):
        if count:
            env.say(f"{count:,} {what}")
    if is_stopped:
        env.say("stopped by a signal: the same command goes on there")


def _where_to(result: ReplayResult) -> str:
    named = sorted(result.by_topic.items(), key=lambda item: -item[1])
    parts = [f"{count:,} to {printable(name)}" for name, count in named[:NAMES_SHOWN]]
    if len(named) > NAMES_SHOWN:
        parts.append("...")
    return f": {', '.join(parts)}" if parts else ""


def purge(
    env: Env,
    topic: Topic,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="PLACE",
            help="What lies before goes: an offset (47), a time (@2013-07-04T12:00), end for all, "
            "or `replayed`: up to the first one that was not sent again.",
        ),
    ],
    partition: Partition = None,
    exact: Exact = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove the oldest dead letters for ever."""
    from penstock.client.deadletters.queue import REPLAYED

    place = before if before == REPLAYED else values.place(before)
    with queue_of(env, topic, exact) as queue:
        if dry_run or not yes:
            foretold = queue.purge(before=place, partition=partition or None, dry_run=True)
            if dry_run:
                show_trimmed(env, "would start", foretold)
                return
            count = sum(result.records for result in foretold)
            confirm(f"Remove {count} records of {queue.topic} before {before} for ever?")
        show_trimmed(env, "starts", queue.purge(before=place, partition=partition or None))


# --- places and texts -----------------------------------------------------------------------------


def letter_fields(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON: its record as `penstock consume` has it, with the story."""
    import msgspec

    whole = json_fields(msgspec.structs.replace(letter.record, headers=letter.headers))
    return {
        "place": place_text(letter),
        "died_at": letter.record.timestamp,
        **whole,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "group": letter.group,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "exception": letter.exception,
        "worker": letter.worker,
        "history": letter.history,
        "replays": letter.replays,
        "is_damaged": letter.is_damaged,
        "is_replayed": letter.is_replayed,
    }
