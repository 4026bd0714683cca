"""When lingering records leave, whatever other threads of the process do with the same producer."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from crash.node_under_test import NodeUnderTest

from penstock.client.admin.admin import TopicConfig
from penstock.client.producer import accumulator, io_thread
from penstock.client.producer.accumulator import GATHER_MAX
from penstock.client.producer.pace import EAGER_MAX

WITHIN = 45.0
PATIENT = 120.0
"""Seconds: writers that are stopped stay, however long a test takes on a busy machine."""
FOR_EVER = 120.0
"""Seconds: a record that leaves only when such a sleep ends has missed its time."""


def test_a_box_is_sealed_in_time_while_another_thread_waits_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_thread, "WAIT_MAX", FOR_EVER)
    monkeypatch.setattr(io_thread, "CALLER_WAIT_MAX", FOR_EVER)
    with (
        NodeUnderTest(tmp_path, writers_max=2, writer_stall_timeout=PATIENT) as node,
        node.connect() as client,
    ):
        admin = client.admin()
        admin.create_topic("t", TopicConfig(partitions=2))
        with client.producer(linger=0.2, delivery_timeout=FOR_EVER) as producer:
            for number in (0, 1):
                producer.send_and_wait("t", b"before", partition=number, timeout=WITHIN)
            writer = admin.describe_topic("t").partitions[0].writer
            stopped = {each.writer: each.pid for each in admin.describe_node().writers}[writer]
            os.kill(stopped, signal.SIGSTOP)
            waits = producer.send("t", b"waits", partition=0)
            waiter = threading.Thread(target=waits.result, args=(FOR_EVER,))
            waiter.start()
            try:
                for number in range(5):
                    lingers = producer.send("t", b"%d" % number, partition=1)
                    assert lingers.result(WITHIN).offset == number + 1
                assert not waits.done()
            finally:
                os.kill(stopped, signal.SIGCONT)
                waiter.join(WITHIN)
            assert waits.result(WITHIN).offset == 1


@pytest.mark.over_tcp
def test_records_that_do_not_linger_go_together_while_batches_wait_for_their_answers(
    tmp_path: Path,
) -> None:
    count = 500
    with (
        NodeUnderTest(tmp_path, writers_max=1, writer_stall_timeout=PATIENT) as node,
        node.connect() as client,
        client.producer(linger=0, delivery_timeout=FOR_EVER) as producer,
    ):
        client.admin().create_topic("t")
        producer.send_and_wait("t", b"before", timeout=WITHIN)
        batches = producer.metrics()["batches"]
        writer = client.admin().describe_node().writers[0].pid
        os.kill(writer, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            for number in range(count):
                last = producer.send("t", b"%d" % number)
                time.sleep(0.0005)  # the producer's thread has its turn after each
            took = time.monotonic() - begun
            sent = producer.metrics()["batches"] - batches
        finally:
            os.kill(writer, signal.SIGCONT)
        assert sent <= EAGER_MAX + took / GATHER_MAX + 1
        assert last.result(WITHIN).offset == count


def test_records_that_gather_leave_with_the_next_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "GATHER_MAX", FOR_EVER)
    monkeypatch.setattr(io_thread, "WAIT_MAX", FOR_EVER)
    with (
        NodeUnderTest(tmp_path, writers_max=1, writer_stall_timeout=PATIENT) as node,
        node.connect() as client,
        client.producer(linger=0, delivery_timeout=FOR_EVER) as producer,
    ):
        client.admin().create_topic("t")
        producer.send_and_wait("t", b"before", timeout=WITHIN)
        writer = client.admin().describe_node().writers[0].pid
        os.kill(writer, signal.SIGSTOP)
        try:
            sent = [producer.send("t", b"%d" % number) for number in range(100)]
        finally:
            os.kill(writer, signal.SIGCONT)
        arrived = threading.Event()
        sent[-1].add_done_callback(lambda _: arrived.set())
        assert arrived.wait(WITHIN)
        assert [each.result(WITHIN).offset for each in sent] == list(range(1, 101))
        assert producer.metrics()["batches"] <= EAGER_MAX + 3
