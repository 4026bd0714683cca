"""Members of groups for tests: polled in turn by the test's own thread, or as processes of their
own that print the events of `penstock verify consumer`."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cli_runner import Running, cli_process

from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.testing.waiting import wait_until

TIMEOUT = 25.0
"""Seconds. A member's session lasts 30, and what is to come before its end has to come in time."""


def fill(broker: Any, topic: str, start: int, count: int) -> None:
    """Records `start` to `start + count`, spread by key."""
    values = [b"%d" % number for number in range(start, start + count)]
    with broker.connect() as client, client.producer() as producer:
        producer.send_batch(topic, values, keys=values)


class Members:
    """Consumers of one group, polled in turn. `seen`: how often each value came, over all."""

    def __init__(self) -> None:
        self.all: list[GroupConsumer] = []
        self.seen: Counter[bytes] = Counter()

    def add(self, consumer: GroupConsumer) -> GroupConsumer:
        self.all.append(consumer)
        return consumer

    def leave(self, consumer: GroupConsumer) -> None:
        self.all.remove(consumer)
        consumer.close()

    def poll(self) -> None:
        for consumer in self.all:
            batch = consumer.poll(50)
            self.seen.update(batch.values.to_list())  # type: ignore[arg-type]

    def owned(self) -> list[tuple[str, int]]:
        return sorted(name for consumer in self.all for name in consumer.assignment())

    def until(self, condition: Callable[[], bool], what: str, timeout: float = TIMEOUT) -> None:
        """Poll on until it holds."""

        def polled() -> bool:
            self.poll()
            return condition()

        wait_until(polled, timeout, lambda: f"{what}: {self.describe()}")

    def until_balanced(self, partitions: list[tuple[str, int]]) -> None:
        """Until each partition has one owner, and no two members differ by more than one."""

        def balanced() -> bool:
            shares = [len(consumer.assignment()) for consumer in self.all]
            return self.owned() == sorted(partitions) and max(shares) - min(shares) <= 1

        self.until(balanced, "balanced")

    def until_more_than(self, count: int) -> None:
        self.until(lambda: len(self.seen) > count, f"more than {count} different records")

    def until_seen(self, count: int) -> None:
        self.until(lambda: len(self.seen) >= count, f"{count} different records")

    def describe(self) -> str:
        shares = [consumer.assignment() for consumer in self.all]
        return f"{len(self.seen)} values seen, assigned {shares}"

    def close(self) -> None:
        for consumer in self.all:
            consumer.close()


def poll_until(consumer: GroupConsumer, last: int) -> list[int]:
    """The offsets that come, up to this one."""
    came: list[int] = []

    def polled() -> bool:
        came.extend(consumer.poll().offsets.tolist())
        return last in came

    wait_until(polled, TIMEOUT, lambda: f"offset {last} after {came[-3:]}")
    return came


class Process:
    """A member in a process of its own. `events` are the lines that it printed so far."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.pid = running.pid
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.running.stdout:
            self.events.append(json.loads(line))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["name"] == name]

    def values(self) -> list[int]:
        return [int(event["value"]) for event in self.named("record_data")]

    def places(self) -> list[tuple[int, int]]:
        return [(event["partition"], event["offset"]) for event in self.named("record_data")]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, number: int) -> int:
        """Signal it, wait for its end and for its last line."""
        self.signal(number)
        code: int = self.running.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        return code

    def until_named(self, name: str) -> None:
        self.until(lambda: self.named(name), name)

    def until_value(self, value: int) -> None:
        self.until(lambda: value in self.values(), f"value {value}")

    def until(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(condition, TIMEOUT, lambda: f"{what}: {self.events[-3:]}")


@contextmanager
def member(broker: Any, topic: str, group: str, *arguments: str) -> Iterator[Process]:
    """`penstock verify consumer --group`, with each record."""
    command = ["verify", "consumer", "--topic", topic, "--group", group, "-v", *arguments]
    with cli_process(*command, url=broker.url) as running:
        yield Process(running)
