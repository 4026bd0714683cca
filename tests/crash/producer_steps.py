"""A producer that dies by kill -9 at a named step of putting one frame into its lane.

`python producer_steps.py '{"url": ..., "topic": ..., "step": ...}'`. Records `before-0` to
`before-2` are acknowledged first; then the step is armed and the record `at-the-step` is sent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from penstock.client.client import connect
from penstock.ipc import layout as lo
from penstock.ipc.lane import LaneSender

INVISIBLE: Final = (
    "nothing written",
    "frame header half written",
    "frame header written",
    "batch header copied",
    "batch half copied",
    "batch copied",
    "tail sequence published",
)
VISIBLE: Final = ("tail published",)
BEFORE: Final = 3
BODY: Final = 2
"""The slice stores of a frame: its header, the batch header, the body."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class SpiedBytes:
    """The lane's bytes; calls `store(number, slice, data)` in place of each slice store."""

    def __init__(self, real: Any, store: Callable[[int, slice, Any], None]) -> None:
        self.real, self._store, self._stores = real, store, 0

    def __getitem__(self, index: Any) -> Any:
        return self.real[index]

    def __setitem__(self, index: slice, data: Any) -> None:
        self._store(self._stores, index, data)
        self._stores += 1


class SpiedWords:
    """The lane's words; dies before or after the store to one of them."""

    def __init__(self, real: Any, word: int, *, after: bool) -> None:
        self._real, self._word, self._after = real, word, after

    def __getitem__(self, index: int) -> Any:
        return self._real[index]

    def __setitem__(self, index: int, value: int) -> None:
        if index != self._word or self._after:
            self._real[index] = value
        if index == self._word:
            die()


def arm(sender: LaneSender, step: str) -> None:
    stores = {"frame header": 0, "batch header": 1, "batch": BODY}
    words = {
        "batch copied": (lo.Q_LANE_TAIL_SEQUENCE, False),
        "tail sequence published": (lo.Q_LANE_TAIL, False),
        "tail published": (lo.Q_LANE_TAIL, True),
    }
    if step in words:
        word, after = words[step]
        sender._q = SpiedWords(sender._q, word, after=after)  # type: ignore[assignment]
        return

    def store(number: int, at: slice, data: Any) -> None:
        if step == "nothing written":
            die()
        what, half, _ = step.rpartition(" half ")
        if not half:
            what, _, _ = step.rpartition(" ")
        if number == stores[what]:
            length = len(data) // 2 if half else len(data)
            spied.real[at.start : at.start + length] = data[:length]
            die()
        spied.real[at] = data

    spied = SpiedBytes(sender._bytes, store)
    sender._bytes = spied  # type: ignore[assignment]


def main() -> None:
    plan = json.loads(sys.argv[1])
    client = connect(plan["url"])
    producer = client.producer(linger=0.0)
    for number in range(BEFORE):
        producer.send_and_wait(plan["topic"], b"before-%d" % number)
    (link,) = producer._pipeline.sender.links.values()
    arm(link.sender, plan["step"])
    producer.send_and_wait(plan["topic"], b"at-the-step" * 100)
    raise SystemExit(f"the step {plan['step']!r} was passed alive")


if __name__ == "__main__":
    main()
