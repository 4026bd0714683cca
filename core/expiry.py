"""The time by which things expire: it passes, and no wall clock makes it jump.

A wall clock is wrong now and then: a battery is empty, a time server lies, an operator mistypes a
year. Everything that expires would then expire at once. So expiry uses a clock of its own, which
follows the wall clock at most twice as fast as time passes:

| the wall clock | believed |
|---|---|
| goes as time passes | the wall clock |
| is ahead | twice the time that passed, until that is the wall clock |
| is behind | stops, until the wall clock is there |
| is ahead after a boot | the same, and `STEP_MAX_US` at once: nobody knows how long it took |

Pure: times are arguments, in microseconds. Owns what is believed.
"""

from __future__ import annotations

from typing import Final

STEP_MAX_US: Final = 86_400 * 1_000_000
"""The largest step after a boot that is believed at once."""
PACE_MAX: Final = 2


class ExpiryClock:
    """`believed_us` at `up_us` of a clock that nobody sets (CLOCK_BOOTTIME)."""

    def __init__(self, believed_us: int, up_us: int) -> None:
        self._believed_us = believed_us
        self._up_us = up_us

    @classmethod
    def after_boot(cls, believed_us: int, wall_us: int, up_us: int) -> ExpiryClock:
        """The clock of another boot than the one that believed so."""
        return cls(max(believed_us, min(wall_us, believed_us + STEP_MAX_US)), up_us)

    def look(self, wall_us: int, up_us: int) -> int:
        """Returns the time that is believed now."""
        passed = max(0, up_us - self._up_us)
        latest = self._believed_us + PACE_MAX * passed
        self._believed_us = max(self._believed_us, min(wall_us, latest))
        self._up_us = up_us
        return self._believed_us
