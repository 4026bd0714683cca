"""When lingering records leave, whatever other threads of the process do with the same producer."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from crash.ground import NodeUnderTest

from penstock import minder
from penstock.admin import TopicConfig

WITHIN = 15.0
FOR_EVER = 120.0
"""Seconds: a record that leaves only when such a sleep ends has missed its time."""


def test_a_box_is_sealed_in_time_while_another_thread_waits_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minder, "WAIT_MAX", FOR_EVER)
    monkeypatch.setattr(minder, "CALLER_WAIT_MAX", FOR_EVER)
    with NodeUnderTest(tmp_path, writers_max=2) as node, node.connect() as client:
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
