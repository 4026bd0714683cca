"""The socket without keys, against ZeroMQ's own and against servers that are none."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

import pytest
import zmq

from penstock.client.remote.hostname import numeric
from penstock.client.remote.plainsocket import BUFFER_BYTES, PlainSocket
from penstock.client.remote.wiresocket import SocketEvent
from penstock.client.remote.zmtp import COMMANDS_MAX
from penstock.testing.waiting import wait_until

WITHIN = 10.0
BYTES_MAX = 1 << 20
GREETING = b"\xff" + bytes(7) + b"\1\x7f" + b"\3\1" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\4\x1c\5READY\x0bSocket-Type\0\0\0\6ROUTER"


def made_for(port: int, *others: int) -> PlainSocket:
    made = PlainSocket(message_bytes_max=BYTES_MAX, unsent_max=10)
    made.connect([address for each in (*others, port) for address in numeric(("127.0.0.1", each))])
    return made


def turn(made: PlainSocket) -> list[SocketEvent]:
    """Looks at its descriptor, as the carrier does; returns what has happened."""
    ((fd, came),) = made.filenos(lambda: None, lambda: None).items()
    if select.select([fd], [], [], 0)[0]:
        came()
    return list(made.events())


def happens(made: PlainSocket, event: SocketEvent) -> None:
    wait_until(lambda: event in turn(made), timeout=WITHIN)


def heard(made: PlainSocket) -> list[bytes]:
    def message() -> list[bytes] | None:
        turn(made)
        found = made.receive()
        return None if found is None else [bytes(frame) for frame in found]

    return wait_until(message, timeout=WITHIN) or []


@pytest.fixture
def router() -> Iterator[tuple[zmq.Socket[bytes], int]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVTIMEO, int(WITHIN * 1000))
        yield made, made.bind_to_random_port("tcp://127.0.0.1")


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """Listens, and leaves what it says to the test."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_messages_of_all_lengths_go_there_and_back_whole(
    router: tuple[zmq.Socket[bytes], int],
) -> None:
    broker, port = router
    made = made_for(port)
    happens(made, SocketEvent.SHAKEN)
    edges = (0, 1, 255, 256, BUFFER_BYTES - 10, BUFFER_BYTES - 9, BUFFER_BYTES - 8, BYTES_MAX)
    bodies = [bytes([at + 1]) * size for at, size in enumerate(edges)]
    for body in bodies:
        assert made.send(b"head", body)
        sent: list[bytes] = []

        def has_come(sent: list[bytes] = sent) -> bool:
            turn(made)
            if broker.poll(0):
                sent.extend(broker.recv_multipart())
            return bool(sent)

        wait_until(has_come, timeout=WITHIN)
        name, *frames = sent
        assert frames == [b"head", body]
    for body in bodies:  # all at once: they are cut out of what one read brings
        broker.send_multipart([name, b"head", body])
    assert [heard(made) for _ in bodies] == [[b"head", body] for body in bodies]
    assert made.receive() is None
    made.close(0.0)


def test_a_ping_is_answered(stranger: socket.socket) -> None:
    made = made_for(stranger.getsockname()[1])
    server, _ = stranger.accept()
    with server:
        server.sendall(GREETING + READY + b"\4\x0a\4PING\0\x64abc" + b"\4\7\4PING\0\0")
        happens(made, SocketEvent.SHAKEN)
        assert made.receive() is None
        server.settimeout(WITHIN)
        said = b""
        while not said.endswith(b"\4\x05\4PONG"):
            said += server.recv(1000)
        assert b"\4\x08\4PONGabc" in said
    made.close(0.0)


def test_pings_of_a_broker_that_does_not_read_take_no_memory(stranger: socket.socket) -> None:
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made = made_for(stranger.getsockname()[1])
    server, _ = stranger.accept()
    with server:
        server.sendall(GREETING + READY)
        happens(made, SocketEvent.SHAKEN)
        while made.send(bytes(BYTES_MAX), None):  # up to `unsent_max`
            pass
        waiting = len(made._unsent)
        server.sendall(b"\4\7\4PING\0\0" * 1000 + b"\0\4last")
        assert heard(made) == [b"last"]
        assert len(made._unsent) <= waiting
    made.close(0.0)


def test_what_a_closing_client_said_last_arrives_though_it_had_more_to_read(
    router: tuple[zmq.Socket[bytes], int],
) -> None:
    broker, port = router
    made = made_for(port)
    happens(made, SocketEvent.SHAKEN)
    made.send(b"hello", None)
    name, _ = broker.recv_multipart()
    for _ in range(20):
        broker.send_multipart([name, bytes(BUFFER_BYTES)])
    made.send(b"good-bye", None)
    made.close(1.0)
    assert broker.recv_multipart() == [name, b"good-bye"]


def test_the_next_address_is_tried_where_nothing_listens_at_the_first(
    router: tuple[zmq.Socket[bytes], int], stranger: socket.socket
) -> None:
    _, port = router
    taken = stranger.getsockname()[1]
    stranger.close()
    made = made_for(port, taken)
    happens(made, SocketEvent.SHAKEN)
    made.close(0.0)
    nobody = made_for(taken)
    happens(nobody, SocketEvent.ABSENT)
    nobody.close(0.0)


def hangs_up(server: socket.socket) -> None:
    server.close()


def says(*words: bytes) -> Callable[[socket.socket], None]:
    return lambda server: server.sendall(b"".join(words))


@pytest.mark.parametrize(
    ("does", "event"),
    [
        (hangs_up, SocketEvent.UNLIKE),
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), SocketEvent.UNLIKE),
        (says(GREETING.replace(b"NULL\0", b"CURVE")), SocketEvent.UNLIKE),
        (says(GREETING.replace(b"\3\1", b"\1\0")), SocketEvent.UNLIKE),
        (says(GREETING, b"\4\6\5ERROR"), SocketEvent.UNLIKE),
        (says(GREETING, b"\0\5early"), SocketEvent.UNLIKE),
        (says(GREETING, READY, b"\xf0\1x"), SocketEvent.HUNG_UP),
        (says(GREETING, READY, b"\2", (BYTES_MAX + 1).to_bytes(8, "big")), SocketEvent.HUNG_UP),
        (says(GREETING, READY, b"\1\1x" * 10), SocketEvent.HUNG_UP),
        (says(GREETING, READY, b"\4\7\4PING\0\0" * (COMMANDS_MAX + 1)), SocketEvent.HUNG_UP),
    ],
    ids=["end", "http", "keys", "old", "error", "early", "flags", "too-long", "endless", "pings"],
)
def test_who_does_not_speak_as_a_broker_without_keys_is_hung_up_on(
    stranger: socket.socket, does: Callable[[socket.socket], None], event: SocketEvent
) -> None:
    made = made_for(stranger.getsockname()[1])
    server, _ = stranger.accept()
    with server:
        does(server)
        happens(made, event)
        assert made.receive() is None
        assert not made.send(b"x", None)
    made.close(0.0)


def test_what_came_before_the_end_is_read_and_the_end_is_told_once(stranger: socket.socket) -> None:
    made = made_for(stranger.getsockname()[1])
    server, _ = stranger.accept()
    with server:
        seen: list[SocketEvent] = []
        for byte in GREETING + READY + b"\0\4last":  # in as many pieces as there are bytes
            server.send(bytes([byte]))
            seen.extend(turn(made))
        server.shutdown(socket.SHUT_WR)
        messages: list[list[bytes]] = []

        def is_over() -> bool:
            seen.extend(turn(made))
            messages.extend(
                [[bytes(frame) for frame in found] for found in [made.receive()] if found]
            )
            return SocketEvent.HUNG_UP in seen

        wait_until(is_over, timeout=WITHIN)
        assert messages == [[b"last"]]
        assert seen == [SocketEvent.CONNECTED, SocketEvent.SHAKEN, SocketEvent.HUNG_UP]
        ((fd, _),) = made.filenos(lambda: None, lambda: None).items()
        assert not select.select([fd], [], [], 0)[0]  # or the carrier would never sleep again
    made.close(0.0)


def test_what_came_before_the_end_is_read_also_where_sending_tells_of_the_end(
    stranger: socket.socket,
) -> None:
    made = made_for(stranger.getsockname()[1])
    server, _ = stranger.accept()
    with server:
        server.sendall(GREETING + READY)
        happens(made, SocketEvent.SHAKEN)
        server.sendall(b"\0\4last")  # and closes with the greeting unread: the connection is reset
    wait_until(lambda: not made.send(b"x", None), timeout=WITHIN)
    assert list(made.events()) == [SocketEvent.HUNG_UP]
    assert heard(made) == [b"last"]
    wait_until(lambda: turn(made) == [] and made.receive() is None, timeout=WITHIN)
    ((fd, _),) = made.filenos(lambda: None, lambda: None).items()
    assert not select.select([fd], [], [], 0)[0]
    made.close(0.0)
