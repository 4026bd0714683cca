"""How control batches get into a partition's log: by a lane of this node, or by another broker.

    for a partition led here        ──► mailbox ─► lane ─► writer
    for one that broker B leads     ──► waits for its turn ─► one request with all that waits ─► B
    while nobody leads it           ──► refused as NOT_LEADER, as is what B does not answer in time

What is refused so may be in the log all the same; sent again it changes nothing. Owns what waits
for other brokers. Decides nothing, and tries nothing again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.core.errors import ErrorCode, PenstockError
from penstock.ipc.lane import Ack
from penstock.ipc.state import StatePage
from penstock.server.coordinator import brokers
from penstock.server.coordinator.brokers import ControlBatch, CoordinatorCluster
from penstock.server.coordinator.committed import LEADING
from penstock.server.coordinator.lanes import Mailbox

logger = logging.getLogger("penstock.coordinator")

WAIT: Final = 1.0
"""Seconds that another broker waits for a batch to be committed, before it is sent again."""
SLACK: Final = 1.0
"""Seconds more until a request is given up for lost."""
UNDER_WAY_MAX: Final = 8
"""Requests to one broker that are not answered: one partition that is slow holds no others up."""
WAITING_MAX: Final = 10_000
"""Batches that wait for one broker; more are refused, and sent again later."""

Place = tuple[bytes, int]
Answered = Callable[[Ack], None]


class Carriage(Protocol):
    def send(
        self, page: int, place: Place, image: bytes, answered: Answered, *, sync: bool = False
    ) -> None:
        """Have a control batch appended to that partition; `sync`: and soon be on its device.
        Raises `PenstockError` when it cannot even be tried."""

    def durable(self, page: int, place: Place) -> int:
        """Up to where that partition's log is known to be on a device."""

    def close(self) -> None: ...


class OwnLanes:
    """Of a node that is alone: every partition is led here."""

    def __init__(self, mailbox: Mailbox, page: Callable[[int], StatePage]) -> None:
        self._mailbox = mailbox
        self._page = page

    def send(
        self, page: int, place: Place, image: bytes, answered: Answered, *, sync: bool = False
    ) -> None:
        self._mailbox.send(page, [image], answered, sync=sync)

    def durable(self, page: int, place: Place) -> int:
        return self._page(page).durable

    def close(self) -> None: ...


class _Letter(NamedTuple):
    place: Place
    batch: ControlBatch
    answered: Answered


class ToLeaders:
    """Of a broker: for one life of the coordinator's machines."""

    def __init__(
        self, mailbox: Mailbox, page: Callable[[int], StatePage], cluster: CoordinatorCluster
    ) -> None:
        self._mailbox = mailbox
        self._page = page
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, deque[_Letter]] = {}
        self._under_way: dict[int, set[asyncio.Task[None]]] = {}
        self._durable: dict[Place, int] = {}
        self._turn = self._is_closed = False

    def send(
        self, page: int, place: Place, image: bytes, answered: Answered, *, sync: bool = False
    ) -> None:
        leader = self._cluster.leader_of(page)
        if leader == self._cluster.broker:
            self._mailbox.send(page, [image], _for_now(answered), sync=sync)
            return
        if leader is None:
            self._loop.call_soon(self._refuse, answered)
            return
        waiting = self._waiting.setdefault(leader, deque())
        if len(waiting) >= WAITING_MAX:
            self._loop.call_soon(self._refuse, answered)
            return
        waiting.append(_Letter(place, ControlBatch(page, image, sync), answered))
        if not self._turn:
            self._turn = True
            self._loop.call_soon(self._deliver_all)

    def durable(self, page: int, place: Place) -> int:
        state = self._page(page)
        led_here = state.status in LEADING and state.identity == place
        return max(self._durable.get(place, 0), state.durable if led_here else 0)

    # --- to other brokers ---
    def _deliver_all(self) -> None:
        """Sends the batches of one turn of the loop: in requests of bounded size to each broker."""
        self._turn = False
        if self._is_closed:
            return
        for broker, waiting in self._waiting.items():
            tasks = self._under_way.setdefault(broker, set())
            while waiting and len(tasks) < UNDER_WAY_MAX:
                size = min(len(waiting), brokers.BATCHES_MAX)
                letters = [waiting.popleft() for _ in range(size)]
                task = self._loop.create_task(self._deliver(broker, letters))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _deliver(self, broker: int, letters: list[_Letter]) -> None:
        request = brokers.ControlRequest([letter.batch for letter in letters], WAIT)
        acks = None
        try:
            payload = await self._cluster.send_control(
                broker, brokers.encode(request), WAIT + SLACK
            )
            acks = brokers.decode_answer(payload, len(letters))
        except PenstockError as error:
            logger.info("broker %d took none of %d batches: %s", broker, len(letters), error)
        except Exception:
            logger.exception("%d batches for broker %d are sent again", len(letters), broker)
        if self._is_closed:
            return
        if self._waiting.get(broker) and not self._turn:
            self._turn = True
            self._loop.call_soon(self._deliver_all)
        if acks is None:
            for letter in letters:
                self._refuse(letter.answered)
            return
        for letter, ack in zip(letters, acks, strict=True):
            known = self._durable.get(letter.place, 0)
            self._durable[letter.place] = max(known, ack.durable)
            _for_now(letter.answered)(Ack(0, ack.base_offset, 0, ack.error, ack.leader_epoch))

    def _refuse(self, answered: Answered) -> None:
        if not self._is_closed:
            answered(Ack(0, -1, 0, int(ErrorCode.NOT_LEADER), 0))

    def close(self) -> None:
        """Answers nobody any more. Batches under way may still be appended."""
        self._is_closed = True
        self._waiting.clear()
        for tasks in self._under_way.values():
            for task in tasks:
                task.cancel()


def _for_now(answered: Answered) -> Answered:
    """A broker that has not opened a partition yet, or has closed it, is not its leader: another
    one is, or will be. That a topic is deleted is learnt from the cluster."""

    def told(ack: Ack) -> None:
        if ack.error == ErrorCode.UNKNOWN_PARTITION:
            ack = ack._replace(error=int(ErrorCode.NOT_LEADER))
        answered(ack)

    return told
