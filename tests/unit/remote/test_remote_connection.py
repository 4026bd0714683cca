"""One connection, and what it says of its end."""

from __future__ import annotations

import resource
import select
import time
from collections.abc import Iterator

import pytest
import zmq

from penstock.client.remote import connection
from penstock.client.remote.connection import Wire
from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.security.keys import ClientKey
from penstock.testing.waiting import wait_until

HELLO = fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, "test", b"i" * 16)
SERVER = zmq.curve_keypair()
WITHIN = 10.0


def unfetched(*_: object) -> None:
    raise AssertionError("nothing was asked for")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture(params=["plain", "curve"])
def key(request: pytest.FixtureRequest) -> ClientKey | None:
    """With one ZeroMQ has the connection, without one the client itself."""
    if request.param == "plain":
        return None
    public, secret = zmq.curve_keypair()
    return ClientKey(
        public=public.decode(), secret=secret.decode(), principal="p", server=SERVER[0].decode()
    )


@pytest.fixture
def broker(context: zmq.Context[zmq.Socket[bytes]], key: ClientKey | None) -> zmq.Socket[bytes]:
    """Shakes hands, and reads nothing by itself."""
    made = context.socket(zmq.ROUTER)
    made.setsockopt(zmq.RCVHWM, 1)
    if key is not None:
        made.setsockopt(zmq.CURVE_SERVER, 1)
        made.setsockopt(zmq.CURVE_SECRETKEY, SERVER[1])
    return made


@pytest.fixture
def connected(
    context: zmq.Context[zmq.Socket[bytes]], broker: zmq.Socket[bytes], key: ClientKey | None
) -> Iterator[Wire]:
    port = broker.bind_to_random_port("tcp://127.0.0.1")
    made = Wire(context, ("127.0.0.1", port), key, HELLO, unfetched)

    def has_greeted() -> bool:
        note_signs(made, 0)
        made.look(time.monotonic())
        return made.bytes_sent > 0

    wait_until(has_greeted, timeout=WITHIN)
    yield made
    made.close()


def test_a_client_out_of_descriptors_says_so(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Once the name is looked up. Raised, it would end the connections to other brokers."""
    made = Wire(context, ("localhost", 1), None, HELLO, unfetched)
    look_up = made._name
    assert look_up is not None
    look_up.join(WITHIN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        made.look(time.monotonic())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert made.failed == "no socket can be made: Too many open files"
    made.close()


def send_until_it_fails(sending: Wire, payload: bytes | None = None) -> str | None:
    """Without a look at what became of the connection in between."""
    deadline = time.monotonic() + WITHIN
    while sending.failed is None and time.monotonic() < deadline:
        sending.send(fr.Ping(0), payload)
    return sending.failed


def test_who_hung_up_is_not_said_to_read_too_slowly(
    broker: zmq.Socket[bytes], connected: Wire
) -> None:
    broker.close(0)
    assert send_until_it_fails(connected) == "it hung up"


def test_who_hung_up_after_the_greeting_is_heard_out_though_more_is_to_be_sent(
    broker: zmq.Socket[bytes], connected: Wire
) -> None:
    name, _hello = broker.recv_multipart()
    welcome = fr.Welcome(fr.PROTOCOL_VERSION, fr.APIS, "test", b"n" * 16, "", "", 60.0, 600.0, 1)
    broker.send_multipart([name, codec.encode(welcome)])

    def has_welcomed() -> bool:
        note_signs(connected, WITHIN)
        return any(connected.messages(1))

    wait_until(has_welcomed, timeout=WITHIN)
    connected.look(time.monotonic())  # the next ping is due in a minute
    assert connected.due() > time.monotonic() + 1.0
    broker.close(0)

    def is_known() -> bool:
        connected.send(fr.Ping(0))
        return connected.failed is not None or connected.due() < time.monotonic() + 1.0

    wait_until(is_known, timeout=WITHIN)
    assert connected.failed is None  # its last words may be on their way
    connected.end_if_hung_up(time.monotonic() + WITHIN)
    assert connected.failed == "it hung up"


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MESSAGES_UNSENT_MAX", 10)


def test_who_reads_nothing_is_said_to_keep_messages_waiting(
    little_room: None, connected: Wire
) -> None:
    said = send_until_it_fails(connected, bytes(256 << 10))
    assert said == "10 messages wait to be read by it"


def note_signs(connected: Wire, within: float) -> None:
    """As the carrier's loop does: waits for a readable descriptor, and has the connection note
    which."""
    came, poll = connected.filenos(), select.poll()
    for fd in came:
        poll.register(fd, select.POLLIN)
    for fd, _ in poll.poll(within * 1000):
        came[fd]()


def test_a_connection_is_asked_for_messages_only_where_its_descriptor_told_of_some(
    broker: zmq.Socket[bytes], connected: Wire, key: ClientKey | None
) -> None:
    name, _hello = broker.recv_multipart()
    assert list(connected.messages(10)) == []
    assert not connected.may_have_messages
    note_signs(connected, 0)
    assert not connected.may_have_messages
    welcome = fr.Welcome(fr.PROTOCOL_VERSION, fr.APIS, "test", b"n" * 16, "", "", 60.0, 600.0, 1)
    broker.send_multipart([name, codec.encode(welcome)])

    def has_come() -> bool:
        note_signs(connected, WITHIN)
        return connected.may_have_messages and any(connected.messages(1))

    wait_until(has_come, timeout=WITHIN)
    assert connected.welcome is not None
    assert list(connected.messages(10)) == []
    connected.send(fr.Ping(0))
    assert connected.may_have_messages is (key is not None)  # ZeroMQ may have lost a sign
    assert not connected.has_news
    assert not connected.may_have_messages


def test_a_message_is_heard_of_though_sending_took_its_sign_away(
    broker: zmq.Socket[bytes], connected: Wire
) -> None:
    name, _hello = broker.recv_multipart()
    assert list(connected.messages(10)) == []
    welcome = fr.Welcome(fr.PROTOCOL_VERSION, fr.APIS, "test", b"n" * 16, "", "", 60.0, 600.0, 1)
    broker.send_multipart([name, codec.encode(welcome)])
    note_signs(connected, WITHIN)
    assert connected.has_news in (True, False)  # takes the sign away, as sending may
    connected.send(fr.Ping(0))
    wait_until(lambda: connected.has_news, timeout=WITHIN)
    assert any(connected.messages(1))
