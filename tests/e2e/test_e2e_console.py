"""The door of the console and its overview: who gets in, what every answer carries, and how it
says that the node is away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import call_cli, cli_process
from console_visitor import BASE, Visitor, visiting
from starlette.testclient import TestClient

from penstock.console.app import make_app
from penstock.console.config import ConsoleConfig
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
        visitor.client.post("/logout")
        assert "Log in" in visitor.get("/")
        codes = [visitor.client.post("/login", data={"password": "x"}).status_code
                 for _ in range(12)]  # fmt: skip
        assert codes[-1] == 429


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
