"""Replay: dead letters are sent again to the topics that they came from.

    a page of letters ──> those to send ──> one transaction: the records, and the bits that say so

A letter and its bit count together or not, so what is killed goes on where it was, and no letter is
sent twice unless that is asked for. A replay that begins fences the one before (see
`penstock.client.transactions.progress_topic`). A letter that cannot be sent is left, counted
and told.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from penstock.client.deadletters.choice import LetterChoice
from penstock.client.deadletters.reader import PAGE, LetterReader, LetterTopic
from penstock.client.deadletters.replayed import SUFFIX as PROGRESS_SUFFIX
from penstock.client.deadletters.replayed import ReplayedLetters
from penstock.client.deadletters.story import SUFFIX, DeadLetter, LetterPlace
from penstock.client.transactions.producer import TransactionalProducer
from penstock.client.transactions.progress_topic import check_progress_topic, fenced, is_made
from penstock.client.validation import check_flag, check_integer, check_range, check_text
from penstock.core import errors as er

MAX_REPLAYS: Final = 3
"""How often a record is sent again, unless more is allowed."""
RATE_MIN: Final = 0.001
RATE_MAX: Final = 1e6
BURST: Final = 0.25
"""Seconds of a `rate` that one transaction sends at once, at most."""
SEEN_MAX: Final = 100_000
"""Records that a run remembers, to send none of them twice."""
TOPICS_MAX: Final = 1000
"""Topics that a run counts by name; others are counted as one."""
OTHERS: Final = "(others)"

Pause = Callable[[float], bool]
"""Waits so many seconds; true: stop."""


@dataclass(slots=True)
class ReplayResult:
    """The outcome of a replay, or of a `dry_run`.

    `sent`: records that were sent again, and `by_topic` where to. `doubled`: further dead letters
    of records that this run has sent. `already`: met, and sent by an earlier replay. `unmatched`:
    the condition is not true for them. `foreign`: records that are no dead letters of ours.
    `incomplete`: of `sent`, those without all of their headers, for which the dead letter had no
    room. `left`: what stays, by reason: "max_replays", "damaged" (no content), "no_topic" (that is
    deleted), "other_topic" (not one that may be sent to), "refused" (too large by now). `examples`:
    where one of each is. `is_whole`: all was looked at.
    """

    dry_run: bool = False
    sent: int = 0
    doubled: int = 0
    already: int = 0
    unmatched: int = 0
    foreign: int = 0
    incomplete: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    examples: dict[str, LetterPlace] = field(default_factory=dict)
    is_whole: bool = False

    def leave(self, reason: str, letter: DeadLetter) -> None:
        self.left[reason] = self.left.get(reason, 0) + 1
        self.examples.setdefault(reason, letter.place)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """See `DeadLetterQueue.replay`. `topics`: those that may be sent to; None: all."""

    choice: LetterChoice
    limit: int | None = None
    rate: float | None = None
    max_replays: int = MAX_REPLAYS
    again: bool = False
    dry_run: bool = False
    to: str | None = None
    topics: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`, TypeError."""
        if self.limit is not None:
            check_integer("limit", self.limit)
            check_range("limit", self.limit, 1, 1 << 62)
        if self.rate is not None:
            check_range("rate", self.rate, RATE_MIN, RATE_MAX)
        check_integer("max_replays", self.max_replays)
        check_range("max_replays", self.max_replays, 1, 1 << 31)
        check_flag("again", self.again)
        check_flag("dry_run", self.dry_run)
        if self.to is not None:
            check_text("to", self.to)


def allowed_topics(
    name: str, topics: Collection[str] | None, to: str | None, *, dry_run: bool
) -> frozenset[str] | None:
    """The topics that dead letters of the topic `name` may go to. A writer of dead letters could
    else have others write wherever they may. Raises `ConfigError` where nobody says so, and for
    the topic of dead letters itself."""
    if topics is not None:
        if isinstance(topics, str):
            raise TypeError(f"topics={topics!r} is a list of names")
        _check_not_itself(name, topics)
        return frozenset(topics)  # `to` is to be one of them
    if to is not None:
        _check_not_itself(name, [to])
        return None
    if name.endswith(SUFFIX):
        return frozenset([name.removesuffix(SUFFIX)])
    if dry_run:
        return None
    raise er.ConfigError(
        f"{name!r} may have dead letters of any topic: name those to which may be sent by "
        "topics=[...] (--topic); a dry run shows which there are"
    )


def _check_not_itself(name: str, topics: Collection[str]) -> None:
    for topic in topics:
        if topic in (name, name + PROGRESS_SUFFIX):
            raise er.ConfigError(
                f"dead letters of {name!r} would be sent to {topic!r}, where they would be none "
                "any more: name the topic of a work queue"
            )


class Replay:
    """One run. `result` is how far it is, `reader` how much of the topic it has read."""

    def __init__(self, topic: LetterTopic, plan: ReplayPlan) -> None:
        self._topic = topic
        self._plan = plan
        self.result = ReplayResult(dry_run=plan.dry_run)
        self._letters: list[DeadLetter] = []
        self.reader: LetterReader | None = None
        self._seen: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._partitions: dict[str, int] = {}
        self._send_at = 0.0

    def run(self, pause: Pause) -> Iterator[ReplayResult]:
        """Tells after each transaction, and each page without any to send, how far it is. There it
        may be given up, by `pause` too, which is also asked to wait where a rate says so.
        Raises `ProducerFencedError` once another replay of the topic begins."""
        try:
            with ExitStack() as stack:
                producer = None
                if self._plan.dry_run:
                    replays = self._topic.known_replays()
                else:
                    producer, replays = self._begun(stack)
                yield from self._going_through(stack, producer, replays, pause)
        except er.ProducerFencedError as error:
            raise er.ProducerFencedError(
                f"another replay of {self._topic.name!r} has begun and goes on with it; this one "
                f"has sent {self.result.sent:,} records"
            ) from error

    def _begun(self, stack: ExitStack) -> tuple[TransactionalProducer, ReplayedLetters]:
        """No other run sends any more; what those have sent."""
        topic, name = self._topic, self._topic.progress
        replays = topic.no_replays()
        with topic.admin() as admin:
            is_made(admin, name)
            check_progress_topic(admin, name, "delete it, and it is made again")
        producer = stack.enter_context(
            TransactionalProducer(topic.socket, transactional_id=name, client_id=topic.client_id)
        )
        with topic.consumer(name) as consumer:
            for key, value in fenced(producer, consumer, name):
                replays.learn(key, value)
        return producer, replays

    def _going_through(
        self,
        stack: ExitStack,
        producer: TransactionalProducer | None,
        replays: ReplayedLetters,
        pause: Pause,
    ) -> Iterator[ReplayResult]:
        plan, topic, result = self._plan, self._topic, self.result
        consumer = stack.enter_context(topic.consumer(topic.name))
        reader = LetterReader(
            topic, consumer, plan.choice, replays, replayed=None if plan.again else False
        )
        self.reader = reader
        if producer is not None:
            self._forget(producer, replays, reader.starts)
        for page in reader.pages():
            result.foreign, result.already = reader.foreign, reader.passed
            chosen = self._chosen(page)
            if not chosen:
                if pause(0.0):
                    return
                yield result
            while chosen:
                count = self._burst()
                part, chosen = chosen[:count], chosen[count:]
                if self._is_stopped(pause, len(part)):
                    return
                self._take(producer, replays, part)
                yield result
                if result.sent == plan.limit:
                    return
        result.foreign, result.already = reader.foreign, reader.passed
        result.is_whole = True
        yield result

    def take_letters(self) -> list[DeadLetter]:
        """Those that the last step sent, or would send; once."""
        found, self._letters = self._letters, []
        return found

    # --- which are sent ---
    def _chosen(self, page: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Those of a page to send. Doubles are found when they are sent."""
        plan, result = self._plan, self.result
        matching = plan.choice.matching(page)
        result.unmatched += len(page) - len(matching)
        return [letter for letter in matching if not self._is_left(letter)]

    def _is_left(self, letter: DeadLetter) -> bool:
        plan = self._plan
        reason = ""
        if letter.is_damaged:
            reason = "damaged"
        elif letter.replays >= plan.max_replays:
            reason = "max_replays"
        elif plan.topics is not None and (plan.to or letter.topic) not in plan.topics:
            reason = "other_topic"
        elif not self._partitions_of(plan.to or letter.topic):
            if plan.to is not None:
                raise er.UnknownTopicError(f"to={plan.to!r}: there is no topic of that name")
            reason = "no_topic"
        if reason:
            self.result.leave(reason, letter)
        return bool(reason)

    def _partitions_of(self, name: str) -> int:
        """How many partitions that topic has; 0: it is not there."""
        if name not in self._partitions:
            if len(self._partitions) >= TOPICS_MAX:
                self._partitions.clear()
            with self._topic.admin() as admin:
                try:
                    self._partitions[name] = len(admin.describe_topic(name).partitions)
                except (er.UnknownTopicError, er.ConfigError):
                    self._partitions[name] = 0
        return self._partitions[name]

    def _is_new(self, letter: DeadLetter) -> bool:
        """Whether this run has not sent its record yet."""
        record = _record_of(letter)
        if record in self._seen:
            return False
        self._seen[record] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return True

    # --- sending ---
    def _burst(self) -> int:
        """Letters of the next transaction."""
        rate, limit = self._plan.rate, self._plan.limit
        most = PAGE if rate is None else max(1, min(PAGE, int(rate * BURST)))
        return most if limit is None else min(most, limit - self.result.sent)

    def _is_stopped(self, pause: Pause, count: int) -> bool:
        """Waits until so many may be sent; whether to stop."""
        rate = self._plan.rate
        if rate is None or self._plan.dry_run:
            return pause(0.0)
        now = time.monotonic()
        wait = self._send_at - now
        self._send_at = max(now, self._send_at) + count / rate
        return pause(max(0.0, wait))

    def _take(
        self,
        producer: TransactionalProducer | None,
        replays: ReplayedLetters,
        part: Sequence[DeadLetter],
    ) -> None:
        """Sends them, or only says so; where that raises, nothing of it counts."""
        fresh = [letter for letter in part if self._is_new(letter)]
        sent = fresh
        if producer is not None:
            with producer.transaction():
                sent = [letter for letter in fresh if self._is_sent(producer, letter)]
                refused = {*map(_record_of, fresh)}.difference(map(_record_of, sent))
                for letter in part:
                    if _record_of(letter) not in refused:
                        replays.add(letter.mark)
                for key, value in replays.changes():
                    producer.send(self._topic.progress, value, key=key, partition=0)
        result = self.result
        result.doubled += len(part) - len(fresh)
        for letter in sent:
            name = self._plan.to or letter.topic
            if name not in result.by_topic and len(result.by_topic) >= TOPICS_MAX:
                name = OTHERS
            result.by_topic[name] = result.by_topic.get(name, 0) + 1
            result.incomplete += letter.headers_left_out > 0
        result.sent += len(sent)
        self._letters = sent

    def _is_sent(self, producer: TransactionalProducer, letter: DeadLetter) -> bool:
        """Whether it goes with this transaction; else it does not fit."""
        record, name = letter.record, self._plan.to or letter.topic
        keeps = self._plan.to is None and letter.partition < self._partitions_of(name)
        try:
            producer.send(
                name, record.value, key=record.key, headers=letter.headers_again(),
                partition=letter.partition if keeps else None, timestamp=letter.timestamp,
                priority=record.priority,
            )  # fmt: skip
        except ValueError:  # also `RecordTooLargeError`
            self.result.leave("refused", letter)
            return False
        return True

    def _forget(
        self, producer: TransactionalProducer, replays: ReplayedLetters, starts: dict[int, int]
    ) -> None:
        """Forgets bits of dead letters that were removed."""
        gone = [*replays.forgotten(starts)]
        for first in range(0, len(gone), PAGE):
            with producer.transaction():
                for key in gone[first : first + PAGE]:
                    producer.send(self._topic.progress, None, key=key, partition=0)


def _record_of(letter: DeadLetter) -> tuple[str, int, int]:
    """Which record died."""
    return letter.topic, letter.partition, letter.offset
