"""Is a partition available? One record after another to it, each once the one before is there.

Owns the times of the acknowledgements, which say how long nothing was acknowledged around a
failure. Used by the demo, the benchmarks and tests.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import Final, Literal

from penstock.client.client import Client
from penstock.core.errors import PenstockError, PenstockTimeout

PATIENCE: Final = 60.0
"""Seconds after which a record that is not acknowledged ends the pulse."""
PAUSE: Final = 0.002


class Pulse:
    """Beats from `start` to `stop` (or in a `with`). `connect` makes the client it uses."""

    def __init__(
        self,
        connect: Callable[[], Client],
        topic: str,
        partition: int = 0,
        *,
        acks: Literal[0, 1, "all"] = "all",
        pause: float = PAUSE,
    ) -> None:
        self.beats: list[float] = []
        """When each record was acknowledged, by the monotonic clock."""
        self._connect = connect
        self._topic, self._partition = topic, partition
        self._acks: Literal[0, 1, "all"] = acks
        self._pause = pause
        self._ending = threading.Event()
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"pulse of {topic}", daemon=True)

    def _run(self) -> None:
        try:
            with (
                self._connect() as client,
                client.producer(
                    acks=self._acks, linger=0.0, delivery_timeout=PATIENCE, block_timeout=PATIENCE
                ) as producer,
            ):
                while not self._ending.is_set():
                    number = b"%d" % len(self.beats)
                    sent = producer.send(self._topic, number, partition=self._partition)
                    sent.result(PATIENCE)
                    self.beats.append(time.monotonic())
                    self._ending.wait(self._pause)
        except BaseException as error:
            self._trouble = error

    def start(self) -> None:
        """Starts sending; returns once the first record is acknowledged."""
        self._thread.start()
        self.await_beat(float("-inf"))

    def await_beat(self, since: float, timeout: float = PATIENCE) -> float:
        """Returns when the first record after `since` was acknowledged. Raises what ended the
        pulse, and `PenstockTimeout`."""
        deadline = time.monotonic() + timeout
        while (found := self.first_after(since)) is None:
            if self._trouble is not None:
                raise self._trouble
            if time.monotonic() >= deadline:
                raise PenstockTimeout(
                    f"{self._topic}-{self._partition} acknowledges nothing for {timeout:g} s"
                )
            time.sleep(self._pause)
        return found

    def first_after(self, since: float) -> float | None:
        at = bisect_left(self.beats, since)
        return self.beats[at] if at < len(self.beats) else None

    def outage(self, since: float, until: float | None = None) -> float:
        """Returns the longest time without an acknowledgement from the last one before
        `since` on."""
        end = time.monotonic() if until is None else until
        first = max(0, bisect_left(self.beats, since) - 1)
        times = [at for at in self.beats[first:] if at <= end]
        return max((b - a for a, b in pairwise([*times, end])), default=0.0)

    def stop(self) -> None:
        """Raises what went wrong, if anything did."""
        self._ending.set()
        self._thread.join(2 * PATIENCE)
        if self._trouble is not None:
            raise self._trouble
        if self._thread.is_alive():
            raise PenstockError(f"the pulse of {self._topic} does not end")

    def __enter__(self) -> Pulse:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.stop()
        except BaseException:
            if kind is None:
                raise
