"""The coordinator's log: decisions appended in order, and what of them is acknowledged and durable.

    open(epoch) ── fence ──► append, append, ... ──► settled: all so far acknowledged
                                  │                         and, where asked, on the device
                                  ├─ refused for good ─────┐
                                  └─ another leader epoch ─┴► broken: everything waiting fails

Each decision is one batch of the coordinator's producer id, whose producer epoch is the coordinator
epoch: what an earlier epoch left in any lane is refused once the fence, the first batch of an
epoch, is in the log (rule 17). In a cluster acknowledged means committed, and what began in one
leader epoch of the log's partition ends with it: the next leader has a coordinator of its own. Owns
sequences and who waits. Never reads the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

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
        """Batches appended in this epoch."""
        self._acked = 0
        self._synced = 0
        self._last_sync = 0
        self._unsynced: deque[tuple[int, int]] = deque()  # (batch, its next offset), in order
        self._ack_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._sync_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.fence_offset = -1

    # --- out ---
    def append(
        self,
        records: Sequence[Record],
        *,
        durable: bool,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Sends a decision on its way; `then` is called once it is acknowledged. Raises, with
        nothing sent, where it can never be written."""
        self.check()
        image = self._encoded(records)
        number = self.written + 1
        span = len(records)
        self._mailbox.send(
            self._page,
            [image],
            lambda ack: self._answered(number, span, durable, then, ack),
            sync=durable,
            span=span,
        )
        self.written = number
        self._sequence += span
        if durable:
            self._last_sync = number

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
        then: Callable[[], None] | None,
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
        if then is not None:
            then()
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
        self.check()
        waits = []
        if self._acked < self.written:
            waits.append(self._wait(self._ack_waiters, self.written))
        if durable and self._synced < self._last_sync:
            waits.append(self._wait(self._sync_waiters, self._last_sync))
        if not waits:
            return
        try:
            await asyncio.wait_for(asyncio.gather(*waits), timeout)
        except PenstockError:
            raise  # of `fail`
        except TimeoutError:
            why = "its writer restarts or the disk is full or slow"
            if self._tenure is not None:
                why += ", or too few replicas of it are in sync"
            raise PenstockTimeout(
                f"the coordinator's log did not take this within {timeout:g} s: {why}. It may "
                "still be decided; ask again"
            ) from None

    def _wait(
        self, waiters: deque[tuple[int, asyncio.Future[None]]], number: int
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append((number, future))
        return future

    def when_durable(self, call: Callable[[], None]) -> None:
        """Calls that once all that has to be on the device, of what was appended so far, is there.
        Never, where this epoch ends before."""
        if self._synced >= self._last_sync:
            call()
            return

        def done(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                call()

        self._wait(self._sync_waiters, self._last_sync).add_done_callback(done)

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
            for _, future in waiters:
                if not future.done():
                    future.set_exception(self._failure)
            waiters.clear()
        self._broken(self._failure)


def _release(waiters: deque[tuple[int, asyncio.Future[None]]], number: int) -> None:
    while waiters and waiters[0][0] <= number:
        _, future = waiters.popleft()
        if not future.done():
            future.set_result(None)


def error_name(error: int) -> str:
    try:
        return ErrorCode(error).name
    except ValueError:
        return str(error)
