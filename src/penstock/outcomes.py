"""Who is told of outcomes: callbacks of deliveries, who flushes, and what nobody has asked for.

Owns what is still to be told. Never sends, and decides no outcome.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core.errors import DeliveryError
from penstock.delivery import AnyDelivery, Batch, Box, DoneCallback, Failure

if TYPE_CHECKING:
    from penstock.outbox import Outbox

logger = logging.getLogger("penstock.producer")

FAILURES_KEPT: Final = 1000
"""Failures that are kept one by one until a `flush`; of others the number of records, and the last
error of each partition: a partition may be dark for days, and nobody call `flush`."""


class Callbacks:
    """What to call for deliveries that are done: filled under the producer's lock, run without it,
    by whichever threads have come to it."""

    def __init__(self) -> None:
        self._due: deque[tuple[AnyDelivery, DoneCallback]] = deque()
        self._gate = threading.Lock()
        self._running: dict[int, int] = {}  # by thread: the number of the one it is in
        self._begun = 0
        self.taken = 0

    def __len__(self) -> int:
        return len(self._due)

    @property
    def told(self) -> int:
        """So many of the first ones taken have returned. Who asks from one of them is who tells
        the others, and need not wait for them."""
        me = threading.get_ident()
        with self._gate:
            if me in self._running:
                return self.taken
            return min(self._running.values(), default=self._begun)

    def take(self, box: Box) -> None:
        """All callbacks of a box that is done."""
        self.taken += len(box.callbacks)
        self._due.extend(box.callbacks)
        box.callbacks = []

    def run(self) -> bool:
        """Call what is due. Whether anything was. A callback that comes here calls no others."""
        me = threading.get_ident()
        if me in self._running:
            return False
        has_run = False
        try:
            while True:
                with self._gate:
                    if not self._due:
                        return has_run
                    delivery, callback = self._due.popleft()
                    self._running[me] = self._begun
                    self._begun += 1
                has_run = True
                self.call(delivery, callback)
        finally:
            with self._gate:
                self._running.pop(me, None)

    @staticmethod
    def call(delivery: AnyDelivery, callback: DoneCallback) -> None:
        """Call back; what the callback raises is logged, because nobody waits for it."""
        try:
            callback(delivery)
        except Exception:
            logger.exception("a delivery callback raised")


class Flushed:
    """Whether what one flush waits for has an outcome, of which everybody was told: all that was
    sealed when it was made, and nothing that others send meanwhile. Asked under the lock."""

    def __init__(self, outbox: Outbox, callbacks: Callbacks) -> None:
        self._left: list[Batch] = outbox.unsettled()
        self._callbacks = callbacks
        self._taken: int | None = None

    def __call__(self) -> bool:
        left = self._left
        while left and left[-1].done:
            left.pop()
        if left:
            return False
        if self._taken is None:
            self._taken = self._callbacks.taken
        return self._callbacks.told >= self._taken


class Failures:
    """What has failed, until `flush` raises it. Under the producer's lock."""

    def __init__(self) -> None:
        self._kept: list[Failure] = []
        self._others: dict[tuple[str, int], tuple[Exception, int]] = {}

    def note(self, failure: Failure) -> None:
        self._kept.append(failure)
        if len(self._kept) > 2 * FAILURES_KEPT:
            unseen = [one for one in self._kept if one.looked_at < one.count]
            self._kept = unseen[:FAILURES_KEPT]
            for one in unseen[FAILURES_KEPT:]:
                topic, partition, error, count = one.unseen()
                before = self._others.get((topic, partition))
                self._others[topic, partition] = error, count + (before[1] if before else 0)

    def error(self) -> DeliveryError | None:
        """What `flush` raises for those that nobody looked at; None if there are none."""
        unseen = [one.unseen() for one in self._kept if one.looked_at < one.count]
        unseen += [(*where, *what) for where, what in self._others.items()]
        if not unseen:
            return None
        topic, partition, error, _ = unseen[0]
        return DeliveryError(
            f"{sum(entry[3] for entry in unseen)} records were not delivered; first: "
            f"{topic}-{partition}: {error}",
            unseen,
        )
