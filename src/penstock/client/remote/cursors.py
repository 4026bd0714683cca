"""Batches of a partition on their way from a gateway to the consumer that reads them.

Owns the batches that arrived and were not taken yet, between two threads. The carrier's thread
fills a cursor, and the consumer's empties it. The credit that the gateway was given bounds them.
Knows no positions and decodes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.cluster.frames import messages as fr

SMALL: Final = 4096
RESTS: Final = 4
"""Fewer bytes are told of to the gateway only when the consumer found nothing so many times."""


class Arrived(NamedTuple):
    """Batches one after the other, which bring the cursor from `start` to `next_offset`; without
    any it only moves. `aborted` records were left out. `leader_epoch`: of the log up to there."""

    start: int
    next_offset: int
    aborted: int
    view: memoryview
    leader_epoch: int


class FarCursor:
    """The batches of one remote partition that have arrived. Made by a `Fetcher`. `give` tells the
    gateway of more credit, `drop` that nothing is wanted any more. Both are called from the
    consumer's thread and never block."""

    def __init__(
        self, credit: int, give: Callable[[int], object], drop: Callable[[], object]
    ) -> None:
        self.credit = credit
        self._give = give
        self._drop = drop
        self._arrived: deque[Arrived] = deque()
        self._failed: fr.CursorFailed | None = None
        self._is_closed = False
        self._owed = 0  # below 0: the gateway was given more than there is credit for now
        self._rests = 0

    # --- the carrier's thread ---
    def put(self, message: fr.Fetched, payload: bytes | bytearray | memoryview | None) -> None:
        """Adds the next batches. The consumer is rung after this, and after the pages it names."""
        if not self._is_closed:
            view = memoryview(payload if payload is not None else b"")
            self._arrived.append(
                Arrived(
                    message.start, message.next_offset, message.aborted, view, message.leader_epoch
                )
            )

    def fail(self, message: fr.CursorFailed) -> None:
        """Ends the cursor with an error."""
        self._failed = message

    # --- the consumer's thread ---
    @property
    def has_more(self) -> bool:
        """Returns whether there is something to take, or it ended with an error."""
        return bool(self._arrived) or self._failed is not None

    @property
    def failed(self) -> fr.CursorFailed | None:
        """Returns why it ended, once all that came before was taken."""
        failed = self._failed  # first: what comes before it is there by then
        return None if self._arrived else failed

    def peek(self) -> Arrived | None:
        """Returns the next arrival, in order."""
        return self._arrived[0] if self._arrived else None

    def next(self) -> None:
        """Removes the arrival that `peek` returned: it has another place."""
        self._arrived.popleft()

    def took(self, nbytes: int) -> None:
        """Counts consumed bytes. The gateway is told once they are worth a message, or once the
        consumer rests."""
        self._owed += nbytes
        self._rests = 0
        if self._owed * 4 >= self.credit:
            self._pay()

    def rest(self) -> None:
        """Notes that the consumer found nothing here. The gateway may wait for consumed bytes it
        was not told of, where it holds many cursors of a connection to one bound."""
        self._rests += 1
        if self._owed >= SMALL or (self._owed > 0 and self._rests >= RESTS):
            self._pay()

    def allow(self, credit: int) -> None:
        """Sets another credit: more is given at once, less as bytes are consumed."""
        self._owed += credit - self.credit
        self.credit = credit
        if self._owed * 4 >= credit:
            self._pay()

    def _pay(self) -> None:
        if not self._is_closed and self._failed is None:
            owed = self._owed
            self._give(owed)  # first: an interrupt gives too much once, and not too little for ever
            self._owed -= owed

    def close(self) -> None:
        """Forgets what came; nothing more is wanted."""
        if not self._is_closed:
            self._is_closed = True
            self._arrived.clear()
            if self._failed is None:
                self._drop()


class Fetcher(Protocol):
    """The carrier's service for the consumer of a remote session (`Session.far`). `waits_for`: why
    a request of the session is not answered yet, as far as the carrier knows; or empty."""

    waits_for: str

    def open(
        self, page: int, topic_id: bytes, partition: int, offset: int, leader_epoch: int,
        committed: bool, credit: int,
    ) -> FarCursor:  # fmt: skip
        """Requests the records of a partition from `offset` on. Never blocks."""

    def epochs(self, page: int) -> list[tuple[int, int]]:
        """Returns leader epochs of the log on that page with their first offsets, as last heard."""
