"""SIGTERM and SIGINT as a wish to stop, for what keeps the main thread until it is told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """The first signal calls `stop`, a second one is a KeyboardInterrupt. Does nothing in other
    threads than the main one, which has the signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        stop()

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
