"""The HTTP server of health and metrics: what it answers, and what it does not put up with."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.core.errors import ConfigError
from penstock.server.config import NodeConfig
from penstock.server.health import http
from penstock.server.health.address import (
    HttpAddress,
    check_http_address,
    is_loopback,
    listen,
    parse_http_address,
)
from penstock.server.health.http import HttpReply, HttpServer, plain

BIG = b"x" * (8 << 20)


def answer(path: str) -> HttpReply:
    if path == "/big":
        return HttpReply(200, BIG)
    return plain(200, "fine") if path == "/here" else plain(404, "no")


@contextmanager
def serving(**options: Any):
    listener = listen(HttpAddress("127.0.0.1", 0))
    where = listener.getsockname()
    server = HttpServer(listener, answer, **options)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server, where
    finally:
        server.stop()
        thread.join(45)
        assert not thread.is_alive()


@pytest.fixture
def server():
    with serving() as found:
        yield found


def connected(where) -> socket.socket:
    return socket.create_connection(where, timeout=10)


def read(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def said(where, request: bytes) -> bytes:
    with connected(where) as sock:
        sock.sendall(request)
        return read(sock)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET /here HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"GET /here HTTP/1.0\r\n\r\n", 200),
        (b"GET /here?x=1 HTTP/1.1\n\n", 200),
        (b"GET /there HTTP/1.1\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /here HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"DELETE /here HTTP/1.1\r\n\r\n", 405),
        (b"GET http://a/here HTTP/1.1\r\n\r\n", 400),
        (b"GET /h\xc3\xa9re HTTP/1.1\r\n\r\n", 400),
        (b"GET /here\r\n\r\n", 400),
        (b"GET /here HTTP/2.0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (bytes(range(256)) + b"\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_a_request_is_answered_by_its_path_or_refused(server, request_, expected):
    assert status(said(server[1], request_)) == expected


def test_an_answer_is_whole(server):
    head, body = said(server[1], b"GET /here HTTP/1.1\r\n\r\n").split(b"\r\n\r\n")
    assert body == b"fine\n"
    assert b"Content-Length: 5" in head
    assert b"Connection: close" in head
    assert said(server[1], b"GET /big HTTP/1.1\r\n\r\n").endswith(BIG)


def test_head_is_get_without_the_body(server):
    found = said(server[1], b"HEAD /here HTTP/1.1\r\n\r\n")
    assert found.endswith(b"\r\n\r\n")
    assert b"Content-Length: 5" in found


def test_a_request_in_pieces_is_put_together(server):
    with connected(server[1]) as sock:
        for piece in (b"GET /he", b"re HTTP", b"/1.1\r\n", b"\r", b"\n"):
            sock.sendall(piece)
        assert status(read(sock)) == 200


def test_a_request_without_end_is_refused_and_the_refusal_arrives(server):
    found = said(server[1], b"GET /here HTTP/1.1\r\n" + b"A: b\r\n" * 4000)
    assert status(found) == 431


def test_who_sends_nothing_is_told_and_dropped():
    with serving(request_timeout=1.0) as (server, where), connected(where) as sock:
        sock.sendall(b"GET /he")
        assert status(read(sock)) == 408
        assert server.replies[408] == 1


def test_who_does_not_read_is_dropped():
    with serving(answer_timeout=0.1) as (server, where), connected(where) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        while not server.replies[0]:
            assert status(said(where, b"GET /here HTTP/1.1\r\n\r\n")) == 200
        assert server.replies == {200: server.replies[200], 0: 1}


def test_connections_are_bounded_and_the_server_goes_on(server):
    _, where = server
    held = [connected(where) for _ in range(http.CONNECTIONS_MAX)]
    try:
        with connected(where) as sock:
            assert status(read(sock)) == 503
    finally:
        for sock in held:
            sock.close()
    while status(found := said(where, b"GET /here HTTP/1.1\r\n\r\n")) != 200:
        assert status(found) == 503


# --- where it listens ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9641", "127.0.0.1", 9641), ("[::1]:0", "::1", 0), ("localhost:1", "localhost", 1)],
)
def test_an_address_is_read_and_written_the_same(text, host, port):
    found = parse_http_address(text)
    assert found == HttpAddress(host, port)
    assert str(found) == text
    assert is_loopback(found)


@pytest.mark.parametrize("text", ["", ":1", "a", "a:", "a:b", "a:65536", "::1:80", "a:-1", "a:²"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_http_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_beyond_this_host_metrics_are_served_only_if_somebody_says_so(text):
    with pytest.raises(ConfigError, match="metrics_public"):
        NodeConfig("/data", metrics=text)
    assert NodeConfig("/data", metrics=text, metrics_public=True).metrics == text
    assert str(check_http_address(text, public=True)) == text


def test_an_address_that_is_taken_is_named():
    with listen(HttpAddress("127.0.0.1", 0)) as first:
        where = HttpAddress(*first.getsockname())
        with pytest.raises(ConfigError, match=str(where)):
            listen(where)


def test_on_loopback_no_page_of_the_web_reads_what_is_served_by_a_name_of_its_own():
    """A browser on this host follows a name that leads here (DNS rebinding)."""
    from penstock.server.health.address import allowed_hosts

    hosts = allowed_hosts(HttpAddress("127.0.0.1", 9641))
    with serving(hosts=hosts) as (_, where):

        def status(host: str) -> bytes:
            with connected(where) as sock:
                sock.sendall(b"GET /here HTTP/1.1\r\nAccept: x\r\n%s\r\n" % host.encode())
                return read(sock).split(b" ")[1]

        for host in ("127.0.0.1:9641", "localhost", "LOCALHOST:1", "[::1]:9641", "127.0.0.2"):
            assert status(f"Host: {host}\r\n") == b"200", host
        assert status("") == b"200"
        for host in ("evil.example", "127.0.0.1.evil.example:9641", "localhost.evil.example", ""):
            assert status(f"host:{host}\r\n") == b"421", host
        assert status("Host: localhost\r\nHost: evil.example\r\n") == b"421"
    assert allowed_hosts(HttpAddress("0.0.0.0", 9641)) is None
