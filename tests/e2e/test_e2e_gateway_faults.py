"""What becomes of remote clients when a process dies, stops, or does not read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from node_helpers import children, eventually
from resender import Resender
from wire import Dealer, batch_of

from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.session import Session, socket_of
from penstock.testing import Broker

COUNT = 1500


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(
        listen=True, writers=1, options={"gateway_stall_timeout": 1.0, "client_silence_max": 60.0}
    ) as broker:
        yield broker


def topic_of(broker: Broker, name: str) -> ms.TopicInfo:
    session = Session.attach(socket_of(broker.url), lo.KIND_ADMIN, client_id="", timeout=5)
    try:
        return session.find_topic(name, 5)
    finally:
        session.close()


def records(broker: Broker, topic: str) -> list[bytes]:
    with broker.connect() as client, client.consumer(topic, start="earliest") as consumer:
        found: list[bytes] = []
        while more := consumer.poll(timeout=0.5):
            found += [record.value or b"" for record in more]
        return found


def processes(broker: Broker, main: str) -> list[int]:
    found = []
    for pid in children(broker.pid):
        with suppress(OSError):
            if f"penstock.server.{main}" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def gateway(broker: Broker) -> int:
    return eventually(lambda: processes(broker, "gateway_main"), "a gateway")[0]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def sent_through(broker: Broker, fault, *, flags: int = 0) -> None:
    """Records sent while `fault` happens in the middle are in the log once each, in order."""
    topic = broker.create_topic()
    sender = Resender(broker.tcp_url, topic_of(broker, topic), COUNT, flags)
    while len(sender.offsets) < COUNT // 3:
        sender.step()
    fault(sender)
    sender.run()
    assert sender.offsets == list(range(COUNT))
    assert records(broker, topic) == [b"%d" % number for number in range(COUNT)]
    sender.lose()


def test_a_killed_gateway_loses_and_doubles_nothing(broker: Broker) -> None:
    def fault(sender: Resender) -> None:
        url, pid = broker.tcp_url, gateway(broker)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: gateway(broker) != pid, "its successor")
        assert broker.tcp_url == url

    sent_through(broker, fault)


def test_a_stopped_gateway_is_killed_and_replaced(broker: Broker) -> None:
    def fault(sender: Resender) -> None:
        pid = gateway(broker)
        with stopped(pid):
            eventually(lambda: gateway(broker) != pid, "its successor")

    sent_through(broker, fault)


def test_a_connection_that_breaks_loses_and_doubles_nothing(broker: Broker) -> None:
    def fault(sender: Resender) -> None:
        for _ in range(5):
            sender.lose()
            sender.step()

    sent_through(broker, fault)


def test_a_node_that_restarts_keeps_its_remote_producers(broker: Broker) -> None:
    def fault(sender: Resender) -> None:
        url = broker.tcp_url
        broker.restart()
        assert broker.tcp_url == url

    sent_through(broker, fault)


def test_a_killed_node_takes_even_a_stopped_gateway_with_it(broker: Broker) -> None:
    def fault(sender: Resender) -> None:
        pid = gateway(broker)
        with stopped(pid):
            broker.restart(kill=True)
            assert not Path(f"/proc/{pid}").exists() or gateway(broker) != pid

    sent_through(broker, fault)


def test_a_killed_writer_is_not_seen_by_remote_producers(broker: Broker) -> None:
    def fault(sender: Resender) -> None:
        broker.kill_writer()

    sent_through(broker, fault)


def test_rule_5_a_producer_that_comes_back_waits_for_what_its_lane_still_holds(
    broker: Broker,
) -> None:
    topic = broker.create_topic()
    info = topic_of(broker, topic)
    page = info.pages[0]
    with Dealer(broker.tcp_url) as first:
        attached = first.producer()
        warm = batch_of([b"0"], info, attached.producer_id, 0)
        first.say(fr.Produce(1, 0, 0, page), warm)
        first.acks(1)
        (writer,) = processes(broker, "writer_main")
        with stopped(writer):
            held = [batch_of([b"%d" % n], info, attached.producer_id, n) for n in (1, 2)]
            for number, batch in enumerate(held, 1):
                first.say(fr.Produce(1, 0, number, page), batch)
            first.say(fr.Ping(1))
            first.hear(fr.Pong)  # by then they are in the lane
            first.socket.close(0)
            second = Dealer(broker.tcp_url)
            again = second.attach(
                1, lo.KIND_PRODUCER, resume=attached.producer_id, token=attached.token
            )
            assert again.producer_id == attached.producer_id
            later = batch_of([b"3"], info, attached.producer_id, 3)
            for number, batch in enumerate([*held, later]):
                second.say(fr.Produce(1, 0, number, page), batch)
            second.say(fr.Ping(2))
            second.hear(fr.Pong)
            assert len(broker_lanes(broker)) == 1  # the old one, and no second one beside it
        assert [ack.base_offset for ack in second.acks(3)] == [1, 2, 3]
        second.close()
    assert records(broker, topic) == [b"0", b"1", b"2", b"3"]


def broker_lanes(broker: Broker) -> list[str]:
    from node_helpers import shared_objects

    return [name for name in shared_objects(broker.data) if name.startswith("lane-")]


def test_who_waits_for_stable_storage_is_told_when_it_came(broker: Broker) -> None:
    topic = broker.create_topic(durability="os")
    info = topic_of(broker, topic)
    with Dealer(broker.tcp_url) as dealer:
        attached = dealer.producer()
        batch = batch_of([b"x"], info, attached.producer_id, 0)
        dealer.say(fr.Produce(1, 0, 0, info.pages[0], lo.FRAME_SYNC), batch)
        acks = dealer.hear(fr.Acks)
        durable = acks.pages[0].durable
        while durable < 1:
            durable = dealer.hear(fr.Pages).pages[0].durable


def test_a_clean_stop_tells_connections_and_leaves_no_lane(broker: Broker) -> None:
    topic = broker.create_topic()
    info = topic_of(broker, topic)
    with Dealer(broker.tcp_url) as dealer:
        attached = dealer.producer()
        for number in range(20):
            batch = batch_of([b"%d" % number], info, attached.producer_id, number)
            dealer.say(fr.Produce(1, 0, number, info.pages[0]), batch)
        dealer.acks(20)
        assert broker.stop() == 0
        assert dealer.hear(fr.Ended).endpoint == -1
    assert broker_lanes(broker) == []
    broker.start()
    assert len(records(broker, topic)) == 20
