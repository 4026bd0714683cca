"""The kernel of the simulator: one heap of (time, number, event), one random source, one clock.

Everything that happens is an event of the heap, and everything random is drawn from `random`, so a
seed replays to the same run. `trace()` is a hash of all that happened, and the same seed has the
same one. The invariants run after every event; a failure names its seed.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable

RECENT_MAX = 40
"""Events that a failure shows."""


class SimulationError(AssertionError):
    """An invariant broke, or an event raised. `seed` runs it again."""

    def __init__(self, message: str, seed: int) -> None:
        super().__init__(message)
        self.seed = seed


class Simulation:
    """`now` is in seconds. Invariants are called without arguments and raise AssertionError."""

    def __init__(self, seed: int, invariants: Iterable[Callable[[], None]] = ()) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.invariants = list(invariants)
        self._heap: list[tuple[float, int, str, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._hash = hashlib.blake2b(digest_size=16)
        self._recent: deque[str] = deque(maxlen=RECENT_MAX)

    def number(self) -> int:
        """Returns a number that is unique in this run."""
        return next(self._numbers)

    def after(self, delay: float, what: str, call: Callable[[], None]) -> None:
        """Runs `call` in `delay` seconds. `what` names it in the trace."""
        heapq.heappush(self._heap, (self.now + max(delay, 0.0), self.number(), what, call))

    def note(self, what: str) -> None:
        """Adds an event that just happened to the trace."""
        self._hash.update(f"{self.now!r} {what}\n".encode())
        self._recent.append(f"{self.now:10.4f}  {what}")

    def trace(self) -> str:
        return self._hash.hexdigest()

    def step(self) -> bool:
        """Runs the next event and the invariants after it; False: nothing is left to happen."""
        if not self._heap:
            return False
        self.now, _, what, call = heapq.heappop(self._heap)
        self.steps += 1
        self.note(what)
        try:
            call()
            for invariant in self.invariants:
                invariant()
        except Exception as error:
            raise self.failure(f"{what!r}: {type(error).__name__}: {error}") from error
        return True

    def run(
        self,
        seconds: float,
        until: Callable[[], bool] | None = None,
        steps_max: int = 1_000_000,
    ) -> bool:
        """Runs the events of the next `seconds`, or until a condition holds; returns whether it
        does."""
        end, last = self.now + seconds, self.steps + steps_max
        while self._heap and self._heap[0][0] <= end:
            if until is not None and until():
                return True
            if self.steps >= last:
                raise self.failure(f"{steps_max} steps (steps_max) and no end")
            self.step()
        self.now = max(self.now, end) if until is None else self.now
        return until is None or until()

    def failure(self, why: str) -> SimulationError:
        recent = "\n".join(self._recent)
        return SimulationError(
            f"seed {self.seed}, step {self.steps}, at {self.now:.4f} s: {why}\n"
            f"the last {len(self._recent)} events:\n{recent}",
            self.seed,
        )
