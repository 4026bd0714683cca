"""Producers that are faster than their writer: each policy, with the writer stopped."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cli_runner import call_cli, cli_process
from crash.node_under_test import NodeUnderTest

from penstock import TopicConfig
from penstock.client.client import Client
from penstock.client.producer.delivery import Delivery
from penstock.core.errors import DroppedError
from penstock.testing import wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 45.0
LANE = 64 << 10
BUFFER = 128 << 10
OPTIONS: dict[str, Any] = {"batch_bytes": 4 << 10, "buffer_bytes_max": BUFFER}


@pytest.fixture(scope="module")
def node(transport: str) -> Iterator[NodeUnderTest]:
    # Writers that are stopped stay, however long a test takes on a busy machine.
    with NodeUnderTest(writers_max=1, lane_capacity=LANE, writer_stall_timeout=120.0) as node:
        yield node
        assert node.stop() == 0


@pytest.fixture
def client(node: NodeUnderTest) -> Iterator[Client]:
    with node.connect() as client:
        yield client


@contextmanager
def stopped_writer(node: NodeUnderTest) -> Iterator[None]:
    (writer,) = node.writer_pids()
    os.kill(writer, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(writer, signal.SIGCONT)


def value(number: int) -> bytes:
    return b"%06d" % number + bytes(494)


def numbers(client: Client, topic: str) -> list[int]:
    with client.consumer(topic, follow=False) as consumer:
        return [int((record.value or b"")[:6]) for record in consumer]


def fates(deliveries: list[Delivery]) -> tuple[list[int], list[int]]:
    """(delivered, dropped) by number."""
    errors = [delivery.exception(WITHIN) for delivery in deliveries]
    for error in errors:
        assert error is None or isinstance(error, DroppedError), error
    kept = [number for number, error in enumerate(errors) if error is None]
    return kept, [number for number, error in enumerate(errors) if error is not None]


@pytest.mark.parametrize("linger", [0.0, 0.002, 30.0])
def test_drop_oldest_keeps_what_a_lane_has_and_the_newest(
    node: NodeUnderTest, client: Client, linger: float
) -> None:
    """Rule 4: what was accepted into the ring is never dropped, and the log sees no gap."""
    topic = f"oldest-{linger}"
    client.admin().create_topic(topic, TopicConfig(partitions=1))
    with client.producer(on_full="drop_oldest", linger=linger, **OPTIONS) as producer:
        producer.send_and_wait(topic, value(0), timeout=WITHIN)
        with stopped_writer(node):
            deliveries = [producer.send(topic, value(number)) for number in range(2000)]
            counts = producer.metrics()
            assert counts["dropped_records"] > 1000
            assert counts["dropped_bytes"] > 500 * 1000
            assert counts["buffered_bytes"] <= BUFFER + 2 * OPTIONS["batch_bytes"]
        producer.flush(WITHIN)
        kept, dropped = fates(deliveries)
        assert producer.metrics()["dropped_records"] == len(dropped)
        assert producer.metrics()["failed"] == 0
        producer.send_and_wait(topic, value(9999), timeout=WITHIN)
    oldest, newest = list(range(dropped[0])), list(range(dropped[-1] + 1, 2000))
    assert len(oldest) > 50
    assert len(newest) > 50
    assert len(kept) < len(oldest) + len(newest) + 20, "small batches may find room in the lane"
    assert numbers(client, topic) == [0, *kept, 9999]


@pytest.mark.setting("producer.on_full")
def test_drop_newest_keeps_what_came_first(node: NodeUnderTest, client: Client) -> None:
    client.admin().create_topic("newest", TopicConfig(partitions=1))
    with client.producer(on_full="drop_newest", **OPTIONS) as producer:
        producer.send_and_wait("newest", value(0), timeout=WITHIN)
        with stopped_writer(node):
            deliveries = [producer.send("newest", value(number)) for number in range(2000)]
            called: list[Delivery] = []
            deliveries[-1].add_done_callback(called.append)
            assert called == [deliveries[-1]], "what was dropped is done at once"
            batch = producer.send_batch("newest", [b"x"] * 7)
            with pytest.raises(DroppedError, match=r"'newest'.*buffer_bytes_max=131072"):
                batch.result(WITHIN)
            with pytest.raises(DroppedError):
                deliveries[-1].result(0.0)
        producer.flush(WITHIN)
        kept, dropped = fates(deliveries)
        assert producer.metrics()["dropped_records"] == len(dropped) + 7
        assert producer.metrics()["failed"] == 0
        producer.send_and_wait("newest", value(9999), timeout=WITHIN)
    assert kept[: BUFFER // 1024] == list(range(BUFFER // 1024))
    assert numbers(client, "newest") == [0, *kept, 9999]


def test_nothing_that_flies_is_dropped_so_drop_oldest_refuses_what_comes(
    node: NodeUnderTest, client: Client
) -> None:
    """The lane alone holds more than the bound, and there is no open box."""
    client.admin().create_topic("lane-only", TopicConfig(partitions=1))
    options = {**OPTIONS, "buffer_bytes_max": 16 << 10}
    with client.producer(on_full="drop_oldest", **options) as producer:
        producer.send_and_wait("lane-only", b"", timeout=WITHIN)
        with stopped_writer(node):
            first = producer.send_batch("lane-only", [value(number) for number in range(40)])
            second = producer.send_batch("lane-only", [value(0)])
            with pytest.raises(DroppedError):
                second.result(0.0)
        assert sum(run.count for run in first.result(WITHIN)) == 40
        assert producer.metrics()["dropped_records"] == 1


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_an_open_box_with_room_takes_what_comes(
    node: NodeUnderTest, client: Client, policy: Any
) -> None:
    full, other = f"full-{policy}", f"other-{policy}"
    client.admin().create_topic(full)
    client.admin().create_topic(other)
    options = {**OPTIONS, "buffer_bytes_max": 16 << 10, "linger": 30.0}
    with client.producer(on_full=policy, **options) as producer:
        producer.send_and_wait(full, b"", timeout=WITHIN)
        with stopped_writer(node):
            opened = producer.send(other, b"0", headers={"n": b"0"})
            producer.send_batch(full, [value(number) for number in range(40)])
            late = producer.send(other, b"1", headers={"n": b"1"})
        producer.flush(WITHIN)
        assert [opened.result(WITHIN).offset, late.result(WITHIN).offset] == [0, 1]
        assert producer.metrics()["dropped_records"] == 0


@pytest.mark.over_tcp(False)
def test_rows_of_an_arrow_stream_are_dropped_too(node: NodeUnderTest, client: Client) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    client.admin().create_topic("rows", TopicConfig(partitions=1))
    table = pyarrow.table({"value": [value(number) for number in range(1000)]})
    with client.producer(on_full="drop_newest", **OPTIONS) as producer:
        producer.send_and_wait("rows", value(0), timeout=WITHIN)
        with stopped_writer(node):
            sent = producer.send_arrow("rows", table)
        with pytest.raises(DroppedError):
            sent.result(WITHIN)
        producer.flush(WITHIN)
        dropped = producer.metrics()["dropped_records"]
        assert 0 < dropped < 1000
    assert numbers(client, "rows") == [0, *range(1000 - dropped)]


@pytest.mark.local("top looks at the producers of its own host")
def test_drops_are_logged_once_in_a_while_and_shown_by_top(
    node: NodeUnderTest, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.admin().create_topic("told", TopicConfig(partitions=1))
    caplog.set_level(logging.WARNING, "penstock.producer")
    with client.producer(on_full="drop_oldest", **OPTIONS) as producer:
        producer.send_and_wait("told", value(0), timeout=WITHIN)
        with stopped_writer(node):
            for number in range(2000):
                producer.send("told", value(number))
            dropped = producer.metrics()["dropped_records"]
            report = call_cli("top", "--once", "-i", "0.1", "--format", "json", url=node.url)
            [row] = [
                row for row in report.objects[0]["producers"]
                if row["producer_id"] == producer.producer_id
            ]  # fmt: skip
            assert row["dropped"] == dropped
            shown = call_cli("top", "--once", "-i", "0.1", "--format", "wide", url=node.url)
            assert f" {dropped}  " in shown.out.decode()
            assert "DROPS" in shown.out.decode()
    lines = [line.getMessage() for line in caplog.records if "dropped" in line.getMessage()]
    assert 1 <= len(lines) <= 3, lines
    assert "on_full='drop-oldest'" in lines[0]
    assert f"{producer.metrics()['dropped_records']} so far" in lines[-1]


@pytest.mark.local("top looks at the producers of its own host")
def test_produce_tells_what_it_dropped(node: NodeUnderTest, client: Client) -> None:
    client.admin().create_topic("piped", TopicConfig(partitions=1))
    with (
        stopped_writer(node),
        cli_process(
            "produce", "piped", "--on-full", "drop_newest", "--format", "json", url=node.url
        ) as process,
    ):
        text = b"\n".join([bytes([120]) * 1000] * 40_000)
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        page = client.admin().describe_topic("piped").partitions[0]
        wait_until(lambda: _dropped(node) > 0, WITHIN, f"drops of {page}")
        (writer,) = node.writer_pids()
        os.kill(writer, signal.SIGCONT)
        out = process.stdout.read()
        assert process.wait(WITHIN) == 0
    assert b'"dropped":' in out
    assert b'"failed":0' in out


def _dropped(node: NodeUnderTest) -> int:
    report = call_cli("top", "--once", "-i", "0.1", "--format", "json", url=node.url)
    return max((row["dropped"] for row in report.objects[0]["producers"]), default=0)


@pytest.mark.rule(4)
@pytest.mark.over_tcp(False)
@pytest.mark.parametrize("fault", ["writer", "node"])
def test_rule_4_drops_amid_kills_leave_an_exact_log(fault: str) -> None:
    """What was not dropped is in the log once and in order, whoever dies meanwhile."""
    partitions = 3
    with NodeUnderTest(writers_max=2, lane_capacity=LANE) as node, node.connect() as client:
        client.admin().create_topic("kills", TopicConfig(partitions=partitions))
        options = {**OPTIONS, "delivery_timeout": 60.0}
        with client.producer(on_full="drop_oldest", **options) as producer:
            producer.send_batch("kills", [value(0)]).result(WITHIN)
            deliveries: list[Delivery] = []

            def send(count: int) -> None:
                for number in range(len(deliveries), len(deliveries) + count):
                    chosen = number % partitions
                    deliveries.append(producer.send("kills", value(number), partition=chosen))

            for _ in range(4):
                send(1000)
                if fault == "writer":
                    victims = node.writer_pids()
                    for victim in victims:
                        os.kill(victim, signal.SIGKILL)
                else:
                    node.kill()
                send(1000)
                if fault == "node":
                    node.start()
                producer.flush(WITHIN * 2)
            kept, dropped = fates(deliveries)
            counts = producer.metrics()
            assert (counts["dropped_records"], counts["failed"]) == (len(dropped), 0)
        assert len(dropped) > 500
        with client.consumer("kills", follow=False) as consumer:
            records = list(consumer)
        for partition in range(partitions):
            found = [
                int((record.value or b"")[:6]) for record in records
                if record.partition == partition
            ]  # fmt: skip
            assert sorted(found) == found
            assert [number for number in found if number] == [
                number for number in kept if number % partitions == partition and number
            ]
        assert node.stop() == 0
