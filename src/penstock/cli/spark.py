"""`penstock spark ...`: the jobs on Spark, on this host or by `--master` on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, command
from penstock.core.errors import ConfigError
from penstock.operations import values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.jobs import Audit, HotKeys

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more topics.")]
Out = Annotated[str, typer.Option("-o", "--out", metavar="FOLDER", help="Where results go.")]
Keys = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The client's key file, at this path on every host. Default: $PENSTOCK_KEY of each.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://HOST:PORT, yarn. Default: what spark-submit "
        "was told, else this host with all its cores.",
    ),
]
Conf = Annotated[
    list[str],
    typer.Option("-c", "--conf", metavar="NAME=VALUE", help="A setting of Spark, may be repeated."),
]


class FileFormat(StrEnum):
    """Of the files of a backfill."""

    parquet = "parquet"
    ndjson = "ndjson"
    csv = "csv"


class Encoding(StrEnum):
    """The encoding of whole rows as values."""

    json = "json"
    csv = "csv"


class FindingKind(StrEnum):
    """The kinds of findings of an audit."""

    lost = "lost"
    doubled = "doubled"
    reordered = "reordered"
    misplaced = "misplaced"
    phantom = "phantom"


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(
        help="Jobs on Spark (pip install 'penstock[spark]', and Java 17 or newer). Each may be run "
        "again at any time: it goes on, or finds nothing to do.",
        **settings,
    )
    command(app, "archive")(archive)
    command(app, "backfill")(backfill)
    command(app, "audit")(audit)
    command(app, "rollup")(rollup)
    command(app, "snapshot")(snapshot)
    command(app, "hot-keys")(hot_keys)
    return app


@contextmanager
def running(env: Env, name: str, master: str | None, conf: list[str]) -> Iterator[SparkSession]:
    """Yields Spark for one command; ends it then, unless it was there before."""
    from penstock.spark.sessions import QUIET, is_running, session

    is_own = not is_running()
    settings: dict[str, object] = {} if env.verbose else dict(QUIET)
    settings["spark.ui.showConsoleProgress"] = str(env.shows_progress).lower()
    for text in conf:
        setting, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--conf {text!r}: write NAME=VALUE")
        settings[setting] = value
    spark = session(f"penstock {name}", master, settings)
    try:
        yield spark
    finally:
        if is_own:
            spark.stop()


def archive(
    env: Env,
    topics: Topics,
    out: Out,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Go on for ever, with a batch so often, like 30s."),
    ] = None,
    offsets_max: Annotated[
        int, typer.Option("--batch", min=1, metavar="RECORDS", help="Records of a batch at most.")
    ] = 5_000_000,
    headers: Annotated[bool, typer.Option(help="Whether headers are kept.")] = True,
    keys: Keys = None,
    master: Master = None,
    conf: Conf = [],  # noqa: B006 - typer copies it
) -> None:
    """Write what is new in topics as Parquet, by topic and date, each record once."""
    seconds = None if every is None else values.seconds(every)
    with running(env, "archive", master, conf) as spark:
        from penstock.spark.jobs import archive as run

        done = run(
            spark, env.url, topics, out, offsets_max=offsets_max, every=seconds,
            include_headers=headers, keys=keys, say=env.say,
        )  # fmt: skip
    if env.is_json:
        output.write_json(asdict(done))
    else:
        output.write_line(f"{done.records} records in {done.batches} batches to {done.out}")


def backfill(
    env: Env,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files, folders or patterns.")],
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Where records go.")],
    kind: Annotated[
        FileFormat | None, typer.Option("--from", help="Of the files. Default: by their endings.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that becomes the key.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column that becomes the value. Default: the column value of Parquet or CSV, "
            "the line of NDJSON, else the whole row.",
        ),
    ] = None,
    encoding: Annotated[
        Encoding, typer.Option(help="How whole rows become values.")
    ] = Encoding.json,
    partition: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column that names the partition.")
    ] = None,
    ordered: Annotated[
        bool, typer.Option(help="Keep the order of each file; one task reads it.")
    ] = True,
    keys: Keys = None,
    master: Master = None,
    conf: Conf = [],  # noqa: B006 - typer copies it
) -> None:
    """Send the rows of files to a topic, once however often it is run."""
    with running(env, "backfill", master, conf) as spark:
        from penstock.spark.jobs import backfill as run

        done = run(
            spark, env.url, paths, topic, format=None if kind is None else kind.value, key=key,
            value=value, encoding=encoding.value, partition=partition, ordered=ordered,
            keys=keys, say=env.say,
        )  # fmt: skip
    if env.is_json:
        output.write_json(asdict(done))
        return
    before = f"; {done.done_before} of {done.slices} slices were there" if done.done_before else ""
    output.write_line(f"{done.records} records of {done.files} files to {done.topic}{before}")


def audit(
    env: Env,
    ledgers: Annotated[
        list[str],
        typer.Argument(metavar="LEDGER", help="Output of `penstock verify producer`."),
    ],
    topics: Annotated[
        list[str], typer.Option("--topic", metavar="TOPIC", help="Default: all in the ledgers.")
    ] = [],  # noqa: B006 - typer copies it
    folder: Annotated[
        str | None,
        typer.Option("--archive", metavar="FOLDER", help="Judge this archive, not the topics."),
    ] = None,
    tolerate: Annotated[
        list[FindingKind],
        typer.Option(help="Findings that are no failure. phantom: other producers send too."),
    ] = [],  # noqa: B006 - typer copies it
    samples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Findings of each kind that are shown.")
    ] = 10,
    keys: Keys = None,
    master: Master = None,
    conf: Conf = [],  # noqa: B006 - typer copies it
) -> int:
    """Judge a log by what its producers say: lost, doubled, reordered, misplaced, phantom."""
    with running(env, "audit", master, conf) as spark:
        from penstock.spark.jobs import audit as run

        found = run(
            spark, None if folder else env.url, ledgers, topics=topics, archive=folder,
            samples=samples, keys=keys, say=env.say,
        )  # fmt: skip
    tell_audit(env, found)
    tolerated = [kind.value for kind in tolerate]
    return ExitCode.DONE if found.is_clean(tolerated) else ExitCode.FAILED


def tell_audit(env: Env, found: Audit) -> None:
    """Shows one row for each partition, then the findings, then the sum."""
    env.write_rows(
        (
            *("topic", "partition", "acked", "found", "expired", "unsure"),
            *(kind.value for kind in FindingKind),
        ),
        found.rows(),
    )
    if env.is_json:
        for finding in found.findings:
            output.write_json({"finding": asdict(finding)})
        output.write_json({"total": found.totals(), "clean": found.is_clean()})
        return
    for finding in found.findings:
        place = f"{finding.topic}/{finding.partition}"
        at = "" if finding.offset is None else f" at {finding.offset}"
        output.write_line(f"{finding.kind} {place}{at}: key={finding.key} value={finding.value}")
    totals = found.totals()
    output.write_line(", ".join(f"{totals[kind.value]} {kind.value}" for kind in FindingKind))


def rollup(
    env: Env,
    topics: Topics,
    out: Out,
    window: Annotated[str, typer.Option(metavar="TIME", help="Like 10s, 1m, 1h.")] = "1m",
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Draw it too.")] = None,
    groups: Annotated[
        list[str],
        typer.Option("-g", "--group", metavar="GROUP", help="Count what it has not read."),
    ] = [],  # noqa: B006 - typer copies it
    ledgers: Annotated[
        list[str],
        typer.Option(
            "--ledger", metavar="FILE", help="Output of `penstock verify producer`: drop rates."
        ),
    ] = [],  # noqa: B006 - typer copies it
    keys: Keys = None,
    master: Master = None,
    conf: Conf = [],  # noqa: B006 - typer copies it
) -> None:
    """Write throughput, sizes, lag and drops of topics by window, as Parquet and as a picture."""
    seconds = values.seconds(window)
    with running(env, "rollup", master, conf) as spark:
        from penstock.spark.jobs import rollup as run

        done = run(
            spark, env.url, topics, out, window=seconds, png=png, groups=groups, ledgers=ledgers,
            keys=keys, say=env.say,
        )  # fmt: skip
    if env.is_json:
        output.write_json(asdict(done))
    else:
        drawn = f", drawn to {done.png}" if done.png else ""
        output.write_line(f"{done.rows} rows on {done.records} records to {done.out}{drawn}")


def snapshot(
    env: Env,
    topics: Topics,
    out: Out,
    headers: Annotated[bool, typer.Option(help="Whether headers are kept.")] = False,
    keys: Keys = None,
    master: Master = None,
    conf: Conf = [],  # noqa: B006 - typer copies it
) -> None:
    """Write the latest value of each key as Parquet, in place of the table that is there."""
    with running(env, "snapshot", master, conf) as spark:
        from penstock.spark.jobs import snapshot as run

        done = run(spark, env.url, topics, out, include_headers=headers, keys=keys, say=env.say)
    if env.is_json:
        output.write_json(asdict(done))
    else:
        output.write_line(f"{done.keys} keys of {done.records} records to {done.out}")


def hot_keys(
    env: Env,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    top: Annotated[int, typer.Option(min=1, max=10_000, help="Keys that are looked at.")] = 20,
    separator: Annotated[
        str, typer.Option(metavar="TEXT", help="Between a key and its suffix.")
    ] = "#",
    keys: Keys = None,
    master: Master = None,
    conf: Conf = [],  # noqa: B006 - typer copies it
) -> None:
    """Show which keys crowd a partition, and suffixes that would spread them."""
    with running(env, "hot-keys", master, conf) as spark:
        from penstock.spark.jobs import hot_keys as run

        found = run(spark, env.url, topic, top=top, separator=separator, keys=keys, say=env.say)
    if env.is_json:
        output.write_json(found.as_json())
    else:
        tell_hot_keys(found)


def tell_hot_keys(found: HotKeys) -> None:
    """Shows the keys, the advice about them, and the records of partitions then."""
    share = max(found.records, 1)
    output.write_columns(
        ("KEY", "PARTITION", "RECORDS", "BYTES", "SHARE"),
        [
            ("-" if load.key is None else load.key.decode("utf-8", "backslashreplace"),
             load.partition, load.records, load.bytes, f"{100 * load.records / share:.1f}%")
            for load in found.top
        ],
    )  # fmt: skip
    output.write_line("")
    output.write_columns(
        ("PARTITION", "RECORDS", "PLANNED"),
        [(number, load, found.planned[number]) for number, load in found.partitions.items()],
    )
    output.write_line("")
    for plan in found.plan:
        output.write_line(
            f"split {plan.key} ({100 * plan.share:.1f}% of all) by {' '.join(plan.suffixes)}"
        )
    if found.plan:
        output.write_line(f"skew {found.skew:.2f}, then {found.planned_skew:.2f}")
    else:
        output.write_line(f"skew {found.skew:.2f}: no key is to be split")
