"""Options of clients that no other test turns on: what each does where it is not its default."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from node_helpers import NodeProcess, eventually

import penstock
from penstock import Client, NotConnectedError, PenstockTimeout
from penstock.core.errors import DeliveryTimeout
from penstock.testing import Broker

pytestmark = pytest.mark.local("what clients do at the node of their own host")
WITHIN = 45.0
BRIEF = 0.3
BRIEFLY = r"within 0\.3 s"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(writers=1) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with broker.connect() as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic()


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    """The node's own process answers nothing."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def log_end(client: Client, topic: str) -> int:
    return client.admin().describe_topic(topic).partitions[0].log_end


def durable(client: Client, topic: str) -> int:
    return client.admin().describe_topic(topic).partitions[0].durable


def is_decided(client: Client, topic: str) -> bool:
    [partition] = client.admin().describe_topic(topic).partitions
    return 0 < partition.last_stable == partition.log_end


def passes(seconds: float) -> None:
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > seconds, "time goes on")


# --- producers ------------------------------------------------------------------------------------
@pytest.mark.setting("producer.linger")
def test_a_record_waits_for_company_as_long_as_it_is_told(client: Client, topic: str) -> None:
    with client.producer(linger=60.0) as producer:
        producer.send(topic, b"lingers")
        passes(0.5)
        assert log_end(client, topic) == 0
        producer.flush(WITHIN)
        assert log_end(client, topic) == 1


@pytest.mark.setting("producer.batch_bytes")
def test_a_batch_is_full_at_its_bytes(client: Client, topic: str) -> None:
    with client.producer(linger=60.0, batch_bytes=4 << 10) as producer:
        for _ in range(100):
            producer.send(topic, bytes(1000))
        producer.flush(WITHIN)
        assert producer.metrics()["batches"] >= 25


@pytest.mark.setting("producer.compression")
def test_what_is_compressed_takes_less_room_in_the_log(
    broker: Broker, client: Client, topic: str
) -> None:
    with client.producer(compression="lz4", linger=60.0) as producer:
        producer.send_batch(topic, [b"again and again " * 1000] * 10)
        producer.flush(WITHIN)
    folder = broker.data / f"{client.admin().describe_topic(topic).topic_id}-0"
    [log] = folder.glob("*.log")
    assert len(log.read_bytes().rstrip(b"\0")) < 16_000


@pytest.mark.setting("producer.delivery_timeout")
def test_a_delivery_fails_when_its_time_is_over(broker: Broker, client: Client, topic: str) -> None:
    with client.admin() as admin:
        [writer] = [it.pid for it in admin.describe_node().writers if it.pid]
    with client.producer(delivery_timeout=0.5) as producer:
        producer.send_and_wait(topic, b"before", timeout=WITHIN)
        os.kill(writer, signal.SIGSTOP)
        try:
            delivery = producer.send(topic, b"late")
            with pytest.raises(DeliveryTimeout, match=r"0\.5 s"):
                delivery.result(WITHIN)
        finally:
            os.kill(writer, signal.SIGCONT)


@pytest.mark.setting("producer.timeout")
def test_a_producer_asks_its_node_for_no_longer_than_its_timeout(
    broker: Broker, client: Client
) -> None:
    other = broker.create_topic()
    with client.producer(timeout=BRIEF) as producer:
        with stopped(broker), pytest.raises(PenstockTimeout, match=BRIEFLY):
            producer.send(other, b"")
        producer.send_and_wait(other, b"", timeout=WITHIN)


@contextmanager
def hanging_up(folder: Path) -> Iterator[list[float]]:
    """In place of a node that is gone: closes each connection; when they came."""
    times: list[float] = []
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = folder / "attach.sock"
    path.unlink(missing_ok=True)
    server.bind(str(path))
    server.listen(16)
    server.settimeout(0.1)
    is_over = threading.Event()

    def accept() -> None:
        while not is_over.is_set():
            with suppress(TimeoutError):
                server.accept()[0].close()
                times.append(time.monotonic())

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield times
    finally:
        is_over.set()
        thread.join(WITHIN)
        server.close()
        path.unlink()


TRIES = 24


def tries_before(
    folder: Path, wait: float, *, retry_backoff: float, retry_backoff_max: float
) -> int:
    """How often a producer tried to attach once more before it waited for so long; at most `TRIES`.
    It tries for half a second each time, at first every 20 ms, and waits then."""
    with NodeProcess(folder / "data", "--writers", "1") as node:
        node.start()
        with penstock.connect(f"shm://{node.folder}") as client:
            client.admin().create_topic("t")
            producer = client.producer(
                delivery_timeout=WITHIN,
                retry_backoff=retry_backoff,
                retry_backoff_max=retry_backoff_max,
            )
            producer.send_and_wait("t", b"", timeout=WITHIN)
            node.kill()
            with hanging_up(node.folder) as times:

                def waited() -> int | None:
                    found = list(times)
                    for number, (before, after) in enumerate(pairwise(found), start=1):
                        if after - before > wait:
                            return number
                    return TRIES if len(found) >= TRIES else None

                found = eventually(waited, "tries")
            producer.close(timeout=0)
    return found


@pytest.mark.setting("producer.retry_backoff")
def test_the_first_wait_of_a_producer_without_a_node_is_its_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the longest waits that chance gives, so that they can be told from others."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert tries_before(tmp_path, 0.7, retry_backoff=1.5, retry_backoff_max=1.5) <= 8


@pytest.mark.setting("producer.retry_backoff_max")
def test_the_longest_wait_of_a_producer_without_a_node_is_its_longest_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert tries_before(tmp_path, 1.8, retry_backoff=1.0, retry_backoff_max=3.0) < TRIES


@pytest.mark.setting("transaction.transaction_durability")
def test_a_transaction_that_need_not_be_durable_is_not_fsynced(client: Client, topic: str) -> None:
    with client.producer(
        transactional_id=topic, transaction_durability="appended", linger=0
    ) as producer:
        with producer.transaction():
            producer.send(topic, b"")
        eventually(lambda: is_decided(client, topic), "the marker")
        assert durable(client, topic) == 0


@pytest.mark.setting("stage.transaction_durability")
def test_a_stage_that_need_not_be_durable_is_not_fsynced(client: Client, topic: str) -> None:
    with client.stage(topic, 1, transaction_durability="appended") as stage:
        stage.send(topic, b"")
    client.commit_transaction(topic, 1, [stage.name])
    eventually(lambda: is_decided(client, topic), "the marker")
    assert durable(client, topic) == 0


# --- consumers ------------------------------------------------------------------------------------
@pytest.mark.setting("consumer.spin")
def test_a_consumer_that_spins_is_busy_while_it_waits(client: Client, topic: str) -> None:
    """One that sleeps gives its processor away in each of these polls. A spinner does so only where
    another thread of this process has the interpreter; who takes it by force does not count."""
    given_away = []
    with client.consumer(topic, spin=0.1) as consumer:
        consumer.poll(timeout=0.1)
        for _ in range(200):
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            consumer.poll(timeout=0.02)
            given_away.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
            if not given_away[-1]:
                return
    raise AssertionError(f"it slept in each of 200 polls: {sorted(given_away)}")


@pytest.mark.setting("consumer.follow")
def test_a_consumer_that_does_not_follow_ends_where_the_topic_did(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_and_wait(topic, b"all", timeout=WITHIN)
    found: list[bytes | None] = []
    consumer = client.consumer(topic, follow=False)
    reading = threading.Thread(target=lambda: found.extend(it.value for it in consumer))
    reading.start()
    reading.join(10)
    is_over = not reading.is_alive()
    with client.producer() as producer:  # one that follows has something to end at
        producer.send_and_wait(topic, b"more", timeout=WITHIN)
    consumer.close()
    reading.join(WITHIN)
    assert is_over
    assert found == [b"all"]


@pytest.mark.setting("consumer.timeout")
def test_a_consumer_asks_its_node_for_no_longer_than_its_timeout(
    broker: Broker, client: Client, topic: str
) -> None:
    other = broker.create_topic()
    with (
        client.consumer(topic, timeout=BRIEF) as consumer,
        stopped(broker),
        pytest.raises(PenstockTimeout, match=BRIEFLY),
    ):
        consumer.assign([(other, 0)])


@pytest.mark.setting("group.timeout")
def test_a_member_asks_its_node_for_no_longer_than_its_timeout(
    broker: Broker, client: Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_and_wait(topic, b"", timeout=WITHIN)
    with client.consumer(topic, group="brief", timeout=BRIEF) as member:
        assert len(member.poll(timeout=WITHIN)) == 1
        with stopped(broker), pytest.raises(PenstockTimeout, match=BRIEFLY):
            member.commit()


@pytest.mark.setting("group.commit_interval")
def test_a_member_commits_by_itself_once_an_interval(client: Client, topic: str) -> None:
    """One of an hour is not over here, where the default's three seconds would be."""
    with (
        client.producer() as producer,
        client.consumer(topic, group="hourly", commit_interval=3600.0) as member,
    ):
        for value in (b"first", b"second"):
            producer.send_and_wait(topic, value, timeout=WITHIN)
            assert [it.value for it in member.poll(timeout=WITHIN)] == [value]
        begun = time.monotonic()
        eventually(
            lambda: member.poll(timeout=0.1) or time.monotonic() - begun > 3.0, "three seconds"
        )
        assert member.committed().get((topic, 0)) != 2
    [partition] = client.admin().describe_group("hourly").partitions
    assert partition.committed == 2


# --- clients --------------------------------------------------------------------------------------
@pytest.mark.setting("client.timeout")
def test_a_client_waits_for_its_node_for_no_longer_than_its_timeout(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(NotConnectedError):
        penstock.connect(f"shm://{tmp_path}", timeout=5.0)
    assert time.monotonic() - begun > 3.0


@pytest.mark.setting("admin.timeout")
def test_an_admin_asks_its_node_for_no_longer_than_its_timeout(
    broker: Broker, client: Client
) -> None:
    with client.admin(timeout=BRIEF) as admin:
        with stopped(broker), pytest.raises(PenstockTimeout, match=BRIEFLY):
            admin.list_topics()
        assert admin.list_topics()


@pytest.mark.setting("client.client_id")
def test_what_a_client_makes_has_its_id(broker: Broker, topic: str) -> None:
    with (
        broker.connect(client_id="billing-7") as client,
        client.consumer(topic, group="named"),
        client.admin() as admin,
    ):
        [member] = admin.describe_group("named").members
        assert member.client_id == "billing-7"


@pytest.mark.setting("consumer.client_id")
def test_a_consumer_is_known_to_its_node_by_its_id(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "-v") as node:
        node.start()
        with penstock.connect(f"shm://{node.folder}") as client:
            client.admin().create_topic("t")
            client.consumer("t", client_id="reader-7").close()
            node.wait_log("reader-7")


@pytest.mark.setting("client.url")
def test_a_client_is_where_its_url_leads(broker: Broker, topic: str) -> None:
    with Broker() as other, other.connect() as elsewhere, broker.connect() as here:
        assert elsewhere.admin().list_topics() == []
        assert topic in here.admin().list_topics()
