"""The lock of a producer, with a flag for a change that an interrupt cut short.

A signal's handler may raise between any two steps of a call. A `with` block then gives the lock
back in the middle of a change. Clean-up code cannot be trusted, as the next signal ends that too.
So each holder opens the books first and closes them last. If the last holder has not closed them,
the next one mends what it left. An error that is raised on purpose leaves nothing to mend, and
mending changes nothing then.

Only `with` takes the lock, and a caller never gives it back within the block. CPython runs no
handler between taking it and the block, or between the block and giving it back. A caller that has
to wait leaves the block first. The producer's own thread waits inside, as no handler runs there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Books:
    """A lock, and a flag that is set while a holder changes the guarded state.

    `mend` may be called any number of times, and be interrupted itself."""

    __slots__ = ("_is_open", "lock", "mend")

    mend: Callable[[], object]

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._is_open = False

    def open(self) -> None:
        """Begins a change and mends what an interrupted one left. Each holder of the lock calls it
        first."""
        if self._is_open:
            self.mend()
        self._is_open = True

    def close(self) -> None:
        """Ends a change. Each holder of the lock calls it last."""
        self._is_open = False
