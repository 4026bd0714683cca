"""taskiq on Penstock: real workers of an application, and what becomes of tasks when they end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cli_runner import environment
from event_loops import run
from taskiq.exceptions import SendTaskError
from told_lines import ToldLines

from penstock import ClosedError, ConfigError, TopicConfig, UnknownTopicError
from penstock.taskiq import PenstockBroker
from penstock.testing import Broker, drain, produce, wait_until

TESTS = Path(__file__).resolve().parents[1]
NUMBERS = itertools.count()
ONE = TopicConfig(partitions=1)


class Tasks(ToldLines):
    """An application with a topic of its own, and what its tasks tell."""

    def __init__(self, node: Broker, folder: Path) -> None:
        self.node = node
        self.topic = f"tasks-{next(NUMBERS)}"
        super().__init__(folder)
        self.env = environment(
            env={"PENSTOCK_URL": node.url, "TASKS": self.topic, "TOLD": str(self.file)}
        )

    def kick(self, name: str, *args: Any, **labels: Any) -> None:
        async def main() -> None:
            broker = PenstockBroker(self.node.url, topic=self.topic, topic_config=ONE)
            task = broker.register_task(_nothing, f"taskiq_application:{name}")
            await broker.startup()
            await task.kicker().with_labels(**labels).kiq(*args)
            await broker.shutdown()

        run(main())

    @contextmanager
    def worker(self, tasks: int = 1, prefetch: int = 1) -> Iterator[subprocess.Popen[bytes]]:
        """A worker of so many tasks at once, and what is above it."""
        command = [
            *(sys.executable, "-m", "taskiq", "worker", "taskiq_application:broker"),
            *("--workers", "1", "--max-async-tasks", str(tasks), "--shutdown-timeout", "10"),
        ]
        process = subprocess.Popen(
            command, env={**self.env, "PREFETCH": str(prefetch)}, cwd=TESTS, start_new_session=True
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def letters(self, count: int) -> list[Any]:
        found: list[Any] = []

        def came() -> bool:
            with suppress(UnknownTopicError):
                found[:] = drain(self.node, f"{self.topic}.dlq")
            return len(found) >= count

        wait_until(came, timeout=40.0)
        return found

    def lag(self) -> int:
        with self.node.connect() as client, client.admin() as admin:
            return admin.describe_share_group(self.topic).lag


def _nothing(*_: Any) -> None:
    pass


@pytest.fixture
def tasks(node: Broker, tmp_path: Path) -> Tasks:
    return Tasks(node, tmp_path)


def test_tasks_run_and_fail_and_are_retried(tasks):
    """What fails for good is a dead letter with its reason, as is what is no task."""
    for number in range(5):
        tasks.kick("plain", number)
    tasks.kick("fails", "bad", retry_on_error=True, delay=0.0)
    tasks.kick("note", "expired", ttl=0.001)
    produce(tasks.node, tasks.topic, [b"no task"])
    with tasks.worker(tasks=4):
        told = tasks.tells("fails", count=3)
        assert [said for _, said in told] == [f"fails bad {number}" for number in range(3)]
        letters = {letter.value[:7]: dict(letter.headers) for letter in tasks.letters(2)}
        tasks.kick("note", "late", delay=0.05)
        tasks.tells("note late")
        assert sorted(said for _, said in tasks.tells("plain", count=5)) == [
            f"plain {number}" for number in range(5)
        ]
        wait_until(lambda: tasks.lag() == 0)
    assert len(tasks.told("fails")) == 3
    assert tasks.told("note expired") == []
    reasons = {value: told["penstock.dlq.reason"] for value, told in letters.items()}
    assert reasons.pop(b"no task").startswith(b"JSONDecodeError")
    assert list(reasons.values()) == [b"ValueError: bad"]


def test_of_tasks_at_hand_the_more_urgent_come_first(tasks):
    for priority in (1, 9, 5):
        tasks.kick("note", str(priority), priority=priority)
    with tasks.worker(prefetch=3):
        told = tasks.tells("note", count=3)
    assert [said for _, said in told] == ["note 9", "note 5", "note 1"]


@pytest.mark.over_tcp
def test_a_task_of_a_killed_worker_runs_elsewhere_and_no_other_does(tasks):
    """A long task holds up no other, as its worker has taken none that it has no room for; and it
    runs once."""
    with tasks.worker(), tasks.worker():
        tasks.kick("works", "long")
        [(first, _)] = tasks.tells("begins long")
        for number in range(20):
            tasks.kick("plain", number)
        others = tasks.tells("plain", count=20)
        assert {pid for pid, _ in others} == {others[0][0]} != {first}
        assert len(tasks.told("begins long")) == 1
        os.kill(first, signal.SIGKILL)
        again = tasks.tells("begins long", count=2)[1][0]
        assert again != first
        tasks.lets("long")
        tasks.tells("ends long")
        wait_until(lambda: tasks.lag() == 0)
    assert len(tasks.told("begins")) == 2


def test_a_worker_that_is_asked_to_end_finishes_what_it_has(tasks):
    with tasks.worker() as worker:
        tasks.kick("works", "mine")
        tasks.tells("begins mine")
        tasks.kick("note", "for others")
        worker.send_signal(signal.SIGTERM)
        tasks.lets("mine")
        worker.wait(30.0)
    assert [said for _, said in tasks.told("begins")] == ["begins mine"]
    assert [said for _, said in tasks.told("ends")] == ["ends mine"]
    with tasks.worker():
        wait_until(lambda: tasks.lag() == 0)
    assert len(tasks.told("note for others")) == 1


def test_a_task_that_this_worker_does_not_know_is_left_to_others(tasks):
    tasks.kick("unknown")

    async def main() -> None:
        broker = PenstockBroker(
            tasks.node.url, topic=tasks.topic, group=tasks.topic, backoff=(0.0, 0.0)
        )
        broker.is_worker_process = True
        await broker.startup()
        listening = broker.listen()
        waiting = asyncio.create_task(anext(listening))
        await asyncio.to_thread(
            wait_until, lambda: len(drain(tasks.node, f"{tasks.topic}.dlq")) == 1
        )
        waiting.cancel()
        await asyncio.wait([waiting])
        await listening.aclose()
        await broker.shutdown()

    with tasks.node.connect() as client:
        client.admin().create_topic(f"{tasks.topic}.dlq")
    run(main())
    [letter] = drain(tasks.node, f"{tasks.topic}.dlq")
    headers = {name: value or b"" for name, value in letter.headers}
    assert headers["penstock.dlq.deliveries"] == b"5"
    assert b"no task 'taskiq_application:unknown' is known" in headers["penstock.dlq.reason"]
    assert json.loads(letter.value or b"")["task_name"] == "taskiq_application:unknown"


def test_what_cannot_be_kicked_is_told(tasks):
    with pytest.raises(SendTaskError) as caught:
        tasks.kick("note", delay="soon")
    assert isinstance(caught.value.__cause__, ConfigError)
    assert "label delay='soon' must be a number" in str(caught.value.__cause__)
    broker = PenstockBroker(tasks.node.url)
    with pytest.raises(ClosedError, match=r"await broker.startup\(\) first"):
        run(broker.kick(None))  # type: ignore[arg-type]
    with pytest.raises(ClosedError, match="not started as that of a worker"):
        run(anext(broker.listen()))
