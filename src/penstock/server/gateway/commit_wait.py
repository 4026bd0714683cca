"""Answers batches when they are committed, and watches the pages that they wait for.

    appended ──high watermark behind it, in the epoch of its answer──────────► good
        ├──another epoch first, or its page is led elsewhere, offline, gone──► `NOT_LEADER`
        └──nothing is committed there for `COMMIT_WITHIN`────────────────────► `NOT_COMMITTED`

Only the oldest batch of a lane is checked: answers keep their order. A batch whose partition is on
too few replicas does not wait without end, nor do those after it. Its client sends them again, now
and then, and the partition knows that it has them. One doorbell wakes all lanes. It belongs to an
attachment of the gateway's own, which watches the awaited pages as a consumer does (rule 13). The
first wait makes it.

Owns that attachment, and the page that each lane waits for. Answers nobody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from penstock.client.session import Session
from penstock.core.errors import ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import fence
from penstock.ipc.state import StatePage
from penstock.server.gateway.endpoints import GatewayEndpoint, fresh_ticket
from penstock.server.gateway.events import Events, Task

logger = logging.getLogger("penstock.gateway")

CLIENT_ID: Final = "gateway"
ATTACH_TIMEOUT: Final = 5.0
ATTACH_RETRY: Final = 0.5
UNWATCHED_EVERY: Final = 0.02
"""Seconds between two looks at the pages while no doorbell can ring for them."""
COMMIT_WITHIN: Final = 2.0
"""Seconds without anything committed in a partition after which nobody else waits for it."""
NOTHING: Final = -1
GOING_ON: Final = (lo.STATUS_ONLINE, lo.STATUS_FULL)


def verdict(page: StatePage, end: int, epoch: int) -> ErrorCode | None:
    """Returns the result of a batch that its leader appended in `epoch`, up to `end` (exclusive);
    None while nobody knows."""
    # The high watermark first: if the epoch is the same after that, it was of that epoch. Status
    # and epoch are published before the high watermark of those who lead later.
    high_watermark = page.high_watermark
    status = page.status
    if page.leader_epoch != epoch:
        return ErrorCode.NOT_LEADER
    if status in GOING_ON:
        return ErrorCode.NONE if high_watermark >= end else None
    return ErrorCode.NOT_LEADER


class Patience:
    """How long a lane has waited for one page, and those that it waits for no more."""

    __slots__ = ("_seen", "_since", "_stuck")

    def __init__(self) -> None:
        self._stuck: set[int] = set()
        self._seen = (NOTHING, 0)
        self._since = 0.0

    def is_over(
        self, page: int, high_watermark: int, now: float, appended: tuple[float, int]
    ) -> bool:
        """Whether the oldest batch, which is not committed, is not to be waited for any more.
        `appended`: when it was, and the high watermark then."""
        if page in self._stuck:
            return True
        seen = page, high_watermark
        if seen != self._seen:
            since, before = appended
            self._seen, self._since = seen, since if before == high_watermark else now
        if now - self._since < COMMIT_WITHIN:
            return False
        self._stuck.add(page)
        return True

    def restore(self, page: int) -> None:
        """Something was committed there, or will be elsewhere."""
        self._stuck.discard(page)


class Watch:
    """The gateway's own attachment. Calls `moved` when a wanted page may have moved: when the
    doorbell rang, or now and then while there is no doorbell."""

    def __init__(self, events: Events, socket: Path, moved: Callable[[], None]) -> None:
        self._events = events
        self._socket = socket
        self._moved = moved
        self._session: Session | None = None
        self._task: Task | None = None
        self._is_coming = False
        self._attach_at = 0.0
        self._is_looking = False
        self._pages: set[int] = set()

    @property
    def _slot(self) -> ClientSlot | None:
        return None if self._session is None else self._session.slot

    def want(self, page: int, wanted: bool) -> None:
        """That page matters, or does not any more. After `settle` it rings for those that do."""
        if wanted:
            self._pages.add(page)
        else:
            self._pages.discard(page)
        slot = self._slot
        if slot is not None:
            slot.watch_one(page, wanted)
        else:
            self._look_soon()

    @staticmethod
    def settle() -> None:
        """Orders earlier stores before later looks, which then see data that was published without
        a ring."""
        fence()

    # --- without an attachment ---
    def _look_soon(self) -> None:
        if self._pages and not self._is_looking:
            self._is_looking = True
            self._events.later(0.0, self._look_meanwhile)

    def _look_meanwhile(self) -> None:
        """Look at the pages now and then, and try to be rung for them."""
        now = time.monotonic()
        if self._session is None and not self._is_coming and now >= self._attach_at:
            self._attach_at = now + ATTACH_RETRY
            self._attach()
        self._is_looking = bool(self._pages) and self._slot is None
        if self._is_looking:
            self._moved()
            self._events.later(UNWATCHED_EVERY, self._look_meanwhile)

    def _attach(self) -> None:
        self._is_coming = True
        self._task = self._events.spawn(
            Session.attaching(
                self._socket, lo.KIND_CONSUMER, client_id=CLIENT_ID, timeout=ATTACH_TIMEOUT
            ),
            self._attached,
            self._failed,
        )

    def _failed(self, error: Exception) -> None:
        self._is_coming = False
        logger.warning("the gateway cannot be rung for pages, and looks at them: %s", error)

    def _attached(self, session: Session) -> None:
        self._is_coming = False
        self._session = session
        if session.slot is not None:
            session.slot.watch(self._pages)
        self._events.watch(session.fileno(), self._heard)
        self._events.watch(session.doorbell.fileno(), self._rang)
        self._rang()

    # --- with one ---
    def _rang(self) -> None:
        session = self._session
        assert session is not None
        session.doorbell.clear()
        if session.slot is not None:
            session.slot.publish_sleeping(fresh_ticket())
            fence()
        self._moved()

    def _heard(self) -> None:
        """The node says something that nobody asked for: mostly that it is over."""
        reason = None if self._session is None else self._session.farewell()
        if reason is not None:
            logger.warning("the gateway is not rung for pages any more: %s", reason)
            self.close()
            self._look_soon()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        session, self._session = self._session, None
        if session is not None:
            self._events.unwatch(session.fileno())
            self._events.unwatch(session.doorbell.fileno())
            session.close(patience=0.0)


class Waiter(Protocol):
    """A lane that waits. This module owns `waits_on`: a page, -1 for none."""

    endpoint: GatewayEndpoint
    waits_on: int


W = TypeVar("W", bound=Waiter)


class CommitWait(Generic[W]):
    """Which lanes wait for which pages. `moved` is told of those that may go on."""

    def __init__(self, events: Events, socket: Path, moved: Callable[[list[W]], None]) -> None:
        self._watch = Watch(events, socket, self._look)
        self._moved = moved
        self._waits: dict[int, dict[W, int]] = {}
        self._seen: dict[int, tuple[int, int, int]] = {}
        self._new: list[W] = []

    @property
    def has_new(self) -> bool:
        """Whether `take_new` would give any."""
        return bool(self._new)

    def wait(self, waiter: W, page: int, end: int) -> None:
        """It waits until that page is committed up to `end` (exclusive), and for nothing else."""
        if waiter.waits_on != page:
            self.forget(waiter)
            if page not in self._waits:
                self._waits[page] = {}
                self._watch.want(page, True)
            waiter.waits_on = page
        waiters = self._waits[page]
        if waiters.get(waiter) != end:
            waiters[waiter] = end
            self._new.append(waiter)

    def forget(self, waiter: W) -> None:
        """It waits for nothing."""
        page, waiter.waits_on = waiter.waits_on, NOTHING
        if page == NOTHING:
            return
        waiters = self._waits[page]
        del waiters[waiter]
        if not waiters:
            del self._waits[page]
            self._seen.pop(page, None)
            self._watch.want(page, False)

    def take_new(self) -> list[W]:
        """Those that began to wait since the last time, to be judged once more: what was published
        meanwhile rang for nobody."""
        new, self._new = self._new, []
        if new:
            self._watch.settle()
        return [waiter for waiter in new if waiter.waits_on != NOTHING]

    def _look(self) -> None:
        """At all pages that are waited for."""
        found: list[W] = []
        for index, waiters in self._waits.items():
            page = next(iter(waiters)).endpoint.states.page(index)
            now_seen = page.high_watermark, page.leader_epoch, page.status
            seen = self._seen.get(index)
            if now_seen == seen:
                continue
            self._seen[index] = now_seen
            if seen is not None and seen[1:] == now_seen[1:]:
                found += [waiter for waiter, end in waiters.items() if end <= now_seen[0]]
            else:
                found += waiters
        if found:
            self._moved(found)

    def close(self) -> None:
        self._watch.close()
