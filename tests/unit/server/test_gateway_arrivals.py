"""Who connects too often is kept waiting, by the kernel, and nobody else is."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest
import zmq
from node_helpers import eventually
from wire import Dealer

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.server.gateway.arrivals import ADDRESSES_MAX, HELD, HELD_MAX, RATE_MIN, Arrivals
from penstock.server.gateway.synfilter import keep_waiting, program
from penstock.testing import Broker

RATE = 2 * RATE_MIN
SOON = 30.0
BLOCKED = 0.3


# --- how often -----------------------------------------------------------------------------------
def test_an_address_that_connects_too_often_waits_and_others_do_not() -> None:
    arrivals = Arrivals(RATE)
    assert not any(arrivals.came("a", 0.0) for _ in range(RATE))
    assert arrivals.came("a", 0.0)
    assert not arrivals.came("a", 0.0), "it waits already"
    assert not arrivals.came("b", 0.0)
    assert arrivals.held == ["a"]


def test_it_waits_for_a_moment_and_again_if_it_goes_on() -> None:
    arrivals = Arrivals(RATE)
    for _ in range(RATE + 1):
        arrivals.came("a", 0.0)
    assert not arrivals.let_go(HELD / 2)
    assert arrivals.let_go(HELD)
    assert arrivals.held == []
    assert not any(arrivals.came("a", HELD) for _ in range(int(RATE * HELD) - 1))
    assert any(arrivals.came("a", HELD) for _ in range(3))


def test_what_had_come_before_it_waited_makes_it_wait_longer() -> None:
    arrivals = Arrivals(RATE)
    for _ in range(3 * RATE):
        arrivals.came("a", 0.0)
    assert not arrivals.let_go(1.9)
    assert arrivals.let_go(2.0)


def test_no_more_is_kept_than_there_are_bounds_for() -> None:
    arrivals = Arrivals(RATE)
    for number in range(HELD_MAX + 5):
        for _ in range(RATE + 1):
            arrivals.came(f"loud-{number}", 0.0)
    assert len(arrivals.held) == HELD_MAX
    for number in range(ADDRESSES_MAX):
        arrivals.came(f"quiet-{number}", 0.0)
    assert not arrivals.came("loud-0", 0.0), "it was forgotten"


def test_all_that_may_be_connected_may_connect_at_once() -> None:
    for most, rate in ((10, RATE_MIN), (5 * RATE_MIN, 5 * RATE_MIN)):
        arrivals = Arrivals(most)
        assert not any(arrivals.came("a", 0.0) for _ in range(rate))
        assert arrivals.came("a", 0.0)


# --- in the kernel -------------------------------------------------------------------------------
class Listener:
    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.bind((host, 0))
        self.socket.listen(8)
        self.port = self.socket.getsockname()[1]

    def connects(self, source: str, host: str, within: float = SOON) -> bool:
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with socket.socket(family) as sock:
            sock.bind((source, 0))
            sock.settimeout(within)
            try:
                sock.connect((host, self.port))
            except TimeoutError:
                return False
            return True


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    try:
        listener = Listener(request.param)
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        pytest.skip("this host has no IPv6")
    with listener.socket:
        yield listener


def test_syns_of_an_address_are_passed_over_until_the_filter_goes(listener: Listener) -> None:
    host = listener.socket.getsockname()[0]
    own, other = ("127.0.0.1", "127.0.0.2") if host != "::1" else ("::1", "::2")
    to = "127.0.0.1" if host != "::1" else "::1"
    seen_as = f"::ffff:{own}" if host == "::" else own  # by who listens
    assert listener.connects(own, to)
    keep_waiting(listener.socket, [other, seen_as])
    assert not listener.connects(own, to, BLOCKED)
    keep_waiting(listener.socket, [other])
    assert listener.connects(own, to)
    if host != "::1":  # it has but one address
        assert not listener.connects(other, to, BLOCKED)
    keep_waiting(listener.socket, [])
    keep_waiting(listener.socket, [])
    assert listener.connects(own, to)


def test_connections_that_are_there_go_on_under_a_filter() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        before = socket.create_connection(listening.getsockname())
        keep_waiting(listening, ["127.0.0.2"])
        under = socket.create_connection(listening.getsockname())
        keep_waiting(listening, ["127.0.0.1"])
        for mine in (before, under):
            theirs, _ = listening.accept()
            with mine, theirs:
                mine.sendall(b"x")
                assert theirs.recv(10) == b"x"


def test_a_program_for_as_many_as_may_wait_is_one_that_the_kernel_takes() -> None:
    addresses = [f"10.0.0.{number}" for number in range(HELD_MAX // 2)]
    addresses += [f"fd00::{number}" for number in range(1, HELD_MAX // 2 + 1)]
    assert len(program(addresses)) // 8 <= 4096
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        keep_waiting(listening, addresses)
        socket.create_connection(listening.getsockname(), SOON).close()


# --- at a gateway --------------------------------------------------------------------------------
def greeted(context: zmq.Context[zmq.Socket[bytes]], broker: Broker, source: str) -> None:
    """A client from that address is let in."""
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        port = broker.tcp_url.rpartition(":")[2]
        dealer.connect(f"tcp://{source}:0;127.0.0.1:{port}")
        dealer.send(codec.encode(fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, "far", bytes(16))))
        assert dealer.poll(10_000), f"no welcome for {source}"
        message, _ = codec.from_gateway(dealer.recv_multipart())
        assert isinstance(message, fr.Welcome)


def test_an_address_that_connects_again_and_again_waits_and_gets_in_later() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    options = {"connections_max": 100, "client_silence_max": 60.0}
    with context, Broker(listen=True, options=options) as broker:
        place = ("127.0.0.1", int(broker.tcp_url.rpartition(":")[2]))
        with Dealer(broker.tcp_url) as there:

            def flood() -> bool:
                for _ in range(RATE_MIN):
                    with contextlib.suppress(OSError), socket.socket() as sock:
                        sock.settimeout(0.05)
                        sock.connect(place)
                        sock.recv(10)  # of its greeting: it was accepted
                return "127.0.0.1 connects too often" in broker.log_tail(100)

            eventually(flood, "that it is kept waiting")
            greeted(context, broker, "127.0.0.2")
            greeted(context, broker, "127.0.0.1")
            there.say(fr.Ping(7))
            assert there.hear(fr.Pong).stamp == 7
