"""The dead letters of a topic: to look at, to count, to send again, to remove.

Each verb attaches to the node by itself, and leaves it when it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Final

from penstock.client.admin.trim import TrimResult
from penstock.client.consumer.offsets import Offset
from penstock.client.deadletters.choice import LetterChoice, Only
from penstock.client.deadletters.reader import LetterReader, LetterTopic
from penstock.client.deadletters.replay import (
    MAX_REPLAYS,
    Replay,
    ReplayPlan,
    ReplayResult,
    allowed_topics,
)
from penstock.client.deadletters.stats import DeadLetterStats
from penstock.client.deadletters.story import SUFFIX, DeadLetter
from penstock.client.public_view import Shown
from penstock.client.session import as_topic
from penstock.client.validation import check_flag, check_integer, check_range
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.client.remote.address import Place

REPLAYED: Final = "replayed"
"""As a place for `purge`: where the first dead letter is that was not sent again."""


def dead_letter_topic(topic: str, *, exact: bool) -> str:
    """The topic with the dead letters of `topic`. One that ends in ".dlq" is it already, and so is
    any with `exact`."""
    check_flag("exact", exact)
    name = as_topic(topic)
    return name if exact or name.endswith(SUFFIX) else name + SUFFIX


class DeadLetterQueue(Shown):
    """Dead letters of a topic. Made by `Client.dead_letters`. For any thread; nothing to close.

    All readings go from the oldest one to the ends of the moment when they begin, a page at a time.

    Verbs choose dead letters by these, which all must be true:
        where: a condition in SQL over the columns of `penstock.client.deadletters.where`, such as
            "exception = 'TimeoutError' and decode(value) like '%acme%'"; needs `penstock[sql]`.
        partition: partitions of the topic of dead letters: a number, or several.
        only: single ones: dead letters, (partition, offset), or (partition, range(first, end)).

    They raise `UnknownTopicError` where there is no topic of dead letters, `ConfigError` for wrong
    options, ImportError for `where` without DuckDB.
    """

    def __init__(
        self, socket: Place, topic: str, *, exact: bool, client_id: str, timeout: float
    ) -> None:
        self.topic = dead_letter_topic(topic, exact=exact)
        self._letters = LetterTopic(socket, self.topic, client_id, timeout)

    def __iter__(self) -> Iterator[DeadLetter]:
        """Those that were not sent again yet."""
        return self.letters()

    def letters(
        self,
        *,
        where: str | None = None,
        partition: int | Sequence[int] | None = None,
        only: Only | None = None,
        replayed: bool | None = False,
        limit: int | None = None,
    ) -> Generator[DeadLetter, None, None]:
        """Dead letters, oldest first in each partition. `replayed`: False: those that were not sent
        again yet; True: those that were; None: all. `limit`: so many at most."""
        choice = LetterChoice.of(partition, only, where)
        if limit is not None:
            check_integer("limit", limit)
            check_range("limit", limit, 1, 1 << 62)
        return self._read(choice, replayed, limit)

    def _read(
        self, choice: LetterChoice, replayed: bool | None, limit: int | None
    ) -> Generator[DeadLetter, None, None]:
        count = 0
        replays = self._letters.known_replays()
        with self._letters.consumer(self.topic) as consumer:
            reader = LetterReader(self._letters, consumer, choice, replays, replayed=replayed)
            for page in reader.pages():
                for letter in choice.matching(page):
                    yield letter
                    count += 1
                    if count == limit:
                        return

    def letter(self, partition: int, offset: int) -> DeadLetter:
        """The dead letter at this place. Raises `OffsetOutOfRangeError` where there is none."""
        check_integer("partition", partition)
        check_integer("offset", offset)
        with closing(self._read(LetterChoice.of(None, [(partition, offset)]), None, 1)) as found:
            for letter in found:
                return letter
        raise er.OffsetOutOfRangeError(
            f"there is no dead letter at offset {offset} of {self.topic}-{partition}: it is "
            "removed, it is none of ours, or it never was"
        )

    def stats(
        self,
        *,
        where: str | None = None,
        partition: int | Sequence[int] | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> DeadLetterStats:
        """How many there are, of whom, why, and how old. All of them are read; `on_progress` is
        told how many offsets, and of how many."""
        choice = LetterChoice.of(partition, None, where)
        found = DeadLetterStats()
        replays = self._letters.known_replays()
        with self._letters.consumer(self.topic) as consumer:
            reader = LetterReader(self._letters, consumer, choice, replays, replayed=None)
            for page in reader.pages():
                found.add(choice.matching(page))
                if on_progress is not None:
                    on_progress(reader.done, reader.whole)
            found.foreign = reader.foreign
        return found

    def replay(
        self,
        *,
        where: str | None = None,
        partition: int | Sequence[int] | None = None,
        only: Only | None = None,
        limit: int | None = None,
        rate: float | None = None,
        max_replays: int = MAX_REPLAYS,
        again: bool = False,
        dry_run: bool = False,
        to: str | None = None,
        topics: Collection[str] | None = None,
        on_progress: Callable[[ReplayResult], object] | None = None,
    ) -> ReplayResult:
        """Sends dead letters again, with key, value, headers and time of the record, to the
        partition that it was in (or, where that is not there, to another one).

        It goes in transactions that also keep which were sent: interrupted at any moment, it is
        called again and goes on; what did not match can be sent later, and what was sent is not
        sent twice. Dead letters stay until `purge` or retention removes them.

        Args:
            limit: send so many at most.
            rate: records a second, at most.
            max_replays: leave those that were sent again so often (header `penstock.replays`).
            again: also send what was sent by an earlier replay.
            dry_run: send nothing, change nothing, tell what would be sent.
            to: send to this topic, and not to those that they came from.
            topics: those that may be sent to. Default: for "orders.dlq" it is "orders" alone. A
                writer of dead letters could otherwise have others write to any topic.
            on_progress: told the result so far, after each transaction.

        Raises `ProducerFencedError` where another replay of these dead letters begins: that one
        goes on. Else what a transaction raises; what was sent before stays, and counts as sent.
        """
        choice = LetterChoice.of(partition, only, where)
        run = self.replaying(
            choice, limit=limit, rate=rate, max_replays=max_replays, again=again,
            dry_run=dry_run, to=to, topics=topics,
        )  # fmt: skip
        for result in run.run(_sleep):
            if on_progress is not None:
                on_progress(result)
        return run.result

    def replaying(
        self,
        choice: LetterChoice,
        *,
        limit: int | None,
        rate: float | None,
        max_replays: int,
        again: bool,
        dry_run: bool,
        to: str | None,
        topics: Collection[str] | None,
    ) -> Replay:
        """`replay`, step by step."""
        allowed = allowed_topics(self.topic, topics, to, dry_run=dry_run)
        plan = ReplayPlan(choice, limit, rate, max_replays, again, dry_run, to, allowed)
        return Replay(self._letters, plan)

    def purge(
        self,
        *,
        before: Offset | str | int | datetime,
        partition: int | Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[TrimResult]:
        """Removes the oldest dead letters for ever: those before an offset or a time, "latest" for
        all, or "replayed" for all up to the first one that was not sent again. `dry_run` only tells
        what would go. Raises what `Admin.trim` raises."""
        places = self._first_open(partition) if before == REPLAYED else None
        with self._letters.admin() as admin:
            self._letters.no_replays()  # tells of a topic that is not there
            if places is None:
                return admin.trim(self.topic, partition, before=before, dry_run=dry_run)
            return [
                result
                for number, offset in places.items()
                for result in admin.trim(self.topic, number, before=offset, dry_run=dry_run)
            ]

    def _first_open(self, partition: int | Sequence[int] | None) -> dict[int, int]:
        """By partition where the first record is that was not sent again, or else the end."""
        choice = LetterChoice.of(partition)
        replays = self._letters.known_replays()
        with self._letters.consumer(self.topic) as consumer:
            reader = LetterReader(self._letters, consumer, choice, replays, replayed=None)
            numbers = reader.ends if choice.partitions is None else choice.partitions
            places = {number: reader.ends[number] for number in sorted(numbers)}
            for number, offset in reader.open_places():
                places[number] = min(offset, places[number])
            return places

    def _described(self) -> str:
        return f"of {self.topic}"


def _sleep(seconds: float) -> bool:
    if seconds > 0:
        time.sleep(seconds)
    return False
