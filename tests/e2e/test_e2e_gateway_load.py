"""Connections that are many, slow, endless, silent: bounded, dropped and counted, and no others
notice."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from node_helpers import children, eventually
from wire import Dealer, batch_of

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.server.gateway.fetch import FetchLimits
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    options = {
        "clients_max": lo.CLIENTS_MAX, "connections_max": 1100, "client_bytes_max": 8 << 20,
        "client_heartbeat": 0.5, "client_silence_max": 60.0,
    }  # fmt: skip
    with Broker(listen=True, options=options) as broker:
        yield broker


def gateway(broker: Broker) -> int:
    for pid in children(broker.pid):
        if "gateway.main" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError("no gateway")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def well(broker: Broker) -> None:
    """Another client is served."""
    with Dealer(broker.tcp_url) as other:
        other.attach(1, lo.KIND_ADMIN)
        assert isinstance(other.ask(1, ms.ListTopics()), ms.Topics)


def test_a_thousand_connections_are_served_by_one_process(
    broker: Broker, request: pytest.FixtureRequest
) -> None:
    pid = gateway(broker)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2000)
    request.addfinalizer(lambda: context.destroy(0))
    sockets = []
    for number in range(1000):
        sock = context.socket(zmq.DEALER)
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(broker.tcp_url)
        sock.send(codec.encode(fr.Hello(1, fr.APIS, "many", number.to_bytes(16, "big"))))
        sock.send(codec.encode(fr.Attach(1, lo.KIND_CONSUMER, f"many-{number}")))
        sockets.append(sock)
    for sock in sockets:
        assert sock.poll(20_000)
        assert isinstance(codec.from_gateway(sock.recv_multipart())[0], fr.Welcome)
        assert sock.poll(20_000)
        assert isinstance(codec.from_gateway(sock.recv_multipart())[0], fr.Attached)
    well(broker)
    assert resident(pid) < 1 << 30
    with broker.connect() as client, client.admin() as admin:
        assert admin.describe_node().clients >= 1000
        for sock in sockets:
            sock.close(0)
        eventually(lambda: admin.describe_node().clients < 10, "all of them to be gone")
    assert gateway(broker) == pid


@pytest.mark.setting("node.connections_max")
def test_over_the_bounds_the_error_says_which(broker: Broker) -> None:
    with Broker(listen=True, options={"connections_max": 2, "clients_max": 3}) as small:
        dealers = [Dealer(small.tcp_url) for _ in range(2)]
        with Dealer(small.tcp_url, hello=False) as third:
            third.say(fr.Hello(1, fr.APIS, "third", bytes(16)))
            refused = third.hear(fr.Refused)
            assert refused.error == "ResourceLimitError"
            assert "connections_max" in refused.message
        for number in range(3):
            dealers[0].attach(number, lo.KIND_ADMIN)
        dealers[1].say(fr.Attach(1, lo.KIND_ADMIN, "fourth"))
        assert "clients_max" in dealers[1].hear(fr.Refused).message
        for dealer in dealers:
            dealer.close()


def test_who_does_not_read_is_dropped_and_holds_nobody_up(broker: Broker) -> None:
    pid = gateway(broker)
    before = resident(pid)
    with Dealer(broker.tcp_url, rcvhwm=1, rcvbuf=4096) as slow:
        slow.attach(1, lo.KIND_ADMIN)
        body = msgspec.msgpack.encode(lk.LookUpPages(list(range(lk.PAGES_AT_ONCE))))
        ask = codec.encode(fr.Ask(1, 1, 5.0, msgspec.Raw(body)))

        def is_dropped() -> bool:
            with contextlib.suppress(zmq.Again):
                for _ in range(100):
                    slow.socket.send(ask, zmq.NOBLOCK)
            return "wait to be read by it" in broker.log_tail(400)

        eventually(is_dropped, "the drop")
        well(broker)
    assert resident(pid) - before < 200 << 20
    assert gateway(broker) == pid


def test_a_producer_over_its_window_is_dropped(broker: Broker) -> None:
    topic = broker.create_topic()
    with Dealer(broker.tcp_url) as dealer:
        attached = dealer.producer()
        info = dealer.find(1, topic)
        page = info.pages[0]
        batch = batch_of([b"x" * 500_000], info, attached.producer_id, 0)
        for number in range(attached.window // len(batch) + 200):
            dealer.say(fr.Produce(1, page % attached.writers, number, page), batch)
        ended = dealer.hear(fr.Ended)
        assert "window" in ended.reason or "under way" in ended.reason
    well(broker)


def test_a_message_without_an_end_is_cut_off(broker: Broker) -> None:
    """ZeroMQ gathers the frames of a message without limit: 1 MiB each here, and always more."""
    pid = gateway(broker)
    before = resident(pid)
    with _zmtp(broker.tcp_url) as sock:
        frame = b"\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 2000:
                sock.sendall(frame)
                sent += 1
        assert sent < 2000
    well(broker)
    assert resident(pid) - before < 1500 << 20
    assert gateway(broker) == pid


def _zmtp(url: str) -> socket.socket:
    """A connection that has done what ZeroMQ wants before the first message."""
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(20)
    sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31))
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    sock.sendall(b"\x04" + bytes([len(ready)]) + ready)
    got = b""
    while len(got) < 64 + 2:
        got += sock.recv(1000)
    return sock


def _told_nothing(url: str, first: bytes) -> socket.socket:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(20)
    sock.sendall(first)
    return sock


def _is_cut_off(sock: socket.socket) -> bool:
    """Waited for."""
    try:
        while sock.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_what_is_no_zeromq_and_what_never_says_hello_is_cut_off(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        socks = {
            "nothing": _told_nothing(broker.tcp_url, b""),
            "HTTP": _told_nothing(broker.tcp_url, b"GET / HTTP/1.1\r\n\r\n"),
            "noise": _told_nothing(broker.tcp_url, os.urandom(5000)),
            "no hello": _zmtp(broker.tcp_url),
        }
        for sock in socks.values():
            stack.enter_context(sock)
        for said, sock in socks.items():
            assert _is_cut_off(sock), said
    well(broker)


@pytest.mark.setting("node.client_silence_max")
def test_who_says_nothing_for_too_long_is_dropped() -> None:
    options = {"client_heartbeat": 0.5, "client_silence_max": 2.0}
    with Broker(listen=True, options=options) as broker, Dealer(broker.tcp_url) as dealer:
        dealer.producer()
        assert "nothing was heard of it for 2 s" in dealer.hear(fr.Ended).reason


def test_without_descriptors_connections_wait_and_are_served_later(broker: Broker) -> None:
    pid = gateway(broker)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    bounds = resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 6, 20_000))
    try:
        dealers = [Dealer(broker.tcp_url, hello=False) for _ in range(12)]
        try:
            eventually(lambda: "no connection accepted" in broker.log_tail(100), "that it is told")
        finally:
            for dealer in dealers:
                dealer.close()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, bounds)
    well(broker)
    assert gateway(broker) == pid


def test_connections_that_break_while_much_of_them_is_unread_cost_nobody_else() -> None:
    """ZeroMQ's own heartbeat would abort the process that sends it by such a connection."""
    with Broker(listen=True, options={"client_heartbeat": 0.05}) as broker:
        pid, ping = gateway(broker), codec.encode(fr.Ping(1))
        for _ in range(8):
            with Dealer(broker.tcp_url, sndhwm=100_000) as dealer:
                for _ in range(20_000):
                    dealer.socket.send(ping)
                dealer.hear(fr.Pong)
        well(broker)
        assert gateway(broker) == pid


def test_a_connection_that_floods_is_read_slowly_and_others_are_served(broker: Broker) -> None:
    pid, ping = gateway(broker), codec.encode(fr.Ping(1))
    with Dealer(broker.tcp_url, sndhwm=10_000, rcvhwm=100_000) as flood:

        def is_slow() -> bool:
            with contextlib.suppress(zmq.Again):
                for _ in range(5000):
                    flood.socket.send(ping, zmq.NOBLOCK)
            with contextlib.suppress(zmq.Again):
                while True:
                    flood.socket.recv_multipart(zmq.NOBLOCK)
            return "floods: it is read slowly" in broker.log_tail(400)

        eventually(is_slow, "that it is seen")
        for _ in range(20):
            is_slow()
            well(broker)
        flood.hear(fr.Pong)  # it is served on
    assert gateway(broker) == pid


def test_connections_of_one_principal_that_do_not_read_have_a_bound_together(
    broker: Broker,
) -> None:
    """Each asks for all of a topic, and could have `connection_bytes` of it under way."""
    topic, pid = broker.create_topic(), gateway(broker)
    with broker.connect() as client, client.producer() as producer:
        producer.send_batch(topic, values=[bytes(1000)] * 34_000)
        producer.flush(45)
    with contextlib.ExitStack() as stack:
        before = resident(pid)
        readers = [
            stack.enter_context(Dealer(broker.tcp_url, rcvhwm=1, rcvbuf=4096)) for _ in range(16)
        ]
        for reader in readers:
            reader.attach(1, lo.KIND_CONSUMER)
            info = reader.find(1, topic)
            ask = fr.Fetch(1, 1, info.pages[0], info.topic_id, 0, 0, -1, False, fr.CREDIT_MAX)
            reader.say(ask)
        most = 0
        for _ in range(20):  # until it has sent what it may
            well(broker)
            most = max(most, resident(pid) - before)
        assert most < FetchLimits().principal_bytes + (96 << 20)
        well(broker)
