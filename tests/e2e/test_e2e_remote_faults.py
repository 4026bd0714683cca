"""Remote clients whose gateway or node is killed, restarted or stopped under them: nothing that was
acknowledged is lost, nothing is there twice, the order stays."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

import penstock
from penstock.client.client import Client
from penstock.client.producer import io_thread
from penstock.client.producer.producer import Producer
from penstock.core import errors as er
from penstock.ipc.liveness import state
from penstock.testing import Broker, wait_until

WITHIN = 45.0
QUICK = {"client_heartbeat": 0.25, "client_silence_max": 1.5}
SLACK = 10.0
"""Seconds by which a bound may be overrun on a machine that is busy."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listen=True, partitions=2, options=QUICK) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with penstock.connect(broker.tcp_url, transport="tcp") as made:
        yield made


def gateway_of(broker: Broker) -> psutil.Process:
    """Its gateway, once that is there."""

    def find() -> psutil.Process | None:
        for child in psutil.Process(broker.pid).children():
            if any(word.endswith("gateway.main") for word in child.cmdline()):
                return child
        return None

    found = wait_until(find, WITHIN, "a gateway")
    assert found is not None
    return found


def in_log(broker: Broker, topic: str) -> dict[int, list[int]]:
    """What stands in each partition, read on the node's host."""
    found: dict[int, list[int]] = {0: [], 1: []}
    with broker.connect() as local, local.consumer(topic, follow=False) as consumer:
        for record in consumer:
            assert record.value is not None
            found[record.partition].append(int(record.value))
    return found


class Stream:
    """Sends numbers in turn to both partitions, from a thread, until it is told to stop."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.deliveries: list[penstock.Delivery] = []
        self._producer, self._topic = producer, topic
        self._stopping = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stopping:
            for _ in range(20):
                sent = self._producer.send(
                    self._topic, b"%d" % number, partition=number % 2, timestamp=number
                )
                self.deliveries.append(sent)
                number += 1
            time.sleep(0.001)  # the pace, so that a run stays small

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join(WITHIN)

    def acknowledged(self) -> int:
        return int(self._producer.metrics()["acknowledged"])

    def goes_on(self) -> None:
        """What is sent from now on is acknowledged, too."""
        at = len(self.deliveries) + 100
        wait_until(lambda: self.acknowledged() > at, WITHIN, "acknowledgements of what came since")


def kill_gateway(broker: Broker) -> None:
    gateway_of(broker).kill()


def test_who_waits_for_an_answer_keeps_nobody_from_finding_the_gateway(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of a producer's threads is rung for its end; none of them looks by itself here."""
    monkeypatch.setattr(io_thread, "WAIT_MAX", 2 * WITHIN)
    monkeypatch.setattr(io_thread, "CALLER_WAIT_MAX", 2 * WITHIN)
    topic = broker.create_topic()
    with client.producer(linger=0, delivery_timeout=4 * WITHIN) as producer:
        for number in range(4):
            sent = producer.send_and_wait(topic, b"%d" % number, partition=0, timeout=WITHIN)
            assert sent.offset == number
            kill_gateway(broker)


def kill_node(broker: Broker) -> None:
    broker.restart(kill=True)


def restart_node(broker: Broker) -> None:
    broker.restart()


def kill_writers(broker: Broker) -> None:
    broker.kill_writer()


@pytest.mark.parametrize("fault", [kill_gateway, kill_node, restart_node, kill_writers])
def test_a_pipelined_stream_survives_without_loss_repetition_or_disorder(
    broker: Broker, client: Client, fault: Callable[[Broker], None]
) -> None:
    topic = broker.create_topic(partitions=2)
    with client.producer() as producer:
        with Stream(producer, topic) as stream:
            for _ in range(2):
                stream.goes_on()
                fault(broker)
            stream.goes_on()
        producer.flush(timeout=WITHIN)
        receipts = [delivery.result(WITHIN) for delivery in stream.deliveries]
    found = in_log(broker, topic)
    for partition in (0, 1):
        assert found[partition] == list(range(partition, len(receipts), 2))
    for number, receipt in enumerate(receipts):
        assert receipt.offset == number // 2
    if fault is not kill_writers:
        assert client.metrics()["reconnects"] >= 2


def test_a_stopped_gateway_is_noticed_and_replaced_by_its_successor(
    broker: Broker, client: Client
) -> None:
    """As a half-open connection: it is there, and says nothing."""
    topic = broker.create_topic(partitions=2)
    with client.producer(delivery_timeout=60.0) as producer:
        producer.send_and_wait(topic, b"0", timeout=WITHIN)
        gateway = gateway_of(broker)
        gateway.send_signal(signal.SIGSTOP)
        delivery = producer.send(topic, b"1")
        wait_until(lambda: not client.metrics()["connected"], 60.0, "the silence to be noticed")
        gateway.kill()
        assert delivery.result(WITHIN).durability == "appended"


def test_after_a_suspend_neither_side_takes_the_other_for_silent(
    broker: Broker, client: Client
) -> None:
    """As of a whole machine, for longer than either may be silent."""
    with client.producer() as producer:
        topic = broker.create_topic()
        producer.send_and_wait(topic, b"0", timeout=WITHIN)
        both = [gateway_of(broker).pid, os.getpid()]
        resume = os.fork()
        if resume == 0:
            status = 1
            try:
                for pid in both:
                    os.kill(pid, signal.SIGSTOP)
                wait_until(lambda: [*map(state, both)] == ["T", "T"], WITHIN, "both stand still")
                time.sleep(1.5 * QUICK["client_silence_max"])  # the fault: how long they stand
                status = 0
            finally:
                for pid in both:
                    os.kill(pid, signal.SIGCONT)
                os._exit(status)
        assert os.waitpid(resume, 0)[1] == 0
        assert producer.send_and_wait(topic, b"1", timeout=WITHIN).durability == "appended"
        assert client.metrics()["reconnects"] == 0


def test_requests_and_timeouts_name_the_broker_while_it_is_away(
    broker: Broker, client: Client
) -> None:
    topic = broker.create_topic()
    admin = client.admin(timeout=1.0)
    producer = client.producer(delivery_timeout=1.0)
    producer.send_and_wait(topic, b"0", timeout=WITHIN)
    port = broker.tcp_url.rpartition(":")[2]
    broker.kill()
    begun = time.monotonic()
    with pytest.raises(er.NotConnectedError, match=f"127.0.0.1:{port}"):
        admin.list_topics()
    assert time.monotonic() - begun < 1.0 + SLACK
    delivery = producer.send(topic, b"1")
    error = delivery.exception(WITHIN)
    assert isinstance(error, er.DeliveryTimeout)
    assert f"127.0.0.1:{port}" in str(error)
    begun = time.monotonic()
    producer.close(timeout=1.0)
    admin.close()
    client.close()
    assert time.monotonic() - begun < 1.0 + 2 * SLACK


def test_of_several_hosts_the_one_that_answers_is_taken(broker: Broker) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
    url = f"tcp://{dead},{broker.tcp_url.removeprefix('tcp://')}"
    with penstock.connect(url, transport="tcp") as client, client.producer() as producer:
        topic = broker.create_topic(partitions=1)
        assert producer.send_and_wait(topic, b"x", timeout=WITHIN).offset == 0
        kill_gateway(broker)
        assert producer.send_and_wait(topic, b"y", timeout=WITHIN).offset == 1
