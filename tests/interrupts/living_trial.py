"""Clients, producers, consumers, stages and requests to the node, struck while they are made, used
or ended.

What was struck is closed where the program has got it, and else forgotten. The next one then works
as if nothing had been: a record is sent and read back, a group has its partitions, and a request
gets its own answer.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from interrupts.striking import Alarmed, Blow, Interrupted

from penstock.client.admin.topic_config import TopicConfig
from penstock.client.client import Client
from penstock.client.producer.delivery import Delivery
from penstock.client.transactions.stages import Stage
from penstock.core import errors as er

WITHIN = 20.0
GROUP = "living"
UNSURE = b""
"""In place of the value of a record whose transaction may be aborted: its receipt tells little."""

Verb = Callable[["LivingTrial"], object]


class LivingTrial:
    """See the module. `connect` makes a client as the trial's own one was made."""

    def __init__(self, connect: Callable[[], Client], topic: str) -> None:
        self.connect = connect
        self.topic = topic
        self.client = connect()
        self.admin = self.client.admin()
        self.admin.create_topic(topic, TopicConfig(partitions=2))
        self.made: list[Any] = []
        self.sent: list[tuple[bytes, Delivery]] = []
        self.number = 0
        self.staged_id = f"staged-{topic}"
        self.epoch = self.decided = 0
        self.stage: Stage | None = None
        self.is_staged = False  # its `send` has returned
        self.staged: dict[bytes, bool] = {}
        self.receipts: dict[tuple[int, int], bytes] = {}
        self.wrong: list[str] = []
        self.places: Counter[str] = Counter()

    # --- what verbs do ---
    def keep(self, thing: Any) -> Any:
        """The program has got it, and closes it in the end."""
        self.made.append(thing)
        return thing

    def send(self, producer: Any) -> Delivery:
        self.number += 1
        value = b"%d" % self.number
        delivery: Delivery = producer.send(self.topic, value, partition=self.number % 2)
        self.sent.append((value, delivery))
        return delivery

    # --- one round ---
    def round(self, verb: Verb, strike: Blow) -> int:
        """How often it was struck."""
        self.made, self.sent = [], []
        try:
            try:
                with strike.armed():
                    verb(self)
            except (Interrupted, Alarmed):
                pass
            self._close()
            self._decide()
            self._look_after()
        except Exception as failure:
            self.wrong.append(f"{strike.place}: {type(failure).__name__}: {failure}")
        return strike.told(self.places)

    def _close(self) -> None:
        """End all that the program has, within bounds; nothing it sent stays without an outcome."""
        began = time.monotonic()
        for thing in reversed(self.made):
            with contextlib.suppress(er.DeliveryError):  # looked at below
                thing.close()
        for value, delivery in self.sent:
            assert delivery.done(), f"{value!r} has no outcome after close()"
            if delivery.exception(0.0) is None and value is not UNSURE:
                receipt = delivery.result(0.0)
                assert receipt.offset is not None
                self.receipts[receipt.partition, receipt.offset] = value
        assert time.monotonic() - began < WITHIN, "close() took too long"

    def _decide(self) -> None:
        """Ask for the commit of a stage that is whole; it may have been committed before."""
        value = b"staged %d" % self.epoch
        if not self.epoch or self.decided == self.epoch:
            return
        self.decided = self.epoch
        names = []
        if self.stage is not None:
            self.stage.close()
            with contextlib.suppress(er.TransactionError):
                names = [self.stage.name]
        outcome = self.client.commit_transaction(
            self.staged_id, self.epoch, names, commit=bool(names)
        )
        if self.is_staged or not outcome.committed:
            self.staged[value] = outcome.committed

    def _look_after(self) -> None:
        """All goes on as usual."""
        described = self.admin.describe_topic(self.topic)
        assert described.name == self.topic
        assert len(described.partitions) == 2
        assert self.topic in self.admin.list_topics()
        with self.client.producer() as producer:
            self.sent = []
            self.send(producer)
        value, delivery = self.sent[0]
        receipt = delivery.result(0.0)
        assert receipt.offset is not None
        self.receipts[receipt.partition, receipt.offset] = value

    def group_has_all(self) -> None:
        """A new member of the group is given all of its partitions: no other one holds any. A
        member that nobody has refers to itself: it goes when the garbage collector looks."""
        gc.collect()
        until = time.monotonic() + WITHIN
        with self.member() as consumer:
            while len(consumer.assignment()) < 2:
                consumer.poll(2, timeout=0.05)
                assert time.monotonic() < until, f"nobody has it, and it stays: {self.places}"

    def member(self) -> Any:
        return self.client.consumer(self.topic, group=GROUP, session_timeout=1.0)

    # --- the end ---
    def judge(self) -> None:
        """The log has each receipt's record, and none twice."""
        self.client.producer(transactional_id="living").close()  # ends what is left open
        log: dict[tuple[int, int], bytes | None] = {}
        with self.client.consumer(self.topic, follow=False, isolation="read_committed") as reader:
            for record in reader:
                log[record.partition, record.offset] = record.value
        for place, value in self.receipts.items():
            if log.get(place) != value:
                self.wrong.append(f"receipt {place} for {value!r}, the log has {log.get(place)!r}")
        for value_found, times in Counter(log.values()).items():
            if times > 1 and value_found != b"in a transaction":
                self.wrong.append(f"{value_found!r} is in the log {times} times")
        found = set(log.values())
        for value, committed in self.staged.items():
            if (value in found) != committed:
                self.wrong.append(f"{value!r}: committed {committed}, in the log {value in found}")
        self.client.close()
        assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:40]])


# --- verbs ---------------------------------------------------------------------------------------
def client(trial: LivingTrial) -> None:
    made = trial.keep(trial.connect())
    trial.send(made.producer())
    made.close()


def producer(trial: LivingTrial) -> None:
    made = trial.keep(trial.client.producer(linger=0.5))
    trial.send(made)
    made.close()


def consumer(trial: LivingTrial) -> None:
    made = trial.keep(trial.client.consumer(trial.topic, start="latest"))
    made.poll()
    made.close()


def member(trial: LivingTrial) -> None:
    made = trial.keep(trial.member())
    made.poll(2)
    made.close()


def transactional(trial: LivingTrial) -> None:
    made = trial.keep(trial.client.producer(transactional_id="living"))
    made.begin_transaction()
    trial.sent.append((UNSURE, made.send(trial.topic, b"in a transaction")))
    made.commit_transaction()
    made.close()


def stage(trial: LivingTrial) -> None:
    trial.epoch += 1
    trial.stage, trial.is_staged = None, False
    trial.stage = made = trial.client.stage(trial.staged_id, trial.epoch)
    made.send(trial.topic, b"staged %d" % trial.epoch)
    trial.is_staged = True
    made.close()
    trial.client.commit_transaction(trial.staged_id, trial.epoch, [made.name])


def requests(trial: LivingTrial) -> None:
    admin = trial.admin
    admin.describe_node()
    admin.list_groups()
    admin.describe_topic(trial.topic)
    admin.list_transactions()
    admin.alter_topic(trial.topic, retention_bytes=1 << 30)
    admin.report_offsets("nobody", trial.topic, {0: (0, 0)})


def topics(trial: LivingTrial) -> None:
    name = f"made-{trial.number}"
    try:
        trial.admin.create_topic(name)
        trial.admin.trim(name, before="latest")
        trial.admin.delete_topic(name)
    finally:
        if name in trial.admin.list_topics():
            trial.admin.delete_topic(name)


def admin(trial: LivingTrial) -> None:
    made = trial.keep(trial.client.admin())
    made.list_topics()
    made.close()
