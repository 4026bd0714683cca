"""Finds partition folders, below a data folder or alone, and whether a node holds them.

Reads names and the catalogue only. Never opens a log, and never takes the folder's lock.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from penstock.core.errors import ConfigError
from penstock.ipc.ownership import LOCK_FILE
from penstock.server.node.data_folder import TOPICS_FILE, is_partition_folder


@dataclass(frozen=True, slots=True)
class CheckedPartition:
    """A folder to check: where it is, and what people call it."""

    folder: str
    name: str
    owner: tuple[bytes, int] | None
    is_live: bool = False


def find_partitions(path: str) -> list[CheckedPartition]:
    """Returns the partitions of a data folder, or the one that `path` itself is. Raises
    `ConfigError`."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise ConfigError(f"{path} is no folder: name a data folder or a partition folder in it")
    names = sorted(os.listdir(path))
    folders = [name for name in names if is_partition_folder(name)]
    parent = os.path.dirname(path)
    if not folders and (is_partition_folder(os.path.basename(path)) or _has_segments(names)):
        return [_partition(path, _topic_names(parent), is_held(parent))]
    if not folders and LOCK_FILE not in names:
        raise ConfigError(
            f"{path} is neither a data folder nor a partition folder: there are no segments in it"
        )
    topics, live = _topic_names(path), is_held(path)
    found = [_partition(os.path.join(path, name), topics, live) for name in folders]
    return sorted(found, key=lambda part: (part.name.rpartition("-")[0], part.owner or (b"", 0)))


def _has_segments(names: list[str]) -> bool:
    return any(name.endswith(".log") for name in names)


def _partition(folder: str, topics: dict[str, str], live: bool) -> CheckedPartition:
    name = os.path.basename(folder)
    if not is_partition_folder(name):
        return CheckedPartition(folder, name, None, live)
    topic_id, _, number = name.partition("-")
    title = f"{topics.get(topic_id, topic_id)}-{number}"
    return CheckedPartition(folder, title, (bytes.fromhex(topic_id), int(number)), live)


def _topic_names(data_folder: str) -> dict[str, str]:
    """Returns topic names by id, as far as the catalogue can be read."""
    try:
        with open(os.path.join(data_folder, TOPICS_FILE), "rb") as file:
            document = json.load(file)
        return {topic["topic_id"]: topic["name"] for topic in document["topics"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_held(data_folder: str) -> bool:
    """Returns whether a node, or a writer of one that is gone, holds the folder's lock.

    It reads the kernel's list of locks: trying to take the lock could keep a starting node out.
    """
    try:
        status = os.stat(os.path.join(data_folder, LOCK_FILE))
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(wanted in line.split() for line in lines)
