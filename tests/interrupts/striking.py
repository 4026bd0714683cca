"""Raises an exception at one chosen point of a call, as a signal's handler would.

A point is where a line of Penstock or `threading` begins, and where a function written in C has
returned and its result is stored nowhere yet. CPython runs the handlers of signals at some of
these. It runs none where a `with` block gives its lock back, nor between the last call of a
function and the `return` of a name, nor at the NOP of a `try`, which belongs to no block, nor
where an `except` block ends: those are no points. (An exception raised at that end leaves the one
that was handled in the thread for ever, and with it all that its traceback holds.)
"""

from __future__ import annotations

import dis
import linecache
import random
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import penstock

ROOT: Final = Path(penstock.__file__).resolve().parents[2]
SPARED: Final = ("/core/", "/server/", "/testing/", "/tests/", "/cli/", "/.venv/")
"""The log's own code is what clients call as they call a function written in C: it changes nothing
that lasts. But for the reader of `core`, which keeps its place in a file."""
RETURNS: Final = (["RETURN_VALUE"], ["YIELD_VALUE"])
LEAST, MOST, LONGEST = 2e-6, 1e-3, 20e-3
"""Seconds until a signal comes: `LONGEST` where calls last so long."""
STRIKES: Final = 8
"""So many signals strike a round."""
TRIES_MAX: Final = 64
"""Calls of a round that few signals strike."""
CALLS: Final = frozenset(("CALL", "CALL_FUNCTION_EX", "CALL_KW"))


class Interrupted(BaseException):
    """What the handler of a signal raises; no `Exception`, like KeyboardInterrupt."""


class Alarmed(Exception):
    """The same as an ordinary exception."""


ERRORS: Final = (Interrupted, Alarmed)


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
        if one.opname in ("WITH_EXCEPT_START", "PUSH_EXC_INFO", "POP_EXCEPT", "NOP"):
            spared.add(one.offset)
        if names[0] in ("LOAD_FAST", "LOAD_CONST") and names[1:2] in RETURNS:
            spared.update((one.offset, found[at + 1].offset))
    handlers = dict.fromkeys((one.offset for one in found), -1)
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        for offset in handlers:
            if entry.start <= offset < entry.end:
                handlers[offset] = entry.target
    return frozenset(spared), handlers, calls


class Blow(ABC):
    """What may strike within `armed`. `places`: where it has in this round."""

    def __init__(self) -> None:
        self.places: list[str] = []

    @property
    def has_struck(self) -> bool:
        return bool(self.places)

    @property
    def place(self) -> str:
        """For who tells what went wrong."""
        return ", ".join(self.places)

    def tries(self) -> Iterator[None]:
        """How often a round is to make its call."""
        yield

    def told(self, places: Counter[str]) -> int:
        """How often it has struck in this round; adds to how often it did where."""
        places.update(each.partition(" ")[0] for each in self.places)
        return len(self.places)

    @abstractmethod
    def armed(self) -> AbstractContextManager[None]: ...


class Strike(Blow):
    """Raises `error` at the point number `at` of what is called within it; counts the points."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        super().__init__()
        self._at = at
        self._error = error
        self._entered = False
        self._last: dict[FrameType, int] = {}
        self.points = 0

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
        if frame.f_code.co_name == "__del__":  # what is raised in there is swallowed, and one that
            return None  # a trace function raises there breaks what CPython 3.11 was about to do
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
            self.places.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
            raise self._error(self.place)


class StrikeAt(Blow):
    """Raises `error` where the first line of that function begins that holds this text."""

    def __init__(self, function: str, text: str, error: type[BaseException]) -> None:
        super().__init__()
        self._function = function
        self._text = text
        self._error = error

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
                self.places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                raise self._error(self.place)
        return self._step


class Alarm(Blow):
    """Real signals, at random moments of what is called within it, whose handlers raise. They wait
    for a moment in which Penstock's code runs.

    A round makes its call again until some have struck: so it is struck again before anything has
    gone well again. Half of the moments are drawn from all of a call, as long as calls took that
    nothing struck, and half from all scales of time: most calls are short."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._is_armed = False
        self._most = MOST

    def tries(self) -> Iterator[None]:
        self.places.clear()
        for _ in range(TRIES_MAX):
            yield
            if self.is_over:
                return

    @property
    def is_over(self) -> bool:
        """Nothing strikes this round any more."""
        return len(self.places) >= STRIKES

    def after(self) -> float:
        """Seconds until it strikes."""
        if self._chance.random() < 0.5:
            return self._chance.uniform(LEAST, self._most)
        return float(LEAST * (MOST / LEAST) ** self._chance.random())

    def unstruck(self, seconds: float) -> None:
        """Nothing has struck a call that took so long."""
        self._most = min(0.8 * self._most + 0.3 * seconds, LONGEST)

    def _again(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.after())

    def _handler(self, _number: int, frame: FrameType | None) -> None:
        if not self._is_armed:
            return
        if frame is None or not is_struck(frame.f_code.co_filename):
            self._again()
            return
        self._is_armed = False
        self.places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        raise self._chance.choice(ERRORS)(self.places[-1])

    @contextmanager
    def armed(self) -> Iterator[None]:
        if self.is_over:
            yield
            return
        before = signal.signal(signal.SIGALRM, self._handler)
        began = time.perf_counter()
        try:
            self._is_armed = True
            self._again()
            yield
            self.unstruck(time.perf_counter() - began)
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
