"""Reports outcomes: to callbacks of deliveries, to `flush`, and by hooks.

Owns the callbacks that are still to be called and the failures that nobody has looked at. Never
sends, and decides no outcome.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.client.producer.delivery import AnyDelivery, BatchReceipt, Box, DoneCallback, Failure
from penstock.client.producer.routes import Batch, Origin
from penstock.client.producer.state import ProducerState
from penstock.core.errors import DeliveryError, DroppedError

if TYPE_CHECKING:
    from penstock.client.producer.sender import Sender

logger = logging.getLogger("penstock.producer")

FAILURES_KEPT: Final = 1000
"""Failures that are kept one by one until a `flush`. Of others it keeps the number of records, and
the last error of each partition: a partition may be dark for days without a `flush`."""


class Callbacks:
    """The callbacks of deliveries that are done. They are added under the producer's lock, and run
    without it by any thread."""

    def __init__(self) -> None:
        self._due: deque[_Due] = deque()
        self._awaited: dict[Origin, None] = {}
        self._gate = threading.Lock()
        self._running: dict[int, int] = {}  # by thread: the number of the one it is in
        self._begun = 0
        self.taken = 0

    def __len__(self) -> int:
        """Returns how many callbacks are due."""
        return sum(length_hint(due.left) for due in self._due)

    def expect(self, delivery: AnyDelivery, box: Box, callback: DoneCallback) -> None:
        """Registers a callback for a delivery of a box. It runs after `take` has taken the box."""
        self._awaited[box] = None
        box.callbacks.append((delivery, callback))

    def mend(self) -> None:
        """Takes, after an interrupt, the callbacks of boxes that are done."""
        for box in list(self._awaited):
            if box.done or not box.callbacks:
                self.take(box)

    @property
    def told(self) -> int:
        """Number of the first callbacks taken that have returned.

        A thread that asks from a callback gets all of them: it runs the others itself.
        """
        me = threading.get_ident()
        with self._gate:
            if me in self._running:
                return self.taken
            return min(self._running.values(), default=self._begun)

    def take(self, box: Origin) -> None:
        """Queues all callbacks of a box that is done. Those that are due already are not
        due twice."""
        found = box.callbacks
        if found and not (self._due and self._due[-1].all is found):
            self._due.append(_Due(found, iter(found)))
            self.taken += len(found)
        box.callbacks = []
        self._awaited.pop(box, None)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Queues a hook behind the callbacks that are due."""
        found: list[tuple[Any, Callable[[Any], object]]] = [(None, lambda _: callback())]
        self._due.append(_Due(found, iter(found)))
        self.taken += 1

    def run(self) -> bool:
        """Calls the callbacks that are due and returns whether there were any. A callback that
        calls this runs no others."""
        me = threading.get_ident()
        if me in self._running:
            return False
        has_run = False
        try:
            while True:
                with self._gate:
                    following = self._next()
                    if following is None:
                        return has_run
                    delivery, callback = following
                    self._running[me] = self._begun
                    self._begun += 1
                has_run = True
                self.call(delivery, callback)
        finally:
            with self._gate:
                self._running.pop(me, None)

    def _next(self) -> tuple[AnyDelivery, DoneCallback] | None:
        while self._due:
            following = next(self._due[0].left, None)
            if following is not None:
                return following
            self._due.popleft()
        return None

    @staticmethod
    def call(delivery: AnyDelivery, callback: DoneCallback) -> None:
        """Calls a callback and logs what it raises, because no caller waits for it."""
        try:
            callback(delivery)
        except Exception:
            logger.exception("a delivery callback raised")


class _Due(NamedTuple):
    """The callbacks of a box, and those that were not called yet."""

    all: list[tuple[AnyDelivery, DoneCallback]]
    left: Iterator[tuple[AnyDelivery, DoneCallback]]


class Flushed:
    """The condition of one `flush`: every batch sealed before it has an outcome, and every callback
    of it was called. Batches that others send meanwhile do not count. Called under the lock."""

    def __init__(self, sender: Sender, callbacks: Callbacks) -> None:
        self._left: list[Batch] = sender.unsettled()
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
    """The failures that no `flush` has raised yet. Used under the producer's lock."""

    def __init__(self) -> None:
        self._kept: list[Failure] = []
        self._others: dict[tuple[str, int], tuple[Exception, int]] = {}

    def note(self, failure: Failure) -> None:
        if self._kept and self._kept[-1] is failure:
            return  # an interrupt came behind it
        self._kept.append(failure)
        if len(self._kept) > 2 * FAILURES_KEPT:
            unseen = [one for one in self._kept if one.looked_at < one.count]
            self._kept = unseen[:FAILURES_KEPT]
            for one in unseen[FAILURES_KEPT:]:
                topic, partition, error, count = one.unseen()
                before = self._others.get((topic, partition))
                self._others[topic, partition] = error, count + (before[1] if before else 0)

    def error(self) -> DeliveryError | None:
        """Returns the error that `flush` raises for failures that nobody looked at; None without
        any."""
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


class Outcomes:
    """Handles the outcomes of batches and boxes: counts, callbacks, hooks and kept failures. Used
    under the producer's lock."""

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self._on_delivery = state.config.on_delivery
        self._on_error = state.config.on_error
        self.callbacks = Callbacks()
        self._failures = Failures()

    def finished(self, batch: Batch) -> None:
        """Queues the callbacks of a batch that the sender settled, and counts it."""
        is_dropped = isinstance(batch.error, DroppedError)  # by the policy, which counts it
        if batch.error is not None and not is_dropped:
            self._failures.note(batch)
        self.tell(batch.box)
        if not is_dropped:
            key = "acknowledged" if batch.error is None else "failed"
            self._state.counts[key] += batch.count
        if batch.error is None and self._on_delivery is not None:
            self._hook(partial(self._on_delivery, BatchReceipt.of(batch)))
        elif batch.error is not None and not is_dropped:
            self._tell_error(batch.route.topic, batch.route.partition, batch.count, batch.error)

    def failed(self, box: Box, error: Exception) -> None:
        """Fails all records of a box."""
        self._failures.note(box.fail(error))
        self._tell_error(box.topic, -1, box.count, error)
        self.tell(box)

    def tell(self, box: Origin) -> None:
        """Queues the callbacks of a box if it is done."""
        if box.callbacks and box.done:
            self.callbacks.take(box)
            self._state.nudge()

    def _tell_error(self, topic: str, partition: int, count: int, error: Exception) -> None:
        if self._on_error is not None:
            self._hook(partial(self._on_error, topic, partition, count, error))

    def _hook(self, call: Callable[[], object]) -> None:
        self.callbacks.call_soon(call)
        self._state.nudge()

    def note(self, failure: Failure) -> None:
        """Keeps a failure of records that failed elsewhere, or that an interrupt left unnoted."""
        self._failures.note(failure)

    def unseen(self) -> DeliveryError | None:
        """Returns the error that `flush` raises. The next call reports only later failures."""
        error = self._failures.error()
        self._failures = Failures()
        return error
