"""kill -9 of the cleaner and of the writer at every step of cleaning, under traffic."""

from __future__ import annotations

import random
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from crash import cleaning_steps
from crash.cleaning_steps import PLAN_VARIABLE, STEPS
from crash.node_under_test import NodeUnderTest
from crash.steps import StepPlan
from seeds import tell

from penstock import Client, OffsetOutOfRangeError, Record, TopicConfig
from penstock.logcheck import check_partition, find_partitions
from penstock.testing import wait_until

pytestmark = pytest.mark.crash

SEED = 11
STEP_TIMEOUT = 45.0
SEGMENT = 16384
TOPICS = {
    "compacted": TopicConfig(segment_bytes=SEGMENT, cleanup="compact", min_dirty_ratio=0.0),
    "retained": TopicConfig(segment_bytes=SEGMENT, retention_bytes=2 * SEGMENT),
}

Table = dict[bytes, bytes]


def value_at(number: int) -> bytes:
    return b"%09d" % number * 12


class Traffic:
    """A producer for both topics until it is told to stop, and what it has sent."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self.table: Table = {}
        self.retained = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        rng = random.Random(SEED)
        try:
            with self._client.producer(delivery_timeout=60) as producer:
                while not self._stop.wait(0.04):
                    self._send(producer, rng)
        except BaseException as error:
            self.error = error

    def _send(self, producer, rng: random.Random) -> None:
        keys = [b"k%d" % rng.randrange(30) for _ in range(20)]
        values = [None if rng.random() < 0.1 else b"%d" % rng.getrandbits(300) for _ in keys]
        compacted = producer.send_batch("compacted", values, keys=keys)
        plain = [value_at(self.retained + number) for number in range(20)]
        retained = producer.send_batch("retained", plain)
        compacted.result(60)
        retained.result(60)
        self.retained += 20
        for key, value in zip(keys, values, strict=True):
            self.table.pop(key, None)
            if value is not None:
                self.table[key] = value


class Follower:
    """A consumer of both topics, which falls behind: each record right, none twice."""

    def __init__(self, client: Client) -> None:
        self._consumer = client.consumer(*TOPICS, start="earliest")
        self._next = dict.fromkeys(TOPICS, 0)
        self.overtaken = 0

    def follow(self) -> None:
        try:
            for record in self._consumer.poll(timeout=0.1):
                assert record.offset >= self._next[record.topic]
                self._next[record.topic] = record.offset + 1
                if record.topic == "retained":
                    assert record.value == value_at(record.offset)
        except OffsetOutOfRangeError:
            self.overtaken += 1
            self._consumer.seek("retained", 0, "earliest")

    def close(self) -> None:
        self._consumer.close()


def read_table(client: Client) -> Table:
    table: Table = {}
    with client.consumer("compacted", start="earliest", follow=False) as consumer:
        for record in consumer:
            assert record.key is not None
            table.pop(record.key, None)
            if record.value is not None:
                table[record.key] = record.value
    return table


@pytest.mark.rule(11, 21)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("process", list(STEPS))
def test_rule_11_and_21_a_crash_at_any_step_of_cleaning_loses_and_changes_nothing(
    process: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    wanted = STEPS[process]
    commands = {}
    for name in STEPS:
        plan = StepPlan(tmp_path / name)
        plan.write(wanted if name == process else [])
        monkeypatch.setenv(PLAN_VARIABLE.format(name.upper()), str(tmp_path / name))
        commands[f"{name}_command"] = [sys.executable, cleaning_steps.__file__, name]
    plan = StepPlan(tmp_path / process)
    node = NodeUnderTest(
        tmp_path, writers_max=1, restart_backoff=0.001, restart_backoff_max=0.01,
        cleaner_interval=0.05, cleaner_rate=1 << 30, **commands,
    )  # fmt: skip
    try:
        node.start()
        with node.connect() as client:
            admin = client.admin()
            for name, config in TOPICS.items():
                admin.create_topic(name, config)
            traffic, follower = Traffic(client), Follower(client)
            traffic.start()
            try:
                for number, step in enumerate(wanted):
                    wait_until(
                        partial(reached, plan, number, follower), STEP_TIMEOUT, f"death {step}"
                    )
            finally:
                traffic.stop()
                follower.close()
            assert plan.hit() == wanted
            assert read_table(client) == traffic.table
            end = admin.describe_topic("retained").partitions[0].high_watermark
            assert end == traffic.retained
            assert traffic.table
            start = [record.offset for record in read_rest(client)]
            assert 0 < start[0] < end, "retention took nothing, or all"
            assert start == list(range(start[0], end))
        for _ in range(2):  # what the last death left is gone after the next start
            assert node.stop() == 0
            node.start()
        assert node.stop() == 0
        node.check_gone()
        partitions = find_partitions(str(node.data))
        assert len(partitions) >= len(TOPICS)
        for partition in partitions:
            assert not check_partition(partition).findings
    except BaseException:
        with capsys.disabled():
            tell(node.tail(80))
        raise
    finally:
        node.clear()


def reached(plan: StepPlan, number: int, follower: Follower) -> bool:
    follower.follow()
    return plan.was_hit(number)


def read_rest(client: Client) -> list[Record]:
    with client.consumer(
        "retained", start="earliest", follow=False, on_out_of_range="earliest"
    ) as consumer:
        return list(consumer)
