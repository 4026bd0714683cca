"""A client whose gateway is late, silent, gone, another one, or says the same twice."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time

import pytest
from fake_gateway import PRODUCER_ID, WITHIN, GatewayDouble

import penstock
from penstock.client.remote import connection, connections
from penstock.cluster.frames import messages as fr
from penstock.core import errors as er
from penstock.ipc import messages as ms
from penstock.testing.waiting import wait_until


@pytest.fixture
def gateway():
    with GatewayDouble() as made:
        yield made


@pytest.fixture
def client(gateway):
    with penstock.connect(gateway.url, transport="tcp", timeout=WITHIN) as made:
        gateway.next(fr.Detach)  # what `connect` looked with
        yield made


@pytest.fixture
def unused_port():
    """Gives ports where nobody listens, and that nobody else gets meanwhile."""
    with contextlib.ExitStack() as held:

        def reserve() -> int:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

        yield reserve


def carriers():
    return [one for one in threading.enumerate() if one.name == "penstock-carrier"]


def acks(produce, *, error=0):
    ack = fr.Ack(produce.sequence, produce.sequence * 10, 5, error, 3)
    return fr.Acks(produce.endpoint, produce.writer, [ack])


class Producing:
    """A producer over a double, which has learnt its topic."""

    def __init__(self, gateway, client, **options):
        self.gateway = gateway
        self.producer = client.producer(linger=0, **options)
        asking = threading.Thread(target=gateway.find_topic, args=("orders",))
        asking.start()
        self.first = self.producer.send("orders", b"0")
        asking.join(WITHIN)
        self.peer, produce, _ = gateway.next(fr.Produce)
        self.endpoint = produce.endpoint
        gateway.say(self.peer, acks(produce))
        assert self.first.result(WITHIN).offset == 0

    def sent(self, count):
        """The next batches, in the order in which they come."""
        return [self.gateway.next(fr.Produce) for _ in range(count)]


@pytest.fixture
def producing(gateway, client):
    made = Producing(gateway, client)
    yield made
    with contextlib.suppress(er.PenstockError):
        made.producer.close(timeout=0.1)


# --- connecting ---
def test_an_error_names_every_broker_that_was_tried_and_why(unused_port):
    first, second = unused_port(), unused_port()
    with pytest.raises(er.NotConnectedError) as caught:
        penstock.connect(f"tcp://127.0.0.1:{first},127.0.0.1:{second}", timeout=1.5)
    assert f"127.0.0.1:{first}: nothing listens there" in str(caught.value)
    assert f"127.0.0.1:{second}: nothing listens there" in str(caught.value)
    assert "penstock serve --listen" in str(caught.value)


def test_who_was_reached_and_hung_up_is_not_said_to_be_missing():
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    stranger.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(er.NotConnectedError, match=f"127.0.0.1:{port}: it hung up") as caught:
            penstock.connect(f"tcp://127.0.0.1:{port}", timeout=1.5)
        stranger.shutdown(socket.SHUT_RDWR)
    assert "penstock serve --listen" not in str(caught.value)


def test_hosts_are_tried_in_turn(gateway, unused_port):
    url = f"tcp://127.0.0.1:{unused_port()},127.0.0.1:{gateway.port}"
    with penstock.connect(url, transport="tcp", timeout=WITHIN) as client:
        assert client.transport == "tcp"
        assert client.metrics()["failed_connects"] == 1


@pytest.fixture
def patience(monkeypatch):
    """Seconds for a broker that keeps silent: more than any test waits."""
    monkeypatch.setattr(connection, "CONNECT_WITHIN", 60.0)
    monkeypatch.setattr(connection, "WELCOME_WITHIN", 60.0)


@pytest.mark.usefixtures("patience")
def test_beside_hosts_that_keep_silent_the_next_is_tried(gateway):
    """As where a broker is stopped: its kernel takes connections, and nobody greets."""
    with socket.create_server(("127.0.0.1", 0)) as stopped, GatewayDouble() as mute:
        mute.greets = False
        ports = (stopped.getsockname()[1], mute.port, gateway.port)
        url = "tcp://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with penstock.connect(url, transport="tcp", timeout=WITHIN) as client:
            assert client.metrics()["connects"] == 1
            assert client.metrics()["failed_connects"] == 0
            with client.producer(timeout=WITHIN):
                assert client.metrics()["reconnects"] == 0


@pytest.mark.usefixtures("patience")
def test_who_greets_late_is_taken_where_no_other_does(gateway, unused_port):
    """The others were tried in the meantime, and came to nothing."""
    gateway.greets = False
    ports = (gateway.port, unused_port(), unused_port())
    url = "tcp://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def greet():
        peer, _, _ = gateway.next(fr.Hello)
        time.sleep(2 * connections.NEXT_AFTER)
        gateway.say(peer, gateway.welcome)

    greeting = threading.Thread(target=greet)
    greeting.start()
    with penstock.connect(url, transport="tcp", timeout=WITHIN) as client:
        assert client.metrics()["connects"] == 1
    greeting.join(WITHIN)


def test_a_broker_that_does_not_greet_is_named(gateway):
    gateway.greets = False
    with pytest.raises(er.NotConnectedError, match=f"127.0.0.1:{gateway.port}: no answer yet"):
        penstock.connect(gateway.url, transport="tcp", timeout=1.0)


def test_a_refusal_is_raised_as_the_gateway_named_it(gateway):
    gateway.lets_in = False

    def refuse():
        peer, attach, _ = gateway.next(fr.Attach)
        gateway.say(peer, fr.Refused(attach.endpoint, "AttachRefusedError", "not you"))

    refusing = threading.Thread(target=refuse)
    refusing.start()
    with pytest.raises(er.AttachRefusedError, match="not you"):
        penstock.connect(gateway.url, transport="tcp", timeout=WITHIN)
    refusing.join(WITHIN)


def test_an_attachment_that_takes_longer_than_each_try_comes_about(gateway, client):
    """As over a slow network: what was given up is taken up by the next try."""
    gateway.lets_in = False
    made = []
    making = threading.Thread(target=lambda: made.append(client.producer(timeout=WITHIN)))
    with pytest.raises(er.NotConnectedError):
        client.producer(timeout=0.2)
    peer, attach, _ = gateway.next(fr.Attach)
    making.start()
    gateway.say(peer, gateway.attached(attach.endpoint))
    making.join(WITHIN)
    [producer] = made
    assert producer.metrics()["reconnects"] == 0
    producer.close()
    assert gateway.next(fr.Detach)[1].endpoint == attach.endpoint


# --- the way back ---
def test_after_a_silence_it_connects_anew(gateway, client, producing):
    gateway.answers_pings = False
    peer, _, _ = gateway.next(fr.Hello)
    gateway.answers_pings = True
    assert peer != producing.peer
    assert client.metrics()["attachments_lost"] == 1
    peer, attach, _ = gateway.next(fr.Attach)
    assert (attach.resume, attach.token) == (PRODUCER_ID, b"token")
    assert attach.endpoint != producing.endpoint


def test_what_has_no_answer_is_sent_again_in_order_once(gateway, client, producing):
    deliveries = [producing.producer.send("orders", b"%d" % at) for at in range(1, 4)]
    before = producing.sent(3)
    gateway.say(before[0][0], acks(before[0][1]))
    assert deliveries[0].result(WITHIN).offset == 10
    gateway.say(before[0][0], fr.Ended(-1, "the gateway stops"))
    gateway.next(fr.Attach)
    after = producing.sent(2)
    assert [one.sequence for _, one, _ in after] == [2, 3]
    assert [payload for _, _, payload in after] == [payload for _, _, payload in before[1:]]
    assert {one.endpoint for _, one, _ in after} != {producing.endpoint}
    for peer, one, _ in after:
        gateway.say(peer, acks(one))
    assert [one.result(WITHIN).offset for one in deliveries] == [10, 20, 30]
    assert client.metrics()["reconnects"] == 1


def test_what_waited_to_be_durable_hears_of_it_by_the_next_connection(gateway, client):
    """Who was told that it waits is gone, and nothing else would ever tell."""
    state = fr.PageState(0, b"t" * 16, 0, 1, 0, 1, 3, 0, 1, 1, 1, 1)
    with client.producer(linger=0, durability="fsynced") as producer:
        asking = threading.Thread(target=gateway.find_topic, args=("orders",))
        asking.start()
        delivery = producer.send("orders", b"0")
        asking.join(WITHIN)
        peer, first, sent = gateway.next(fr.Produce)
        gateway.say(peer, acks(first))  # in the log, not on the device
        gateway.say(peer, fr.Ended(-1, "its gateway restarts"))
        peer, again, bytes_again = gateway.next(fr.Produce)
        assert not delivery.done()
        assert again.endpoint != first.endpoint
        assert again.sequence == first.sequence + 1
        assert bytes(bytes_again) == bytes(sent)
        ack = fr.Ack(again.sequence, 0, 5, 0, 3)
        gateway.say(peer, fr.Acks(again.endpoint, again.writer, [ack], [state]))
        assert delivery.result(WITHIN).durability == "fsynced"


def test_what_is_said_of_an_endpoint_that_is_over_is_nobodys(gateway, producing):
    producing.producer.send("orders", b"1")
    [(peer, old, _)] = producing.sent(1)
    gateway.say(peer, fr.Ended(old.endpoint, "the node went away"))
    gateway.next(fr.Attach)
    [(peer, again, _)] = producing.sent(1)
    delivery = producing.producer.send("orders", b"2")
    [(_, second, _)] = producing.sent(1)
    late = [fr.Ack(number, 999, 5, 0, 3) for number in (1, 2)]
    gateway.say(peer, fr.Acks(old.endpoint, 0, late))
    gateway.say(peer, acks(again))
    gateway.say(peer, acks(again))  # twice the same
    gateway.say(peer, acks(second))
    assert delivery.result(WITHIN).offset == 20


def test_an_answer_to_nothing_ends_the_connection(gateway, client, producing):
    gateway.say(producing.peer, fr.Acks(producing.endpoint, 0, [fr.Ack(7, 7, 5, 0, 3)]))
    peer, _, _ = gateway.next(fr.Hello)
    assert peer != producing.peer
    peer, _, _ = gateway.next(fr.Attach)
    delivery = producing.producer.send("orders", b"1")
    peer, produce, _ = gateway.next(fr.Produce)
    gateway.say(peer, acks(produce))
    assert delivery.result(WITHIN).offset == 10


def test_another_node_is_taken_only_when_the_one_before_is_nowhere(gateway, client, producing):
    port = gateway.port
    gateway.close()
    with GatewayDouble(node_uuid=b"o" * 16, port=port) as other:
        other.next(fr.Hello)
        other.next(fr.Hello)  # a second time: no other address is left
        _, attach, _ = other.next(fr.Attach)
        assert attach.resume == PRODUCER_ID
    gateway.__init__(port=port)
    gateway.next(fr.Attach)


# --- what goes on meanwhile ---
def test_a_request_under_way_hears_the_end(gateway, client):
    admin = client.admin(timeout=WITHIN)
    failed = []

    def ask():
        with pytest.raises(er.NotConnectedError, match="the node went away"):
            admin.list_topics()
        failed.append(True)

    asking = threading.Thread(target=ask)
    asking.start()
    peer, request, _ = gateway.next(fr.Ask)
    gateway.say(peer, fr.Ended(request.endpoint, "the node went away"))
    asking.join(WITHIN)
    assert failed


def test_the_late_answer_of_a_request_that_timed_out_is_not_the_next_ones(gateway, client):
    admin = client.admin(timeout=1.5)
    with pytest.raises(er.PenstockTimeout, match=gateway.url):
        admin.list_topics()
    peer, first, _ = gateway.next(fr.Ask)
    gateway.answer(peer, first, ms.Topics([], False))
    listed = []
    asking = threading.Thread(target=lambda: listed.append(admin.list_topics()))
    asking.start()
    peer, second, _ = gateway.next(fr.Ask)
    info = ms.TopicInfo("orders", b"t" * 16, [0], ms.TopicSettings())
    gateway.answer(peer, second, ms.Topics([info], False))
    asking.join(WITHIN)
    assert listed == [["orders"]]


def test_acks_0_says_appended_over_tcp(gateway, client):
    with_none = Producing(gateway, client, acks=0)
    delivery = with_none.producer.send("orders", b"1")
    [(peer, produce, _)] = with_none.sent(1)
    assert not delivery.done()
    gateway.say(peer, acks(produce))
    assert delivery.result(WITHIN).durability == "appended"


def test_throttles_are_told(gateway, client, producing):
    gateway.say(producing.peer, fr.Throttled(producing.endpoint, "produce", 1.5))
    wait_until(lambda: client.metrics()["throttles"] == 1, timeout=WITHIN)
    assert client.metrics()["throttled_seconds"] == 1.5


# --- which way ---
@pytest.mark.rule(25)
@pytest.mark.parametrize(
    "told", [{"local": "/nowhere/attach.sock"}, {"local": __file__, "boot_id": "another"}, {}]
)
def test_auto_stays_with_tcp_where_the_node_is_not_within_reach(told):
    with GatewayDouble(**told) as gateway, penstock.connect(gateway.url) as client:
        assert client.transport == "tcp"


def test_a_transport_or_keys_that_cannot_be_are_refused():
    with pytest.raises(er.ConfigError, match="transport"):
        penstock.connect("tcp://127.0.0.1:1", transport="shm")  # type: ignore[arg-type]
    with pytest.raises(er.ConfigError, match="needs a tcp://"):
        penstock.connect("shm://", transport="tcp")
    with pytest.raises(er.ConfigError, match="keys="):
        penstock.connect("shm://", keys="/nowhere")
    with pytest.raises(er.ConfigError, match="cannot read the key file /nowhere"):
        penstock.connect("tcp://127.0.0.1:1", keys="/nowhere")


# --- the end ---
def test_closing_ends_the_carrier_and_says_good_bye(gateway):
    before = carriers()
    client = penstock.connect(gateway.url, transport="tcp")
    producer = client.producer()
    [carrier] = [one for one in carriers() if one not in before]
    client.close()
    assert not carrier.is_alive()
    assert {gateway.next(fr.Detach)[1].endpoint for _ in range(2)} == {1, 2}
    with pytest.raises(er.ClosedError):
        client.admin()
    del producer


def test_a_client_that_is_garbage_ends_its_carrier(gateway):
    before = carriers()
    client = penstock.connect(gateway.url, transport="tcp")
    [carrier] = [one for one in carriers() if one not in before]
    del client
    gc.collect()
    carrier.join(WITHIN)
    assert not carrier.is_alive()


def test_what_outlives_its_client_keeps_the_carrier(gateway):
    client = penstock.connect(gateway.url, transport="tcp")
    admin = client.admin()
    del client
    gc.collect()
    listed = []
    asking = threading.Thread(target=lambda: listed.append(admin.list_topics()))
    asking.start()
    peer, ask, _ = gateway.next(fr.Ask)
    gateway.answer(peer, ask, ms.Topics([], False))
    asking.join(WITHIN)
    assert listed == [[]]
    admin.close()


def test_closing_while_nothing_answers_is_bounded(gateway):
    before = carriers()
    client = penstock.connect(gateway.url, transport="tcp")
    producing = Producing(gateway, client, delivery_timeout=2.0)
    gateway.close()
    delivery = producing.producer.send("orders", b"1")
    with pytest.raises(er.PenstockError):
        client.close()
    assert isinstance(delivery.exception(), er.PenstockError)
    wait_until(lambda: all(one in before for one in carriers()), timeout=WITHIN)


def test_two_hundred_connections_leave_no_descriptor_and_no_thread(gateway):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    with penstock.connect(gateway.url, transport="tcp"):
        pass
    gc.collect()
    threads, before = threading.active_count(), descriptors()
    for _ in range(200):
        with penstock.connect(gateway.url, transport="tcp") as client:
            client.producer().close()
    gc.collect()
    assert threading.active_count() == threads
    assert descriptors() <= before + 2


def test_a_forked_child_has_a_connection_of_its_own(gateway, client):
    url_of_child, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            with client.admin(timeout=WITHIN) as admin:
                theirs.sendall(b"%d" % len(admin.list_topics()))
        finally:
            os._exit(0)
    theirs.close()
    peer, _, _ = gateway.next(fr.Hello)
    peer_of_ask, ask, _ = gateway.next(fr.Ask)
    assert peer_of_ask == peer
    info = ms.TopicInfo("orders", b"t" * 16, [0], ms.TopicSettings())
    gateway.answer(peer, ask, ms.Topics([info], False))
    url_of_child.settimeout(WITHIN)
    assert url_of_child.recv(16) == b"1"
    os.waitpid(child, 0)
    producing = Producing(gateway, client)  # the parent's goes on
    assert producing.peer != peer
    assert client.metrics()["reconnects"] == 0


def test_a_producer_that_a_stopping_gateway_sends_away_keeps_its_id(gateway, client, producing):
    """And its lanes, over as many tries as it takes."""
    delivery = producing.producer.send("orders", b"1")
    producing.sent(1)
    gateway.lets_in = False
    gateway.say(producing.peer, fr.Ended(producing.endpoint, "the gateway stops"))
    for _ in range(3):
        peer, attach, _ = gateway.next(fr.Attach)
        assert (attach.resume, attach.token) == (PRODUCER_ID, b"token")
        gateway.say(peer, fr.Refused(attach.endpoint, "NotConnectedError", "the gateway stops"))
    gateway.lets_in = True
    [(peer, again, _)] = producing.sent(1)
    assert again.sequence == 1
    gateway.say(peer, acks(again))
    assert delivery.result(WITHIN).offset == 10
    assert producing.producer.metrics()["resent"] == 0


# --- leaving ---
def test_a_carrier_that_ends_once_nobody_needs_it_waits_without_turning(producing, client):
    """As behind an interrupt that left somebody attached whom nobody closes."""
    turns = 0
    carrier = client._socket._carrier
    turn = carrier._turn

    def counted():
        nonlocal turns
        turns += 1
        turn()

    carrier._turn = counted
    carrier.finish()
    wait_until(lambda: carrier._finishing, timeout=WITHIN)
    before = turns
    time.sleep(0.3)
    assert turns - before < 100, "it would take a processor for as long as somebody is attached"
    producing.producer.close(WITHIN)
    wait_until(lambda: carrier.is_over, timeout=WITHIN)
