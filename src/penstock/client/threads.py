"""Shares state between callers and threads, in ways that no interrupt can tear.

A signal's handler runs in the main thread, between any two steps of Python code. An interrupt
within `threading.Event` or `Thread.start` leaves their lock held, and the next thread waits for
ever. The code in this module takes locks by `with`, or by one call.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from contextlib import suppress

_gate = threading.Lock()


def start(thread: threading.Thread) -> None:
    """Starts a thread, and waits until it runs. After an interrupt it starts all the same; done
    again, this starts it once."""
    failures: list[BaseException] = []
    begun = threading.Lock()
    begun.acquire()

    def begin() -> None:
        try:
            with _gate:
                if thread.ident is None:
                    thread.start()
        except BaseException as error:
            failures.append(error)
        finally:
            begun.release()

    start_new_thread(begin, ())  # no handler runs in that thread
    begun.acquire()
    if failures:
        raise failures[0]


class Flag:
    """A `threading.Event` that is set once."""

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with suppress(RuntimeError):  # it was set before
            self._gate.release()

    def wait(self, timeout: float) -> bool:
        """Whether it is set, at the latest after so many seconds."""
        if not self._is_set and self._gate.acquire(timeout=timeout):
            with suppress(RuntimeError):
                self._gate.release()  # the next one who waits
        return self._is_set
