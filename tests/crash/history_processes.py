"""What the processes of a history do: write, transact, read. Each tells its events as it goes.

Events are those of `histories.events`, one `write(2)` each on a file opened for appending: what was
written is there after a kill -9, and a line is whole or the last one. SIGTERM asks for the end.
Nobody judges here; whatever is not foreseen is an error, and ends the process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from histories.events import WRITER_SHIFT

from penstock.client.client import Client, connect
from penstock.client.producer.delivery import Delivery
from penstock.core import errors as er

WAIT_MAX = 60.0
"""No single call waits longer than this, in seconds: heals come much sooner."""
INSTANCES = 1 << 10
"""Writers that one process may be, one after the other."""
KEYS = 12
Made = TypeVar("Made")


class Stage:
    """A role's plan, its dice, its events, and whether it is to end."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.rng = random.Random(plan["seed"])
        self.ending = False
        self._file = os.open(plan["events"], os.O_WRONLY | os.O_APPEND)
        self._writer: int = plan["writer"] * INSTANCES
        self._next = 0
        signal.signal(signal.SIGTERM, self._asked_to_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _asked_to_end(self, *_: object) -> None:
        self.ending = True

    def tell(self, event: str, **fields: Any) -> None:
        line = json.dumps({"e": event, "t": time.monotonic_ns(), **fields}).encode() + b"\n"
        written = os.write(self._file, line)
        assert written == len(line), (written, line)

    def connect(self) -> Client:
        plan = self.plan
        how: dict[str, Any] = plan.get("connect", {})
        return self.insist(lambda: connect(plan["url"], client_id=plan["who"], timeout=30.0, **how))

    def insist(self, make: Callable[[], Made]) -> Made:
        """What takes a node to be made, across the deaths of nodes."""
        deadline = time.monotonic() + WAIT_MAX
        while True:
            try:
                return make()
            except er.PenstockError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def new_writer(self) -> None:
        """Values from here on are another writer's."""
        self._writer += 1
        self._next = 0

    def value(self) -> int:
        self._next += 1
        return self._writer << WRITER_SHIFT | self._next

    def pause(self) -> None:
        time.sleep(self.rng.random() * self.plan.get("pause", 0.01))

    def perhaps_die(self, share: float) -> None:
        """kill -9 by its own hand, at the moment that hurts."""
        if self.rng.random() < share:
            self.tell("dying")
            os.kill(os.getpid(), signal.SIGKILL)


def play(plan: dict[str, Any]) -> None:
    from crash import group_processes, job_processes, share_processes

    parts: dict[str, Callable[[Stage], None]] = {
        "produce": produce,
        "transact": transact,
        "read": read,
        "member": group_processes.member,
        "job": group_processes.job,
        "work": share_processes.work,
        "make": job_processes.make,
    }
    stage = Stage(plan)
    parts[plan["role"]](stage)
    stage.tell("left")


# --- writers ---
def produce(stage: Stage) -> None:
    """Sends bursts, and tells what was acknowledged. Its options never let a record fail."""
    plan, rng = stage.plan, stage.rng
    waiting: deque[tuple[int, Delivery]] = deque()
    with stage.connect() as client:
        producer = stage.insist(
            lambda: client.producer(
                timeout=WAIT_MAX,
                delivery_timeout=WAIT_MAX,
                block_timeout=WAIT_MAX,
                **plan["options"],
            )
        )
        while not stage.ending:
            rows = [[stage.value(), rng.choice(plan["topics"])]
                    for _ in range(rng.randint(1, plan["burst"]))]  # fmt: skip
            stage.tell("sends", r=rows)
            for value, topic in rows:
                key = b"key-%d" % rng.randrange(KEYS)
                waiting.append((value, producer.send(topic, b"%d" % value, key=key)))
            _settle(stage, waiting, plan["window"])
            stage.pause()
        producer.flush(WAIT_MAX)
        _settle(stage, waiting, 0)
        producer.close()


def _settle(stage: Stage, waiting: deque[tuple[int, Delivery]], window: int) -> None:
    """Tell what was acknowledged; wait for it while more than `window` are open."""
    acks = []
    while waiting and (len(waiting) > window or waiting[0][1].done()):
        acks.append(ack_row(*waiting.popleft()))
    if acks:
        stage.tell("acks", r=acks)


def ack_row(value: int, delivery: Delivery) -> list[Any]:
    receipt = delivery.result(WAIT_MAX)
    at = -1 if receipt.offset is None or receipt.durability == "ring" else receipt.offset
    return [value, receipt.topic, receipt.partition, at]


class Transactor:
    """A transactional producer over its deaths by fencing, and the events of its transactions."""

    def __init__(self, stage: Stage, client: Client) -> None:
        self.stage = stage
        self._client = client
        self._number = 0
        self.producer: Any = None

    def begin(self) -> int:
        """The number of a new transaction, which is open."""
        if self.producer is None:
            self.stage.new_writer()
            plan = self.stage.plan
            options: dict[str, Any] = plan.get("producer_options", plan["options"])
            self.producer = self.stage.insist(
                lambda: self._client.producer(
                    transactional_id=plan["transactional_id"],
                    timeout=WAIT_MAX,
                    delivery_timeout=WAIT_MAX,
                    block_timeout=WAIT_MAX,
                    **options,
                )
            )
        self._number += 1
        self.stage.tell("begin", n=self._number)
        self.producer.begin_transaction()
        return self._number

    def send(self, rows: list[list[Any]], values: list[bytes]) -> None:
        """Rows of `sends`, and what is sent for each; told when acknowledged."""
        rng = self.stage.rng
        self.stage.tell("sends", txn=self._number, r=rows)
        waiting = [
            (value, self.producer.send(topic, data, key=b"key-%d" % rng.randrange(KEYS)))
            for (value, topic), data in zip(rows, values, strict=True)
        ]
        if rng.random() < 0.5:
            self.producer.flush(WAIT_MAX)
            self.stage.tell("acks", r=[ack_row(*each) for each in waiting])

    def end(self, commit: bool, consumed: Any = None) -> bool:
        """Commit or abort; True if it is known to be committed."""
        stage, n = self.stage, self._number
        stage.tell("ending", n=n, commit=commit)
        try:
            if commit:
                self.producer.commit_transaction(consumed=consumed)
            else:
                self.producer.abort_transaction(consumed=consumed)
        except (er.PenstockTimeout, er.NotConnectedError):
            raise  # within WAIT_MAX nobody answered: not foreseen
        except er.ProducerFencedError:
            self.gone()
            return False
        except (er.TransactionError, er.StaleGenerationError):
            stage.tell("ended", n=n, outcome="aborted")
            return False
        stage.tell("ended", n=n, outcome="committed" if commit else "aborted")
        return commit

    def failed(self, error: er.PenstockError, consumed: Any = None) -> None:
        """A send or its flush failed: the transaction can only be aborted."""
        if isinstance(error, er.ProducerFencedError):
            self.gone()
        elif isinstance(error, er.TransactionError | er.DeliveryError):
            self.end(False, consumed)
        else:
            raise error

    def gone(self) -> None:
        """Another one has the id. What became of the transaction nobody says here."""
        producer, self.producer = self.producer, None
        producer.close()


def transact(stage: Stage) -> None:
    """Transactions of a few records, some of them aborted, some held open for a while."""
    plan, rng = stage.plan, stage.rng
    with stage.connect() as client:
        transactor = Transactor(stage, client)
        while not stage.ending:
            try:
                transactor.begin()
                for _ in range(rng.randint(1, 3)):
                    rows = [[stage.value(), rng.choice(plan["topics"])]
                            for _ in range(rng.randint(1, plan["burst"]))]  # fmt: skip
                    transactor.send(rows, [b"%d" % value for value, _ in rows])
                    stage.perhaps_die(plan["suicide"])
                    stage.pause()
            except er.PenstockError as error:
                transactor.failed(error)
                continue
            transactor.end(rng.random() < 0.7)
            stage.perhaps_die(plan["suicide"])


# --- readers without a group ---
def read(stage: Stage) -> None:
    """All partitions that are there at first, from the beginning on."""
    plan, rng = stage.plan, stage.rng
    with stage.connect() as client:
        consumer = stage.insist(
            lambda: client.consumer(*plan["topics"], node_timeout=WAIT_MAX, **plan["options"])
        )
        stage.tell("hello", role="reader", isolation=plan["isolation"])
        stage.tell("assigned", r=[list(place) for place in consumer.assignment()])
        while not stage.ending:
            batch = consumer.poll(rng.choice([None, 1, 7, 100]), timeout=0.1)
            if batch:
                stage.tell("polls", r=poll_rows(batch))
            stage.pause()
        consumer.close()


def isolated(level: str) -> dict[str, Any]:
    """As an option; "read_uncommitted" is what readers have without it."""
    return {} if level == "read_uncommitted" else {"isolation": level}


def poll_rows(batch: Any) -> list[list[Any]]:
    """What a batch brought, as the event `polls` has it."""
    rows = []
    for chunk in batch.chunks:
        split = [value.split(b",") for value in chunk.values]
        sources = [int(parts[1]) if len(parts) > 1 else -1 for parts in split]
        rows.append(
            [
                chunk.topic,
                chunk.partition,
                chunk.offsets.tolist(),
                [int(parts[0]) for parts in split],
                sources if any(source >= 0 for source in sources) else None,
            ]
        )
    return rows
