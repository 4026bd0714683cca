"""The part of a broker that works for its cluster's coordinator, wherever that runs.

It puts control batches that came over the control link into lanes of its own, and answers each once
it is committed (and, where asked, synced). A batch that takes longer than the request waits gets
NOT_LEADER; asked again, it is waited for once more and not sent a second time. Owns these lanes and
the pending batches. Trusts nothing of a request but that a broker sent it: only control batches
pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from penstock.core.errors import ErrorCode, PenstockError, ResourceLimitError
from penstock.ipc import layout as lo
from penstock.ipc.lane import Ack
from penstock.ipc.state import StatePage
from penstock.server.coordinator import brokers
from penstock.server.coordinator.brokers import ControlAck, ControlBatch, ControlRequest
from penstock.server.coordinator.committed import LEADING
from penstock.server.coordinator.lanes import Mailbox
from penstock.server.process.writer import Order

logger = logging.getLogger("penstock.coordinator")

WAIT_MAX: Final = 5.0
"""Seconds that a request may wait."""
PENDING_MAX: Final = 20_000
"""Batches that are waited for, of all requests together."""
_IDENTITY: Final = slice(60, 80)
"""Producer epoch, producer id, type and coordinator epoch in a control batch's header."""

_Key = tuple[int, bytes, bool]


class ControlPort:
    """`make_mailbox`: called with what is to be called when it was woken, when it lost a lane, and
    to ask whether it is waited for; at the first request."""

    def __init__(
        self,
        make_mailbox: Callable[
            [Callable[[], None], Callable[[str], None], Callable[[], bool]], Mailbox
        ],
        page: Callable[[int], StatePage],
    ) -> None:
        self._make_mailbox = make_mailbox
        self._page = page
        self._mailbox: Mailbox | None = None
        self._pending: dict[_Key, asyncio.Future[ControlAck]] = {}
        self._unsynced: dict[_Key, ControlAck] = {}

    async def take(self, request: ControlRequest) -> bytes:
        """The answer to a request. Raises `PenstockError` with nothing of it done."""
        if self._mailbox is None:
            self._mailbox = self._make_mailbox(self._woken, self._lost, self._is_waited)
        self._mailbox.check_room()
        if len(self._pending) + len(request.batches) > PENDING_MAX:
            raise ResourceLimitError(
                f"{len(self._pending)} control batches wait to be committed on this broker "
                f"(PENDING_MAX={PENDING_MAX}): too few replicas may be in sync"
            )
        waits = [self._put(self._mailbox, batch) for batch in request.batches]
        if waits:
            await asyncio.wait(waits, timeout=min(max(request.wait, 0.0), WAIT_MAX))
        not_yet = ControlAck(int(ErrorCode.NOT_LEADER))
        acks = [wait.result() if wait.done() else not_yet for wait in waits]
        return brokers.encode(brokers.ControlAnswer(acks))

    def _put(self, mailbox: Mailbox, batch: ControlBatch) -> asyncio.Future[ControlAck]:
        key = batch.page, batch.image[_IDENTITY], batch.sync
        known = self._pending.get(key)
        if known is not None:
            return known
        future = self._pending[key] = asyncio.get_running_loop().create_future()
        if not 0 <= batch.page < lo.PAGES_MAX:
            self._tell(key, ControlAck(int(ErrorCode.UNKNOWN_PARTITION)))
            return future
        try:
            mailbox.send(
                batch.page, [batch.image], lambda ack: self._answered(key, ack), sync=batch.sync
            )
        except PenstockError as error:
            logger.warning("a control batch for page %d is not sent: %s", batch.page, error)
            self._tell(key, ControlAck(int(ErrorCode.NOT_LEADER)))
        return future

    def _answered(self, key: _Key, ack: Ack) -> None:
        state = self._page(key[0])
        offset = ack.base_offset
        if ack.error == ErrorCode.STALE_PRODUCER_EPOCH:
            offset = state.log_end - 1  # what has taken its place is below here
        done = ControlAck(ack.error, offset, ack.leader_epoch, state.durable)
        if not key[2] or ack.error or done.durable > offset:
            self._tell(key, done)
        else:
            self._unsynced[key] = done

    def _woken(self) -> None:
        """The mailbox was looked at: maybe because something was synced."""
        for key, ack in list(self._unsynced.items()):
            state = self._page(key[0])
            durable = state.durable
            if state.status not in LEADING or state.leader_epoch != ack.leader_epoch:
                self._tell(key, ControlAck(int(ErrorCode.NOT_LEADER)))
            elif durable > ack.base_offset:
                self._tell(key, ControlAck(ack.error, ack.base_offset, ack.leader_epoch, durable))

    def _tell(self, key: _Key, ack: ControlAck) -> None:
        self._unsynced.pop(key, None)
        future = self._pending.pop(key, None)
        if future is not None and not future.done():
            future.set_result(ack)

    def _is_waited(self) -> bool:
        return bool(self._unsynced)

    def _lost(self, why: str) -> None:
        logger.error("a lane for control batches of the cluster's coordinator was dropped: %s", why)
        for key in list(self._pending):
            self._tell(key, ControlAck(int(ErrorCode.NOT_LEADER)))

    def orders(self) -> Iterator[Order]:
        """Yields the orders that a new writer needs to ring."""
        if self._mailbox is not None and self._mailbox.committed is not None:
            yield from self._mailbox.committed.orders()

    def close(self, *, retire: bool) -> None:
        """Lets go of the lanes, as `Mailbox.close`."""
        if self._mailbox is not None:
            self._mailbox.close(retire=retire)
        for key in list(self._pending):
            self._tell(key, ControlAck(int(ErrorCode.NOT_LEADER)))
