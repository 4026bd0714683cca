"""How long the console's pages take until a browser paints them, by the browser's own clock
(PerformancePaintTiming), with an empty cache and a full one; and what a page weighs.

`make test ARGS="-m bench -n0 -s -k first_paint"` prints it. Run it where nothing else runs.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec
import pytest
from headless_browser import HeadlessBrowser, headless_browser

from penstock.console.app import FILES, STATIC
from penstock.console.config import ConsoleConfig
from penstock.console.server import ConsoleServer
from penstock.testing import Broker, wait_until

PAGES = ("/", "/topics", "/topic?name=orders", "/records?topic=orders", "/groups", "/cluster")
ROUNDS = 7
PAINTED = """
const [paint] = performance.getEntriesByName("first-contentful-paint");
const [page] = performance.getEntriesByType("navigation");
if (!paint || !page.loadEventEnd) return null;
const all = [page, ...performance.getEntriesByType("resource")];
return [paint.startTime, page.responseEnd,
        all.reduce((sum, each) => sum + each.transferSize, 0)];
"""


@pytest.mark.bench
def test_first_paint(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("browser")
    with Broker(transport="shm") as broker, headless_browser(folder) as browser:
        broker.create_topic("orders", partitions=8)
        with broker.connect() as client, client.producer() as producer:
            for number in range(20_000):
                producer.send("orders", msgspec.json.encode({"order": number, "of": "x" * 100}))
        server = ConsoleServer(ConsoleConfig(url=broker.url, port=0))
        server.start()
        try:
            print(f"\n{'page':24} {'cache':6} {'paint':>9} {'worst':>9} {'answer':>9} {'bytes':>7}")
            for page in PAGES:
                for cache in ("empty", "full"):
                    timed = [look(browser, server.url + page, cache) for _ in range(ROUNDS)]
                    paint, answer, size = (median(column) for column in zip(*timed, strict=True))
                    worst = max(one[0] for one in timed)
                    times = "".join(f"{each:7.0f} ms" for each in (paint, worst, answer))
                    print(f"{page:24} {cache:6}{times}{size:8.0f}")
        finally:
            browser.open("about:blank")
            server.stop()


def look(browser: HeadlessBrowser, url: str, cache: str) -> list[float]:
    if cache == "empty":
        browser.command("Network.clearBrowserCache")
    browser.open("about:blank")
    browser.open(url)
    found: Any = wait_until(lambda: browser.run(PAINTED), what="the paint")
    return [float(each) for each in found]


def test_what_a_first_page_brings_weighs_little() -> None:
    """The files of all pages, as they are sent."""
    assert sum((STATIC / name).stat().st_size for name in FILES) < 130 << 10
