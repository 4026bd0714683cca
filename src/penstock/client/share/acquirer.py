"""Sends answers, asks for leases and reads them between two records that a worker gets.

    answers wait, and the last request was `ack_interval` ago    they are sent, and not waited for
    a poll finds nothing at hand                                 they go with the next acquire
    an acquire brought something                                 the next one is asked as wanted
    it brought nothing                                           the next one once the log has more,
                                                                 or at a notice; never at once
    the coordinator knows this worker no more                    its leases are void, it joins again
    no word of it                                                asked again soon, counted

Owns when to ask. Hands nothing out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from penstock.client.consumer.group.reader import GroupReader
from penstock.client.share.dead_letters import DeadLetters
from penstock.client.share.exchange import ShareExchange
from penstock.client.share.lease_reader import LeaseReader
from penstock.client.share.leases import OpenLeases, runs_of
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc import sharing as sh
from penstock.ipc.doorbell import Backoff
from penstock.ipc.waits import Wait, Waits

logger = logging.getLogger("penstock.consumer")

ANSWERS_WAITING_MAX: Final = 1000
"""Answers that wait are sent at the latest once there are so many."""
LEASES_MAX: Final = sh.HELD_MAX // 2
"""Leases with records that are not answered for, beyond which no further one is asked for."""
PAUSE_MIN: Final = 0.005
PAUSE_MAX: Final = 0.25
"""Seconds between two requests while records are there, but others have them or nobody may."""
RETRY_EVERY: Final = 0.5
"""Seconds until a coordinator that gave no answer is asked again."""
LOOK_EVERY: Final = 5.0
"""Seconds until an idle worker asks all the same, and looks for partitions that are new."""
UNOPENED_EVERY: Final = 0.05
"""Seconds between two looks whether a new partition is open."""


class Acquirer:
    """The part of a worker that decides when to ask the coordinator."""

    def __init__(
        self,
        reader: GroupReader,
        topics: Sequence[str],
        leases: OpenLeases,
        lease_reader: LeaseReader,
        exchange: ShareExchange,
        dead_letters: DeadLetters,
        counts: dict[str, int],
        ack_interval: float,
        max_lease: float,
    ) -> None:
        self._reader = reader
        self._topics = topics
        self._leases = leases
        self._lease_reader = lease_reader
        self._exchange = exchange
        self._dead_letters = dead_letters
        self._counts = counts
        counts.update(
            acquired=0, requests=0, empty=0, request_failures=0, rejoins=0, paused=0, held_up=0
        )
        self._ack_interval = ack_interval
        self._max_lease = max_lease or float("inf")
        self._pauses = Backoff(PAUSE_MIN, PAUSE_MAX)
        self._is_paused = False
        self._was_held_up = False
        self._is_told = False
        """Whether the coordinator gives a notice once there is something to acquire."""
        self._had_work = False
        """Whether there were records that nobody had had, as far as was known, when it asked."""
        self._retry_at = 0.0
        self._ask_at = 0.0
        self._look_at = 0.0
        self._topics_at = 0.0
        self._answer_at = 0.0

    # --- between two records ---
    def is_due(self, now: float) -> bool:
        """Whether answers are to be sent that no acquire takes along."""
        waiting = self._leases.waiting
        return bool(waiting) and (now >= self._answer_at or waiting >= ANSWERS_WAITING_MAX)

    def asks_ahead(self, now: float) -> bool:
        """Whether a loop that has some records left may ask for more meanwhile."""
        if self._exchange.under_way is not None:
            return False
        return bool(self._lease_reader.claims) or self._is_worth_it(now)

    def attending(self, wanted: int, *, waits: bool = True) -> Waits[None]:
        """Does what is due, and fills the queue up to `wanted` records, or as many as there are.

        0 sends answers only. Without `waits` the records asked for may come later.
        """
        now = time.monotonic()
        if self._leases.has_transacted:
            self._leases.take_in()
            self._is_told = False  # who has nothing left may get what is tried one by one
        self._lease_reader.read(wanted, now)
        self._dead_letters.going_on(now)
        if self._reader.is_lost or now < self._ask_at:
            return
        try:
            yield from self._exchanging(wanted, now, waits)
            yield from self._giving_back(wanted)
            if wanted and waits and self._lease_reader.claims and not self._lease_reader.queue:
                yield from self._exchanging(wanted, time.monotonic(), waits)
        except er.UnknownMemberError as error:
            self._put_out(error)
        except er.PenstockError as error:
            if not error.retriable:
                raise
            self._later(error)
            self._lease_reader.read(wanted, time.monotonic())

    def _exchanging(self, wanted: int, now: float, waits: bool) -> Waits[None]:
        queue = self._lease_reader.queue
        if self._exchange.has_answer or (
            self._exchange.under_way is not None and not queue and wanted and waits
        ):
            yield from self._taking_in()
            self._lease_reader.read(wanted, now)
            queue = self._lease_reader.queue
        if self._dead_letters.has_written:
            yield from self.burying()
        if now >= self._topics_at or self._lease_reader.is_gone():
            yield from self._finding(now)
        if wanted:
            self._lease_reader.look_ahead()
        lacking = wanted - self._lease_reader.at_hand - self._leases.unread
        is_due = self.is_due(now)
        # A member that has answered for all its jobs may get those that are tried one by one.
        acquires = lacking > 0 and (is_due or self._is_worth_it(now))
        acquires = acquires and not self._is_held_up()
        claims = self._lease_reader.claims.outgoing()
        if not (acquires or is_due or claims.jobs) or self._exchange.under_way is not None:
            return
        sent = self._leases.outgoing()
        if acquires:
            self._had_work = self._lease_reader.has_work()
        names, ends = self._lease_reader.ends() if acquires else ([], [])
        records_max = 0
        if acquires:
            wished = self._lease_reader.look_through(lacking)
            records_max = min(self._lease_reader.room(wished), sh.RECORDS_MAX)
        yield from self._exchange.posting(records_max, names, ends, sent, claims)
        self._counts["requests"] += 1
        self._answer_at = time.monotonic() + self._ack_interval
        if (acquires or claims.jobs) and not queue and wanted and waits:
            yield from self._taking_in()

    def _giving_back(self, wanted: int) -> Waits[None]:
        """Tells at once what others may have: the worker may be long at what it found."""
        self._lease_reader.read(wanted, time.monotonic())
        if self._lease_reader.has_given_back and self._exchange.under_way is None:
            self._lease_reader.has_given_back = False
            yield from self._exchange.posting(0, [], [], self._leases.outgoing())
            self._counts["requests"] += 1

    def _is_worth_it(self, now: float) -> bool:
        """Whether an acquire may bring something."""
        if self._reader.is_disturbed() or now >= self._look_at:
            return True
        if now < self._retry_at:
            return False
        return not self._is_told or self._lease_reader.has_work()

    @property
    def has_all_leases(self) -> bool:
        """Whether it gets no further jobs before it answers for those of a lease."""
        return len(self._leases) >= LEASES_MAX

    def _is_held_up(self) -> bool:
        """Whether that keeps it from asking. Told once."""
        is_held_up = self.has_all_leases
        if is_held_up and not self._was_held_up:
            self._counts["held_up"] += 1
            if self._counts["held_up"] == 1:
                logger.warning(
                    "share group %s: this worker has %d leases (LEASES_MAX) with jobs that have no "
                    "answer, and gets no further jobs before it answers for all of one: answer, or "
                    "poll for more jobs at a time (told once)",
                    self._exchange.group, LEASES_MAX, extra={"group": self._exchange.group},
                )  # fmt: skip
        self._was_held_up = is_held_up
        return is_held_up

    def _taking_in(self) -> Waits[None]:
        """The answer to what was asked, if there is one."""
        found = yield from self._exchange.collecting()
        if found is None:
            return
        asked, answer = found
        now = time.monotonic()
        topics = {part.topic_id: name[0] for name, part in self._reader.partitions.items()}
        for leased in answer.leases:
            topic = topics.get(leased.topic_id)
            if topic is None:
                # It was deleted, or made again: others have these once the coordinator hears so.
                self._exchange.disown()
            else:
                self._leases.add(
                    topic, leased, asked.at + self._max_lease, answer.at_us - int(now * 1e6)
                )
            if (topic, leased.partition) not in self._reader.partitions:
                self._topics_at = 0.0  # others have told of one that is new here
        for told in answer.condemned:
            if told.topic_id in topics:
                self._dead_letters.add(topics[told.topic_id], told)
        self._dead_letters.going_on(now)
        # Sent again, since nobody knows whether they came, they are no late ones.
        stale = [[] for _ in answer.stale] if asked.is_repeated else answer.stale
        self._leases.confirm(asked.sent, stale)
        self._lease_reader.judged(asked.claims, answer.withheld)
        self._lease_reader.told(asked.partitions, answer.frontiers)
        self._reader.notice = answer.notice
        self._exchange.taken()
        self._is_told = asked.records_max > 0 and not answer.leases
        if not asked.records_max:
            return
        self._look_at = now + LOOK_EVERY
        if answer.is_paused != self._is_paused:
            self._is_paused = answer.is_paused
            logger.warning(
                "share group %s %s", self._exchange.group,
                "is paused: nobody gets jobs until it is resumed" if self._is_paused
                else "goes on, it was paused",
            )  # fmt: skip
        if answer.is_paused:
            self._counts["paused"] += 1
            self._retry_at = now + LOOK_EVERY  # or at a notice
        elif answer.leases:
            self._counts["acquired"] += sum(
                end - first for leased in answer.leases for first, end in leased.runs
            )
            self._pauses.reset()
            self._retry_at = 0.0
        else:
            self._counts["empty"] += 1
            # The pause is for records that others have, or nobody may: many workers wake for each
            # record. A worker that asked without a record in sight asks at once when one comes.
            self._retry_at = now + self._pauses.bound() if self._had_work else 0.0

    def burying(self) -> Waits[None]:
        """Tell the coordinator which dead letters are written."""
        if self._exchange.under_way is not None:
            yield from self._taking_in()
        for (topic_id, partition), offsets in self._dead_letters.written().items():
            runs = [*runs_of(offsets)][: sh.RUNS_MAX]
            yield from self._exchange.burying(topic_id, partition, runs)
            last = runs[-1][1]
            done = [offset for offset in offsets if offset < last]
            self._dead_letters.buried(topic_id, partition, done)

    # --- topics ---
    def joining(self) -> Waits[None]:
        """Becomes a member, and learns which partitions there are."""
        yield from self._reader.finding(self._topics)
        yield from self._finding(time.monotonic())
        yield from self._exchange.joining()

    def _finding(self, now: float) -> Waits[None]:
        """Reads partitions that are not read yet, and lets go of those that were deleted."""
        if self._exchange.under_way is not None:
            yield from self._taking_in()
        self._topics_at = now + LOOK_EVERY
        missing = []
        for topic in self._topics:
            parts = [p for name, p in self._reader.partitions.items() if name[0] == topic]
            try:
                info = (yield from self._reader.finding([topic]))[topic]
            except er.UnknownTopicError as error:
                self._topics_at = now + RETRY_EVERY
                for part in parts:
                    self._lease_reader.lose(part, error)
                continue
            for part in parts:
                if part.topic_id != info.topic_id:
                    self._lease_reader.lose(part, f"topic {topic!r} was made again")
            missing += [
                co.Owned(topic, info.topic_id, number, page, 0, False)
                for number, page in enumerate(info.pages)
                if (topic, number) not in self._reader.partitions
            ]
        opened = [one for one in missing if one.page >= 0 and self._reader.is_open(one)]
        if opened:
            yield from self._reader.placing(opened)
        if len(opened) < len(missing):
            self._topics_at = now + UNOPENED_EVERY

    # --- what fails ---
    def _put_out(self, error: er.PenstockError) -> None:
        logger.warning("group %s; its leases are void, joining again", error)
        self._counts["rejoins"] += 1
        self._exchange.forget()
        self._leases.forget()
        self._lease_reader.forget()
        self._is_told = False
        self._ask_at = time.monotonic() + self._pauses.bound()

    def _later(self, error: er.PenstockError) -> None:
        logger.info("no word of the coordinator: %s", error)
        self._counts["request_failures"] += 1
        self._is_told = False
        self._ask_at = time.monotonic() + RETRY_EVERY

    # --- waiting ---
    def sleeping(self, bound: float) -> Waits[None]:
        """Until there may be work, an answer is to be sent, or so many seconds are over."""
        leases, reader, lease_reader = self._leases, self._reader, self._lease_reader
        leases.waking(reader.session.doorbell.ring)
        try:
            now = time.monotonic()
            noted = leases.waiting
            wakes = [self._topics_at, self._look_at]
            if lease_reader.claims:
                wakes.append(now)
            if noted:
                wakes.append(self._answer_at)
            is_held_up = now < self._retry_at and not leases.unread
            if is_held_up:
                wakes.append(self._retry_at)
            if now < self._ask_at:
                wakes, is_held_up = [self._ask_at], True

            def has_news() -> bool:
                if leases.waiting > noted or leases.has_transacted:
                    return True
                if self._dead_letters.has_written:
                    return True
                if reader.is_disturbed() and not leases.unread:
                    return True
                return not is_held_up and lease_reader.has_news()

            bound = min([bound, *(max(wake - now, 0.001) for wake in wakes)])
            if now < self._ask_at:
                yield Wait(bound)
            else:
                yield from reader.sleeping(bound, has_news)
        finally:
            leases.waking(None)

    def flushing(self, deadline: float) -> Waits[None]:
        """Sends all answers, and waits until the coordinator has them. Raises what refuses them,
        and `PenstockTimeout` or `NotConnectedError` where nobody says a word until then."""
        pauses = Backoff(PAUSE_MIN, PAUSE_MAX)
        exchange = self._exchange
        while exchange.under_way is not None or self._leases.is_unsent or exchange.has_lost:
            left = deadline - time.monotonic()
            try:
                if self._exchange.under_way is not None:
                    yield from self._taking_in()
                else:
                    yield from self._exchange.posting(0, [], [], self._leases.outgoing())
                    self._counts["requests"] += 1
                continue
            except er.UnknownMemberError as error:
                self._put_out(error)
                return
            except er.PenstockError as error:
                if not error.retriable or left <= 0:
                    raise
                is_lost = isinstance(error, er.NotConnectedError)
            yield Wait(min(pauses.bound(), max(left, 0.0)))
            if is_lost:
                try:
                    yield from self._reader.reattaching(max(left, 0.0))
                except er.PenstockError as error:
                    if not error.retriable:
                        raise
        self._answer_at = time.monotonic() + self._ack_interval
