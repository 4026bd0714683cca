"""The processes of a run: started by spawn, waited for with a bound, never left behind.

Every member runs a role with a `Station`, by which it reports and takes orders. A member that
fails, dies or is too late ends the run with its traceback (or, when it is stuck, with its stack).

Owns processes and their pipes. Knows nothing of what the roles do.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import IO, Any, Final

from penstock.bench.errors import BenchTimeout, MemberFailed

LEAVE_TIMEOUT: Final = 5.0
STACK_TIMEOUT: Final = 2.0
WATCH_EVERY: Final = 0.25

Role = Callable[[Any, "Station"], None]


@dataclass(frozen=True, slots=True)
class _Failure:
    detail: str


class Station:
    """A member's line to the crew's leader."""

    def __init__(self, line: Connection[Any, Any]) -> None:
        self._line = line

    def report(self, message: object = None) -> None:
        self._line.send(message)

    def await_order(self) -> Any:
        return self._line.recv()


def _member(line: Connection[Any, Any], stacks: str, role: Role, task: Any) -> None:
    """Runs a member process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stack_file = open(stacks, "w")  # noqa: SIM115 - held open as long as the process lives
    faulthandler.register(signal.SIGUSR1, file=stack_file, all_threads=True)
    threading.Thread(target=_leave_with_leader, daemon=True).start()
    try:
        role(task, Station(line))
    except BaseException:
        with suppress(OSError):  # or the leader is gone, and with it all who wanted to know
            line.send(_Failure(traceback.format_exc()))
        raise SystemExit(1) from None


def _leave_with_leader() -> None:
    leader = multiprocessing.parent_process()
    if leader is not None:
        leader.join()
        os._exit(1)


@dataclass(slots=True)
class _Place:
    process: SpawnProcess
    line: Connection[Any, Any]
    stacks: str


class Crew:
    """The leader's side; `with` ends every member that still lives."""

    def __init__(self, timeout: float) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._places: dict[str, _Place] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")

    def add(self, name: str, role: Role, task: Any) -> None:
        """Starts one more member."""
        ours, theirs = self._context.Pipe()
        stacks = os.path.join(self._folder.name, name)
        process = self._context.Process(
            target=_member, args=(theirs, stacks, role, task), name=name, daemon=True
        )
        process.start()
        theirs.close()
        self._places[name] = _Place(process, ours, stacks)

    def tell(self, order: object, names: list[str] | None = None) -> None:
        """Gives an order to these members (None: to all), in the order of their names here."""
        for name in self._places if names is None else names:
            try:
                self._places[name].line.send(order)
            except OSError:
                self._raise_for(name)

    def gather(self, what: str, watch: Callable[[], None] | None = None) -> dict[str, Any]:
        """Waits for one report of every member. `watch` is called now and then meanwhile.

        Raises `MemberFailed`, `BenchTimeout`.
        """
        reports: dict[str, Any] = {}
        while len(reports) < len(self._places):
            missing = [name for name in self._places if name not in reports]
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise BenchTimeout(
                    f"not {what} within {self._timeout:.0f} s: {', '.join(missing)}\n"
                    f"{self._stack_of(missing[0])}"
                )
            lines: dict[Any, str] = {self._places[name].line: name for name in missing}
            ready = wait(list(lines), left if watch is None else min(left, WATCH_EVERY))
            for line in ready:
                name = lines[line]
                try:
                    report = self._places[name].line.recv()
                except (EOFError, OSError):
                    self._raise_for(name)
                if isinstance(report, _Failure):
                    raise MemberFailed(name, report.detail)
                reports[name] = report
            if watch is not None:
                watch()
        return {name: reports[name] for name in self._places}

    def _raise_for(self, name: str) -> None:
        """Raises the cause of death of a member whose line is down."""
        place = self._places[name]
        while place.line.poll(0):
            try:
                last = place.line.recv()
            except (EOFError, OSError):
                break
            if isinstance(last, _Failure):
                raise MemberFailed(name, last.detail)
        place.process.join(LEAVE_TIMEOUT)
        code = place.process.exitcode
        cause = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        raise MemberFailed(name, f"it died without a word ({cause})")

    def _stack_of(self, name: str) -> str:
        """Returns the stack of a member that does not answer."""
        place = self._places[name]
        if place.process.pid is None or not place.process.is_alive():
            return ""
        os.kill(place.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACK_TIMEOUT
        found, before = "", None
        while time.monotonic() < deadline and (not found or found != before):
            place.process.join(0.05)  # it writes the stack piece by piece
            before = found
            with _opened(place.stacks) as file:
                found = file.read()
        return f"{name} is here:\n{found}"

    def close(self) -> None:
        """Ends every member."""
        for place in self._places.values():
            place.line.close()
            if place.process.is_alive():
                place.process.terminate()
        for place in self._places.values():
            place.process.join(LEAVE_TIMEOUT)
            if place.process.is_alive():
                place.process.kill()
                place.process.join()
            place.process.close()
        self._places = {}
        self._folder.cleanup()

    def dismiss(self) -> None:
        """Waits for members that are done to leave by themselves."""
        for name, place in self._places.items():
            place.process.join(max(LEAVE_TIMEOUT, self._deadline - time.monotonic()))
            if place.process.exitcode != 0:
                self._raise_for(name)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def _opened(path: str) -> IO[str]:
    return open(path) if os.path.exists(path) else open(os.devnull)
