"""A producer for callers that wait without a thread: callbacks in place of calls that block.

`penstock.aio` uses it. Callbacks come from the producer's thread, or from any thread that reads the
answers. Some come under the producer's lock: they only pass the news on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from penstock.client.arrow.intake import Wanted
from penstock.client.arrow.send import sending
from penstock.client.producer.callbacks import Flushed
from penstock.client.producer.delivery import BatchDelivery, Failure
from penstock.client.producer.pipeline import Pipeline

Callback = Callable[[], object]


def _nothing(_until: float) -> None:
    pass


class Unthreaded:
    """Callbacks in place of a producer's blocking calls. One per producer (and per forked child of
    it)."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lock = pipeline.state.lock
        self._books = pipeline.state.books
        self._check_usable = pipeline.state.check_usable
        self._sender = pipeline.sender
        self._io = pipeline.io
        self.has_room = pipeline.pressure.has_room
        self.hurry = pipeline.hurry
        self.learn = pipeline.learn
        self.flush_timeout = pipeline.flush_timeout
        self.raise_unseen = pipeline.raise_unseen
        self.front: object = None
        """The object that waits in its place. It lives as long as the producer's thread: a client
        ends both."""
        self.hand_over: Callable[[float], object] = _nothing
        """Takes in what waits in line elsewhere (see `penstock.client.aio.send_queue`), until then
        (monotonic). Blocks; for the end of the process, when no loop runs any more."""

    def sending(
        self, topic: str, data: Any, wanted: Wanted, partition: int | None, patience: float
    ) -> Generator[None, None, BatchDelivery]:
        """Sends as `Producer.send_arrow`, slab by slab (see `penstock.client.arrow.send`)."""
        return sending(self._pipeline, topic, data, wanted, partition, patience)

    def begin_flush(self, callback: Callback) -> None:
        """Sends what is open; calls back once, when everything sent so far has an outcome."""
        with self._lock:
            self._books.open()
            self._check_usable()
            self._io.seal_open(None)
            self._io.watch(Flushed(self._sender, self._pipeline.outcomes.callbacks), callback)
            self._books.close()

    def waits_for(self) -> str:
        """Says what is not acknowledged yet, and why; empty if nothing is."""
        with self._lock:
            self._books.open()
            waiting = sum(batch.count for batch in self._sender.unsettled())
            why = self._sender.why()
            self._books.close()
        return f"{waiting} records are unacknowledged{why}" if waiting else ""

    def call_when_room(self, callback: Callback) -> None:
        """Calls back once, when there is room for records."""
        with self._lock:
            self._books.open()
            self._check_usable()
            self._io.watch(self.has_room, callback)
            self._books.close()

    def note(self, failure: Failure) -> None:
        """Keeps a failure of records that the producer has not taken. `flush` raises it, unless
        somebody looks at it before, and a transaction they were for has failed."""
        with self._lock:
            self._books.open()
            self._pipeline.outcomes.note(failure)
            self._sender.fail(failure.unseen()[2])
            self._books.close()

    def forget(self, callback: Callback) -> None:
        """Removes a callback."""
        with self._lock:
            self._books.open()
            self._io.unwatch(callback)
            self._books.close()

    def knows(self, topic: str) -> bool:
        """Returns whether sending to the topic needs no look-up."""
        return topic in self._sender.topics
