"""Journeys of an operator through the console in a real browser, without one complaint of it.

With PENSTOCK_SCREENSHOTS=FOLDER the pictures of the guide are made there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cli_runner import call_cli
from dead_letter_fixture import bury
from headless_browser import HeadlessBrowser, headless_browser

import penstock
from penstock.client.admin.access import AccessEntry
from penstock.console.config import ConsoleConfig
from penstock.console.server import ConsoleServer
from penstock.testing import Broker, produce, wait_until

pytestmark = pytest.mark.local("the browser is the client; how the console reaches its node is not")
SCREENSHOTS = os.environ.get("PENSTOCK_SCREENSHOTS")
WIDTHS = (390, 1600)


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadlessBrowser]:
    with headless_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(driven: HeadlessBrowser) -> Iterator[HeadlessBrowser]:
    driven.size(1200)
    yield driven
    assert driven.errors() == []


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=True, transport="shm") as found:
        yield found


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[str]:
    """The address of a console of a node with some topics, a group that is behind, and dead
    letters."""
    broker.create_topic("orders", partitions=3, retention=86_400.0)
    with broker.connect() as client:
        with client.producer() as producer:
            for number in range(300):
                order = {"order": number, "customer": {"name": f"c{number % 7}"}}
                producer.send("orders", msgspec.json.encode(order), key=b"c%d" % (number % 7))
        with client.consumer("orders", group="shipping", follow=False) as consumer:
            for _, _record in zip(range(20), consumer, strict=False):
                pass
        broker.create_topic("mails")
        mails = [b'{"to":"","order":%d}' % number for number in range(12)]
        bury(client, "mails", mails[:8], group="mailers", reason="ValueError: no address")
        bury(client, "mails", mails[8:], start=8, group="mailers", reason="TimeoutError: too slow")
    server = ConsoleServer(ConsoleConfig(url=broker.url, port=0))
    server.start()
    yield server.url
    server.stop()


def shoot(browser: HeadlessBrowser, name: str) -> None:
    if SCREENSHOTS:
        browser.run("document.querySelector('.node code').textContent = 'shm://'")
        browser.screenshot(Path(SCREENSHOTS) / f"console-{name}.png")


def test_why_is_this_group_stuck_and_let_it_go_on(
    browser: HeadlessBrowser, broker: Broker, console: str
) -> None:
    browser.open(console)
    browser.until("Lag")
    browser.click("nav a", "Groups")
    browser.until("shipping")
    browser.click("main a", "shipping")
    assert "no member works on it" in browser.until("a member: nobody reads it")
    shoot(browser, "group")
    browser.type("input[name=to]", "end")
    browser.click("button", "Show what it does")
    plan = browser.until("Nothing is done yet.")
    assert "penstock group seek shipping orders --to end" in plan
    assert "are passed over" in plan
    browser.click("button.do")
    browser.until("shipping goes on in 3 partitions of orders.")
    with broker.connect() as client, client.admin() as admin:
        assert admin.describe_group("shipping").lag == 0


def test_a_record_is_found_by_key_and_field_edited_and_sent_again(
    browser: HeadlessBrowser, broker: Broker, console: str
) -> None:
    browser.open(f"{console}/topics")
    browser.click("main a", "orders")
    browser.click("main a", "Look at its records")
    browser.until("records of")
    browser.type("input[name=key]", "c3")
    browser.type("input[name=path]", "order")
    browser.type("input[name=equals]", "150")
    browser.click("button", "Look")
    browser.until("1 records of 300 offsets")
    shoot(browser, "records")
    browser.click("[data-filters] summary")
    browser.type("[data-filters] input", "<b>order 150</b>")
    browser.click("[data-filters] button", "Save")
    browser.open(f"{console}/records?topic=orders")
    browser.click("[data-filters] summary")
    browser.click("[data-filters] a", "<b>order 150</b>")
    browser.until("1 records of 300 offsets")
    browser.click("[data-filters] summary")
    browser.click("[data-filters] button", "remove")
    assert browser.run("return localStorage.getItem('penstock-filters')") == "[]"
    browser.click("tbody a")
    browser.until('"order": 150')
    browser.click("main a", "Edit and send again")
    wait_until(
        lambda: "150" in browser.run("return document.forms[0].value.value"), what="the form"
    )
    browser.type("textarea[name=value]", '{"order":150,"fixed":true}')
    browser.click("button", "Show what it does")
    browser.until("One record is appended to orders")
    browser.click("button.do")
    page = browser.until("The record is at offset")
    assert '"fixed": true' in page
    with broker.connect() as client, client.consumer("orders", follow=False) as consumer:
        found = [one for one in consumer if b"fixed" in (one.value or b"")]
    assert [(one.key, one.value) for one in found] == [(b"c3", b'{"order":150,"fixed":true}')]


def test_new_records_are_followed_as_text(
    browser: HeadlessBrowser, broker: Broker, console: str
) -> None:
    broker.create_topic("news")
    browser.open(f"{console}/records?topic=news")
    browser.click("button", "Follow new records")
    browser.until("0 new", "#following")
    produce(broker, "news", [b"<script>alert(1)</script>", b"second"])
    browser.until("2 new", "#following")
    assert browser.text("#rows tr").endswith("none second 6 0")
    assert "<script>alert(1)</script>" in browser.text("#rows")
    browser.click("button", "Stop")
    browser.click("#rows a", "0:1")
    browser.until("Record 0:1 of news")


def test_dead_letters_are_sent_again_after_a_dry_run(
    browser: HeadlessBrowser, broker: Broker, console: str
) -> None:
    browser.open(f"{console}/letters")
    browser.click("main a", "mails.dlq")
    browser.until("ValueError: no address 8")
    shoot(browser, "dead-letters")
    browser.type("input[name=where]", "exception = 'TimeoutError'")
    browser.click("button", "Look")
    browser.until("4 dead letters")
    browser.click("button", "Show what it does to these")
    plan = browser.until("4 dead letters would be sent again (4 to mails).")
    assert "penstock dlq replay mails.dlq" in plan
    shoot(browser, "plan")
    browser.click("button.do")
    browser.until("4 dead letters sent again (4 to mails).")
    with broker.connect() as client:
        assert len(list(client.dead_letters("mails"))) == 8


def test_a_topic_is_made_by_keyboard_and_removed_by_its_name(
    browser: HeadlessBrowser, broker: Broker, console: str
) -> None:
    browser.open(f"{console}/topics")
    browser.until("orders")
    browser.press("/")
    assert browser.run("return document.activeElement.name") == "q"
    browser.click("summary", "Create a topic")
    browser.type("form[action='/topic/create'] input[name=name]", "bills")
    browser.press("enter")
    browser.until("A new topic bills with 1 partition")
    browser.click("button.do")
    browser.until("Topic bills is created.")
    browser.click("summary", "Remove records")
    browser.click("button", "Delete the topic")
    browser.until("go for ever")
    assert browser.run("return document.querySelector('button.do').disabled") is True
    browser.type("input[name=typed]", "bills")
    assert browser.run("return document.querySelector('button.do').disabled") is False
    browser.click("button.do")
    browser.until("Topic bills is deleted.")


def test_who_has_no_right_is_told_so(
    browser: HeadlessBrowser, broker: Broker, console: str, tmp_path: Path
) -> None:
    file = tmp_path / "ann.key"
    made = call_cli("keys", "create", "ann", "--out", str(file), url=broker.node.url)
    assert made.code == 0, made.err
    with penstock.connect(broker.node.url) as client, client.admin() as admin:
        admin.add_access(AccessEntry("ann", "allow", "read", "topic", "orders"))
    server = ConsoleServer(ConsoleConfig(url=broker.tcp_url, keys=str(file), port=0))
    server.start()
    try:
        browser.open(f"{server.url}/topics")
        assert "mails" not in browser.until("orders")
        browser.open(f"{server.url}/produce?topic=orders")
        browser.type("textarea[name=value]", "mine")
        browser.click("button", "Show what it does")
        browser.click("button.do")
        assert "principal may not write there" in browser.until("Refused")
    finally:
        browser.open("about:blank")
        server.stop()


def test_no_page_is_wider_than_the_window(browser: HeadlessBrowser, console: str) -> None:
    """On a phone and on a wide screen; and charts are drawn."""
    produce_page = "/record?topic=orders&partition=0&offset=0"
    pages = ("/", "/topics", "/topic?name=orders", "/records?topic=orders", produce_page,
             "/produce?topic=orders", "/groups", "/group?name=shipping", "/queues", "/letters",
             "/letters?topic=mails.dlq", "/letter?topic=mails.dlq&partition=0&offset=0", "/cluster",
             "/security", "/transactions", "/nothing?")  # fmt: skip
    script = "const all = document.documentElement; return [all.scrollWidth, all.clientWidth]"
    for page in pages:
        browser.open(f"{console}{page}")
        for width in WIDTHS:
            browser.size(width)
            wide, room = browser.run(script)
            assert wide <= room, f"{page} at {width}: {wide} in {room}"
    browser.open(console)
    wait_until(
        lambda: browser.run("return document.querySelectorAll('canvas').length") == 2,
        what="the charts",
    )
    browser.size(1200, 700)
    shoot(browser, "overview")
    browser.size(WIDTHS[0])
    shoot(browser, "phone")


def test_figures_move_and_a_node_that_dies_comes_back(browser: HeadlessBrowser) -> None:
    with Broker(transport="shm") as broker:
        broker.create_topic("orders")
        server = ConsoleServer(ConsoleConfig(url=broker.url, port=0))
        server.start()
        try:
            browser.open(server.url)
            browser.until("All is well.")
            wait_until(
                lambda: browser.run("return document.getElementById('live').title") == "live",
                what="the live figures",
            )
            broker.create_topic("bills")
            browser.until("Topics 2", "[data-tile=topics]")
            broker.kill()
            browser.until("The node is away")
            browser.open(f"{server.url}/topics")
            browser.until("this page comes back with the node")
            broker.restart()
            browser.until("orders")
        finally:
            browser.open("about:blank")
            server.stop()
