"""`penstock topic ...`: create, list, describe, config, add-partitions, copy, trim, delete."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, ExitCode, code_of, command, complain
from penstock.cli.topic_copy import copy
from penstock.cli.trim import trim
from penstock.core import errors as er
from penstock.operations import values, wording
from penstock.operations.topic_settings import read_settings

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin, TopicDescription


Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more topics.")]
Sample = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0, max=60, help="Count so long, and show rates as well."),
]
Name = Annotated[str, typer.Argument(metavar="TOPIC")]
_CONFIG_HELP = (
    "A setting, may be repeated: segment_bytes, segment_age, durability (os, interval, fsync), "
    "flush_interval, timestamp_type (create, append), record_bytes_max, retention, "
    "retention_bytes, cleanup (delete, compact, or both with a comma), min_compaction_lag, "
    "delete_retention, min_dirty_ratio, replication_factor, min_insync_replicas, "
    "hold_for (nobody, groups), hold_bytes_max."
)


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(help="Create, show, change and delete topics.", **settings)
    command(app, "create")(create)
    command(app, "list")(list_topics)
    command(app, "describe")(describe)
    command(app, "config")(config)
    command(app, "add-partitions")(add_partitions)
    command(app, "copy")(copy)
    command(app, "trim")(trim)
    command(app, "delete")(delete)
    return app


def create(
    env: Env,
    names: Names,
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", min=1, help="How many logs each topic has.")
    ] = 1,
    retention: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long records are kept, like 7d.")
    ] = None,
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="How large a partition grows, like 10GB.")
    ] = None,
    cleanup: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="delete, compact (newest of each key), compact,delete."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="In a cluster: on how many brokers records lie.")
    ] = None,
    min_insync_replicas: Annotated[
        int | None, typer.Option(min=1, help="In a cluster: with fewer in sync nothing commits.")
    ] = None,
    config: Annotated[
        list[str], typer.Option("-c", "--config", metavar="KEY=VALUE", help=_CONFIG_HELP)
    ] = [],  # noqa: B006 - typer copies it
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is no error.")
    ] = False,
) -> int:
    """Make topics."""
    from penstock.client.admin.topic_config import TopicConfig

    options = {"retention": retention, "retention_bytes": retention_bytes, "cleanup": cleanup}
    options["replication_factor"] = _text(replication_factor)
    options["min_insync_replicas"] = _text(min_insync_replicas)
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    changes = read_settings([*config, *given])
    settings = TopicConfig(partitions=partitions, **changes)
    with env.admin() as admin:

        def make_one(name: str) -> None:
            if admin.create_topic(name, settings, if_not_exists=if_not_exists):
                env.say(f"created topic {name} with {wording.counted(partitions, 'partition')}")
            else:
                env.say(f"topic {name} is there already")

        return for_each(env, names, make_one)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def list_topics(
    env: Env,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names that match, like 'order*'.")
    ] = "*",
) -> None:
    """Show topic names, with --format wide and json what is in them."""
    with env.admin() as admin:
        names = fnmatch.filter(admin.list_topics(), pattern)
        if not (env.is_json or env.is_wide):
            for name in names:
                output.write_line(name)
            return
        rows = [_summary(admin.describe_topic(name)) for name in names]
    env.write_rows(("name", "partitions", "offsets", "bytes", "durability", "offline"), rows)


def _summary(topic: TopicDescription) -> dict[str, Any]:
    from penstock.cli.describe import offsets_held

    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": len(topic.partitions),
        "offsets": offsets_held(topic),
        "bytes": sum(part.counters["bytes"] for part in topic.partitions),
        "durability": topic.settings["durability"],
        "offline": sum(part.status != "online" for part in topic.partitions),
    }


def describe(
    env: Env,
    names: Names,
    sample: Sample = 0.0,
    hot: Annotated[
        bool,
        typer.Option("--hot", help="Show the most frequent keys among the newest records instead."),
    ] = False,
) -> int:
    """Show the settings of topics and the state of their partitions."""
    from penstock.cli.describe import describe_hot_keys, describe_topic
    from penstock.client.admin.admin import is_near

    with env.admin() as admin:
        if hot:
            return for_each(env, names, lambda name: describe_hot_keys(env, admin, name))
        folder = admin.describe_node().data_folder if is_near(admin) else None
        return for_each(env, names, lambda name: describe_topic(env, admin, name, folder, sample))


def config(
    env: Env,
    name: Name,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE...]", help=f"{_CONFIG_HELP} KEY= alone brings the default back."
        ),
    ] = None,
) -> None:
    """Show a topic's settings, or change some while it is in use."""
    wanted = read_settings(changes or ())
    with env.admin() as admin:
        if wanted:
            admin.alter_topic(name, **wanted)
            env.say(f"changed {', '.join(sorted(wanted))} of topic {name}")
            return
        settings = admin.describe_topic(name).settings
    if env.is_json:
        output.write_json(settings)
        return
    for key, value in settings.items():
        output.write_line(f"{key}={values.setting(key, value)}")


def add_partitions(
    env: Env,
    name: Name,
    total: Annotated[int, typer.Argument(min=1, help="How many partitions it has afterwards.")],
) -> None:
    """Grow a topic. Records stay where they are; new ones of a key may go elsewhere."""
    with env.admin() as admin:
        admin.add_partitions(name, total)
    env.say(f"topic {name} has {wording.counted(total, 'partition')}")


def delete(
    env: Env,
    names: Names,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete topics and all their records."""
    with env.admin() as admin:
        if dry_run:
            return for_each(env, names, lambda name: _show_deletion(env, admin, name))
        if not yes:
            confirm(f"Delete {', '.join(names)} with all records?")

        def delete_one(name: str) -> None:
            admin.delete_topic(name)
            env.say(f"deleted topic {name}")

        return for_each(env, names, delete_one)


def _show_deletion(env: Env, admin: Admin, name: str) -> None:
    summary = _summary(admin.describe_topic(name))
    if env.is_json:
        output.write_json(summary)
        return
    output.write_line(
        f"would delete topic {name}: {wording.counted(summary['partitions'], 'partition')}, "
        f"{wording.counted(summary['offsets'], 'offset')}"
    )


def for_each(env: Env, names: Iterable[str], action: Callable[[str], None]) -> int:
    """Do all of them, complain about each that fails; PARTLY where some went well."""
    failures: list[er.PenstockError] = []
    done = 0
    for name in names:
        try:
            action(name)
            done += 1
        except er.PenstockError as error:
            failures.append(error)
            complain(env, str(error))
    if not failures:
        return ExitCode.DONE
    return ExitCode.PARTLY if done else code_of(failures[0])
