"""Named steps at which a node under test dies by kill -9; armed by `node_main` for one run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any, Final

from penstock.core.storage import Storage
from penstock.ipc import shm, state
from penstock.server.coordinator import opening
from penstock.server.coordinator.decision_log import Journal
from penstock.server.coordinator.epoch import Life
from penstock.server.coordinator.lanes import Mailbox
from penstock.server.coordinator.markers import Markers
from penstock.server.node import lanes, topics
from penstock.server.process.writers import Supervisor

AT_START: Final = (
    "before rename of node.json",
    "after rename of node.json",
    "after creation of -state",
    "after formatting of -state",
    "after creation of -clients",
)
AT_WORK: Final = (
    "before rename of topics.json",
    "after rename of topics.json",
    "after creation of -lane-",
    "after formatting of -lane-",
    "before unlinking of -lane-",
    "after unlinking of -lane-",
    "before removal of a partition",
    "after removal of a partition",
)
COORDINATING: Final = (
    "before sending of a decision",
    "after sending of a decision",
    "before taking of answers",
    "before answering of a decision",
    "after answering of a decision",
    "before marking of a partition",
    "after marking of a partition",
    "before noting of marks",
)
LOADING: Final = (
    "before fencing of the log",
    "after fencing of the log",
    "before replaying of the log",
    "after replaying of the log",
)
AT_END: Final = (
    "after the writers have stopped",
    "before rename of node.json",
    "after rename of node.json",
    "after unlinking of -state",
)


_COORDINATING: Final[dict[str, tuple[Any, str]]] = {
    "sending": (Journal, "append"),
    "taking": (Mailbox, "look"),
    "answering": (Journal, "_answered"),
    "marking": (Markers, "_send"),
    "noting": (Life, "_marked"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str, skip: int = 0) -> None:
    """Make this process die at that step, after passing it `skip` times."""
    left = [skip]

    def reach() -> None:
        if not left[0]:
            die()
        left[0] -= 1

    match = re.fullmatch(r"(before|after) (\w+)(?: (?:of|have))? ?(.*)", step)
    assert match, step
    when, what, target = match.groups()
    if what == "rename":
        _around(Storage, "rename", when, reach, lambda storage, old, new: target in new)
    elif what == "creation":
        _around(shm, "create", when, reach, lambda name, size: target in name)
    elif what == "unlinking":
        _around(shm, "unlink", when, reach, lambda name: target in name)
    elif what == "formatting" and target == "-lane-":
        _around(lanes, "format_lane", when, reach, lambda *_: True)
    elif what == "formatting":
        _around(state, "format_table", when, reach, lambda *_: True)
    elif what == "removal":
        _around(topics, "remove_folder", when, reach, lambda path: True)
    elif what in _COORDINATING:
        owner, name = _COORDINATING[what]
        _around(owner, name, when, reach, lambda *_, **__: True)
    elif what in ("fencing", "replaying"):
        _around_coroutine(opening, {"fencing": "fence", "replaying": "replay"}[what], when, reach)
    elif step == "after the writers have stopped":
        _around_coroutine(Supervisor, "stop", "after", reach)
    else:
        raise AssertionError(f"nobody knows the step {step!r}")


def _around(
    owner: Any, name: str, when: str, reach: Callable[[], None], matches: Callable[..., bool]
) -> None:
    real = getattr(owner, name)

    def call(*args: Any, **named: Any) -> Any:
        is_it = matches(*args, **named)
        if is_it and when == "before":
            reach()
        result = real(*args, **named)
        if is_it and when == "after":
            reach()
        return result

    setattr(owner, name, call)


def _around_coroutine(owner: Any, name: str, when: str, reach: Callable[[], None]) -> None:
    real = getattr(owner, name)

    async def call(*args: Any, **named: Any) -> Any:
        if when == "before":
            reach()
        result = await real(*args, **named)
        if when == "after":
            reach()
        return result

    setattr(owner, name, call)
