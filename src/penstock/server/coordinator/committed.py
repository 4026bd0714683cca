"""Answers of replicated partitions, held back until what they tell of is committed.

    answered by the writer ──high watermark is past it, in the same leader epoch──► told
              └─ another epoch, or nobody leads here ──► told as NOT_LEADER: it may be gone

Of a partition answers come, and are told, in the order of its log. Its page is watched through a
slot of the client table, as a consumer does, so that its writer rings when the high watermark
moves. Owns what waits, and the slot. Sends nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.core.errors import ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import Doorbell, fence
from penstock.ipc.lane import Ack
from penstock.ipc.liveness import start_time
from penstock.ipc.state import StatePage
from penstock.server.node.tables import Tables
from penstock.server.process.writer import Order
from penstock.server.process.writers import Supervisor

LEADING: Final = (lo.STATUS_ONLINE, lo.STATUS_FULL)
"""The states of a page whose partition is led here and can go on."""


class HeldAnswer(NamedTuple):
    """An answer: `end` is the offset behind what it tells of."""

    end: int
    ack: Ack
    tell: Callable[[Ack], None]


class CommittedAnswers:
    """For one mailbox, whose doorbell is rung."""

    def __init__(self, tables: Tables, supervisor: Supervisor, bell: Doorbell) -> None:
        self._tables = tables
        self._supervisor = supervisor
        self._bell = bell
        self._held: dict[int, deque[HeldAnswer]] = {}
        self.count = 0
        """Answers that are held back."""
        self._kept: set[int] = set()
        self._is_unfenced = False
        pid = os.getpid()
        self._index = tables.take_slot(pid, start_time(pid) or 0, lo.KIND_ADMIN)
        self._slot = ClientSlot(tables.clients, self._index)
        supervisor.post_running(ms.AddClient(self._index), bell)

    def orders(self) -> Iterator[Order]:
        """Yields the orders that a new writer needs to ring."""
        yield ms.AddClient(self._index), self._bell

    def watch(self, page: int) -> None:
        """Be woken by every change of that page, also while no answer of it is held."""
        self._kept.add(page)
        self._slot.watch_one(page, True)

    def watch_no_more(self) -> None:
        """Only by pages of which answers are held."""
        self._kept.clear()
        self._slot.watch(self._held)

    def after(self, page: int, span: int, tell: Callable[[Ack], None]) -> Callable[[Ack], None]:
        """`tell`, but called only when the batch of `span` offsets that was sent to that page is
        committed. Refusals are told at once."""

        def answered(ack: Ack) -> None:
            if ack.error:
                tell(ack)
                return
            held = self._held.get(page)
            if held is None:
                held = self._held[page] = deque()
                self._slot.watch_one(page, True)
                self._is_unfenced = True
            held.append(HeldAnswer(ack.base_offset + span, ack, tell))
            self.count += 1

        return answered

    def publish_sleeping(self, ticket: int) -> None:
        self._slot.publish_sleeping(ticket)

    def look(self) -> None:
        """Tell what is committed by now, and what will not be known to be."""
        if self._is_unfenced:  # watched pages come before the look at them, as in `ipc.doorbell`
            self._is_unfenced = False
            fence()
        for page in list(self._held):
            self._look_at(page)

    def _look_at(self, page: int) -> None:
        held, state = self._held[page], self._tables.page(page)
        # In this order: a high watermark that was there before this epoch is still it.
        high_watermark = state.high_watermark
        epoch = state.leader_epoch if state.status in LEADING else None
        while held and held[0].ack.leader_epoch == epoch and held[0].end <= high_watermark:
            _, ack, tell = held.popleft()
            self.count -= 1
            tell(ack)
        while held and held[0].ack.leader_epoch != epoch:
            _, ack, tell = held.popleft()
            self.count -= 1
            tell(ack._replace(error=int(ErrorCode.NOT_LEADER), base_offset=-1))
        if not held and self._held.get(page) is held:
            del self._held[page]
            self._slot.watch_one(page, page in self._kept)

    def close(self) -> None:
        """Nothing more is told."""
        self._held.clear()
        self.count = 0
        self._supervisor.post_running(ms.RemoveClient(self._index))
        self._tables.give_slot_back(self._index)


class Tenure:
    """The leader epoch of a page in which something here counts: it begins with the first batch
    that is answered, and is over for good when another begins or nobody leads here."""

    def __init__(self, state: StatePage) -> None:
        self._state = state
        self.epoch: int | None = None

    def begin(self, epoch: int) -> None:
        self.epoch = epoch

    def lost(self) -> str:
        """Why it is over; empty while it is not."""
        if self.epoch is None:
            return ""
        status, epoch = self._state.status, self._state.leader_epoch
        if status not in LEADING:
            return f"its partition is {lo.STATUS_NAMES.get(status, status)} here"
        if epoch != self.epoch:
            return f"leader epoch {epoch} has followed {self.epoch}"
        return ""
