"""A program that reads, processes and writes exactly once, and is struck again and again.

Each record of the source becomes one record of the result, in transactions that commit what was
consumed. After an exception the program ends the transaction that may be open, and goes on with
the same producer and the same consumer.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from interrupts.striking import ERRORS, Blow

from penstock.client.client import Client
from penstock.core import errors as er

WITHIN = 20.0
FILLED = 300
"""Records that fill the source: who finds it empty has waited for nothing."""

Verb = Callable[["ExactTrial"], object]


class ExactTrial:
    """See the module. Rounds that find the source empty fill it up."""

    def __init__(self, client: Client, source: str, result: str, **options: Any) -> None:
        self.client = client
        self.source, self.result = source, result
        self._options = options
        self._filler = client.producer()
        self.filled = 0
        self.made = 0
        self.wrong: list[str] = []
        self.places: Counter[str] = Counter()
        self._make()

    def _make(self) -> None:
        self.made += 1
        self.producer = self.client.producer(transactional_id="exact", **self._options)
        self.consumer = self.client.consumer(self.source, group="exact", guarantee="exactly-once")

    def fill(self, count: int) -> None:
        for _ in range(count):
            self._filler.send(self.source, b"%d" % self.filled, key=b"%d" % self.filled)
            self.filled += 1
        self._filler.flush()

    # --- the program ---
    def step(self, most: int = 3) -> int:
        """One transaction; how many records it took."""
        with self.producer.transaction(consumed=self.consumer):
            batch = self.consumer.poll(most, timeout=0.05)
            for record in batch:
                self.producer.send(self.result, record.value, key=record.key)
        return len(batch)

    def recover(self) -> None:
        """End what may be open, as the errors advise."""
        try:
            self.producer.abort_transaction(consumed=self.consumer)
        except er.TransactionError:
            with contextlib.suppress(er.TransactionError):
                self.producer.commit_transaction(consumed=self.consumer)

    def _recover_from(self, strike: Blow) -> None:
        """Struck again, it is begun again."""
        recovered = False
        while not recovered:
            with contextlib.suppress(*ERRORS), strike.armed():
                self.recover()
                recovered = True

    def go_on(self, most: int = 3) -> int:
        for _ in range(5):
            try:
                return self.step(most)
            except er.TransactionError as error:  # such as: poll again
                last = error
                self.recover()
        raise last

    # --- one round ---
    def round(self, verb: Verb, strike: Blow) -> int:
        """How often it was struck."""
        try:
            for _ in strike.tries():
                try:
                    with strike.armed():
                        verb(self)
                except (*ERRORS, er.TransactionError):
                    self._recover_from(strike)
            if not self.go_on():
                self.fill(FILLED)
        except Exception as failure:
            self.wrong.append(f"{strike.place}: {type(failure).__name__}: {failure}")
            self._begin_again()
        return strike.told(self.places)

    def _begin_again(self) -> None:
        for each in (self.producer, self.consumer):
            try:
                each.close()
            except Exception as failure:
                self.wrong.append(f"close: {failure!r}")
        self._make()

    # --- the end ---
    def judge(self) -> None:
        idle = 0
        while idle < 3:
            idle = 0 if self.go_on(FILLED) else idle + 1
        for each in (self.producer, self.consumer, self._filler):
            each.close()
        deadline, found = time.monotonic() + WITHIN, self._found()
        while found.total() < self.filled and time.monotonic() < deadline:
            found = self._found()  # a new leader learns how far the log is committed
        for number in range(self.filled):
            times = found.pop(b"%d" % number, 0)
            if times != 1:
                self.wrong.append(f"{number} is in the result {times} times")
        if found:
            self.wrong.append(f"nobody sent {list(found)[:5]}")
        assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:40]])

    def _found(self) -> Counter[bytes | None]:
        with self.client.consumer(self.result, follow=False, isolation="read_committed") as reader:
            return Counter(record.value for record in reader)


# --- calls that are struck ---
def step(trial: ExactTrial) -> None:
    trial.step()


def abort(trial: ExactTrial) -> None:
    trial.producer.begin_transaction()
    for record in trial.consumer.poll(3):
        trial.producer.send(trial.result, record.value)
    trial.producer.abort_transaction(consumed=trial.consumer)
