"""Control batches in the partitions of transactions: BEGIN before data, COMMIT or ABORT after.

    decided ──durable──► sent ──acked──► written ──durable──► marked, a record of the machine
       ▲                  │ refused for now (offline, restarting): sent again in a while
       └── at a start, what the log says is unmarked

In a cluster they go to the leader of the partition (`control_batches`), and written is committed. A
leader that is unknown, or not one any more, is a refusal for now.

Nobody waits for more than `written`; `unsynced_markers` says why a record of it has to.

The machine's state tells which markers are missing. So this goes on over deaths of writers and
restarts of the node until all is marked. Partitions of deleted topics count as marked. Owns who
waits for markers. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from penstock.cluster.transactions import Marking, TransactionMachine
from penstock.core.control import ControlType, encode_control
from penstock.core.errors import (
    ErrorCode,
    LogOfflineError,
    PenstockError,
    PenstockTimeout,
    ProducerFencedError,
    TransactionError,
    UnknownTopicError,
)
from penstock.ipc.lane import Ack
from penstock.ipc.state import StatePage
from penstock.server.coordinator.control_batches import Carriage
from penstock.server.coordinator.decision_log import Journal, error_name
from penstock.server.coordinator.unsynced_markers import Unsynced, Written

logger = logging.getLogger("penstock.coordinator")

RETRY: Final = 1.0
"""Seconds until a marker that was refused is sent again."""
RETRY_ELSEWHERE: Final = 0.05
"""The same where another broker leads now or will soon; doubled each time, up to `RETRY`."""

Place = tuple[bytes, int]
Missing = tuple[int, int, Place]
"""A marker: producer id, epoch of the transaction, where."""


class Markers:
    """For one life of the machine. `pages`: those of each topic there is; `page`: the state of one.
    `marked`: these partitions have their markers; the coordinator decides so."""

    def __init__(
        self,
        transactions: TransactionMachine,
        carriage: Carriage,
        journal: Journal,
        pages: Callable[[], Mapping[bytes, Sequence[int]]],
        marked: Callable[[int, int, set[Place]], None],
        page: Callable[[int], StatePage],
    ) -> None:
        self._transactions = transactions
        self._carriage = carriage
        self._journal = journal
        self._pages = pages
        self._tell_marked = marked
        self._loop = asyncio.get_running_loop()
        self._under_way: set[Missing] = set()
        self._done: dict[tuple[int, int], set[Place]] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self._opening: set[asyncio.Future[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._elsewhere = RETRY_ELSEWHERE
        self._failure: PenstockError | None = None
        self._state = page
        self._unsynced = Unsynced(
            carriage.durable,
            self._synced,
            self._sync,
            lambda at, written: self.page(written.place) != at,
        )
        self._turn = False
        self.sent = self.refused = 0

    # --- COMMIT and ABORT ---
    def look(self) -> None:
        """Something may have been decided: what misses a marker gets it once that is durable."""
        found = [
            (marking, missing)
            for marking in self._transactions.unmarked()
            if (missing := self._fresh(marking))
        ]
        if not found:
            return
        for marking, places in found:
            self._under_way.update((marking.producer_id, marking.epoch, each) for each in places)
        self._journal.when_durable(lambda: self._send_all(found))

    def _fresh(self, marking: Marking) -> list[Place]:
        who = marking.producer_id, marking.epoch
        return sorted(place for place in marking.places if (*who, place) not in self._under_way)

    def _send_all(self, found: list[tuple[Marking, list[Place]]]) -> None:
        if self._failure is not None:
            return
        for marking, places in found:
            kind = ControlType.COMMIT if marking.commit else ControlType.ABORT
            for place in places:
                self._send_marker(kind, marking.producer_id, marking.epoch, place)

    def _send_marker(self, kind: ControlType, producer_id: int, epoch: int, place: Place) -> None:
        page = self.page(place)
        if page is None:
            self._note(producer_id, epoch, place)
            return
        self.sent += 1
        try:
            self._send(
                kind,
                page,
                place,
                producer_id,
                epoch + 1,
                lambda ack: self._answered(kind, producer_id, epoch, place, ack),
            )
        except PenstockError as error:
            self._again(kind, producer_id, epoch, place, str(error))

    def _send(
        self,
        kind: ControlType,
        page: int,
        place: Place,
        producer_id: int,
        producer_epoch: int,
        answered: Callable[[Ack], None],
        *,
        sync: bool = False,
    ) -> None:
        topic_id, partition = place
        image = encode_control(
            kind,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=self._journal.epoch,
            timestamp=time.time_ns() // 1000,
            topic_id=topic_id,
            partition=partition,
        )
        self._carriage.send(page, place, image, answered, sync=sync)

    def _answered(
        self, kind: ControlType, producer_id: int, epoch: int, place: Place, ack: Ack
    ) -> None:
        if self._failure is not None:
            return
        # Fenced there by a later epoch: that began only after this marker was in the log.
        if ack.error not in (ErrorCode.NONE, ErrorCode.STALE_PRODUCER_EPOCH):
            elsewhere = ack.error == ErrorCode.NOT_LEADER
            why = error_name(ack.error)
            self._again(kind, producer_id, epoch, place, why, elsewhere=elsewhere)
            return
        self._elsewhere = RETRY_ELSEWHERE
        page = self.page(place)
        if page is None:
            self._note(producer_id, epoch, place)
            return
        known = ack.base_offset >= 0
        end = ack.base_offset + 1 if known else self._state(page).log_end
        self._transactions.wrote(producer_id, epoch, place)
        self._under_way.discard((producer_id, epoch, place))
        self._soon()
        self._unsynced.add(page, Written(kind, producer_id, epoch, place, end))

    def _synced(self, written: Written) -> None:
        self._note(written.producer_id, written.epoch, written.place)

    def _sync(self, page: int, written: Written) -> None:
        """The same once more is answered with where it is, and this time asks for a sync."""
        kind, producer_id, epoch, place, _ = written
        try:
            self._send(kind, page, place, producer_id, epoch + 1, self._resent, sync=True)
        except PenstockError as error:
            logger.warning("a marker is not synced yet: %s", error)

    def _resent(self, _: Ack) -> None:
        """Another broker answers that once it is synced."""
        self.look_at_syncs()

    def look_at_syncs(self) -> None:
        """The mailbox was woken: maybe because something was synced."""
        if self._failure is None:
            self._unsynced.look()

    def abort_hung(self, producer_id: int, epoch: int, place: Place) -> None:
        """Aborts what no decision knows of; asked again while it is still open."""
        page = self.page(place)
        if page is None:
            return
        self.sent += 1
        try:
            self._send(ControlType.ABORT, page, place, producer_id, epoch + 1, _ignored)
        except PenstockError as error:
            logger.warning("a hung transaction is not aborted yet: %s", error)

    def _again(
        self,
        kind: ControlType,
        producer_id: int,
        epoch: int,
        place: Place,
        why: str,
        *,
        elsewhere: bool = False,
    ) -> None:
        """Not now: the partition is offline, or its topic is being deleted, or another leads."""
        self.refused += 1
        delay = self._elsewhere if elsewhere else RETRY
        logger.log(
            logging.INFO if elsewhere else logging.WARNING,
            "%s of producer %d epoch %d is sent to partition %d of topic %s again in %g s: %s",
            kind.name, producer_id, epoch, place[1], place[0].hex(), delay, why,
            extra={"reason": why, "producer_id": producer_id},
        )  # fmt: skip
        self._under_way.discard((producer_id, epoch, place))
        if self._retry is None:
            self._retry = self._loop.call_later(delay, self._look_again)
            if elsewhere:
                self._elsewhere = min(2 * self._elsewhere, RETRY)

    def _look_again(self) -> None:
        self._retry = None
        self.look()

    def _note(self, producer_id: int, epoch: int, place: Place) -> None:
        """Notes that it is marked there. All notes of one turn become one decision."""
        self._soon()
        self._done.setdefault((producer_id, epoch), set()).add(place)

    def _soon(self) -> None:
        if not self._turn:
            self._turn = True
            self._loop.call_soon(self._decide)

    def _decide(self) -> None:
        done, self._done = self._done, {}
        self._turn = False
        if self._failure is not None:
            return
        for (producer_id, epoch), places in done.items():
            self._tell_marked(producer_id, epoch, places)
            self._under_way.difference_update((producer_id, epoch, place) for place in places)
        self.look()  # an older marker may have held others back
        self._wake()

    # --- BEGIN ---
    async def begin(
        self, producer_id: int, epoch: int, places: Iterable[Place], timeout: float
    ) -> None:
        """Open the transaction of this epoch in these partitions, and wait until that is so."""
        answers: list[asyncio.Future[None]] = []
        for place in places:
            page = self.page(place)
            if page is None:
                raise UnknownTopicError(f"there is no partition {place[1]} of {place[0].hex()}")
            answer: asyncio.Future[None] = self._loop.create_future()
            answers.append(answer)
            self._opening.add(answer)
            answer.add_done_callback(self._opening.discard)
            self._begin_in(producer_id, epoch, place, page, answer)
        if not answers:
            return
        done, late = await asyncio.wait(answers, timeout=timeout)
        for each in late:
            each.cancel()
        failures = [each.exception() for each in done]
        for failure in failures:
            if failure is not None:
                raise failure
        if late:
            raise PenstockTimeout(
                f"the transaction could not be opened in {len(late)} of {len(answers)} partitions "
                f"within {timeout:.1f} s: their writers restart, or the disk is full. Ask again"
            )

    def _begin_in(
        self,
        producer_id: int,
        epoch: int,
        place: Place,
        page: int,
        answer: asyncio.Future[None],
        *,
        again: bool = False,
        delay: float = RETRY_ELSEWHERE,
    ) -> None:
        def answered(ack: Ack) -> None:
            if ack.error == ErrorCode.NOT_LEADER:
                later = min(2 * delay, RETRY)
                self._loop.call_later(delay, self._begin_again, begin, answer, later)
                return
            if again or ack.error != ErrorCode.OUT_OF_ORDER_SEQUENCE or answer.done():
                _begun(answer, place, ack)
                return
            # An older one is open there. All that was ever decided of this producer is marked, so
            # a power cut has taken what was known of it: it is hung, as those that
            # `orphan_transactions` finds.
            logger.warning(
                "producer %d has a transaction older than epoch %d open in partition %d of topic "
                "%s, of which nothing is known: it is aborted",
                producer_id, epoch, place[1], place[0].hex(),
                extra={"producer_id": producer_id, "reason": "hung"},
            )  # fmt: skip
            self.sent += 1
            try:
                self._send(ControlType.ABORT, page, place, producer_id, epoch, _ignored)
                self._begin_in(producer_id, epoch, place, page, answer, again=True)
            except PenstockError as error:
                answer.set_exception(error)

        begin = producer_id, epoch, place
        self._send(ControlType.BEGIN, page, place, producer_id, epoch, answered)

    def _begin_again(self, begin: Missing, answer: asyncio.Future[None], delay: float) -> None:
        """Sends BEGIN again, to the present leader, for as long as somebody waits for it."""
        if answer.done():
            return
        producer_id, epoch, place = begin
        page = self.page(place)
        try:
            if page is None:
                raise UnknownTopicError(f"there is no partition {place[1]} of {place[0].hex()}")
            self._begin_in(producer_id, epoch, place, page, answer, delay=delay)
        except PenstockError as error:
            answer.set_exception(error)

    # --- who waits ---
    def page(self, place: Place) -> int | None:
        """The page of a partition; None when its topic is gone."""
        pages = self._pages().get(place[0], ())
        return pages[place[1]] if 0 <= place[1] < len(pages) else None

    def misses(self, producer_id: int, epoch: int | None, places: Iterable[Place] = ()) -> bool:
        """Whether a marker of that producer is missing: of transactions up to this epoch (None: of
        any), in one of these partitions (none named: anywhere)."""
        wanted = set(places)
        return any(
            marking.producer_id == producer_id
            and (epoch is None or marking.epoch <= epoch)
            and (not wanted or not wanted.isdisjoint(marking.places))
            for marking in self._transactions.unmarked()
        )

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Waits until markers make that true; False when time ran out."""
        deadline = time.monotonic() + timeout
        while not condition():
            if self._failure is not None:
                raise self._failure
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait_for(waiter, max(0.0, deadline - time.monotonic()))
            except PenstockError:
                raise  # of `close`
            except TimeoutError:
                return condition()
            finally:
                self._waiters.discard(waiter)
        return True

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self, failure: PenstockError) -> None:
        """Ends this life of the machine: everybody who waits gets the failure."""
        self._failure = failure
        self._carriage.close()
        self._unsynced.close()
        if self._retry is not None:
            self._retry.cancel()
        for waiter in (*self._waiters, *self._opening):
            if not waiter.done():
                waiter.set_exception(failure)


def _ignored(_: Ack) -> None:
    """Whether it helped is seen in the state page."""


def _begun(answer: asyncio.Future[None], place: Place, ack: Ack) -> None:
    if answer.done():
        return
    if not ack.error:
        answer.set_result(None)
        return
    what = f"the transaction cannot be opened in partition {place[1]} of topic {place[0].hex()}"
    name = error_name(ack.error)
    kinds: dict[str, type[PenstockError]] = {
        "PARTITION_OFFLINE": LogOfflineError,
        "UNKNOWN_PARTITION": UnknownTopicError,
        "STALE_PRODUCER_EPOCH": ProducerFencedError,
    }
    answer.set_exception(kinds.get(name, TransactionError)(f"{what}: {name}"))
