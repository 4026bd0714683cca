"""Waiting for a condition with a bound: what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

_T = TypeVar("_T")

PAUSE_MIN: Final = 0.001
PAUSE_MAX: Final = 0.02


def wait_until(
    condition: Callable[[], _T],
    timeout: float = 20.0,
    what: str | Callable[[], str] = "the condition",
) -> _T:
    """Returns the first true value of `condition`, asked again and again for up to `timeout`
    seconds.

    Raises AssertionError that says `what` was waited for; a callable is asked only then, so it can
    tell how far things came.
    """
    deadline = time.monotonic() + timeout
    pause = PAUSE_MIN
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() >= deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout:g} s: {said}")
        time.sleep(pause)
        pause = min(pause * 1.5, PAUSE_MAX)
