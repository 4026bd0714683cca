"""Sources of a channel's messages: a queue, by its share group, or the end of an exchange's topic.

    queue                                      a worker of its group; other workers share it
    queue of a single consumer (`exclusive`,   a reader of each exchange that it is bound to, from
    or `auto_delete` with `expires` or of a    the moment when it was bound; nobody else shares it
    fanout exchange): pidbox, events, replies

Owns messages that came and are not delivered yet. A channel decides when to look.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.records import Record
from penstock.client.share.consumer import ShareConsumer
from penstock.client.share.jobs import Job
from penstock.core.errors import PenstockError
from penstock.ipc.waits import Wait, Waits, run
from penstock.kombu.messages import Raw, message_of

LOOK_EVERY: Final = 0.5
"""Seconds that a wait for messages takes at most, and between two looks whether the node is there
while no message is wanted."""
ANSWER_EVERY: Final = 0.005
"""Seconds between two looks whether answers are with the node."""
GATHER: Final = 0.003
"""Seconds between two requests of a channel that has messages in hand: quick tasks are fetched, and
acknowledged, several at a time."""
QUIET: Final = 0.02
"""Seconds without a message after which a worker asks whether there is one that is not new: the
coordinator tells it then when others give one back."""
ONE_WITHIN: Final = 0.3
"""Seconds that a call for one message waits for a message that is there, as far as is known: a
worker does not ask at once again after it got none. From another host, it may be under way."""


class Arrival(NamedTuple):
    """A message that came. `job`: what is answered for; None: it is nobody else's."""

    message: Raw
    job: Job | None = None


class QueueSource:
    """A queue, for one channel. `is_due`: whether it is to be looked at.

    After messages it asks for more only once the log has some, or after a while: that saves a
    request for each message of a quiet queue.
    """

    def __init__(self, queue: str, share: ShareConsumer) -> None:
        self.queue = queue
        self.is_due = True
        self.pending: deque[Arrival] = deque()
        self._share = share
        self._ask_at = 0.0
        self._asked_at = 0.0

    @property
    def is_early(self) -> bool:
        """Whether it has asked just now."""
        return time.monotonic() < self._asked_at + GATHER

    def look(self, room: int) -> None:
        """Adds messages to `pending`, so many at most, if there may be some. Sends answers."""
        if self._share.has_more or time.monotonic() >= self._ask_at:
            self._bring(room)
            self._ask_at = time.monotonic() + (QUIET if self.pending else LOOK_EVERY)
        else:
            self.answer()

    def _bring(self, room: int, timeout: float = 0.0) -> None:
        self._asked_at = time.monotonic()
        jobs = run(self._share.polling(room, timeout, is_exact=True))
        self.pending += [Arrival(message_of(job.record, job.deliveries), job) for job in jobs]
        self._share.brought()

    def bring_one(self, *, is_far: bool) -> None:
        """Adds a message to `pending` if there is one."""
        self._bring(1)
        if not self.pending and (is_far or self._share.has_more):
            self._bring(1, ONE_WITHIN)

    def answer(self) -> None:
        """Sends answers, without a wait for what is under way already."""
        run(self._share.attending())

    def answer_now(self) -> None:
        """Sends answers, also where a request is under way. After an error they go again later."""
        self.answer()
        if self._share.is_behind:
            with suppress(PenstockError):
                run(self._share.flushing())

    def watching(self) -> Waits[None]:
        """Waits for messages."""
        left = ANSWER_EVERY if self._share.is_behind else self._ask_at - time.monotonic()
        return self._share.watching(max(left, 0.0))

    def gathering(self) -> Waits[None]:
        """Waits until it may ask again."""
        yield Wait(max(self._asked_at + GATHER - time.monotonic(), 0.0))

    def idling(self) -> Waits[None]:
        """Waits until answers are to be sent, or the node is to be looked after."""
        yield Wait(ANSWER_EVERY if self._share.has_unsent else LOOK_EVERY)

    def give_back(self) -> None:
        """Others get what was not delivered."""
        while self.pending:
            job = self.pending.popleft().job
            if job is not None:
                job.release()

    def close(self) -> None:
        """Sends the answers; what has none others get."""
        self._share.close()


class ExchangeSource:
    """Messages that are sent to an exchange from now on, with routing keys that `matches` takes."""

    def __init__(self, queue: str, reader: Consumer, matches: Callable[[str], bool]) -> None:
        self.queue = queue
        self.is_due = True
        self.pending: deque[Arrival] = deque()
        self.matches = matches
        self.is_early = False
        self._reader = reader

    def look(self, room: int, timeout: float = 0.0) -> None:
        """Adds messages to `pending`, the most urgent of those that are there first."""
        now = time.time() * 1e6
        records = [*self._reader.unpack(self._reader.poll(room, timeout))]
        for record in sorted(records, key=_urgency):
            message = message_of(record)
            key = message["properties"]["delivery_info"].get("routing_key") or ""
            if self.matches(str(key)) and not (record.expires and record.expires <= now):
                self.pending.append(Arrival(message))

    def bring_one(self, *, is_far: bool) -> None:
        if not self.pending:
            self.look(1, ONE_WITHIN if is_far else 0.0)

    def answer(self) -> None:
        """There is nothing to answer for."""

    def answer_now(self) -> None:
        """There is nothing to answer for."""

    def watching(self) -> Waits[None]:
        return self._reader.watching(LOOK_EVERY)

    def gathering(self) -> Waits[None]:
        """There is nothing to gather."""
        yield Wait(0.0)

    def idling(self) -> Waits[None]:
        yield Wait(LOOK_EVERY)

    def give_back(self) -> None:
        """Nobody else gets it: it stays."""

    def close(self) -> None:
        self._reader.close()


Source = QueueSource | ExchangeSource


def _urgency(record: Record) -> int:
    return -(record.priority or 0)
