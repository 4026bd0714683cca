"""Sends requests to the active controller, at any broker, and repeats them until they are answered.

The same request has the same number each time, so that the controller which decided it does not
decide it again. Another controller does not know that number. A request that must not be done twice
there carries its own proof (a topic's id, an epoch), or this module understands the second answer.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from penstock.cluster.controller import Image
from penstock.core.errors import (
    ConfigError,
    NotLeaderError,
    PenstockError,
    PenstockTimeout,
    ResourceLimitError,
    UnknownTopicError,
)
from penstock.server.quorum import controller_requests as cr
from penstock.server.quorum.messages import Answer, Ask

ASK_AGAIN: Final = 0.5
"""Seconds without an answer after which a question is sent once more."""
ASKED_MAX: Final = 10_000
"""Questions of this broker that wait."""
PAUSE: Final = 0.05

R = TypeVar("R")


class ControllerClient:
    """`send(broker, ask)`; `leader()`: the broker to ask now; `trouble()`: why there is none."""

    def __init__(
        self,
        life: bytes,
        image: Callable[[], Image],
        leader: Callable[[], int | None],
        send: Callable[[int, Ask], None],
        trouble: Callable[[], str],
    ) -> None:
        self._life = life
        self._image = image
        self._leader = leader
        self._send = send
        self._trouble = trouble
        self._loop = asyncio.get_running_loop()
        self._number = int.from_bytes(os.urandom(6), "little") << 8
        """Other numbers than its last life had: an answer may come late."""
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._turn: asyncio.Future[None] = self._loop.create_future()
        self._known_leader: int | None = None
        self._ended: PenstockError | None = None

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def turned(self) -> None:
        """Somebody else may lead: who waits asks there."""
        leader = self._leader()
        if leader != self._known_leader:
            self._known_leader = leader
            turn, self._turn = self._turn, self._loop.create_future()
            turn.set_result(None)

    def answered(self, answer: Answer) -> None:
        waiting = self._asked.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def end(self, error: PenstockError) -> None:
        """Raises that error for all present and later requests."""
        self._ended = error
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # the waiter may be gone

    async def ask(self, request: cr.QuorumRequest[R], timeout: float) -> R:
        """See `Quorum.ask`."""
        body = cr.encoded(request)
        if self._ended is not None:
            raise self._ended
        if len(self._asked) >= ASKED_MAX:
            raise ResourceLimitError(
                f"{ASKED_MAX} questions of this broker wait for the controller: try again later"
            )
        self._number += 1
        ask = Ask(self._life, self._number, cr.NAMES[type(request)], body)
        is_change = _would_change(self._image(), request)
        try:
            answer, tries = await self._until_answered(ask, self._loop.time() + timeout)
        finally:
            self._asked.pop(ask.number, None)
        try:
            return cr.result(request, answer)
        except (UnknownTopicError, ConfigError):
            if tries > 1 and is_change:
                # The answer to an earlier try got lost with the one who decided it.
                return cast(R, None)
            raise

    async def _until_answered(self, ask: Ask, deadline: float) -> tuple[Answer, int]:
        """With how often it was asked."""
        tries = 0
        why = ""
        while (rest := deadline - self._loop.time()) > 0:
            waiting = self._asked[ask.number] = self._loop.create_future()
            turn, leader = self._turn, self._leader()
            if leader is not None:
                tries += 1
                self._send(leader, ask)
                why = f"broker {leader} leads the quorum, and does not answer"
            else:
                why = self._trouble()
            await asyncio.wait(
                (waiting, turn), timeout=min(rest, ASK_AGAIN), return_when=FIRST_COMPLETED
            )
            if not waiting.done():
                continue
            answer = waiting.result()
            if answer.error != NotLeaderError.__name__:
                return answer, tries
            why = answer.message
            await asyncio.wait((turn,), timeout=min(rest, PAUSE))
        raise PenstockTimeout(f"the controller did not answer in time ({ask.name}): {why}")


def _would_change(image: Image, request: cr.QuorumRequest[Any]) -> bool:
    """Whether it is there to be done, of what cannot be done twice."""
    match request:
        case cr.DeleteTopic(name=name):
            return name in image.ids
        case cr.AddPartitions(name=name, total=total):
            topic_id = image.ids.get(name)
            return topic_id is not None and image.topics[topic_id].partitions < total
    return False
