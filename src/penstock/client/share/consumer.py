"""The consumer of a share group: many workers share each partition, and answer for each record.

A worker keeps a record until it answers, leaves or its process ends; no clock takes it away.
Answers are collected and sent together, by the thread that polls or loops; any thread may give
them. Over the node's restarts the worker stays the same, with its leases.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from penstock.client import api_hints, fork_safety, process_exit
from penstock.client.closing import Closing
from penstock.client.consumer.consumer import FAR_PATIENCE
from penstock.client.consumer.group.membership import GroupMembership
from penstock.client.consumer.group.reader import GroupReader
from penstock.client.consumer.group.run_length import RunPace
from penstock.client.reconnect import RECONNECT_MAX
from penstock.client.remote.address import Place
from penstock.client.session import Session
from penstock.client.share.acquirer import Acquirer
from penstock.client.share.dead_letters import DeadLetters
from penstock.client.share.exchange import ShareExchange
from penstock.client.share.jobs import Job
from penstock.client.share.lease_reader import LeaseReader
from penstock.client.share.leases import OpenLeases
from penstock.client.share.look_ahead import LookAhead
from penstock.client.share.options import (
    check_share_options,
    dead_letter_topics,
    share_settings,
)
from penstock.client.typed import K, Typed, V
from penstock.client.validation import check_records_max
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.doorbell import Backoff
from penstock.ipc.waits import Waits, run
from penstock.serializers.serializer import Serializer

logger = logging.getLogger("penstock.consumer")

CLOSE_TIMEOUT: Final = 2.0
"""Seconds that closing waits for its last answers, and as long for a dead letter under way."""
AHEAD_MIN: Final = 32
"""Records that a loop works off in a tenth of a second, for the next ones to be asked for ahead."""


class ShareConsumer(Typed[V, K], Closing, api_hints.Elsewhere):
    """Works on a queue. Made by `Client.share_consumer`. One thread polls, flushes and closes; any
    thread may answer for jobs.

    Args:
        group: its name. Each record of the topics goes to one worker of the group at a time.
        max_deliveries: after so many that failed a record becomes a dead letter; None: no end.
        backoff: (first, longest) seconds that a failed record waits: up to `first` at first, twice
            as long each time, drawn at random below that.
        start: "earliest" or "latest": where a group begins that is new.
        max_lease: seconds after which others get a job that has no answer, unless it was extended
            (`Job.extend`); None: it stays with its worker.
        dead_share: the group is paused, until an operator resumes it, once more than this part of
            the records that end within a minute become dead letters; None: never.
        dedup_window: of the records of a partition with the same key and `dedup_id`, whose
            timestamps are at most so many seconds apart, the first is delivered, and the others are
            done at once; None: each is delivered. These six are the group's: the worker that joined
            last tells them.
        order: "key": of one key one job at a time is worked on, in the order of the log; None: no
            order.
        fair: who comes first where there are more jobs than workers: the tenant, by "key" or
            "header:NAME", with the fewest jobs under way; None: the lowest offset. These two are
            the same of all workers of a group: one that says otherwise is refused.
        max_records: records that a poll brings without a number of its own, at most; a loop asks
            for what it works off in a tenth of a second, up to as many.
        prefetch_bytes: what is read ahead of the worker, in bytes (and at least a batch). Batches
            of which single records come, which were delayed, are kept in up to four times as much.
        ack_interval: seconds between two requests that only carry answers. An answer waits for the
            next call, an acquire, or `flush`; never for another thread.
        dead_letters: the topic for what cannot be done; "{topic}" is the record's. None: nothing is
            kept of it.
        session_timeout: seconds for which a worker that lost its connection, from another host,
            keeps what it has. On the node's own host it keeps it while its process lives.
        node_timeout: seconds without a node after which `poll` raises `NotConnectedError`.
        timeout: seconds that a request to the coordinator may take.
        value, key: serializers of `penstock.serializers`; see `Consumer`.
    """

    def __init__(
        self,
        socket: Place,
        topics: Sequence[str] = (),
        *,
        group: str,
        max_deliveries: int | None = 5,
        backoff: tuple[float, float] = (1.0, 300.0),
        start: str = "earliest",
        max_lease: float | None = None,
        dead_share: float | None = None,
        order: str | None = None,
        fair: str | None = None,
        dedup_window: float | None = 600.0,
        max_records: int = 500,
        prefetch_bytes: int = 4 << 20,
        ack_interval: float = 0.005,
        dead_letters: str | None = "{topic}.dlq",
        session_timeout: float = 10.0,
        node_timeout: float = 30.0,
        timeout: float = 5.0,
        value: Serializer[V] | None = None,
        key: Serializer[K] | None = None,
        client_id: str = "",
        session: Session | None = None,
    ) -> None:
        topics = check_share_options(
            group, topics, max_records, prefetch_bytes, ack_interval, session_timeout
        )
        settings = share_settings(
            max_deliveries, backoff, start, max_lease, dead_share, order, fair, dedup_window
        )
        letters_to = dead_letter_topics(dead_letters, topics)
        self.group = group
        self._max_records = max_records
        self._timeout = timeout
        self._closed = False
        self._given: list[Job[V, K]] = []
        """Jobs that a poll has taken out of the queue, until the caller gets them."""
        self._pace = RunPace()
        self._polled = (0, 0.0)
        """How many jobs the last poll brought, and when."""
        self._counts: dict[str, int] = {}
        self._reader = GroupReader(
            socket, isolation="read_committed", prefetch_bytes=prefetch_bytes, client_id=client_id,
            node_timeout=node_timeout, timeout=timeout, session=session, value=value, key=key,
        )  # fmt: skip
        join = co.JoinGroup(group, "", topics, None, "shared", session_timeout=session_timeout)
        self._member = GroupMembership(self._reader, join, timeout)
        self._leases = OpenLeases(group, self._counts, lambda: self._member.member_id)
        self._lease_reader = LeaseReader(
            self._reader, self._leases, self._counts, prefetch_bytes,
            LookAhead(settings, prefetch_bytes), dedup_window is not None,
        )  # fmt: skip
        exchange = ShareExchange(self._reader, self._member, self._leases, settings, timeout)
        self._letters = DeadLetters(
            socket, group, letters_to, client_id, self._counts, self._leases.wake_up
        )
        self._acquirer = Acquirer(
            self._reader, topics, self._leases, self._lease_reader, exchange, self._letters,
            self._counts, ack_interval, settings.max_lease,
        )  # fmt: skip
        self.thread = threading.get_ident()  # that polled last
        if session is None:
            self._leases.extending = self._extending
        fork_safety.remember(self)
        process_exit.remember_member(self)
        if session is None:
            try:
                run(self.joining())
            except BaseException:
                self.close()
                raise

    def joining(self) -> Waits[None]:
        """Becomes a member; done by the constructor, unless it was given a session."""
        yield from self._acquirer.joining()

    # --- getting jobs ----------------------------------------------------------------------------
    def poll(
        self,
        max_records: int | None = None,
        timeout: float | None = 0.0,
        *,
        is_exact: bool = False,
    ) -> list[Job[V, K]]:
        """Returns jobs that are there, at most so many, or the first that come within `timeout`.

        `timeout` is in seconds (None: no limit). Nothing there is an empty list. The caller
        answers each job. If it works them off within a twentieth of a second, the consumer asks
        for as many more meanwhile; not with `is_exact`. The jobs of a partition that one request
        brings are a lease. A worker that has 250 leases (`LEASES_MAX`) with jobs without an answer
        gets nothing more. That is logged once, and counted (`held_up`).

        Raises `NotConnectedError` (no node for `node_timeout`), and what the coordinator refuses
        with. Records of a partition that cannot be read are logged and counted, and do not raise.
        """
        jobs = run(self.polling(max_records, timeout, is_exact=is_exact))
        self.brought()
        return jobs

    def polling(
        self, max_records: int | None, timeout: float | None, *, is_exact: bool = False
    ) -> Waits[list[Job[V, K]]]:
        """`poll`, with the waiting left to another one. Once the caller gets what it returns,
        `brought` is to be called. `is_exact`: it never asks for more meanwhile."""
        if max_records is not None:
            check_records_max(max_records)
        wanted = max_records or self._max_records
        count, since = self._polled
        if count:
            self._pace.note(count, time.monotonic() - since)
        yield from self._filling(wanted, timeout)
        is_ahead = not is_exact and self._pace.records >= max(2 * wanted, AHEAD_MIN)
        if self._lease_reader.queue and is_ahead:
            count = min(len(self._lease_reader.queue), wanted)
            yield from self._acquirer.attending(count + wanted, waits=False)
        queue = self._lease_reader.queue
        given = list(islice(queue, wanted))
        rest = type(queue)(islice(queue, wanted, None))
        self._polled = len(given), time.monotonic()
        # In one go, for interrupts: what the caller does not get goes back.
        self._given, self._lease_reader.queue = given, rest
        return given

    def brought(self) -> None:
        """The caller gets what a poll has returned."""
        self._given = []

    def watching(self, seconds: float) -> Waits[None]:
        """Waits until a poll may bring something, or so many seconds are over: for a thread that
        looks after several consumers. It may be given up at any time."""
        return self._acquirer.sleeping(seconds)

    @property
    def has_more(self) -> bool:
        """Whether a poll may bring something, as far as is known: the log has more, or the
        coordinator has something to say."""
        return self._lease_reader.has_news() or self._reader.is_disturbed()

    def filling(self) -> Waits[None]:
        """Waits until a loop over jobs has something to hand out."""
        yield from self._filling(self._loop_size, None)

    def _filling(self, wanted: int, timeout: float | None) -> Waits[None]:
        """Waits until the queue is not empty."""
        reader, lease_reader, acquirer = self._reader, self._lease_reader, self._acquirer
        reader.check_usable()
        self.thread = threading.get_ident()
        if self._given:
            queue = type(lease_reader.queue)([*self._given, *lease_reader.queue])
            self._given, lease_reader.queue = [], queue
        deadline = None if timeout is None else time.monotonic() + timeout
        backoff = Backoff()
        while True:
            reader.polled()
            lease_reader.give_back_old(time.monotonic())
            yield from acquirer.attending(wanted)
            if lease_reader.queue:
                return
            left = None if deadline is None else deadline - time.monotonic()
            yield from reader.minding(RECONNECT_MAX if left is None else left)
            if left is not None and left <= 0:
                if not self._leases.unread or left <= -FAR_PATIENCE:
                    return
                left += FAR_PATIENCE
            bound = backoff.bound() if left is None else min(backoff.bound(), left)
            yield from acquirer.sleeping(bound)

    def __iter__(self) -> Iterator[Job[V, K]]:
        """Every job, one by one, for ever. Each is to be answered for: `with job:` does it. An
        exception that leaves the loop's body ends the loop as it ends any other, and another loop
        goes on with the next job."""
        while True:
            run(self.filling())
            for job in self.handing_out():
                if job is None:
                    run(self.attending())
                else:
                    yield job

    def handing_out(self) -> Iterator[Job[V, K] | None]:
        """Yields the jobs in the queue, one by one. None: `attending` is to be carried out."""
        reader, acquirer = self._lease_reader, self._acquirer
        begun, count = time.monotonic(), 0
        low = self._loop_size // 2 if self._loop_size >= AHEAD_MIN else 0
        now = begun
        while reader.queue:
            if reader.queue[0].is_over(now):
                reader.give_back_old(now)
                continue
            queue = reader.queue
            job = queue[0]
            try:
                queue.popleft()
            except BaseException:  # of a signal's handler: it was handed to nobody
                if not queue or queue[0] is not job:
                    queue.appendleft(job)
                raise
            yield job
            count += 1
            now = time.monotonic()
            if len(queue) < low:
                low = 0  # once a pass
                if acquirer.asks_ahead(now):
                    yield None
                    continue
            if acquirer.is_due(now):
                yield None
        if count:
            self._pace.note(count, time.monotonic() - begun)

    def attending(self) -> Waits[None]:
        """Does what is due between two jobs of a loop: answers, and more jobs for a fast one."""
        self._reader.check_usable()
        yield from self._reader.minding(0.0)
        size = self._loop_size
        is_ahead = size >= AHEAD_MIN and len(self._lease_reader.queue) < size // 2
        yield from self._acquirer.attending(size if is_ahead else 0)

    @property
    def _loop_size(self) -> int:
        """Number of jobs that a loop keeps at hand: its work of a tenth of a second."""
        return min(self._pace.records, self._max_records)

    # --- answers ---------------------------------------------------------------------------------
    def ack_many(self, jobs: Iterable[Job[Any, Any]]) -> None:
        """All of these are done."""
        for job in jobs:
            job.ack()

    @property
    def is_behind(self) -> bool:
        """Whether there are answers that are in no request yet."""
        return self._leases.waiting > 0

    @property
    def has_unsent(self) -> bool:
        """Whether the coordinator is not known to have all answers that were given."""
        return self._leases.is_unsent

    def flush(self, timeout: float | None = None) -> None:
        """Sends all answers that were given, and waits until the coordinator has them: they outlive
        the worker and the node then, but for those that came too late, which the counter `stale`
        tells. `timeout`: seconds; None: as the consumer's.

        Raises `PenstockTimeout` or `NotConnectedError` without an answer until then; they are kept,
        and sent again."""
        run(self.flushing(timeout))

    def on_extension(self, send: Callable[[], None]) -> None:
        """Sets what is called once a job asked for more time, in place of a wait for an answer."""
        self._leases.extending = send

    def _extending(self) -> None:
        if threading.get_ident() == self.thread:
            self.flush()

    def flushing(self, timeout: float | None = None) -> Waits[None]:
        """`flush`, with the waiting left to another one."""
        self._reader.check_usable()
        yield from self._acquirer.flushing(
            time.monotonic() + (self._timeout if timeout is None else timeout)
        )

    # --- life ------------------------------------------------------------------------------------
    @property
    def member_id(self) -> str:
        """By which the coordinator knows it."""
        return self._member.member_id

    def metrics(self) -> dict[str, int]:
        """Counters since the consumer was made."""
        reader = self._reader.metrics()
        return {**self._counts, "reconnects": reader["reconnects"], "aborted": reader["aborted"]}

    def _described(self) -> str:
        who = f"of group {self.group!r}"
        if self._closed:
            return f"{who}, closed"
        held, at_hand = self._leases.records, len(self._lease_reader.queue)
        full = ", by as many leases as it may have" if self._acquirer.has_all_leases else ""
        return f"{who}: {held} records held, {at_hand} of them at hand{full}"

    def close(self) -> None:
        """Sends the answers, gives back the rest (it counts as no delivery), leaves the group."""
        run(self.closing())

    def closing(self, *, commits: bool = True) -> Waits[None]:
        """`close`, with the waiting left to another one. Without `commits` acks that are not sent
        yet are given back, too: what was made of these jobs may not be delivered."""
        reader = self._reader
        if reader.is_left:
            return
        self._closed = True
        fork_safety.forget(self)
        process_exit.forget_member(self)
        try:
            if not (reader.was_forked or reader.is_closed):
                yield from self._saying_goodbye(commits)
        finally:
            self._leases.forget()
            self._lease_reader.forget()
            self._given = []
            reader.close()

    def _saying_goodbye(self, commits: bool) -> Waits[None]:
        try:
            deadline = time.monotonic() + CLOSE_TIMEOUT
            for _ in range(2):  # the first brings what was under way
                self._leases.release_all(accepts=commits)
                yield from self._acquirer.flushing(deadline)
            self._letters.close(CLOSE_TIMEOUT)
            yield from self._acquirer.burying()
        except er.PenstockError as error:
            logger.warning("closing a worker of share group %s: %s", self.group, error)
        finally:
            yield from self._member.leaving()

    def after_fork_in_child(self) -> None:
        """The worker stays the parent's: the child is told to make its own (rule 7)."""
        self._closed = True
