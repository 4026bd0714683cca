"""The coordinator's log: decisions appended in order, and what of them is acknowledged and durable.

    open(epoch) ── fence ──► append, append, ... ──► settled: all so far acknowledged
                                  │                         and, where asked, on the device
                                  ├─ refused for good ─────┐
                                  └─ another leader epoch ─┴► broken: everything waiting fails

Decisions of one turn of the event loop are one batch, in their order: one frame, one answer and, if
one of them has to be on the device, one sync for all. None of them is answered before the batch is
acknowledged. A large decision is a batch of its own.

Batches are of the coordinator's producer id, whose producer epoch is the coordinator epoch: what an
earlier epoch left in any lane is refused once the fence, the first batch of an epoch, is in the log
(rule 17). In a cluster acknowledged means committed, and what began in one
leader epoch of the log's partition ends with it: the next leader has a coordinator of its own. Owns
sequences and who waits. Never reads the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.cluster.decisions import Record
from penstock.core.errors import (
    ErrorCode,
    NotLeaderError,
    PenstockError,
    PenstockTimeout,
    ResourceLimitError,
)
from penstock.core.header import BatchIdentity
from penstock.core.plain import encode_records
from penstock.ipc.lane import Ack
from penstock.ipc.messages import TopicInfo
from penstock.ipc.state import StatePage
from penstock.server.coordinator.committed import Tenure
from penstock.server.coordinator.lanes import Mailbox

logger = logging.getLogger("penstock.coordinator")

GATHERED_BYTES_MAX: Final = 64 << 10
"""Most bytes of decisions that become one batch; a larger one is a batch of its own."""
RECORD_BYTES: Final = 16
"""Most bytes of a record in a batch beside its key and value."""


class Settling:
    """Somebody who waits for several things. `result`: of the future once all came; an exception is
    raised there."""

    __slots__ = ("future", "left", "result", "timer")

    def __init__(self, result: object) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.result = result
        self.left = 0
        self.timer: asyncio.TimerHandle | None = None

    def came(self) -> None:
        """One of the things came."""
        self.left -= 1
        if self.left:
            return
        if isinstance(self.result, Exception):
            self.fail(self.result)
        elif not self.future.done():
            self._end()
            self.future.set_result(self.result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self._end()
            self.future.set_exception(error)

    def _end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


_Waiters = deque[tuple[int, Settling]]
"""(Number of a batch, who waits for it), in order."""


class Journal:
    """One for each coordinator epoch. `broken` is called once, when nothing can be appended.
    `tenure`: of the log's partition, where it is replicated."""

    def __init__(
        self,
        mailbox: Mailbox,
        topic: TopicInfo,
        state: StatePage,
        producer_id: int,
        epoch: int,
        broken: Callable[[PenstockError], None],
        tenure: Tenure | None = None,
    ) -> None:
        self._tenure = tenure
        self._mailbox = mailbox
        self._topic = topic
        self._state = state
        self._page = topic.pages[0]
        self._producer_id = producer_id
        self.epoch = epoch
        self._broken = broken
        self._failure: PenstockError | None = None
        self._sequence = 0
        self.written = 0
        """Batches appended in this epoch, that of this turn among them."""
        self._gathered: list[Record] = []
        self._gathered_bytes = 0
        self._gathered_then: list[Callable[[], None]] = []
        self._acked = 0
        self._synced = 0
        self._last_sync = 0
        self._unsynced: deque[tuple[int, int]] = deque()  # (batch, its next offset), in order
        self._ack_waiters: _Waiters = deque()
        self._sync_waiters: _Waiters = deque()
        self.fence_offset = -1

    # --- out ---
    def append(
        self,
        records: Sequence[Record],
        *,
        durable: bool,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Sends a decision on its way, with the others of this turn; `then` is called once it is
        acknowledged. Raises, with nothing sent, where it can never be written."""
        self.check()
        size = sum(len(key) + len(value or b"") + RECORD_BYTES for key, value in records)
        most = min(GATHERED_BYTES_MAX, self._mailbox.frame_max(self._page) // 2)
        if self._gathered and self._gathered_bytes + size > most:
            self._flush()
            self.check()
        if size > most or not self.written:  # the fence goes before all else
            image = self._encoded(records)
            self.written += 1
            if durable:
                self._last_sync = self.written
            self._send(image, len(records), durable, () if then is None else (then,))
            return
        if not self._gathered:
            self.written += 1
            self._mailbox.gather(self._flush)
        self._gathered += records
        self._gathered_bytes += size
        if then is not None:
            self._gathered_then.append(then)
        if durable:
            self._last_sync = self.written

    def _flush(self) -> None:
        """Sends what was gathered. Nobody was told of it yet, so any failure ends the epoch: the
        answer to a later batch would else release who waits for this one."""
        if not self._gathered or self._failure is not None:
            return
        records, self._gathered, self._gathered_bytes = self._gathered, [], 0
        then, self._gathered_then = tuple(self._gathered_then), []
        try:
            image = self._encoded(records)
            self._send(image, len(records), self._last_sync == self.written, then)
        except Exception as error:
            self.fail(f"batch {self.written} of epoch {self.epoch} was not sent: {error!r}")

    def _send(
        self, image: bytes, span: int, durable: bool, then: Sequence[Callable[[], None]]
    ) -> None:
        number = self.written
        self._mailbox.send(
            self._page,
            [image],
            lambda ack: self._answered(number, span, durable, then, ack),
            sync=durable,
            span=span,
        )
        self._sequence += span

    def _encoded(self, records: Sequence[Record]) -> bytes:
        image = encode_records(
            records,
            BatchIdentity(self._topic.topic_id, 0, self._producer_id, self.epoch, self._sequence),
            base_timestamp=time.time_ns() // 1000,
        )
        most = self._mailbox.frame_max(self._page)
        if len(image) > most:
            raise ResourceLimitError(
                f"a decision of {len(records)} records takes {len(image)} bytes, and a batch of "
                f"the coordinator {most} at most: name fewer partitions at once, or start the node "
                "with a larger lane_capacity"
            )
        return image

    # --- in ---
    def _answered(
        self,
        number: int,
        span: int,
        durable: bool,
        then: Sequence[Callable[[], None]],
        ack: Ack,
    ) -> None:
        if self._failure is not None:
            return
        if ack.error:
            reason = f"batch {number} of epoch {self.epoch} was refused: {error_name(ack.error)}"
            self.fail(reason, elsewhere=ack.error == ErrorCode.NOT_LEADER)
            return
        self._acked = number
        if number == 1:
            self.fence_offset = ack.base_offset
            if self._tenure is not None:
                self._tenure.begin(ack.leader_epoch)
        if self._is_lost():
            return
        if durable:
            self._unsynced.append((number, ack.base_offset + span))
        for call in then:
            call()
        _release(self._ack_waiters, number)
        self.look()

    def look(self) -> None:
        """See what has reached the device. Called whenever the mailbox was woken."""
        if self._is_lost():
            return
        durable = self._state.durable if self._unsynced else 0
        while self._unsynced and self._unsynced[0][1] <= durable:
            self._synced = self._unsynced.popleft()[0]
        _release(self._sync_waiters, self._synced)

    @property
    def leader_epoch(self) -> int | None:
        """In which the fence was appended, where the log is replicated."""
        return None if self._tenure is None else self._tenure.epoch

    def _is_lost(self) -> bool:
        """Whether nothing goes on here; a tenure that is over is noticed."""
        if self._failure is None and self._tenure is not None and (why := self._tenure.lost()):
            self.fail(why, elsewhere=True)
        return self._failure is not None

    @property
    def is_waited(self) -> bool:
        """Whether anything sent is not yet where it has to be."""
        return self._failure is None and (self._acked < self.written or bool(self._unsynced))

    # --- who waits ---
    async def settled(self, *, durable: bool, timeout: float | None) -> None:
        """Until all that was appended so far is acknowledged; `durable`: and all of it that has to
        be on the device is there.

        Raises `PenstockTimeout`: it may still come to be, so the request can be repeated.
        """
        future = self.settling(durable=durable, timeout=timeout)
        if future is not None:
            await future

    def settling(
        self, *, durable: bool, timeout: float | None, result: object = None
    ) -> asyncio.Future[Any] | None:
        """As `settled`, for who waits by a future. None: there is nothing to wait for. `result`: of
        the future, which raises an exception."""
        self.check()
        for_ack = self._acked < self.written
        for_sync = durable and self._synced < self._last_sync
        if not (for_ack or for_sync):
            return None
        waiter = Settling(result)
        if for_ack:
            waiter.left += 1
            self._ack_waiters.append((self.written, waiter))
        if for_sync:
            waiter.left += 1
            self._sync_waiters.append((self._last_sync, waiter))
        if timeout is not None:
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(timeout, self._expire, waiter, timeout)
        return waiter.future

    def _expire(self, waiter: Settling, timeout: float) -> None:
        why = "its writer restarts or the disk is full or slow"
        if self._tenure is not None:
            why += ", or too few replicas of it are in sync"
        waiter.fail(
            PenstockTimeout(
                f"the coordinator's log did not take this within {timeout:g} s: {why}. It may "
                "still be decided; ask again"
            )
        )

    def when_durable(self, call: Callable[[], None]) -> None:
        """Calls that once all that has to be on the device, of what was appended so far, is there.
        Never, where this epoch ends before."""
        if self._synced >= self._last_sync:
            call()
            return

        def done(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                call()

        waiter = Settling(None)
        waiter.left = 1
        waiter.future.add_done_callback(done)
        self._sync_waiters.append((self._last_sync, waiter))

    # --- the end ---
    def check(self) -> None:
        """Raises why nothing goes on in this epoch, if so."""
        if self._is_lost():
            assert self._failure is not None
            raise self._failure

    def fail(self, reason: str, *, elsewhere: bool = False) -> None:
        """Nothing goes on in this epoch: everybody who waits learns so, and the owner. `elsewhere`:
        another broker may be the coordinator by now."""
        if self._failure is not None:
            return
        if elsewhere:
            self._failure = NotLeaderError(
                f"the coordinator of the cluster may be another broker by now ({reason}): the "
                "request may or may not have been decided; ask again there"
            )
        else:
            self._failure = PenstockTimeout(
                f"the node's coordinator lost its log ({reason}) and reads it again: the request "
                "may or may not have been decided; ask again"
            )
        for waiters in (self._ack_waiters, self._sync_waiters):
            for _, waiter in waiters:
                waiter.fail(self._failure)
            waiters.clear()
        self._gathered.clear()
        self._gathered_then.clear()
        self._broken(self._failure)


def _release(waiters: _Waiters, number: int) -> None:
    while waiters and waiters[0][0] <= number:
        waiters.popleft()[1].came()


def error_name(error: int) -> str:
    try:
        return ErrorCode(error).name
    except ValueError:
        return str(error)
