"""The door of the console and its overview: who gets in, what every answer carries, and how it
says that the node is away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import HTTPCookieProcessor, HTTPSHandler, build_opener

import pytest
from cli_runner import call_cli, cli_process
from console_visitor import BASE, Visitor, visiting
from starlette.testclient import TestClient

from penstock.console import connection
from penstock.console.app import make_app
from penstock.console.config import ConsoleConfig
from penstock.console.guard import (
    ADDRESSES_MAX,
    LOGINS_PER_MINUTE_MAX,
    SESSION_SECONDS,
    SESSIONS_MAX,
    Sessions,
)
from penstock.console.live import LISTENERS_MAX
from penstock.console.sampler import Sampler
from penstock.console.server import ConsoleServer
from penstock.core.errors import ConfigError
from penstock.testing import Broker, produce, wait_until


@pytest.fixture(scope="module")
def visitor(node: Broker) -> Iterator[Visitor]:
    node.create_topic("orders", partitions=3)
    produce(node, "orders", [b"%d" % number for number in range(10)])
    with visiting(node.url) as found:
        yield found


def test_an_overview_before_the_first_look_is_loaded_again_with_it(
    node: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "start", lambda _: None)
    with visiting(node.url) as visitor:
        visitor.get("/")
        assert "data-until-seen" in visitor.last


def test_the_overview_says_in_one_sentence_that_all_is_well(visitor: Visitor) -> None:
    wait_until(lambda: "counting" not in visitor.get("/"), what="two looks")
    text = visitor.get("/")
    assert "data-until-seen" not in visitor.last
    assert "All is well." in text
    assert "Topics 1 3 partitions" in text
    known = json.loads(visitor.client.get("/history").text)
    assert len(known["at"]) == len(known["rate"]) == len(known["lag"]) > 0


def test_every_answer_keeps_scripts_of_others_out(visitor: Visitor) -> None:
    for path in ("/", "/static/console.js", "/static/../guard.py", "/nothing"):
        headers = visitor.client.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    cookie = TestClient(visitor.client.app, base_url=BASE).get("/").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_a_page_has_no_script_and_no_style_of_its_own(visitor: Visitor) -> None:
    visitor.get("/")
    assert "<style" not in visitor.last
    assert " style=" not in visitor.last
    assert "onclick" not in visitor.last
    assert visitor.last.count("<script") == visitor.last.count('<script src="/static/') == 3


def test_another_name_of_this_host_is_refused(visitor: Visitor) -> None:
    """A page of elsewhere whose name is made to mean 127.0.0.1 gets nothing."""
    for host in ("evil.example:9642", "127.0.0.1:80", "127.0.0.1:9642.evil.example", ""):
        answer = visitor.client.get("/", headers={"Host": host})
        assert answer.status_code == 421
        assert "--name" in answer.text
    assert visitor.client.get("/", headers={"Host": "LOCALHOST:9642"}).status_code == 200


def test_other_methods_and_websockets_are_refused(visitor: Visitor) -> None:
    assert visitor.client.put("/").status_code == 405
    assert visitor.client.request("TRACE", "/").status_code == 405


def test_browsers_hear_of_each_look_and_no_more_than_there_is_room_for(node: Broker) -> None:
    server = ConsoleServer(ConsoleConfig(url=node.url, port=0))
    server.start()
    try:
        live = server.app.state.shell.live
        heard = []
        for _ in range(LISTENERS_MAX):
            heard.append(urllib.request.urlopen(f"{server.url}/live", timeout=10))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{server.url}/live", timeout=10)
        assert refused.value.code == 503
        assert (live.listeners, live.refused) == (LISTENERS_MAX, 1)
        lines = [heard[0].readline() for _ in range(3)]
        news = json.loads(lines[2].removeprefix(b"data: "))
        assert news["tiles"]["topics"][0] == "1"
        for each in heard:
            each.close()
        wait_until(lambda: live.listeners == 0, what="room again")
        heard = [urllib.request.urlopen(f"{server.url}/live", timeout=10)]
    finally:
        server.stop()
    assert not server.is_running
    heard[0].read()  # the stream has its end


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_another_user_of_this_host_is_refused(node: Broker) -> None:
    server = ConsoleServer(ConsoleConfig(url=node.url, port=0))
    server.start()
    program = (
        "import sys, urllib.request, urllib.error\n"
        "try: print(urllib.request.urlopen(sys.argv[1]).status)\n"
        "except urllib.error.HTTPError as error: print(error.code, error.read().decode())\n"
    )
    try:
        words = ["/usr/bin/python3", "-c", program, server.url]
        other = ["setpriv", "--reuid=65534", "--clear-groups", *words]
        assert subprocess.check_output(words, timeout=20).startswith(b"200")
        refused = subprocess.check_output(other, timeout=20).decode()
    finally:
        server.stop()
    assert refused.startswith("403")
    assert "--password-file" in refused


def test_with_a_password_one_comes_by_login_only(node: Broker) -> None:
    with visiting(node.url, password="correct horse battery") as visitor:
        assert "Log in" in visitor.get("/")
        assert visitor.client.get("/live").status_code == 401
        assert "Log in" in visitor.get("/topics")
        answer = visitor.client.post("/login", data={"password": "wrong horse battery"})
        assert answer.status_code == 403
        elsewhere = {"Origin": "http://evil.example"}
        form = {"password": "correct horse battery"}
        assert visitor.client.post("/login", data=form, headers=elsewhere).status_code == 403
        assert "Overview" in visitor.client.post("/login", data=form).text
        assert "Log out" in visitor.client.get("/").text
        cookie = dict(visitor.client.cookies)
        visitor.client.post("/logout")
        assert "Log in" in visitor.get("/")
        visitor.client.cookies.update(cookie)  # of somebody who took it
        assert "Log in" in visitor.get("/")
        codes = [visitor.client.post("/login", data={"password": "x"}).status_code
                 for _ in range(12)]  # fmt: skip
        assert codes[-1] == 429
        another = TestClient(visitor.client.app, base_url=BASE, client=("10.0.0.8", 1))
        assert "Overview" in another.post("/login", data=form).text


def test_attempts_are_counted_by_address_and_sessions_end() -> None:
    sessions = Sessions()
    tries = [sessions.may_try(f"2001:db8::{number}", 0.0) for number in range(20)]
    assert tries.count(True) == LOGINS_PER_MINUTE_MAX  # one network
    assert sessions.may_try("2001:db8:0:1::1", 0.0)
    assert sessions.may_try("10.0.0.7", 0.0)
    assert sessions.may_try("2001:db8::1", 61.0)
    for number in range(2 * ADDRESSES_MAX):
        sessions.may_try(f"10.1.{number // 256}.{number % 256}", 0.0)
    assert len(sessions.tried) == ADDRESSES_MAX
    opened = [sessions.logged_in(1000.0 + number) for number in range(SESSIONS_MAX + 1)]
    assert not sessions.is_open(opened[0], 1000.0)
    assert sessions.is_open(opened[-1], 1000.0)
    assert not sessions.is_open(sessions.made(1000.0), 1000.0)
    sessions.end(opened[-1])
    assert not sessions.is_open(opened[-1], 1000.0)
    assert not sessions.is_open(opened[5], 1000.0 + SESSION_SECONDS + 60)


def test_a_stream_ends_with_its_session(node: Broker) -> None:
    config = ConsoleConfig(url=node.url, port=0, password="correct horse battery")
    server = ConsoleServer(config)
    server.start()
    try:
        sessions = server.app.state.shell.sessions
        cookie = sessions.logged_in(time.time())
        name = server.app.state.shell.door.cookie
        asked = urllib.request.Request(f"{server.url}/live", headers={"Cookie": f"{name}={cookie}"})
        with urllib.request.urlopen(asked, timeout=20) as stream:
            assert stream.readline().startswith(b"retry")
            sessions.end(cookie)
            server.app.state.shell.live.publish(b"{}")
            stream.read()  # to its end
    finally:
        server.stop()


def has_ended(connection: socket.socket) -> bool:
    """Waits for its end, whichever way that comes."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_one_address_takes_half_of_the_connections_and_a_quiet_one_ends(
    node: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ConsoleServer(ConsoleConfig(url=node.url, port=0))
    server.start()
    where = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    held: list[socket.socket] = []
    try:
        for _ in range(connection.ADDRESS_CONNECTIONS_MAX + 1):
            held.append(socket.create_connection(where, timeout=20))
        assert has_ended(held[-1])
        with socket.create_connection(where, timeout=20, source_address=("127.0.0.2", 0)) as other:
            host = b"Host: localhost:%d" % where[1]
            other.sendall(b"GET /static/icon.svg HTTP/1.1\r\n" + host + b"\r\n\r\n")
            assert other.recv(12) == b"HTTP/1.1 200"
        for each in held:
            each.close()
        monkeypatch.setattr(connection, "QUIET_SECONDS", 0.1)
        with socket.create_connection(where, timeout=20) as quiet:
            quiet.sendall(b"GET / HTTP/1.1\r\nHost: ")
            assert has_ended(quiet)
    finally:
        for each in held:
            each.close()
        server.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, for a certificate")
def test_it_serves_by_tls(node: Broker, tmp_path: Path) -> None:
    certificate, private_key = str(tmp_path / "chain.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", private_key, "-out", certificate],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    server = ConsoleServer(ConsoleConfig(
        url=node.url, port=0, host="0.0.0.0", password="correct horse battery",
        certificate=certificate, private_key=private_key,
    ))  # fmt: skip
    server.start()
    try:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        trusts = ssl.create_default_context(cafile=certificate)
        jar = HTTPCookieProcessor()
        browser = build_opener(HTTPSHandler(context=trusts), jar)
        assert b"Log in" in browser.open(f"{url}/", timeout=20).read()
        page = browser.open(f"{url}/login", b"password=correct+horse+battery", timeout=20)
        assert b"Overview" in page.read()
        assert all(each.secure for each in jar.cookiejar)
        assert len(jar.cookiejar) == 1
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{url}/", timeout=20)
        with pytest.raises((OSError, HTTPException)):
            urllib.request.urlopen(url.replace("https", "http"), timeout=20)
    finally:
        server.stop()


def test_only_its_proxy_reaches_a_console_that_has_one(node: Broker) -> None:
    config = ConsoleConfig(url=node.url, host="0.0.0.0", proxy="10.0.0.7", names=("c.example",))
    for address, status in (("10.0.0.7", 200), ("10.0.0.8", 403)):
        app = make_app(config)
        with TestClient(app, base_url="http://c.example", client=(address, 50_000)) as client:
            assert client.get("/static/console.css").status_code == status


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "give a password and TLS"),
        ({"host": "0.0.0.0", "password": "long enough it is"}, "give a password and TLS"),
        ({"host": "example.org"}, "no IP address"),
        ({"password": "short"}, "at least 12"),
        ({"certificate": "cert.pem"}, "both files"),
        ({"proxy": "proxy.example"}, "no IP address"),
        ({"names": ("a b",)}, "no HOST"),
    ],
)
def test_what_is_not_safe_is_refused_before_it_listens(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsoleConfig(url="shm://", **options).with_port(1)  # type: ignore[arg-type]


def test_it_says_that_the_node_is_away_and_comes_back_with_it() -> None:
    with Broker() as broker, visiting(broker.url) as visitor:
        assert "All is well." in visitor.get("/")
        broker.kill()
        wait_until(lambda: visitor.client.get("/").status_code == 503, what="that the node is away")
        assert "The node is away" in visitor.get("/", 503)
        broker.restart()
        wait_until(lambda: visitor.client.get("/").status_code == 200, what="the node again")


def test_the_command_serves_and_ends_cleanly(node: Broker) -> None:
    with cli_process("console", "--listen", "127.0.0.1:0", url=node.url) as running:
        url = running.stdout.readline().decode().strip()
        with urllib.request.urlopen(f"{url}/", timeout=20) as answer:
            assert b"All is well" in answer.read()
        stream = urllib.request.urlopen(f"{url}/live", timeout=20)
        running.send_signal(signal.SIGTERM)
        stream.read()
        assert running.wait(20) == 0


def test_the_command_names_what_is_wrong(node: Broker, tmp_path: Path) -> None:
    loose = tmp_path / "password"
    loose.write_text("correct horse battery")
    loose.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, message in (
            (("--listen", "127.0.0.1"), "ADDRESS:PORT"),
            (("--listen", "0.0.0.0:9642"), "--password-file"),
            (("--listen", f"127.0.0.1:{taken.getsockname()[1]}"), "cannot listen"),
            (("--password-file", str(loose)), "chmod 600"),
            (("--password-file", str(tmp_path / "none")), "No such file"),
        ):
            ran = call_cli("console", *words, url=node.url)
            assert ran.code == 2
            assert message in ran.err, ran.err
