"""`penstock node`: shows a node and how near it is to its bounds, and changes it.

It changes settings, and gives a copied data folder an identity of its own."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, command
from penstock.cli.node_settings import config
from penstock.operations import wording

if TYPE_CHECKING:
    from penstock.ipc.messages import NodeDescription
    from penstock.observe.report import Report

_BOUNDS: Final = ("topics", "partitions", "clients", "lanes")
SHM: Final = "/dev/shm"


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(
        help="Show what a node is and has; change its settings; make a copied data folder a node "
        "of its own.",
        **settings,
    )
    command(app, "describe")(describe)
    command(app, "config")(config)
    command(app, "adopt")(adopt)
    return app


def adopt(
    env: Env,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The copy of a data folder.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give a copy of a data folder an identity of its own, so that it is served beside the
    original. No node may run on it."""
    from penstock.server.node.adoption import adopt

    found = adopt(folder, dry_run=True)
    if not (dry_run or yes):
        confirm(f"{found.folder} is no copy of node {found.before} any more then. Go on?")
    if not dry_run:
        found = adopt(folder)
    if env.is_json:
        output.write_json({**found._asdict(), "dry_run": dry_run})
        return
    new = "would get another uuid" if dry_run else f"has the uuid {found.uuid}"
    output.write_line(f"{found.folder} {new} instead of {found.before}")
    if found.had_secret:
        away = "would be removed" if dry_run else "is removed"
        output.write_line(f"resume-secret {away}: producers on other hosts come as new ones")
    output.write_line(
        "kept: topics, records, groups, transactions, access.json, and keys/ (with the server key "
        "of the original)"
    )


def describe(env: Env) -> None:
    """Show versions, processes, room on disk and in shared memory, bounds; wide: all settings."""
    from penstock.client.admin.admin import is_near

    with env.admin() as admin:
        node, near = admin.describe_node(), is_near(admin)
    fields = _seen(env.url, node) if near else _told(env.url, node)
    if env.is_json:
        output.write_json(fields)
    else:
        _write(fields, wide=env.is_wide)


def _seen(url: str, node: NodeDescription) -> dict[str, Any]:
    """Returns the node's own description, with what its host shows of it."""
    from penstock.observe.place import find_node
    from penstock.observe.report import Reporter
    from penstock.observe.sample import Observer

    with closing(Observer(find_node(f"shm://{node.data_folder}"))) as observer:
        reporter = Reporter(observer)
        look = reporter.take()
        report = reporter.compare(look, look)
        shared = sum(region.size for region in observer.shared.regions())
    return _fields(url, node, report, shared)


def _told(url: str, node: NodeDescription) -> dict[str, Any]:
    """Returns the fields that the node itself reports, also to another host."""
    known = {"topics": node.topics, "partitions": node.partitions, "clients": node.clients,
             "lanes": node.lanes}  # fmt: skip
    return {
        "url": url,
        "pid": node.pid,
        "uuid": node.node_uuid.hex(),
        "versions": node.versions,
        "started_at": node.started_at,
        "uptime": max(0.0, time.time() - node.started_at),
        "state": "running",
        "rss": None,
        "data_folder": node.data_folder,
        "limits": {
            name: {"used": known[name], "most": node.settings.get(f"{name}_max")}
            for name in _BOUNDS
        },
        "writers": [
            {
                "writer": writer.writer,
                "pid": writer.pid,
                "state": None,
                "generation": writer.generation,
                "restarts": writer.restarts,
                "partitions": writer.partitions,
                "lanes": writer.lanes,
                "rss": None,
            }
            for writer in node.writers
        ],
        "listen": node.listen,
        "gateway": node.gateway,
        "cleaner": None,
        "coordinator": node.coordinator,
        "cluster": node.cluster,
        "controller": node.controller,
        "replicator": node.replicator,
        "access": node.access,
        "clock": node.clock,
        "producers": [],
        "consumers": [],
        "settings": node.settings,
    }


def _fields(url: str, node: NodeDescription, report: Report, shared: int) -> dict[str, Any]:
    disk, memory = shutil.disk_usage(node.data_folder), shutil.disk_usage(SHM)
    rows = {row.pid: row for row in report.writers}
    fields = _told(url, node)
    for writer in fields["writers"]:
        row = rows.get(writer["pid"])
        writer["state"] = "starting" if row is None else row.state
        writer["rss"] = None if row is None else row.rss
    return fields | {
        "state": report.node.state,
        "rss": report.node.rss,
        "disk_free": disk.free,
        "disk_size": disk.used + disk.free,  # what disk_warn is a share of: root's reserve is not
        "shm_used": shared,
        "shm_free": memory.free,
        "shm_size": memory.total,
        "cleaner": report.cleaner,
        "producers": report.producers,
        "consumers": report.consumers,
    }


def _write(fields: dict[str, Any], *, wide: bool) -> None:
    size = wording.human_bytes
    versions = "  ".join(f"{name} {text}" for name, text in fields["versions"].items())
    up = wording.human_age(fields["uptime"])
    taken = "" if fields["rss"] is None else f"  {size(fields['rss'])}"
    output.write_line(f"node {fields['pid']} {fields['state']}  up {up}{taken}  {versions}")
    if fields["listen"]:
        gateway = fields["gateway"]
        output.write_line(
            f"  remote clients at {fields['listen']}, gateway {gateway['pid']}, "
            f"{gateway['restarts']} restarts"
        )
    if cluster := fields["cluster"]:
        output.write_line(
            f"  broker {cluster['node_id']} of a cluster, epoch {cluster['broker_epoch']}"
            f"{', fenced' if cluster['fenced'] else ''}, controller {cluster['controller']}: leads "
            f"{cluster['leads']} of {wording.counted(cluster['replicas'], 'replica')}, "
            f"{cluster['underreplicated']} of them with others out of sync"
        )
    room = ": on another host"
    if "disk_free" in fields:
        room = f": {size(fields['disk_free'])} of {size(fields['disk_size'])} free"
    output.write_line(f"  data folder {fields['data_folder']}{room}")
    if "shm_used" in fields:
        output.write_line(
            f"  {SHM}: {size(fields['shm_used'])} taken, {size(fields['shm_free'])} of "
            f"{size(fields['shm_size'])} free"
        )
    limits = [[name, found["used"], found["most"]] for name, found in fields["limits"].items()]
    _table(("HAS", "NUMBER", "MOST"), limits)
    _table(
        ("WRITER", "PID", "STATE", "GENERATION", "RESTARTS", "PARTITIONS", "LANES", "RSS"),
        [
            [*list(row.values())[:-1], None if row["rss"] is None else size(row["rss"])]
            for row in fields["writers"]
        ],
    )
    cleaner = fields["cleaner"]
    if cleaner is not None:
        _table(
            ("CLEANER", "STATE", "HEARTBEAT", "RUNS", "ERRORS", "RSS"),
            [[cleaner.pid, cleaner.state, wording.human_age(cleaner.heartbeat_age), cleaner.runs,
              cleaner.errors, None if cleaner.rss is None else size(cleaner.rss)]],
        )  # fmt: skip
    _table(("COORDINATOR", "NUMBER"), [list(pair) for pair in fields["coordinator"].items()])
    clients = [("producer", row) for row in fields["producers"]]
    clients += [("consumer", row) for row in fields["consumers"]]
    _table(
        ("CLIENT", "PID", "STATE", "COMMAND"),
        [[kind, row.pid, row.state, row.command] for kind, row in clients],
    )
    if wide:
        _table(("SETTING", "VALUE"), [list(pair) for pair in fields["settings"].items()])


def _table(heads: tuple[str, ...], rows: list[list[object]]) -> None:
    if rows:
        output.write_line("")
        output.write_columns(heads, rows)
