"""Raises an exception at one chosen point of a call, as a signal's handler would.

A point is where a line of Penstock or `threading` begins, and where a function written in C has
returned and its result is stored nowhere yet. CPython runs the handlers of signals at some of
these. It runs none where a `with` block gives its lock back, nor between the last call of a
function and the `return` of a name, nor at the NOP of a `try`, which belongs to no block: those are
no points.
"""

from __future__ import annotations

import dis
import linecache
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Protocol

import penstock

ROOT: Final = Path(penstock.__file__).resolve().parents[2]
SPARED: Final = ("/core/", "/server/", "/testing/", "/tests/", "/cli/", "/.venv/")
"""The log's own code is what clients call as they call a function written in C: it changes nothing
that lasts. But for the reader of `core`, which keeps its place in a file."""
RETURNS: Final = (["RETURN_VALUE"], ["YIELD_VALUE"])
LEAST, MOST = 20e-6, 1e-3
"""Seconds until a signal comes."""
CALLS: Final = frozenset(("CALL", "CALL_FUNCTION_EX", "CALL_KW"))


class Interrupted(BaseException):
    """What the handler of a signal raises; no `Exception`, like KeyboardInterrupt."""


class Alarmed(Exception):
    """The same as an ordinary exception."""


@cache
def is_ours(filename: str) -> bool:
    """Whether code of that file may be struck."""
    if filename == threading.__file__:
        return True
    if filename.endswith("/core/reader.py"):
        return True
    return filename.startswith(str(ROOT)) and not any(part in filename for part in SPARED)


@cache
def is_struck(filename: str) -> bool:
    """Whether a signal may strike code of that file: the log's own code as well."""
    return is_ours(filename) or filename.startswith(f"{ROOT}/src/penstock/core")


@cache
def _spared(code: CodeType) -> tuple[frozenset[int], dict[int, int], frozenset[int]]:
    """Offsets at which nothing is raised; of each offset the handler of exceptions there; calls."""
    found = list(dis.get_instructions(code))
    calls = frozenset(one.offset for one in found if one.opname in CALLS)
    spared: set[int] = set()
    for at, one in enumerate(found):
        names = [each.opname for each in found[at : at + 6]]
        loads = [each for each in found[at : at + 3] if each.opname == "LOAD_CONST"]
        is_exit = len(loads) == 3 and all(each.argval is None for each in loads)
        if is_exit and any(name in CALLS for name in names[3:5]):
            spared.update(each.offset for each in found[max(0, at - 1) : at + 5])
        if one.opname in ("WITH_EXCEPT_START", "PUSH_EXC_INFO", "NOP"):
            spared.add(one.offset)
        if names[0] in ("LOAD_FAST", "LOAD_CONST") and names[1:2] in RETURNS:
            spared.update((one.offset, found[at + 1].offset))
    handlers = dict.fromkeys((one.offset for one in found), -1)
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        for offset in handlers:
            if entry.start <= offset < entry.end:
                handlers[offset] = entry.target
    return frozenset(spared), handlers, calls


class Blow(Protocol):
    """What may strike once within `armed`. `place`: where it has; empty before that."""

    place: str

    @property
    def has_struck(self) -> bool: ...

    def armed(self) -> AbstractContextManager[None]: ...


class Strike:
    """Raises `error` at the point number `at` of what is called within it; counts the points."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self._at = at
        self._error = error
        self._entered = False
        self._last: dict[FrameType, int] = {}
        self.points = 0
        self.place = ""

    @property
    def has_struck(self) -> bool:
        return bool(self.place)

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            self._last.clear()

    def _call(self, frame: FrameType, event: str, _arg: Any) -> Callable[..., Any] | None:
        self._entered = True
        if self.has_struck or event != "call" or not is_ours(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _arg: Any) -> Callable[..., Any] | None:
        if self.has_struck:
            return None
        code, now = frame.f_code, frame.f_lasti
        if event == "line":
            if now not in _spared(code)[0]:
                self._point(frame)
        elif event == "opcode":
            before, self._last[frame] = self._last.get(frame), now
            entered, self._entered = self._entered, False
            if before is not None and not entered:
                spared, handlers, calls = _spared(code)
                if before in calls and now not in spared and handlers[before] == handlers[now]:
                    self._point(frame)
        elif event == "return":
            self._last.pop(frame, None)
            self._entered = True
        return self._step

    def _point(self, frame: FrameType) -> None:
        self.points += 1
        if self.points - 1 == self._at:
            name = Path(frame.f_code.co_filename).name
            self.place = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
            raise self._error(self.place)


class StrikeAt:
    """Raises `error` where the first line of that function begins that holds this text."""

    def __init__(self, function: str, text: str, error: type[BaseException]) -> None:
        self._function = function
        self._text = text
        self._error = error
        self.place = ""

    @property
    def has_struck(self) -> bool:
        return bool(self.place)

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        is_it = frame.f_code.co_name == self._function and is_ours(frame.f_code.co_filename)
        return self._step if is_it and not self.has_struck else None

    def _step(self, frame: FrameType, event: str, _arg: Any) -> Callable[..., Any] | None:
        if event == "line" and not self.has_struck:
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if self._text in line:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} "
                raise self._error(self.place)
        return self._step


class Alarm:
    """A real signal, at a random moment of what is called within it, whose handler raises. It waits
    for a moment in which Penstock's code runs."""

    def __init__(self, chance: random.Random, error: type[BaseException]) -> None:
        self._chance = chance
        self._error = error
        self._is_armed = False
        self.place = ""

    @property
    def has_struck(self) -> bool:
        return bool(self.place)

    def _again(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(LEAST, MOST))

    def _handler(self, _number: int, frame: FrameType | None) -> None:
        if not self._is_armed:
            return
        if frame is None or not is_struck(frame.f_code.co_filename):
            self._again()
            return
        self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} "
        raise self._error(self.place)

    @contextmanager
    def armed(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._handler)
        try:
            self._is_armed = True
            self._again()
            yield
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
