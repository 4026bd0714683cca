"""The consumer of a group: how it reads, and what happens between two batches.

The coordinator in the node says which partitions are this member's; a change is announced by one
word in shared memory, looked at once a batch. Whatever follows from it - commits, letting go,
listeners - happens in the caller's thread, inside `poll` or between two runs of a loop. Asking for
more says that all that was handed out before is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from penstock.client import api_hints, fork_safety, process_exit
from penstock.client.closing import Closing
from penstock.client.consumer.consumer import END_POLL, FAR_PATIENCE, Start
from penstock.client.consumer.group.at_most_once import Claims
from penstock.client.consumer.group.consumed import Committed, GroupBatch, as_batch, as_committed
from penstock.client.consumer.group.iteration import Looping, Runs
from penstock.client.consumer.group.membership import GroupMembership, stale_error
from penstock.client.consumer.group.offset_commits import Commits
from penstock.client.consumer.group.options import GUARANTEES, Guarantee, check_group_options
from penstock.client.consumer.group.reader import UNSEEN, GroupReader
from penstock.client.consumer.group.rebalance import LOOK_SECONDS, Changes, Listener
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk, Record
from penstock.client.public_view import shortened
from penstock.client.reconnect import RECONNECT_MAX
from penstock.client.remote.address import Place
from penstock.client.session import Session, as_topic
from penstock.client.typed import K, Typed, V
from penstock.client.validation import as_spelt
from penstock.core import errors as er
from penstock.ipc import coordination as co
from penstock.ipc.doorbell import Backoff
from penstock.ipc.waits import Waits, run

if TYPE_CHECKING:
    from penstock.client.app.handler import Handler
    from penstock.client.producer.producer import Producer
    from penstock.client.retry.policy import Retry
    from penstock.client.retry.steps import Steps

logger = logging.getLogger("penstock.consumer")

CLOSE_TIMEOUT: Final = 2.0
"""Seconds that closing waits for the last commit."""


class GroupConsumer(Typed[V, K], Closing, api_hints.Elsewhere):
    """Reads what a group gives it. Made by `Client.consumer(..., group=...)`. For one thread.

    Args:
        group: its name. Members of a group share its partitions and its guarantee.
        guarantee: "at-least-once" commits what was handed out once more is asked for,
            "at-most-once" before it is handed out, "manual" when `commit` is called,
            "exactly-once" with a producer's transaction (`consumed=`).
        pattern: a regular expression for whole topic names, beside `topics`.
        instance_id: makes the member static: who comes with the same id takes its partitions over.
        start: where partitions begin for which the group has committed nothing.
        commit_interval: seconds between commits of at-least-once, at most.
        session_timeout: seconds for which a member that lost its connection keeps its partitions
            while its process lives.
        processing_timeout: seconds without a sign of life (a poll, a commit) after which it loses
            them; None: as long as its process lives.
        on_assigned, on_revoked, on_lost: called with a list of (topic, partition), in the caller's
            thread: after partitions came, before they go (what is done is committed after it), and
            when others have them already.
        isolation: "read-committed" (default for exactly-once) or "read-uncommitted".
        timeout: seconds that a request to the coordinator may take.

    `follow`, `on_out_of_range`, `prefetch_bytes`, `latest_only`, `spin`, `node_timeout`, `value`
    and `key` are those of `Consumer`; `follow=False` ends at the high watermarks that its
    partitions had when they were given to it.
    """

    def __init__(
        self,
        socket: Place,
        topics: Sequence[str] = (),
        *,
        group: str,
        guarantee: Guarantee = "at-least-once",
        pattern: str | None = None,
        instance_id: str | None = None,
        start: Start = "earliest",
        commit_interval: float = 1.0,
        session_timeout: float = 30.0,
        processing_timeout: float | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        node_timeout: float = 30.0,
        timeout: float = 5.0,
        session: Session | None = None,
        **reading: Any,
    ) -> None:
        guarantee = as_spelt("guarantee", guarantee, GUARANTEES)
        topics = [as_topic(topic) for topic in topics]
        listeners = (on_assigned, on_revoked, on_lost)
        check_group_options(
            group, guarantee, topics, pattern, commit_interval, session_timeout, processing_timeout,
            instance_id, listeners,
        )  # fmt: skip
        if guarantee == "exactly-once":
            reading.setdefault("isolation", "read_committed")
        self.group = group
        self.guarantee = guarantee
        self._counts = dict.fromkeys(
            ("rebalances", "assigned", "revoked", "lost", "commits", "commit_failures",
             "stale_commits", "skipped", "skipped_claims", "refused_claims", "claims_ahead"), 0,
        )  # fmt: skip
        self._closed = False
        self._made_with = {**reading, "place": socket, "topics": topics, "pattern": pattern}
        self.stopping = False  # `run` is to end
        self._out: GroupBatch[Any, Any] | None = None  # in the caller's hands
        self._is_rewinding = False  # a rewind has had no answer yet
        self._fresh: list[TopicPartition] = []  # of which nothing is committed yet
        self._ends: dict[TopicPartition, int] | None = None
        self._due = 0.0
        self._look_every = session_timeout / 3
        self._sign_every = None if processing_timeout is None else processing_timeout / 3
        self._reader = GroupReader(
            socket, start=start, node_timeout=node_timeout, timeout=timeout,
            session=session, **reading,
        )  # fmt: skip
        self._handout = self._reader.handout
        self._looping = Looping(self._reader, self._is_due)
        join = co.JoinGroup(
            group, "", topics, pattern, guarantee, instance_id, session_timeout, processing_timeout
        )
        self._member = GroupMembership(self._reader, join, timeout)
        self._commits = Commits(self._reader, self._member, self._counts, commit_interval)
        self._claims = (
            Claims(self._reader, self._member, self._counts, node_timeout)
            if guarantee == "at-most-once" else None
        )  # fmt: skip
        self._changes = Changes(self._reader, self._member, self._counts, listeners, self)
        self._topics = topics
        self.thread = threading.get_ident()  # that polled last
        fork_safety.remember(self)
        process_exit.remember_member(self)
        if session is None:
            try:
                run(self.joining())
            except BaseException:
                self.close()
                raise

    def joining(self) -> Waits[None]:
        """Becomes a member; the constructor does so, unless it was given a session. The first poll
        takes on its partitions."""
        yield from self._reader.finding(self._topics)
        yield from self._member.joining()

    # --- reading ---------------------------------------------------------------------------------
    def poll(self, max_records: int | None = None, timeout: float | None = 0.0) -> GroupBatch[V, K]:
        """Returns records that are there, or come within `timeout` seconds (None: no limit).

        Records of earlier polls count as done from here on. Nothing there is an empty batch, and
        so is a member without partitions. Raises what `Consumer.poll` raises, and what listeners
        raise.
        """
        batch: GroupBatch[V, K] = run(self.polling(max_records, timeout))
        self.brought()
        return batch

    def polling(self, max_records: int | None, timeout: float | None) -> Waits[Any]:
        """`poll`, with the waiting left to another one. Once the caller gets what it returns,
        `brought` is to be called, or `runs`, which hands it out."""
        reader = self._reader
        reader.check_usable()
        self.thread = threading.get_ident()
        if self._is_rewinding:
            yield from self._recovering()
        self._settle()
        self._out = None
        reader.begin()
        deadline = None if timeout is None else time.monotonic() + timeout
        backoff = Backoff()
        while True:
            if reader.is_disturbed() or time.monotonic() >= self._due:
                yield from self.attending()
            chunks: Sequence[Chunk]
            if self._claims is None:
                chunks = reader.gather(max_records)
            else:
                chunks = yield from self._claims.taking(max_records)
            if chunks:
                self._out = batch = GroupBatch(chunks, self._member.ownership, self)
                return batch
            reader.polled()  # not first: a record may be waited for
            now = time.monotonic()
            left = None if deadline is None else deadline - now
            yield from reader.minding(RECONNECT_MAX if left is None else left)
            if left is not None and left <= 0:
                if not reader.awaits(left):
                    return GroupBatch((), self._member.ownership, self)
                left += FAR_PATIENCE
            bound = min(backoff.bound(), max(self._due - now, 0.001))
            yield from reader.sleeping(bound if left is None else min(bound, left))

    def brought(self) -> None:
        """The caller gets what a poll has returned."""
        if self._claims is not None:
            self._claims.given = []
        else:
            self._reader.brought()

    def _recovering(self) -> Waits[None]:
        """A rewind was torn out of its work: back to what is committed."""
        logger.info("group %s: back to the last commit", self.group)
        self._out = None
        try:
            yield from self._commits.going_back(None, "exactly-once")
        except er.UnknownMemberError:
            self._reader.notice = UNSEEN  # it joins again, and begins at the group's offsets
        self._is_rewinding = False

    def batches(
        self, max_records: int | None = None, timeout: float | None = None
    ) -> Iterator[GroupBatch[V, K]]:
        """Polls that brought something, until none does for `timeout` seconds (None: for ever; with
        `follow=False`: until the high watermarks that its partitions had when they came)."""
        return self._batches(lambda: max_records, timeout)

    def _batches(
        self, size: Callable[[], int | None], timeout: float | None, in_loop: bool = False
    ) -> Iterator[GroupBatch[V, K]]:
        ends = not self._reader.follows
        while not self.is_at_end():
            batch = run(self.polling(size(), END_POLL if ends else timeout))
            if batch:
                if not in_loop:
                    self.brought()
                yield batch
                self.went_on()
            elif not ends:
                return

    def went_on(self) -> None:
        """A loop over batches asks for the next one: it is done with the last."""
        self._out = None

    def is_at_end(self) -> bool:
        """With `follow=False`: whether all that they held when they came was handed out."""
        return run(self.ending())

    def ending(self) -> Waits[bool]:
        if self._reader.follows:
            return False
        if self._ends is None:
            yield from self._following()
            if self._changes.retry_at is not None:
                return False  # no word of the coordinator yet: what it owns is not known
            yield from self._reader.refreshing()
            self._ends = self._reader.known_ends()
        return self._reached(self._ends)

    def _reached(self, ends: dict[TopicPartition, int]) -> bool:
        self._settle()
        if self._is_rewinding or (self._claims is not None and self._claims.holds):
            return False
        return all(
            partition.offset >= ends.setdefault(name, partition.end)
            for name, partition in self._reader.partitions.items()
            if not partition.paused
        )

    def __iter__(self) -> Iterator[Record[V, K]]:
        """Every record, one by one; ends as `batches()` does. A record is done once the next one is
        asked for: one that an exception or a `break` left the loop with is not."""
        batches = self._batches(lambda: self.loop_size, None, in_loop=True)
        return chain.from_iterable(run for batch in batches for run in self._runs(batch))

    @property
    def loop_size(self) -> int | None:
        """Number of records that a loop over records polls for."""
        return self._looping.claim_size if self._claims is not None else None

    def unpack(self, batch: GroupBatch[V, K]) -> Iterator[Record[V, K]]:
        """The records of a batch, the position following each of them."""
        return iter(batch) if self._claims is not None else chain.from_iterable(self._runs(batch))

    def _runs(self, batch: GroupBatch[V, K]) -> Iterator[Iterator[Record[V, K]]]:
        for rows in self.runs(batch):
            if rows is None:
                run(self.attending())
            else:
                yield rows

    def runs(self, batch: GroupBatch[V, K]) -> Runs:
        """Returns the runs of a loop over records; None: `attending` is to be carried out."""
        if self._claims is not None:
            self._claims.take_back()
            self._reader.brought()
            return self._looping.claimed(self._claims)
        todo = self._looping.begin(batch, self._member.ownership)
        self._out = None  # from here on it is done run by run
        self._reader.brought()
        return self._looping.runs(todo)

    def _is_due(self, now: float) -> bool:
        return now >= self._due or self.is_disturbed

    @property
    def is_disturbed(self) -> bool:
        """Whether the coordinator has something to say that nobody has followed yet."""
        return self._reader.is_disturbed()

    def _settle(self) -> None:
        self._reader.go_back()
        if self._claims is not None:
            self._claims.settle()
        else:
            self._handout.settle()

    # --- between two batches ---------------------------------------------------------------------
    def attending(self) -> Waits[None]:
        """Does what is due between two batches: a commit, another assignment, a sign of life."""
        self._reader.check_usable()
        yield from self._reader.minding(LOOK_SECONDS)  # who always has records never sleeps on it
        now = time.monotonic()
        self._due = now + min(self._commits.interval, self._look_every)
        if self._sign_every is not None:
            self._due = min(self._due, now + self._sign_every)
        if self.guarantee == "at-least-once" and now >= self._commits.at:
            yield from self._commits.finishing(now, out=self._out)
        changes = self._changes
        if (
            self._reader.is_disturbed()
            or self._sign_every is not None
            or (changes.retry_at is not None and now >= changes.retry_at)
        ):
            if self._claims is not None and not self._reader.is_lost:
                yield from self._claims.knowing()
            yield from changes.following()
        if self._fresh:  # kept before the first record, lest a crash then moves "latest" on
            fresh = list(self._fresh)
            yield from self._commits.finishing(now, fresh, out=self._out)
            self._fresh = self._fresh[len(fresh) :]
        if changes.retry_at is not None:
            self._due = min(self._due, changes.retry_at)

    def letting_go(self, names: Sequence[TopicPartition], *, lost: bool) -> Waits[None]:
        """These go: commit what is done of them, unless others have them already."""
        if self._claims is not None:
            self._claims.drop(names)
        elif self.guarantee == "at-least-once" and not lost:
            yield from self._commits.finishing(time.monotonic(), names, out=self._out)
        elif self.guarantee == "exactly-once":
            self._commits.leave(names)
        self._commits.forget(names)
        self._reader.drop(names)
        for name in names:
            if self._ends is not None:
                self._ends.pop(name, None)

    def taking_on(self, owned: Sequence[co.Owned]) -> Waits[None]:
        """These came: read them from what the group has committed."""
        fresh = yield from self._reader.placing(owned)
        if self._claims is not None:
            self._claims.place(owned, fresh)
        self._commits.place(owned)
        if self.guarantee in ("at-least-once", "exactly-once"):
            self._fresh += fresh
        if fresh and self.guarantee == "at-least-once":
            self._commits.at = self._due = 0.0  # should it have no answer

    # --- offsets: each guarantee has its own answer ----------------------------------------------
    def commit(self, what: Committed | None = None) -> None:
        """Commits all that was handed out so far, what a batch or a slice of it brought, a record
        with all before it in its partition, or `{(topic, partition): offset}`, where the offset is
        that of the next record wanted.

        Raises `StaleGenerationError` naming the partitions that others own by now; the rest is
        committed. `ConfigError` where the guarantee commits otherwise, for a topic that it does
        not read, and for an offset beyond what was handed out: `seek` leaves records out.
        """
        run(self.committing(what))

    def committing(self, what: Committed | None = None) -> Waits[None]:
        """`commit`, with the waiting left to another one."""
        self._reader.check_usable()
        if self._is_rewinding and what is None:
            yield from self._recovering()
        self._reader.go_back()
        if self.guarantee in ("at-most-once", "exactly-once"):
            how = (
                "before records are handed out" if self._claims is not None
                else "with a transaction: producer.transaction(consumed=batch)"
            )  # fmt: skip
            raise er.ConfigError(f"group {self.group!r} is {self.guarantee}: it commits {how}")
        given = None if what is None else as_committed(what)
        if isinstance(given, GroupBatch) and given.ownership.member_id != self._member.member_id:
            raise stale_error(self.group, given.ownership.owned)
        yield from self._commits.explicitly(given)
        if what is None or what is self._out:
            self._out = None

    def offsets_of(self, batch: GroupBatch[V, K] | None = None) -> co.GroupOffsets:
        """Returns the offsets a transaction commits for a batch, or for all that was handed out."""
        if batch is not None:
            return batch.consumed_under(self._member.ownership)
        if self._is_rewinding:
            raise er.GroupError(
                f"group {self.group!r}: what it handed out is not known, since a rewind had no "
                "answer: abort; what is not committed comes again"
            )
        self._reader.go_back()
        return self._commits.handed_out()

    def rewind(self, batch: GroupBatch[V, K] | None = None) -> None:
        """Brings a batch again, or all above the committed offsets. Partitions that others own by
        now are left to them. Refused at-most-once. The node has to tell the offsets that
        transactions committed; while it does not, no poll brings anything."""
        run(self.rewinding(batch))

    def rewinding(self, batch: GroupBatch[V, K] | None = None) -> Waits[None]:
        """`rewind`, with the waiting left to another one."""
        if self._closed:
            return  # there is nobody to bring it again
        if self._claims is not None:
            raise er.ConfigError(f"group {self.group!r} is at-most-once: nothing comes again")
        self._reader.go_back()
        if batch is not None:
            self._commits.back_before(as_batch(batch))
        elif self.guarantee == "exactly-once":
            yield from self._going_back()
        else:
            yield from self._commits.going_back(self._out, self.guarantee)
        self._out = None  # now: an interrupted rewind may be asked for again

    def _going_back(self) -> Waits[None]:
        """To what transactions have committed; without an answer the next poll does it."""
        self._is_rewinding = True
        try:
            yield from self._recovering()
        except er.PenstockError as error:
            if not error.retriable:
                raise
            logger.warning("group %s: the next poll rewinds: %s", self.group, error)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that iteration or `poll` will bring."""
        if self._claims is not None:
            return self._claims.position((topic, partition))
        return self._reader.position(topic, partition)

    def committed(self) -> dict[TopicPartition, int | None]:
        """Returns the committed offsets as this member knows them. None: nothing is yet."""
        if self._claims is not None:
            return self._claims.committed()
        return self._commits.committed()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are its own now."""
        run(self._following())
        return self._reader.assignment()

    def _following(self) -> Waits[None]:
        """Takes over the coordinator's last assignment, unless a loop is in the middle of it."""
        if not self._reader.handout.is_live and self._reader.is_disturbed():
            yield from self.attending()

    def seek(self, topic: str, partition: int, to: Start) -> int:
        """Goes on elsewhere; returns the offset that `to` meant. The committed offset follows with
        the next commit. At-most-once only forwards."""
        return run(self.seeking(topic, partition, to))

    def seeking(self, topic: str, partition: int, to: Start) -> Waits[int]:
        self._reader.check_usable()
        yield from self._following()
        yield from self._reader.refreshing()
        if self._claims is not None:
            return (yield from self._claims.seeking((topic, partition), to))
        self._out = self._commits.out_but(self._out, (topic, partition))
        return (yield from self._reader.seeking(topic, partition, to))

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetches nothing of these (none given: of all) until `resume`; they stay its own."""
        self._reader.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._reader.resume(*partitions)

    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and high watermark."""
        return self._reader.lag()

    def known_lag(self) -> dict[TopicPartition, int]:
        return self._reader.known_lag()

    # --- a handler -------------------------------------------------------------------------------
    def run(
        self, handler: Callable[..., object], *, retry: Retry, producer: Producer | None = None
    ) -> None:
        """Calls `handler` for each record, until SIGTERM, SIGINT or `stop`, or the ends that
        `follow=False` means. A record that it raises for is tried again later, by way of retry
        topics, and becomes a dead letter in the end. So it holds up no other: see `Retry`.

        `producer`: what the handler sends by. It is flushed before commits; exactly-once it has a
        `transactional_id`, and commits. The handler takes what that of an `App` takes. Signals are
        the main thread's; a second one is a KeyboardInterrupt.
        """
        from penstock.client.retry.blocking import carry_out  # few do

        carry_out(*self.running(handler, retry, producer), self.stop)

    def running(
        self, function: Any, retry: Any, producer: Any, counts: dict[str, int] | None = None
    ) -> tuple[Handler, Steps[None]]:
        """`run`, with its steps left to another one. `counts`: where to count, if not here."""
        from penstock.client.retry.runner import steps_of

        return steps_of(self, function, retry, producer, self._made_with, counts or self._counts)

    def stop(self) -> None:
        """Lets `run` end, once the record in hand is done. Returns at once; from any thread,
        handler or signal handler."""
        self.stopping = True

    def reads(self, name: TopicPartition) -> bool:
        return name in self._reader.partitions

    def reading_also(self, topics: Sequence[str]) -> Waits[None]:
        """Reads these from their start, too."""
        self._reader.from_start.update(topics)
        self._member.subscribe([*self._topics, *topics])
        yield from self._member.joining()

    # --- life ------------------------------------------------------------------------------------
    @property
    def follows(self) -> bool:
        return self._reader.follows

    @property
    def member_id(self) -> str:
        """By which the coordinator knows it."""
        return self._member.member_id

    def metrics(self) -> dict[str, int]:
        """Counters since the consumer was made."""
        counts = self._reader.metrics()
        return {**counts, **self._counts, "skipped": counts["skipped"] + self._counts["skipped"]}

    def _described(self) -> str:
        who = f"of group {self.group!r} ({self.guarantee})"
        if self._closed:
            return f"{who}, closed"
        parts, known = [*self._reader.partitions.values()], self.committed()
        where = [
            f"{one} at {self._handout.offset_of(one)} (committed {known.get(one.name)})"
            for one in parts
        ]
        return f"{who}: {shortened(where) or 'no partitions yet, a poll takes them on'}"

    def close(self) -> None:
        """Commits what is done (at-least-once), leaves the group, gives the attachment back.

        The last records handed out are done only if more was asked for, or `commit` was called.
        """
        run(self.closing())

    def closing(self, *, commits: bool = True) -> Waits[None]:
        """`close`, with the waiting left to another one. `commits`: what is done."""
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
            reader.close()

    def _saying_goodbye(self, commits: bool) -> Waits[None]:
        try:
            self._changes.leaving()
            if self._claims is not None:
                yield from self._claims.closing(CLOSE_TIMEOUT)
            elif commits and self.guarantee == "at-least-once" and not self._is_rewinding:
                self._reader.go_back()
                yield from self._commits.finishing(
                    time.monotonic(), out=self._out, timeout=CLOSE_TIMEOUT
                )
        except er.PenstockError as error:
            logger.warning("closing a member of group %s: %s", self.group, error)
        finally:
            yield from self._member.leaving()

    def after_fork_in_child(self) -> None:
        """The member stays the parent's: the child is told to make its own (rule 7)."""
        self._closed = True
