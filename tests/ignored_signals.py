"""A run of the tests that was started to ignore signals, as a shell starts what goes to the
background, and `nohup` all it starts: programs that tests start end by them all the same."""

from __future__ import annotations

import signal
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGHUP)


def catch_ignored() -> None:
    """What is ignored is inherited, and what is caught is not. Here they go on doing nothing."""
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
