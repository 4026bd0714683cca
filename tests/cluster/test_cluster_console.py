"""The console of three brokers, in a real browser, while one of them dies: it names the broker,
who leads instead, and says when all is well again. It began with the address of that broker."""

from __future__ import annotations

import re

import pytest
from headless_browser import headless_browser

from penstock.console.config import ConsoleConfig
from penstock.console.server import ConsoleServer
from penstock.testing import Cluster, produce

pytestmark = pytest.mark.local("brokers of a cluster are reached by tcp alone")


def test_a_broker_dies_while_the_console_watches(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("browser")
    with Cluster(brokers=3) as cluster, headless_browser(folder) as browser:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        produce(cluster, "orders", [b"1", b"2", b"3"])
        server = ConsoleServer(ConsoleConfig(url=cluster.broker(1).tcp_url, port=0))
        server.start()
        try:
            browser.open(f"{server.url}/")
            browser.until("Brokers up 3/3", "[data-tile=brokers]")
            browser.open(f"{server.url}/cluster")
            assert "Seen by broker 1." in browser.until("All replicas are in sync.")
            cluster.broker(1).kill()
            browser.until("broker 1 is gone")
            page = browser.until("3 not well, 0 of them without a leader")
            assert "broker 1 is fenced (tcp://" in page
            assert re.search(r"orders-0 [23] \d+ [123, ]+ (2, 3|3, 2) - -", page), page
            assert re.search(r"Seen by broker [23]\.", page), page
            browser.open(f"{server.url}/")
            browser.until("Brokers up 2/3 3 partitions not in sync", "[data-tile=brokers]")
            assert "broker 1 is fenced" in browser.text("#verdict")
            cluster.broker(1).restart()
            browser.until("Brokers up 3/3 0 partitions not in sync", "[data-tile=brokers]")
            browser.open(f"{server.url}/cluster")
            page = browser.until("All replicas are in sync.")
            assert "all replicas are in sync again" in page
            assert "broker 1 is back" in page
            assert "and no longer 1" in page
        finally:
            browser.open("about:blank")
            server.stop()
        assert browser.errors() == []
