"""SIGINT, SIGTERM and SIGHUP as a wish to stop, heard where a command waits and nowhere else.

An exception out of a signal handler may strike in the middle of anything. Here it strikes only
inside `interruptible()`; elsewhere the signal sets `requested`, which loops look at.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedBySignal(BaseException):
    """A signal came while the command waited."""


class Stopper:
    """A context manager. A second signal is a plain KeyboardInterrupt, wherever it strikes, unless
    the stopper is `patient`."""

    def __init__(self, *, patient: bool = False) -> None:
        self.requested = 0
        self._patient = patient
        self._strikes = False
        self._old: dict[int, Any] = {}
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def __enter__(self) -> Stopper:
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # by `nohup`: it is to go on when its terminal goes away
            self._old[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_raised: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self._patient:
            raise KeyboardInterrupt
        self.stop(number)
        if self._strikes:
            self._strikes = False
            raise StoppedBySignal

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Acts as if a signal had come. Async-signal-safe and callable from any thread."""
        self.requested = number
        with suppress(BlockingIOError):  # full of wishes already
            os.write(self._writer, b"!")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Signals raise `StoppedBySignal` in here; so does one that came before."""
        self._strikes = True
        try:
            if self.requested:
                raise StoppedBySignal
            yield
        finally:
            self._strikes = False

    def fileno(self) -> int:
        """Returns a descriptor that is readable once a stop is wanted."""
        return self._reader

    def wait(self, seconds: float) -> bool:
        """Sleeps; returns True at once when a stop is wanted."""
        if not self.requested:
            poller = select.poll()
            poller.register(self._reader, select.POLLIN)
            poller.poll(max(seconds, 0.0) * 1000)
        return bool(self.requested)
