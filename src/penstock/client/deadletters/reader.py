"""Reads a topic of dead letters, a page at a time, up to the ends that it has when that begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.admin import Admin
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.partition_cursor import TopicPartition
from penstock.client.consumer.records import Chunk
from penstock.client.consumer.span_scan import Span, scanning
from penstock.client.deadletters import replayed
from penstock.client.deadletters.choice import LetterChoice
from penstock.client.deadletters.replayed import ReplayedLetters
from penstock.client.deadletters.story import DeadLetter, LetterPlace, letter_of
from penstock.client.remote.address import Place
from penstock.core import errors as er

PAGE: Final = 1000
"""Dead letters that are in memory at once, at most."""
PAGE_BYTES: Final = 4 << 20
"""Bytes that a page has, at most, unless a batch has more."""


@dataclass(frozen=True, slots=True)
class LetterTopic:
    """A topic of dead letters, and how its node is reached."""

    socket: Place
    name: str
    client_id: str = ""
    timeout: float = 15.0

    def admin(self) -> Admin:
        return Admin(self.socket, client_id=self.client_id, timeout=self.timeout)

    def consumer(self, topic: str) -> Consumer:
        """Reads what is committed; what is removed meanwhile it passes over."""
        return Consumer(
            self.socket, (topic,), client_id=self.client_id, isolation="read_committed",
            on_out_of_range="earliest", prefetch_bytes=PAGE_BYTES, timeout=self.timeout,
        )  # fmt: skip

    @property
    def progress(self) -> str:
        """The topic that tells which of them were sent again."""
        return self.name + replayed.SUFFIX

    def no_replays(self) -> ReplayedLetters:
        """Without any that was sent again. Raises `UnknownTopicError`."""
        with self.admin() as admin:
            try:
                return ReplayedLetters(admin.describe_topic(self.name).topic_id)
            except er.UnknownTopicError as error:
                raise er.UnknownTopicError(
                    f"there is no topic {self.name!r}: no dead letter was written to it yet, or it "
                    "was deleted. It is made with the first one; of a topic of dead letters with "
                    "another name say so (exact=True, --exact)"
                ) from error

    def known_replays(self) -> ReplayedLetters:
        """As it is known now, while replays go on. Raises `UnknownTopicError`."""
        found = self.no_replays()
        with self.admin() as admin:
            if self.progress not in admin.list_topics():
                return found
        with self.consumer(self.progress) as consumer:
            spans = {name: (0, end) for name, end in consumer.end_offsets().items()}
            for chunks in scanning(consumer, spans, self.timeout):
                for chunk in chunks:
                    for record in chunk.records():
                        found.learn(record.key or b"", record.value)
        return found


class LetterReader:
    """One reading, by a consumer of all partitions. `replays` tells which were sent again;
    `replayed`: False: the others; True: only those; None: all. `passed`: how many it left out by
    that; `foreign`: records that were met and are no dead letters of ours."""

    def __init__(
        self,
        topic: LetterTopic,
        consumer: Consumer,
        choice: LetterChoice,
        replays: ReplayedLetters,
        *,
        replayed: bool | None,
    ) -> None:
        self._topic = topic
        self._consumer = consumer
        self._choice = choice
        self._replays = replays
        self._replayed = replayed
        ends = consumer.end_offsets()
        self.starts = {name[1]: start for name, start in consumer.beginning_offsets().items()}
        self.ends = {name[1]: end for name, end in ends.items()}
        for number in sorted(choice.partitions or ()):
            if number not in self.ends:
                raise er.UnknownTopicError(
                    f"topic {topic.name!r} has partitions 0 to {len(self.ends) - 1}, not {number}"
                )
        self._spans: dict[TopicPartition, Span] = {}
        for name, end in ends.items():
            self._spans[name] = choice.span(name[1], self.starts[name[1]], end)
        self.whole = sum(max(0, end - start) for start, end in self._spans.values())
        """Offsets that are to be read."""
        self.done = 0
        """Offsets that are read."""
        self.passed = 0
        self.foreign = 0

    def pages(self) -> Iterator[list[DeadLetter]]:
        """Those that are chosen by their places, partitions taking turns; a condition is the
        caller's to ask (`LetterChoice.matching`)."""
        at = {name: start for name, (start, _) in self._spans.items()}
        for chunks in scanning(self._consumer, self._spans, self._topic.timeout, PAGE):
            yield [*self._letters(chunks)]
            for chunk in chunks:
                name = chunk.topic, chunk.partition
                self.done += chunk.next_offset - at[name]
                at[name] = chunk.next_offset

    def open_places(self) -> Iterator[LetterPlace]:
        """Partition and offset of what was not sent again, dead letters or not."""
        for chunks in scanning(self._consumer, self._spans, self._topic.timeout, PAGE):
            for chunk in chunks:
                for offset in chunk.offsets.tolist():
                    if (chunk.partition, chunk.leader_epoch, offset) not in self._replays:
                        yield chunk.partition, offset

    def _letters(self, chunks: list[Chunk]) -> Iterator[DeadLetter]:
        for chunk in chunks:
            for record in chunk.records():
                if not self._choice.has((record.partition, record.offset)):
                    continue
                mark = record.partition, chunk.leader_epoch, record.offset
                is_replayed = mark in self._replays
                if self._replayed not in (None, is_replayed):
                    self.passed += 1
                    continue
                letter = letter_of(record, chunk.leader_epoch, is_replayed=is_replayed)
                if letter is None:
                    self.foreign += 1
                else:
                    yield letter
