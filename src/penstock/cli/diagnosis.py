"""Finds the faults of a node and its cluster, with advice: the checks behind `penstock doctor`.

It reads the node's own description, shared memory and `/proc` (on its host), the controller's
image, and groups. Owns the judgement and its bounds, and changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core import errors as er
from penstock.operations.judgement import (
    HELD_MIN,
    Complaint,
    Complaints,
    judge_group,
    judge_transaction,
    sample_of,
    stopped_readers,
)
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.cli.command import Env
    from penstock.client.admin.admin import Admin
    from penstock.ipc.messages import NodeDescription

SHM: Final = "/dev/shm"
SHM_FREE_MIN: Final = 64 << 20
"""Bytes: about what a producer's first lanes and a few more take."""
FILES_USED_MAX: Final = 0.8
"""Of a process's limit of open files."""
CLOCK_AHEAD_MAX: Final = 60
"""Seconds that the wall clock may be from what the node believes."""
TRANSACTIONS_MAX: Final = 20
"""Transactions that are told of, the oldest; how many more there are is said."""
GROUPS_MAX: Final = 200
"""Groups that are looked at; how many more there are is said."""


class Diagnosis(msgspec.Struct):
    """`looked_at`: the subjects that could be looked at."""

    looked_at: list[str] = []
    findings: list[Complaint] = []

    @property
    def is_well(self) -> bool:
        return not any(each.is_wrong for each in self.findings)

    def look(self, subject: str, found: Callable[[], Complaints]) -> None:
        """Adds the findings of a check. A check that is refused is a finding, too."""
        try:
            self.findings += found()
            self.looked_at.append(subject)
        except (er.PenstockError, OSError) as error:
            self.findings.append(
                Complaint(
                    subject, f"could not be looked at: {error}", "see what the message advises"
                )
            )


def diagnose(env: Env) -> Diagnosis:
    """Runs all checks, one after the other. Where no node answers only its host is left to
    check."""
    from penstock.client.admin.admin import is_near

    found = Diagnosis()
    try:
        admin = env.admin()
    except er.PenstockError as error:
        found.findings.append(
            Complaint("node", f"{env.url} does not answer: {error}", "start it, or correct the URL")
        )
        found.look("shared memory", _shared_memory)
        found.look("leftovers", _leftovers)
        return found
    with admin:
        node = admin.describe_node()
        is_here = is_near(admin)
        found.looked_at.append("node")
        found.look("versions", lambda: _versions(node))
        found.look("clock", lambda: _clock(node))
        if is_here:
            found.look("processes, partitions and disk", lambda: _near(node))
            found.look("open files", lambda: _open_files(node))
            found.look("shared memory", _shared_memory)
            found.look("leftovers", _leftovers)
        else:
            found.findings.append(Complaint(
                "host", "the node is on another host: its disk, memory and processes are not seen",
                "run `penstock doctor` there, too", is_wrong=False,
            ))  # fmt: skip
        if node.cluster:
            found.look("cluster", lambda: _cluster(admin))
        found.look("transactions", lambda: _transactions(admin))
        found.look("groups", lambda: _groups(admin, node if is_here else None))
    return found


def _versions(node: NodeDescription) -> Complaints:
    theirs = node.versions.get("penstock")
    if theirs is not None and theirs != __version__:
        yield Complaint(
            "versions", f"the node is penstock {theirs}, this command {__version__}",
            "restart what is older once all hosts have the new release", is_wrong=False,
        )  # fmt: skip


def _clock(node: NodeDescription) -> Complaints:
    ahead = node.clock.get("ahead", 0)
    if abs(ahead) > CLOCK_AHEAD_MAX:
        yield Complaint(
            "clock", f"the wall clock is {ahead} s ahead of what the node believes",
            "correct the clock of the host (chronyc tracking); until then nothing expires early",
        )  # fmt: skip


# --- the node's host ------------------------------------------------------------------------------


def _near(node: NodeDescription) -> Complaints:
    from penstock.ipc import layout as lo
    from penstock.observe.processes import STOPPED
    from penstock.server.health.ready import missing

    sample = sample_of(node)
    if sample.node is not None and sample.node.state == STOPPED:
        pid = sample.node.pid
        yield Complaint("node", f"pid {pid} is stopped", f"`kill -CONT {pid}` lets it go on")
    for what in missing(sample, node):
        yield Complaint("node", what, _advice(what))
    disk = sample.disk
    if disk is not None and disk.level == lo.DISK_WARN:
        yield Complaint(
            "disk", f"{disk.free} of {disk.total} bytes are free in {node.data_folder}",
            "give it room, or topics less retention, before `disk_stop` ends appends",
        )  # fmt: skip


def _advice(what: str) -> str:
    for sign, advice in (
        ("disk is full", "make room in the data folder: appends go on by themselves then"),
        ("is stopped", "`kill -CONT` lets it go on; the node replaces it otherwise"),
        ("sign of life", "look at its device (iostat) and load; the node replaces it if it stays"),
        ("is not running", "wait a moment; the node's log says why if it does not come back"),
        ("fenced", "see `penstock cluster health`: the controller is away, or the broker starts"),
        ("coordinator", "wait: it serves once its log is read"),
    ):
        if sign in what:
            return advice
    return "the node's log says why; `penstock topic describe` shows the partition"


def _open_files(node: NodeDescription) -> Complaints:
    pids = {"node": node.pid, "gateway": node.gateway.get("pid", 0),
            "replicator": node.replicator.get("pid", 0)}  # fmt: skip
    pids |= {f"writer {each.writer}": each.pid for each in node.writers}
    for name, pid in pids.items():
        try:
            used = len(os.listdir(f"/proc/{pid}/fd")) if pid else 0
            limits = Path(f"/proc/{pid}/limits").read_text("ascii") if pid else ""
        except OSError:
            continue  # it has ended meanwhile, or is another user's
        limit = re.search(r"^Max open files\s+([0-9]+)", limits, re.MULTILINE)
        if limit is not None and used > FILES_USED_MAX * int(limit[1]):
            yield Complaint(
                "open files", f"{name} (pid {pid}) has {used} of at most {limit[1]} files open",
                "raise the limit (`ulimit -Hn`, LimitNOFILE=) and restart the node",
            )  # fmt: skip


def _shared_memory() -> Complaints:
    memory = shutil.disk_usage(SHM)
    if memory.free < SHM_FREE_MIN:
        yield Complaint(
            "shared memory", f"{memory.free} of {memory.total} bytes are free in {SHM}",
            f"enlarge it (`mount -o remount,size=...`, in containers --shm-size) or clear {SHM}",
        )  # fmt: skip


def _leftovers() -> Complaints:
    from penstock.ipc.ownership import find_owners

    for each in find_owners():
        if not each.is_held and not each.is_still_there():
            yield Complaint(
                "leftovers",
                f"{len(each.objects())} objects in {SHM} are of {each.claim.folder or 'a folder'}, "
                "which is not there any more",
                f"where it is not to come back: `rm {SHM}/penstock-{each.owner}-*`",
                is_wrong=False,
            )


# --- the cluster and its groups -------------------------------------------------------------------
def _cluster(admin: Admin) -> Complaints:
    from penstock.operations.cluster_health import troubles

    found = admin.describe_cluster()
    said = troubles(found)
    if found.ill_partitions:
        said[-2:] = ["; ".join(said[-2:])]  # what follows from a broker that is away, most often
    for trouble in said:
        yield Complaint(
            "cluster", trouble, "start the brokers that are away; `penstock cluster describe` "
            "shows who lacks what",
        )  # fmt: skip


def _transactions(admin: Admin) -> Complaints:
    held = [each for each in admin.list_transactions() if each.open_for >= HELD_MIN]
    held.sort(key=lambda each: -each.open_for)
    shown = held[:TRANSACTIONS_MAX]
    topics = {name for each in shown for name in each.topics}
    waiting = {name: _waiting(admin, name) for name in sorted(topics)}
    for each in shown:
        yield judge_transaction(each, [part for name in each.topics for part in waiting[name]])
    if len(held) > len(shown):
        yield Complaint(
            "transactions", f"{len(held) - len(shown)} more hold readers back",
            "`penstock transaction list --open` shows them", is_wrong=False,
        )  # fmt: skip


def _waiting(admin: Admin, topic: str) -> list[str]:
    """Lists the records, by partition, that readers of committed records do not get of it."""
    try:
        found = admin.describe_topic(topic)
    except er.UnknownTopicError:
        return []  # it went meanwhile
    return [
        f"{topic}-{part.partition} {part.high_watermark - part.last_stable}"
        for part in found.partitions
        if part.high_watermark > part.last_stable
    ]


def _groups(admin: Admin, node: NodeDescription | None) -> Complaints:
    """Judges the groups. `node`: its description where it is on this host."""
    listed = admin.list_groups()
    stopped = stopped_readers(node) if node is not None and listed else {}
    for each in listed[:GROUPS_MAX]:
        yield from judge_group(admin.describe_group(each.group), stopped)
    if len(listed) > GROUPS_MAX:
        yield Complaint(
            "groups", f"{len(listed) - GROUPS_MAX} more groups were not looked at",
            "`penstock group describe` shows them", is_wrong=False,
        )  # fmt: skip
