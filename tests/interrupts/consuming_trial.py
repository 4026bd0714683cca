"""A consumer that is struck again and again and used on: each record comes once, in order.

A call that raises has brought nothing, so what it had fetched comes with the next one. The trial
reads the same records over and over: at the end it seeks to the beginning.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from interrupts.striking import ERRORS, Blow

from penstock.client.client import Client

RECORDS = 40
"""In each partition, unless told otherwise."""
PARTITIONS = 2
IDLE_MAX = 200

_numbers = itertools.count()

Verb = Callable[["ConsumingTrial"], object]


class ConsumingTrial:
    """See the module. `options`: of the consumer, of a topic that `filled` has made. With a
    guarantee it is the only member of a group of its own."""

    def __init__(self, client: Client, topic: str, records: int = RECORDS, **options: Any) -> None:
        self._client = client
        self._admin = client.admin()
        self._records = records
        self._options = options
        self._group = ""
        self.topic = topic
        self.consumer = self._make()
        self.expected = [0] * PARTITIONS
        self.wrong: list[str] = []
        self.places: Counter[str] = Counter()
        self.passes = 0
        self.may_repeat = False
        """Whether the group may move meanwhile, and at least once is what it says."""

    def _make(self) -> Any:
        if "guarantee" not in self._options:
            return self._client.consumer(self.topic, **self._options)
        if self._group:
            self._admin.delete_group(self._group)
        self._group = f"struck-{next(_numbers)}"
        return self._client.consumer(self.topic, group=self._group, **self._options)

    def take(self, records: Any) -> None:
        """What the program got."""
        for record in records:
            due = self.expected[record.partition]
            if record.offset > due or (record.offset < due and not self.may_repeat):
                self.wrong.append(f"{record.partition}: {record.offset} came, {due} was due")
            self.expected[record.partition] = record.offset + 1

    @property
    def is_through(self) -> bool:
        return min(self.expected) >= self._records

    def round(self, verb: Verb, strike: Blow) -> int:
        """How often it was struck."""
        known = len(self.wrong)
        try:
            for _ in strike.tries():
                brought: Any = ()
                with suppress(*ERRORS), strike.armed():
                    brought = verb(self)
                self.take(brought or ())
                if self.is_through:
                    break
            self._go_on()
        except Exception as failure:
            self.wrong.append(f"{type(failure).__name__}: {failure}")
        if len(self.wrong) > known:
            self.wrong[known] = f"{strike.place}: {self.wrong[known]}"
            self._begin_again()
        elif self.is_through:
            self._begin_again()
        return strike.told(self.places)

    def _go_on(self) -> None:
        """At least one poll that nothing strikes."""
        for _ in range(IDLE_MAX):
            batch = self.consumer.poll(3, timeout=0.05)
            self.take(batch)
            if batch or self.is_through:
                return
        self.wrong.append(f"nothing comes any more behind {self.expected}")

    def _begin_again(self) -> None:
        self.passes += 1
        self.consumer.close()
        self.consumer = self._make()
        self.expected = [0] * PARTITIONS

    def judge(self) -> None:
        """Read the rest, so that nothing has been passed over."""
        for _ in range(IDLE_MAX):
            if self.is_through:
                break
            self.take(self.consumer.poll(1000, timeout=0.05))
        if not self.is_through:
            self.wrong.append(f"nothing comes any more behind {self.expected}")
        self.consumer.close()
        assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:40]])


# --- calls that are struck ---
def poll(trial: ConsumingTrial) -> object:
    return trial.consumer.poll(5, timeout=0.05)


def iterate(trial: ConsumingTrial) -> None:
    for record in itertools.islice(trial.consumer, 7):
        trial.take([record])


def commit(trial: ConsumingTrial) -> object:
    """What was handed out before, and go on."""
    trial.consumer.commit()
    return poll(trial)


def filled(client: Client, topic: str, records: int = RECORDS) -> str:
    """A topic that a trial can read, with so many records in each partition."""
    with client.producer(acks="all") as producer:
        for number in range(records * PARTITIONS):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    return topic
