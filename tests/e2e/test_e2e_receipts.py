"""A receipt is the truth: no two records share one, none is for a record that is not in the log,
and a delivery that got none was not quietly sent twice. Each of these once went wrong."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import faulty_writer
import pytest
from crash.node_under_test import NodeUnderTest

from penstock.client.producer.routes import LaneLink
from penstock.core import errors as er
from penstock.ipc import shm
from penstock.testing import Broker, wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 45.0


def in_log(node: Broker | NodeUnderTest, topic: str = "t") -> list[bytes]:
    with node.connect() as client, client.consumer(topic, follow=False) as reader:
        return [record.value or b"" for record in reader]


def writer_pid(node: Broker | NodeUnderTest) -> int:
    with node.connect() as client:
        return client.admin().describe_node().writers[0].pid


def rigged(folder: Path) -> list[str]:
    return [sys.executable, faulty_writer.__file__, str(folder)]


@pytest.mark.over_tcp(False)
def test_threads_that_meet_a_topic_while_the_node_is_away_get_receipts_of_their_own():
    with Broker(writers=1) as node, node.connect(timeout=WITHIN) as client:
        client.admin().create_topic("t")
        with client.producer(linger=0) as producer:
            node.kill()
            offsets: dict[int, int | None] = {}
            threads = [
                threading.Thread(
                    target=lambda me=number: offsets.update(
                        {me: producer.send("t", b"%d" % me).result(WITHIN).offset}
                    )
                )
                for number in range(4)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.3)  # all of them are looking for the node; if one is not, it is no harm
            node.start()
            for thread in threads:
                thread.join(2 * WITHIN)
        log = in_log(node)
        assert sorted(log) == [b"0", b"1", b"2", b"3"]
        assert {number: log.index(b"%d" % number) for number in range(4)} == offsets


def test_a_refusal_that_comes_for_an_expired_batch_doubles_nothing():
    with Broker(writers=1) as node, node.connect() as client:
        client.admin().create_topic("t")
        producer = client.producer(linger=0, delivery_timeout=4.0)
        producer.send("t", b"warm").result(WITHIN)
        os.kill(writer := writer_pid(node), signal.SIGSTOP)
        flipped, expired = producer.send("t", b"A" * 64), producer.send("t", b"X" * 64)
        time.sleep(2.0)  # so that the third has time left when these have none
        alive = producer.send("t", b"C" * 64)
        (link,) = producer._pipeline.sender.links.values()
        memory = link.sender._bytes
        memory[bytes(memory).index(b"A" * 64)] ^= 1
        wait_until(lambda: flipped.done() and expired.done(), WITHIN, "two deliveries to expire")
        assert not alive.done()
        os.kill(writer, signal.SIGCONT)
        assert alive.result(WITHIN).offset is not None
        for delivery in (flipped, expired):
            assert isinstance(delivery.exception(WITHIN), er.DeliveryTimeout)
        producer.close()
        assert in_log(node).count(b"C" * 64) == 1


@pytest.mark.local("it takes a named lane away")
def test_what_expires_after_it_was_written_does_not_hand_its_sequence_on(tmp_path: Path):
    with NodeUnderTest(
        tmp_path, writers_max=1, lanes_max=1, restart_backoff=0.5, restart_backoff_max=0.5,
        writer_command=rigged(tmp_path),
    ) as node, node.connect() as client:  # fmt: skip
        admin = client.admin()
        admin.create_topic("t")
        admin.create_topic("u")
        producer = client.producer(linger=0, delivery_timeout=6.0)
        producer.send("t", b"warm").result(WITHIN)
        (link,) = producer._pipeline.sender.links.values()
        shm.unlink(link.sender.name)  # as systemd's RemoveIPC does at a logout
        (tmp_path / faulty_writer.DIE_UNANSWERED).touch()
        written = producer.send("t", b"A")
        with client.producer(linger=0) as other:  # takes the one lane that the node may have
            wait_until(lambda: _sends(other), WITHIN, "the other producer's lane")
            time.sleep(3.0)  # so that B has time left when A has none
            behind = producer.send("t", b"B")
            error = written.exception(WITHIN)
            assert isinstance(error, er.DeliveryTimeout)
            assert "may be written" in str(error)
        assert behind.result(WITHIN).offset == 2
        assert in_log(node) == [b"warm", b"A", b"B"]
        producer.close()


def _sends(producer: object) -> bool:
    try:
        producer.send("u", b"x").result(1.0)  # type: ignore[attr-defined]
    except er.PenstockError:
        return False
    return True


def test_a_record_sent_while_the_producer_closes_fails_and_is_counted():
    with Broker(writers=1) as node, node.connect() as client:
        client.admin().create_topic("t")
        producer = client.producer(linger=5.0)
        first = producer.send("t", b"first")
        late = []
        leave = producer._leave

        def interrupted_leave() -> None:
            """The moment between the flush of `close` and its end."""
            thread = threading.Thread(target=lambda: late.append(producer.send("t", b"late")))
            thread.start()
            thread.join(WITHIN)
            leave()

        producer._leave = interrupted_leave  # type: ignore[method-assign]
        producer.close()
        assert first.result(WITHIN).offset == 0
        assert isinstance(late[0].exception(WITHIN), er.ClosedError)
        assert producer.metrics()["failed"] == 1
        assert in_log(node) == [b"first"]


def test_a_close_that_runs_out_of_time_ends_every_delivery():
    with Broker(writers=1) as node, node.connect() as client:
        client.admin().create_topic("t")
        producer = client.producer(linger=0)
        producer.send("t", b"warm").result(WITHIN)
        os.kill(writer := writer_pid(node), signal.SIGSTOP)
        try:
            delivery = producer.send("t", b"stuck")
            with pytest.raises(er.PenstockTimeout):
                producer.close(timeout=0.2)
            assert isinstance(delivery.exception(WITHIN), er.ClosedError)
        finally:
            os.kill(writer, signal.SIGCONT)


@pytest.mark.over_tcp(False)
def test_what_waits_for_the_device_fails_when_another_node_takes_the_address(tmp_path: Path):
    with NodeUnderTest(tmp_path, writers_max=1, writer_command=rigged(tmp_path)) as node:
        client = node.connect()
        client.admin().create_topic("t")
        producer = client.producer(linger=0, durability="fsynced", delivery_timeout=WITHIN)
        producer.send("t", b"warm").result(WITHIN)
        (tmp_path / faulty_writer.HOLD_SYNCS).touch()
        waiting = producer.send("t", b"A")
        (route,) = producer._pipeline.sender.routes()
        wait_until(lambda: route.waiting_durable, WITHIN, "an answer that waits for the device")
        writer = writer_pid(node)
        node.kill()
        os.kill(writer, signal.SIGKILL)
        (tmp_path / faulty_writer.HOLD_SYNCS).unlink()
        node.data.rename(tmp_path / "old")
        node.start()
        with node.connect() as fresh:
            fresh.admin().create_topic("t")
        assert isinstance(waiting.exception(WITHIN), er.NotConnectedError)
        assert producer.send("t", b"B").result(WITHIN).durability == "fsynced"
        producer.close()
        client.close()
        node.clear(keep=True)  # of the folder that nobody starts again


def test_an_interrupt_within_send_harms_no_other_record(monkeypatch: pytest.MonkeyPatch):
    with Broker(writers=1) as node, node.connect() as client:
        client.admin().create_topic("t")
        with client.producer(linger=0) as producer:
            producer.send("t", b"0").result(WITHIN)
            with monkeypatch.context() as patch:
                patch.setattr(LaneLink, "write", _interrupt)
                with pytest.raises(KeyboardInterrupt):
                    producer.send("t", b"interrupted")
            offsets = [producer.send("t", value).result(WITHIN).offset for value in (b"1", b"2")]
        assert offsets == [1, 2]
        assert in_log(node) == [b"0", b"1", b"2"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
