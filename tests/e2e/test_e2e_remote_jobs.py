"""Jobs on other hosts under a gateway that dies: what they write and what they have read commit
together, and stages of several processes do so once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psutil
import pytest

import penstock
from penstock.core import errors as er
from penstock.testing import Broker

WITHIN = 60.0
RECORDS = 1500


@pytest.fixture
def broker() -> Iterator[Broker]:
    options = {"client_heartbeat": 0.25, "client_silence_max": 1.5}
    with Broker(listen=True, partitions=2, options=options) as made:
        yield made


class Killing:
    """Kills the gateway so many times, each time after some work was done."""

    def __init__(self, broker: Broker, times: int) -> None:
        self._broker = broker
        self._left = times
        self._work = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while self._left:
            self._work.clear()
            if not self._work.wait(WITHIN):
                return
            for child in psutil.Process(self._broker.pid).children():
                if any(word.endswith("gateway.main") for word in child.cmdline()):
                    child.kill()
                    self._left -= 1

    def worked(self) -> None:
        self._work.set()

    def __enter__(self) -> Killing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = 0
        self._work.set()
        self._thread.join(WITHIN)


def in_log(broker: Broker, topic: str) -> list[int]:
    with (
        broker.connect() as local,
        local.consumer(topic, follow=False, isolation="read_committed") as consumer,
    ):
        return [int(record.value or b"-1") for record in consumer]


def test_a_job_that_copies_is_exactly_once_over_gateways_that_die(broker: Broker) -> None:
    source, target = broker.create_topic(partitions=2), broker.create_topic(partitions=2)
    with broker.connect() as local, local.producer() as producer:
        for number in range(RECORDS):
            producer.send(source, b"%d" % number, partition=number % 2)
    deadline = time.monotonic() + WITHIN
    with Killing(broker, 3) as killing:
        while len(in_log(broker, target)) < RECORDS:
            assert time.monotonic() < deadline
            try:
                _copy(broker, source, target, killing)
            except (er.TransactionError, er.StaleGenerationError):
                continue  # it was aborted: a new life begins where the group stands
    assert sorted(in_log(broker, target)) == list(range(RECORDS))


def _copy(broker: Broker, source: str, target: str, killing: Killing) -> None:
    with (
        penstock.connect(broker.tcp_url, transport="tcp", timeout=WITHIN) as client,
        client.producer(transactional_id="job-0") as producer,
        client.consumer(source, group="job", guarantee="exactly-once") as consumer,
    ):
        for batch in consumer.batches(max_records=50, timeout=3.0):
            with producer.transaction(consumed=batch):
                for record in batch:
                    producer.send(target, record.value, partition=record.partition)
            killing.worked()


def test_stages_from_two_clients_commit_once(broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    with (
        penstock.connect(broker.tcp_url, transport="tcp") as first,
        penstock.connect(broker.tcp_url, transport="tcp") as second,
    ):
        names = []
        for number, client in enumerate((first, second)):
            with client.stage("nightly", 1) as stage:
                for at in range(100):
                    stage.send(topic, b"%d" % (number * 100 + at), partition=number)
            names.append(stage.name)
        assert in_log(broker, topic) == []
        assert first.commit_transaction("nightly", 1, names).committed
        assert second.commit_transaction("nightly", 1, names).committed
    assert sorted(in_log(broker, topic)) == list(range(200))
