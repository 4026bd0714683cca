"""What becomes of remote clients when a process dies, stops, or does not read."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from node_helpers import children, descriptors, eventually, shared_objects
from resending_producer import Resender
from wire import Dealer, batch_of

from penstock.client.session import Session, place_of
from penstock.cluster.frames import messages as fr
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.testing import Broker

COUNT = 1500


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listen=True, writers=1, options={"client_silence_max": 120.0}) as broker:
        yield broker


def topic_of(broker: Broker, name: str) -> ms.TopicInfo:
    session = Session.attach(place_of(broker.url), lo.KIND_ADMIN, client_id="", timeout=5)
    try:
        return session.find_topic(name, 5)
    finally:
        session.close()


def records(broker: Broker, topic: str) -> list[bytes]:
    with broker.connect() as client, client.consumer(topic, follow=False) as consumer:
        return [record.value or b"" for record in consumer]


def processes(broker: Broker, main: str) -> list[int]:
    found = []
    for pid in children(broker.pid):
        with suppress(OSError):
            if f"penstock.server.{main}" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def gateway(broker: Broker) -> int:
    return eventually(lambda: processes(broker, "gateway.main"), "a gateway")[0]


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


@pytest.mark.setting("node.gateway_stall_timeout")
def test_a_stopped_gateway_is_killed_and_replaced() -> None:
    options = {"gateway_stall_timeout": 4.0, "client_silence_max": 120.0}
    with Broker(listen=True, writers=1, options=options) as broker:

        def fault(sender: Resender) -> None:
            pid = gateway(broker)
            with stopped(pid):
                eventually(lambda: gateway(broker) != pid, "its successor")
            assert "(gateway_stall_timeout 4): it is killed" in broker.log_tail(400)

        sent_through(broker, fault)


SLOW_START = """
import sys, time
if "penstock.server.gateway" in " ".join(sys.orig_argv):
    time.sleep(2.0)
"""


def test_a_gateway_that_starts_slowly_is_not_taken_for_a_stalled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_START)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with Broker(listen=True, writers=1, options={"gateway_stall_timeout": 0.5}) as broker:
        with broker.connect() as client:
            client.admin().create_topic("slow")
        assert "it is killed" not in broker.log_tail(400)


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


@pytest.mark.rule(5)
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
        (writer,) = processes(broker, "writer.main")
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


@pytest.mark.rule(19)
def test_rule_19_what_a_remote_producer_left_open_is_aborted_when_it_does_not_come_back() -> None:
    options = {"client_absence_max": 2.0}
    with Broker(listen=True, writers=1, options=options) as broker:
        topic = broker.create_topic()
        info = topic_of(broker, topic)
        with Dealer(broker.tcp_url) as dealer:
            attached = dealer.producer()
            ready = dealer.ask(1, co.InitTransactions("tx", 600.0))
            assert isinstance(ready, co.TransactionReady)
            place = (info.topic_id, 0)
            dealer.ask(1, co.AddPartitions("tx", ready.producer_id, ready.producer_epoch, [place]))
            batch = batch_of(
                [b"open"], info, ready.producer_id, 0, producer_epoch=ready.producer_epoch,
                attributes=ATTR_TRANSACTIONAL,
            )  # fmt: skip
            dealer.say(fr.Produce(1, 0, 0, info.pages[0], 0, dealer.answer.proof), batch)
            assert dealer.acks(1)[0].error == 0
            # A connection that is lost and found again in time keeps it open.
            with Dealer(broker.tcp_url) as second:
                second.incarnation = dealer.incarnation
                dealer.close()
                second.attach(1, lo.KIND_PRODUCER)
                assert state_of(second, "tx") == "open"
        with Dealer(broker.tcp_url) as onlooker:
            onlooker.attach(1, lo.KIND_ADMIN)
            eventually(lambda: state_of(onlooker, "tx") == "ready", "the abort")
        assert attached.producer_id != ready.producer_id
        with broker.connect() as client:
            consumer = client.consumer(topic, start="earliest", isolation="read_committed")
            assert len(consumer.poll(timeout=0.5)) == 0


def state_of(dealer: Dealer, name: str) -> str:
    found = dealer.ask(1, co.ListTransactions())
    states: dict[str, str] = {each.transactional_id: each.state for each in found.transactions}
    return states[name]


def test_members_on_other_hosts_keep_their_partitions_over_a_restart_of_the_node(
    broker: Broker,
) -> None:
    topic = broker.create_topic(partitions=2)
    join = co.JoinGroup("g", "", [topic], None, "at-least-once", session_timeout=60.0)
    with Dealer(broker.tcp_url) as dealer:
        dealer.attach(1, lo.KIND_CONSUMER)
        joined = dealer.ask(1, join)
    broker.restart(kill=True)
    with Dealer(broker.tcp_url) as other, Dealer(broker.tcp_url) as dealer:
        other.attach(1, lo.KIND_CONSUMER)
        assert other.ask(1, join).partitions == []  # the other one has its session timeout
        dealer.attach(1, lo.KIND_CONSUMER)
        again = dealer.ask(1, msgspec.structs.replace(join, member_id=joined.member_id))
        assert {each.partition for each in again.partitions} == {0, 1}


def test_endpoints_that_come_and_go_leave_nothing_behind(broker: Broker) -> None:
    topic = broker.create_topic()
    info = topic_of(broker, topic)

    def round_of(count: int) -> None:
        for _ in range(count):
            with Dealer(broker.tcp_url) as dealer:
                attached = dealer.producer(1)
                dealer.attach(2, lo.KIND_CONSUMER)
                batch = batch_of([b"x"], info, attached.producer_id, 0)
                dealer.say(fr.Produce(1, 0, 0, info.pages[0]), batch)
                dealer.acks(1)
                dealer.say(fr.Attach(3, lo.KIND_ADMIN, "never answered"))
                dealer.say(fr.Detach(2))

    def held() -> list[int]:
        pids = [broker.pid, gateway(broker), *processes(broker, "writer.main")]
        return [len(descriptors(pid)) for pid in pids]

    round_of(3)
    eventually(lambda: not broker_lanes(broker), "that lanes are drained")
    before = held()
    round_of(30)
    eventually(lambda: not broker_lanes(broker), "that lanes are drained")
    eventually(lambda: held() == before, f"as many descriptors as {before}")


def test_producers_that_go_before_their_answers_cost_nobody_else(broker: Broker) -> None:
    """Their batches are in lanes, and what the writers answer finds their connections gone."""
    pid, info = gateway(broker), topic_of(broker, broker.create_topic())
    page = info.pages[0]

    def come_and_go(times: int) -> None:
        for _ in range(times):
            with Dealer(broker.tcp_url) as dealer:
                producer_id = dealer.producer().producer_id
                for number in range(20):
                    batch = batch_of([b"x"], info, producer_id, number)
                    dealer.say(fr.Produce(1, 0, number, page, lo.FRAME_SYNC), batch)

    threads = [Thread(target=come_and_go, args=(100,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gateway(broker) == pid
    assert "Traceback" not in broker.log_path.read_text()
