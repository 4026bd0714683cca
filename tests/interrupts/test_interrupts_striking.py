"""What strikes leaves nothing behind that a signal's handler would not."""

from __future__ import annotations

import sys
import threading

from interrupts.striking import Interrupted, Strike


def test_no_strike_leaves_a_handled_exception_in_the_thread() -> None:
    """`Condition` handles an `AttributeError` when it is made with a plain lock."""
    at, strike = 0, None
    while strike is None or strike.has_struck:
        strike = Strike(at, Interrupted)
        lock = threading.Lock()
        try:
            with strike.armed():
                threading.Condition(lock)
        except Interrupted:
            pass
        assert sys.exc_info()[1] is None, strike.place
        at += 1
    assert at > 10
