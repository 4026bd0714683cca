"""The processes that the crash machine kills: a producer and a consumer with ledgers on stdout.

`python actors.py '{"role": "producer", ...}'`. A line on stdin asks for the end: a producer flushes
and leaves, a consumer reads up to the offsets that the line names. Never decides what is right.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import select
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash.ledgers import checksum
from crash.record_contents import Cargo

from penstock.client.client import connect
from penstock.client.producer.delivery import Delivery

WAIT_MAX = 60.0
"""No single call waits longer than this, in seconds: heals come much sooner."""


def tell(**line: Any) -> None:
    """One write, so that a kill leaves a whole line or a torn last one."""
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def asked() -> dict[str, Any] | None:
    """What the parent said, if it said something; its death asks for the end too."""
    if not select.select([0], [], [], 0)[0]:
        return None
    line = sys.stdin.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"orphan": True}
    return answer


def produce(plan: dict[str, Any]) -> None:
    cargo = Cargo(plan["who"], tuple((topic, n) for topic, n in plan["topics"]), plan["keys"])
    rng = random.Random(plan["seed"])
    number = 0
    waiting: deque[tuple[int, int, Delivery]] = deque()
    with connect(plan["url"], client_id=plan["who"], timeout=30.0) as client:
        producer = client.producer(
            timeout=WAIT_MAX, delivery_timeout=WAIT_MAX, block_timeout=WAIT_MAX, **plan["options"]
        )
        while (order := asked()) is None:
            burst = rng.randint(1, plan["burst"])
            tell(**{"try": number + burst})
            if rng.random() < plan["batched"]:
                number = _send_batches(producer, cargo, number, burst, rng)
            else:
                for number in range(number, number + burst):  # noqa: B020 - goes on behind it
                    sent = cargo.record(number)
                    delivery = producer.send(
                        sent.topic, sent.value, key=sent.key, headers=sent.headers or None
                    )
                    waiting.append((number, sent.partition, delivery))
                number += 1
            _settle(waiting, plan["window"])
            time.sleep(rng.random() * plan["pause"])
        if "orphan" in order:
            os._exit(3)
        producer.flush(WAIT_MAX)
        _settle(waiting, 0)
        producer.close()
    tell(done=number)


def _send_batches(producer: Any, cargo: Cargo, number: int, count: int, rng: random.Random) -> int:
    """`send_batch` of runs that go to one partition; returns the next number."""
    stop = number + count
    while number < stop:
        run = [cargo.record(number)]
        while number + len(run) < stop:
            following = cargo.record(number + len(run))
            if following[:2] != run[0][:2]:
                break
            run.append(following)
        delivery = producer.send_batch(
            run[0].topic,
            [sent.value for sent in run],
            keys=[sent.key for sent in run],
            headers=[sent.headers for sent in run] if any(sent.headers for sent in run) else None,
            partition=run[0].partition,
        )
        acks = []
        at = number
        if rng.random() < 0.2:
            for receipt in delivery.result(WAIT_MAX):
                for i in range(receipt.count):
                    base = receipt.base_offset
                    acks.append([at + i, receipt.partition, None if base is None else base + i])
                at += receipt.count
            tell(ack=acks)
        number += len(run)
    return number


def _settle(waiting: deque[tuple[int, int, Delivery]], window: int) -> None:
    """Write down what was acknowledged; wait for it while more than `window` are open."""
    acks = []
    while waiting and (len(waiting) > window or waiting[0][2].done()):
        number, _, delivery = waiting.popleft()
        receipt = delivery.result(WAIT_MAX)
        acks.append([number, receipt.partition, receipt.offset])
        if len(acks) >= 500:
            tell(ack=acks)
            acks = []
    if acks:
        tell(ack=acks)


def consume(plan: dict[str, Any]) -> None:
    starts = {(topic, partition): at for topic, partition, at in plan["starts"]}
    rng = random.Random(plan["seed"])
    until: dict[tuple[str, int], int] | None = None
    with connect(plan["url"], client_id=plan["who"], timeout=30.0) as client:
        consumer = client.consumer(node_timeout=WAIT_MAX)
        consumer.assign(starts)
        for (topic, partition), offset in starts.items():
            consumer.seek(topic, partition, offset)
        while until is None or any(
            consumer.position(topic, partition) < end for (topic, partition), end in until.items()
        ):
            order = asked()
            if order is not None:
                if "orphan" in order:
                    os._exit(3)
                until = {(topic, partition): end for topic, partition, end in order["until"]}
            limit = rng.choice([None, None, 1, 7, 100])
            batch = consumer.poll(max_records=limit, timeout=0.1)
            if rng.random() < 0.5:
                _saw_chunks(batch)
            else:
                _saw_records(consumer.unpack(batch))
        consumer.close()
    tell(done=True)


def _saw_chunks(batch: Any) -> None:
    for chunk in batch.chunks:
        offsets = chunk.offsets.tolist()
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            raise AssertionError(f"{chunk.topic}-{chunk.partition}: offsets {offsets}")
        total = 0
        for key, value in zip(chunk.keys, chunk.values, strict=True):
            total = checksum(key, value, total)
        tell(saw=[chunk.topic, chunk.partition, offsets[0], offsets[-1] + 1, total])


def _saw_records(records: Any) -> None:
    """The same by iteration: a run ends where topic, partition or offset do not follow."""
    run: list[Any] = []
    total = 0
    for record in records:
        if run and (record.topic, record.partition, record.offset) != (run[0], run[1], run[3]):
            tell(saw=[*run, total])
            run = []
        if not run:
            run = [record.topic, record.partition, record.offset, record.offset]
            total = 0
        total = checksum(record.key, record.value, total)
        run[3] = record.offset + 1
    if run:
        tell(saw=[*run, total])


def main() -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan = json.loads(sys.argv[1])
    try:
        {"producer": produce, "consumer": consume}[plan["role"]](plan)
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
