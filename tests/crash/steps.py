"""A writer process that dies by kill -9 at a named step: the tests' own main, not the product's.

`python steps.py <arguments of the writer main>`, started by a node whose `writer_command` it is.
Each generation takes the next step out of a plan (`StepPlan`), arms it, and is the real writer in
everything else. A step is a call of a seam and a moment: before it, half-way through, or after it.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from penstock.core.storage import Storage
from penstock.ipc import lane, state
from penstock.ipc import layout as lo

PLAN_VARIABLE: Final = "PENSTOCK_TEST_STEPS"

STORES: Final = {
    "acks written": lo.Q_LANE_ACK_TAIL,
    "acks published": lo.Q_LANE_HEAD_SEQUENCE,
    "head sequence published": lo.Q_LANE_HEAD,
}
"""What is true when the writer dies before it stores this word of a lane."""

CALLS: Final = {
    "log": r"\.log$",
    "index": r"\.index$",
    "time index": r"\.time$",
    "snapshot": r"producers-.*\.tmp$",
    "recovery point": r"recovery-point(\.tmp)?$",
}
"""Files whose writing is a step: before, half-way, after."""

STEPS: Final = (
    "frame half read",
    "frames read",
    *(f"{when} writing the {what}" for what in CALLS for when in ("before", "half-way", "after")),
    "segment half published",
    "segment published",
    "log end published alone",
    "ends published",
    *STORES,
    "head published",
    *(f"{when} {call} of a log" for call in ("open", "allocate") for when in ("before", "after")),
    *(f"{when} fdatasync of a log" for when in ("before", "after")),
    *(f"{when} fsync of the folder" for when in ("before", "after")),
    *(f"{when} rename of a snapshot" for when in ("before", "after")),
    *(f"{when} unlink of a snapshot" for when in ("before", "after")),
    "durable published",
)


CHANGING: Final = (
    "allocate", "fdatasync", "fsync", "fsync_folder", "link", "makedirs", "open", "pwritev",
    "rename", "truncate", "unlink",
)  # fmt: skip
"""The primitives of the storage; opening counts as well, for it may create."""


class StepPlan:
    """The steps of one test in a folder: which are taken, and at which a writer has died."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dying = threading.Lock()

    def write(self, steps: list[str]) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / "steps").write_text("\n".join(steps))
        (self._folder / "hit").touch()

    def steps(self) -> list[str]:
        return (self._folder / "steps").read_text().splitlines()

    def hit(self) -> list[str]:
        return (self._folder / "hit").read_text().splitlines()

    def was_hit(self, number: int) -> bool:
        return len(self.hit()) > number

    def next(self) -> str | None:
        """The first step at which no writer has died yet."""
        return next(iter(self.steps()[len(self.hit()) :]), None)

    def die(self, step: str) -> NoReturn:
        self._dying.acquire()  # for good: a second thread at the step must not write it down again
        with (self._folder / "hit").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(step + "\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL was survived")


class Spy:
    """The u64 view of a lane; calls `before(index)` ahead of each store and `after(index)`."""

    def __init__(self, words: Any, before: Callable[[int], None], after: Callable[[int], None]):
        self._words, self._before, self._after = words, before, after

    def __getitem__(self, index: int) -> Any:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._before(index)
        self._words[index] = value
        self._after(index)


def arm(step: str, die: Callable[[], object]) -> None:
    """Make this process die at that step. Raises KeyError for a step nobody knows."""
    if match := re.fullmatch(r"storage call (\d+)", step):
        _arm_nth_call(int(match[1]), die)
    elif step == "frame half read":
        _arm_after_call(lane, "crc32c", die)
    elif step == "frames read":
        _arm_frames(die)
    elif match := re.fullmatch(r"(before|half-way|after) writing the (.*)", step):
        _arm_writing(match[1], re.compile(CALLS[match[2]]), die)
    elif match := re.fullmatch(r"(before|after) (open|allocate|fdatasync) of a log", step):
        arm_storage(match[2], match[1], re.compile(r"\.log$"), die)
    elif match := re.fullmatch(r"(before|after) fsync of the folder", step):
        arm_storage("fsync_folder", match[1], re.compile(""), die)
    elif match := re.fullmatch(r"(before|after) (rename|unlink) of a snapshot", step):
        arm_storage(match[2], match[1], re.compile(r"producers-"), die)
    elif step in STORES:
        _spy_on_receivers(lambda index: index == STORES[step] and die(), lambda index: None)
    elif step == "head published":
        _spy_on_receivers(lambda index: None, lambda index: index == lo.Q_LANE_HEAD and die())
    elif step == "segment half published":
        _replace(state.StatePage, "publish_segment", lambda real: _half_of_the_segment(die))
    elif step == "log end published alone":
        _replace(state.StatePage, "publish_ends", lambda real: _log_end_alone(die))
    else:
        names = {"segment": "publish_segment", "ends": "publish_ends", "durable": "publish_durable"}
        _arm_after_call(state.StatePage, names[step.removesuffix(" published")], die)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _arm_after_call(owner: Any, name: str, die: Callable[[], object]) -> None:
    def make(real: Any) -> Any:
        def call(*args: Any, **named: Any) -> None:
            real(*args, **named)
            die()

        return call

    _replace(owner, name, make)


def _arm_frames(die: Callable[[], object]) -> None:
    def make(real: Any) -> Any:
        def frames(*args: Any, **named: Any) -> Any:
            found = real(*args, **named)
            if found:
                die()
            return found

        return frames

    _replace(lane.LaneReceiver, "frames", make)


def arm_storage(name: str, when: str, pattern: re.Pattern[str], die: Callable[[], object]) -> None:
    """Before or after a primitive of the storage on a file whose path matches."""

    def make(real: Any) -> Any:
        def call(storage: Storage, *args: Any, **named: Any) -> Any:
            target = args[-1] if name in ("rename", "link") else args[0]
            path = storage.path_of(target) if isinstance(target, int) else target
            matches = pattern.search(path)
            if matches and when == "before":
                die()
            result = real(storage, *args, **named)
            if matches:
                die()
            return result

        return call

    _replace(Storage, name, make)


def _arm_nth_call(number: int, die: Callable[[], object]) -> None:
    """Before the so many-th call of the storage since the start, whatever it is: recovery's too."""
    left = [number]

    def make(real: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                die()
            return real(*args, **named)

        return call

    for name in CHANGING:
        _replace(Storage, name, make)


def _arm_writing(when: str, pattern: re.Pattern[str], die: Callable[[], object]) -> None:
    if when != "half-way":
        arm_storage("pwritev", when, pattern, die)
        return

    def make(real: Any) -> Any:
        def pwritev(storage: Storage, fd: int, buffers: Any, position: int) -> int:
            if pattern.search(storage.path_of(fd)):
                whole = b"".join(buffers)
                real(storage, fd, [whole[: len(whole) // 2]], position)
                die()
            written: int = real(storage, fd, buffers, position)
            return written

        return pwritev

    _replace(Storage, "pwritev", make)


def _spy_on_receivers(before: Callable[[int], object], after: Callable[[int], object]) -> None:
    def make(real: Any) -> Any:
        def init(receiver: Any, *args: Any, **named: Any) -> None:
            real(receiver, *args, **named)
            receiver._q = Spy(receiver._q, before, after)  # type: ignore[arg-type]

        return init

    _replace(lane.LaneReceiver, "__init__", make)


def _half_of_the_segment(die: Callable[[], object]) -> Any:
    def publish_segment(page: Any, segment_base: int, valid_bytes: int) -> None:
        """A reader meets an odd sequence lock and one new word beside an old one (rule 10)."""
        words, base = page._q, page._base
        words[base + lo.Q_PAGE_SEQLOCK] += 1
        words[base + lo.Q_PAGE_SEGMENT_BASE] = segment_base
        die()

    return publish_segment


def _log_end_alone(die: Callable[[], object]) -> Any:
    def publish_ends(page: Any, log_end: int, high_watermark: int, last_stable: int) -> None:
        page._q[page._base + lo.Q_PAGE_LOG_END] = log_end
        die()

    return publish_ends


def main() -> int:
    from penstock.server.writer import main as writer_main

    plan = StepPlan(Path(os.environ[PLAN_VARIABLE]))
    step = plan.next()
    if step is not None:
        arm(step, lambda: plan.die(step))
    return writer_main.main()


if __name__ == "__main__":
    sys.exit(main())
