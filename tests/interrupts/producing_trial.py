"""A producer that is struck again and again and used on, and what the log says of it in the end.

Before and after each strike a record is sent that nothing strikes. Both get receipts, whatever was
struck, and no value is in the log twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from interrupts.striking import ERRORS, Blow

from penstock.client.client import Client
from penstock.client.producer.delivery import BatchDelivery, Delivery
from penstock.client.producer.producer import Producer
from penstock.core import errors as er

WITHIN = 20.0

Verb = Callable[["ProducingTrial"], object]


class ProducingTrial:
    """See the module. `make` makes the producer that is used until one of its rounds goes wrong."""

    def __init__(self, client: Client, topic: str, make: Callable[[], Producer]) -> None:
        self.client = client
        self.topic = topic
        self._make = make
        self.producer = make()
        self.number = 0
        self.wrong: list[str] = []
        self.receipts: dict[tuple[int, int], bytes] = {}
        self.places: Counter[str] = Counter()
        self.sent: list[tuple[bytes, Delivery]] = []
        self.batch: BatchDelivery | None = None

    def value(self, role: str) -> bytes:
        """No other one is the same."""
        self.number += 1
        return b"%d-%s" % (self.number, role.encode())

    def send(self, role: str) -> Delivery:
        value = self.value(role)
        delivery = self.producer.send(self.topic, value, key=value)
        self.sent.append((value, delivery))
        return delivery

    # --- one round ---
    def round(self, verb: Verb, strike: Blow) -> int:
        """How often it was struck."""
        self.sent, self.batch = [], None
        try:
            self.send("before")
            for _ in strike.tries():
                with suppress(*ERRORS), strike.armed():
                    verb(self)
            self.send("after")
            self._settle()
        except Exception as failure:  # what a program meets that goes on
            self._goes_wrong(strike, failure)
        return strike.told(self.places)

    def _settle(self) -> None:
        deadline = time.monotonic() + WITHIN
        self.producer.flush(WITHIN)
        for value, delivery in self.sent:
            receipt = delivery.result(max(0.0, deadline - time.monotonic()))
            if receipt.offset is None:
                continue  # acks=0
            place = receipt.partition, receipt.offset
            assert place not in self.receipts, f"{place} twice: {self.receipts[place]!r}, {value!r}"
            self.receipts[place] = value

    def _goes_wrong(self, strike: Blow, failure: Exception) -> None:
        self.wrong.append(f"{strike.place}: {type(failure).__name__}: {failure}")
        leaving, self.producer = self.producer, self._make()
        try:
            leaving.close(1.0)
        except (er.PenstockError, RuntimeError) as error:
            self.wrong.append(f"close: {error!r}")

    # --- the end ---
    def judge(self) -> None:
        """Read the log, and see whether it has what the receipts say, and all of it once."""
        self.producer.close(WITHIN)
        deadline, log = time.monotonic() + WITHIN, self._log()
        while not self.receipts.keys() <= log.keys() and time.monotonic() < deadline:
            log = self._log()  # a new leader learns how far the log is committed
        for place, value in self.receipts.items():
            if log.get(place) != value:
                self.wrong.append(f"receipt {place} for {value!r}, the log has {log.get(place)!r}")
        for found, times in Counter(log.values()).items():
            if times > 1:
                self.wrong.append(f"{found!r} is in the log {times} times")
        assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:40]])

    def _log(self) -> dict[tuple[int, int], bytes | None]:
        with self.client.consumer(self.topic, follow=False) as reader:
            return {(record.partition, record.offset): record.value for record in reader}
