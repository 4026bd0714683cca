"""`penstock group ...`: list, describe, seek, export and import offsets, pause, resume, delete."""

from __future__ import annotations

import fnmatch
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, command
from penstock.cli.peek import peek
from penstock.cli.scaling import scale
from penstock.cli.topics import for_each
from penstock.core import errors as er
from penstock.operations import values, wording

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin
    from penstock.client.admin.exported_offsets import ExportedOffsets
    from penstock.client.admin.groups import GroupDescription, OffsetReset
    from penstock.client.admin.share_groups import ShareGroupDescription
    from penstock.client.consumer.offsets import Offset

Names = Annotated[list[str], typer.Argument(metavar="GROUP", help="One or more groups.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
AllowRedelivery = Annotated[
    bool,
    typer.Option("--allow-redelivery", help="Let an at-most-once group go back all the same."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def make(settings: dict[str, Any]) -> typer.Typer:
    """The command group."""
    app = typer.Typer(help="Show, move and delete groups of consumers.", **settings)
    command(app, "list")(list_groups)
    command(app, "describe")(describe)
    command(app, "peek")(peek)
    command(app, "scale")(scale)
    command(app, "seek")(seek)
    command(app, "export-offsets")(export_offsets)
    command(app, "import-offsets")(import_offsets)
    command(app, "pause")(pause)
    command(app, "resume")(resume)
    command(app, "delete")(delete)
    return app


def list_groups(
    env: Env,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names that match, like 'bill*'.")
    ] = "*",
) -> None:
    """Show group names, with --format wide and json their state."""
    with env.admin() as admin:
        found = [one for one in admin.list_groups() if fnmatch.fnmatchcase(one.group, pattern)]
    if env.is_json:
        for one in found:
            output.write_json(asdict(one))
    elif env.is_wide:
        heads = ("group", "guarantee", "state", "generation", "members", "partitions")
        rows = [[getattr(one, head) for head in heads] for one in found]
        output.write_columns([head.upper() for head in heads], rows)
    else:
        for one in found:
            output.write_line(one.group)


def describe(
    env: Env,
    names: Names,
    sample: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, max=60, help="Watch so long, and tell when lag is gone."
        ),
    ] = 0.0,
) -> int:
    """Show members, committed offsets and lag."""
    with env.admin() as admin:

        def show(name: str) -> None:
            group, shares = admin.describe_group(name), None
            if group.guarantee == "shared":
                shares = admin.describe_share_group(name, sample=sample)
            elif sample:
                group = admin.describe_group(name, sample=sample)
            if env.is_json:
                more = {} if shares is None else {"share": asdict(shares)}
                output.write_json(asdict(group) | more)
            else:
                _write(env, group, shares)

        return for_each(env, names, show)


def _write(env: Env, group: GroupDescription, shares: ShareGroupDescription | None) -> None:
    if not _is_there(group):
        output.write_line(f"{group.group}: empty, nobody has joined it yet")
        return
    head = (
        f"{group.group}: {group.guarantee or 'no guarantee yet'}, {group.state}, generation "
        f"{group.generation}, {wording.counted(len(group.members), 'member')}"
    )
    if shares is not None:
        output.write_line(f"{head}, lag {shares.lag}, drained in {_drain(shares.drain_seconds)}")
        _write_share(shares)
    else:
        output.write_line(
            f"{head}, lag {_lag(group)} ({wording.human_age(group.lag_seconds)}), "
            f"drained in {_drain(group.drain_seconds)}, skipped {group.skipped}"
        )
        if group.partitions:
            _write_partitions(env, group)
    if env.is_wide and group.members:
        output.write_columns(
            ["MEMBER", "INSTANCE", "CLIENT", "PID", "CONNECTED", "PARTITIONS"],
            [
                [one.member_id, one.instance_id, one.client_id, one.pid,
                 "yes" if one.is_connected else "no", one.partitions]
                for one in group.members
            ],
        )  # fmt: skip


def _drain(seconds: float | None) -> str:
    return "-" if seconds is None else wording.human_age(seconds)


def _lease(shares: ShareGroupDescription) -> str:
    lease = "" if shares.max_lease is None else f"leases of {shares.max_lease:g} s, "
    dead = "" if shares.dead_share is None else f"paused above {shares.dead_share:.0%} dead, "
    order = "" if shares.order is None else f"in order of each {shares.order}, "
    fair = "" if shares.fair is None else f"turns by {shares.fair}, "
    return lease + dead + order + fair


def _doubles(shares: ShareGroupDescription) -> str:
    left_out = shares.counts.get("duplicates", 0)
    return f", {wording.counted(left_out, 'duplicate')} left out" if left_out else ""


def _write_share(shares: ShareGroupDescription) -> None:
    times = shares.max_deliveries or "any number of"
    output.write_line(
        f"shared: {times} deliveries, backoff {shares.backoff[0]:g} to {shares.backoff[1]:g} s, "
        f"{_lease(shares)}"
        f"{wording.counted(shares.lag, 'record')} not done, the oldest that is ready since "
        f"{wording.human_age(shares.ready_seconds)}{_doubles(shares)}"
    )
    now = time.time()
    if (pause := shares.pause) is not None:
        who = f"by {pause.by}" if pause.by else "by its breaker"
        output.write_line(
            f"paused since {wording.human_age(max(0.0, now - pause.since))} {who}"
            + (f": {pause.reason}" if pause.reason else "")
        )
    if shares.partitions:
        output.write_columns(
            ["TOPIC", "PARTITION", "FLOOR", "FRONTIER", "END", "READY", "WAITING", "LEASED",
             "CONDEMNED", "BEHIND", "LAG", "NEXT"],
            [
                [one.topic, one.partition, one.floor, one.frontier, one.end, one.ready,
                 one.waiting, one.leased, one.condemned, one.behind, one.lag,
                 wording.human_age(None if one.next_due is None else max(0, one.next_due - now))]
                for one in shares.partitions
            ],
        )  # fmt: skip
    if shares.leased:
        rows = [[member, count] for member, count in sorted(shares.leased.items())]
        output.write_columns(["WORKER", "LEASED"], rows)


def _write_partitions(env: Env, group: GroupDescription) -> None:
    polled = {one.member_id: one.poll_seconds for one in group.members}
    now = time.time()
    heads = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "AGE", "IN-HAND", "COMMIT", "POLL",
             "STATUS", "MEMBER"]  # fmt: skip
    rows = [
        [one.topic, one.partition, one.committed, one.high_watermark, one.lag,
         wording.human_age(one.lag_seconds), one.in_hand,
         wording.human_age(None if one.committed_at is None else max(0, now - one.committed_at)),
         wording.human_age(polled.get(one.member_id)), one.status, one.member_id]
        for one in group.partitions
    ]  # fmt: skip
    if env.is_wide:
        heads += ["POSITION", "COMMITTED AT"]
        for row, one in zip(rows, group.partitions, strict=True):
            at = one.committed_at
            row += [one.position, None if at is None else wording.iso_time(round(at * 1e6))]
    output.write_columns(heads, rows)
    for one in group.partitions:
        if one.status not in (None, "OK"):
            output.write_line(f"{one.topic}-{one.partition} is {one.status}: {one.reason}")


def _lag(group: GroupDescription) -> str:
    """Where nothing is committed, only the members know how far the group is behind."""
    unknown = sum(one.lag is None for one in group.partitions)
    if not unknown:
        return str(group.lag)
    if unknown == len(group.partitions):
        return "unknown"
    return f"{group.lag}, unknown in {wording.counted(unknown, 'partition')}"


def seek(
    env: Env,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="start, end, an offset (47), from the start (+2), from the end (-3), or @TIME.",
        ),
    ] = None,
    by: Annotated[
        int | None,
        typer.Option("--by", metavar="RECORDS", help="So many on from what is committed; or back."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("-p", "--partition", min=0, help="Only this one; may be repeated."),
    ] = None,
    allow_redelivery: AllowRedelivery = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let a group go on elsewhere, also while it has members."""
    place = _place(to, by)

    with env.admin() as admin:
        _check_is_there(admin.describe_group(group))

        def reset(dry_run: bool) -> list[OffsetReset]:
            return admin.reset_offsets(
                group, topic, to=place, partitions=partition or None, dry_run=dry_run,
                allow_redelivery=allow_redelivery,
            )  # fmt: skip

        _move(env, reset, group, f" of {topic}", dry_run=dry_run, yes=yes)


def export_offsets(env: Env, group: Annotated[str, typer.Argument(metavar="GROUP")]) -> None:
    """Write what a group has committed as JSON, for `import-offsets`."""
    with env.admin() as admin:
        output.write_line(admin.export_offsets(group).to_json())


def import_offsets(
    env: Env,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="It may have another name.")],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What `export-offsets` wrote; - is stdin.")
    ],
    by_name: Annotated[
        bool,
        typer.Option(
            "--by-name", help="Take topics of the same name for the same, also with other ids."
        ),
    ] = False,
    clamp: Annotated[
        bool,
        typer.Option("--clamp", help="Outside its log an offset becomes the nearest there is."),
    ] = False,
    allow_redelivery: AllowRedelivery = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Set what a group without members has committed to what was exported."""
    given = _read_export(file)
    with env.admin() as admin:

        def move(dry_run: bool) -> list[OffsetReset]:
            return admin.import_offsets(
                group, given, dry_run=dry_run, by_name=by_name, clamp=clamp,
                allow_redelivery=allow_redelivery,
            )  # fmt: skip

        _move(env, move, group, "", dry_run=dry_run, yes=yes)


def _read_export(file: str) -> ExportedOffsets:
    from penstock.client.admin.exported_offsets import EXPORT_BYTES_MAX, ExportedOffsets

    if file == "-":
        return ExportedOffsets.from_json(sys.stdin.buffer.read(EXPORT_BYTES_MAX + 1))
    try:
        with open(file, "rb") as opened:
            return ExportedOffsets.from_json(opened.read(EXPORT_BYTES_MAX + 1))
    except OSError as error:
        raise er.ConfigError(f"cannot read {file}: {error.strerror}") from error


def _move(
    env: Env,
    move: Callable[[bool], list[OffsetReset]],
    group: str,
    of: str,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Foretell what it does, by calling it with `dry_run` true, ask, and do it."""
    if dry_run or not yes:
        foretold = move(True)
        if dry_run:
            _show(env, "would go", foretold)
            return
        confirm(_question(group, foretold, of))
    _show(env, "goes", move(False))


def _question(group: str, foretold: list[OffsetReset], of: str) -> str:
    again = sum(one.redelivers for one in foretold)
    past = sum(one.skips for one in foretold)
    return (
        f"Let group {group} go on elsewhere in {wording.counted(len(foretold), 'partition')}{of} "
        f"({wording.counted(again, 'record')} again, {past} passed over)?"
    )


def _place(to: str | None, by: int | None) -> Offset:
    if (to is None) == (by is None):
        raise er.ConfigError("say where the group is to go on: one of --to and --by")
    if to is not None:
        return values.place(to)
    from penstock.client.consumer.offsets import Offset

    assert by is not None
    return Offset.relative(by)


def _show(env: Env, verb: str, resets: list[OffsetReset]) -> None:
    for one in resets:
        if env.is_json:
            output.write_json(asdict(one))
        else:
            output.write_line(f"{one.topic}-{one.partition} {verb} {_told(one)}")


def _told(reset: OffsetReset) -> str:
    if reset.before is None:  # where it would have begun only its members know
        past = f": {reset.skips} passed over, from the log's start" if reset.skips else ""
        return f"to {reset.after}, with nothing committed before{past}"
    again = wording.counted(reset.redelivers, "record")
    return f"from {reset.before} to {reset.after}: {again} again, {reset.skips} passed over"


def pause(
    env: Env,
    names: Names,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Shown by `group describe`.")
    ] = "",
) -> int:
    """Have no worker get further jobs of share groups; answers are taken."""
    with env.admin() as admin:

        def pause_one(name: str) -> None:
            admin.pause_share_group(name, reason=reason)
            env.say(f"paused share group {name}")

        return for_each(env, names, pause_one)


def resume(env: Env, names: Names) -> int:
    """Have share groups deliver again."""
    with env.admin() as admin:

        def resume_one(name: str) -> None:
            admin.resume_share_group(name)
            env.say(f"resumed share group {name}")

        return for_each(env, names, resume_one)


def delete(
    env: Env,
    names: Names,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Only what is committed of this one."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Forget what groups without members have committed."""
    with env.admin() as admin:
        if dry_run:
            return for_each(env, names, lambda name: _show_deletion(env, admin, name, topic))
        if not yes:
            confirm(f"Delete {', '.join(names)} with all committed offsets?")

        def delete_one(name: str) -> None:
            admin.delete_group(name, topic=topic)
            env.say(f"deleted group {name}" + (f" of topic {topic}" if topic else ""))

        return for_each(env, names, delete_one)


def _show_deletion(env: Env, admin: Admin, name: str, topic: str | None) -> None:
    group = admin.describe_group(name)
    _check_is_there(group)
    gone = [one for one in group.partitions if topic in (None, one.topic)]
    committed = sum(one.committed is not None for one in gone)
    if env.is_json:
        output.write_json({"group": name, "members": len(group.members), "offsets": committed})
        return
    offsets = wording.counted(committed, "committed offset")
    if group.members:
        members = wording.counted(len(group.members), "member")
        raise er.GroupError(
            f"group {name!r} with {offsets} would not be deleted: it has {members}; stop them first"
        )
    of = f" of topic {topic}" if topic else ""
    output.write_line(f"would delete group {name}{of}: {offsets}")


def _check_is_there(group: GroupDescription) -> None:
    if not _is_there(group):
        raise er.GroupError(f"there is no group {group.group!r}: one comes with its first member")


def _is_there(group: GroupDescription) -> bool:
    return bool(group.generation or group.partitions)
