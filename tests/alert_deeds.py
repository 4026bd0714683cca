"""Alert rules on what real nodes tell while something is done to them that a rule warns of.

A *deed* is a misfortune that a test makes real. `Watch.after` scrapes the nodes before it and once
they tell of it, and gives promtool both: it plays them as if each had lasted, or as if the deed had
gone on at its pace, so nobody waits for a rule's minutes.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

from alert_rules import fired

import penstock
from penstock.testing import wait_until
from penstock.testing.housed import Housed

Scrape = dict[str, float]
"""Values by the series' whole name, as Prometheus keeps them."""
WITHIN = 45.0
PAUSE = 0.2
"""Seconds between two looks; a node makes its page once a second."""
_SAMPLE = re.compile(r"^(penstock_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_COUNTER = re.compile(r"_(total|bucket|count|sum)\{")
_EXPIRES = "penstock_key_expires_timestamp_seconds"


def url_of(node: Housed) -> str:
    """Where its page is. A port that the node chose is another one after a restart."""
    with penstock.connect(f"shm://{node.data}", timeout=20) as client:
        return f"http://{client.admin().describe_node().metrics}"


def page_of(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def scrape(urls: Iterable[str]) -> Scrape:
    """What Prometheus would have: `up` is 0 where nobody answers. Its clock begins at 0 in
    promtool, so what lies ahead is told from now on."""
    found = {}
    for number, url in enumerate(urls):
        who = f'job="penstock",instance="{number}"'
        try:
            page = page_of(url)
        except (OSError, urllib.error.URLError):
            found[f"up{{{who}}}"] = 0.0
            continue
        found[f"up{{{who}}}"] = 1.0
        for name, labels, value in _SAMPLE.findall(page):
            ahead = time.time() if name == _EXPIRES else 0.0
            found[f"{name}{{{who}{',' if labels else ''}{labels}}}"] = float(value) - ahead
    return found


def total(found: Scrape, name: str, *labels: str) -> float:
    """The sum of all series of that name with these labels, as `topic="t"`."""
    return sum(
        value
        for series, value in found.items()
        if series.startswith(f"{name}{{") and all(label in series for label in labels)
    )


def shown(found: Scrape) -> str:
    """All that is not 0, for whoever looks into a failure."""
    return "\n".join(f"{name} {value:g}" for name, value in found.items() if value)


def lasting(before: Scrape, after: Scrape) -> dict[str, str]:
    """Series of half an hour: one scrape lasts for 16 minutes, and then another."""
    return {name: f"{before.get(name, 0.0):.9g}x15 {value:.9g}x14" for name, value in after.items()}


def going_on(before: Scrape, after: Scrape, seconds: float) -> dict[str, str]:
    """Series of half an hour, in which counters go on as they did in these seconds."""
    series = {}
    for name, value in after.items():
        pace = (value - before.get(name, 0.0)) / seconds * 60 if _COUNTER.search(name) else 0.0
        series[name] = f"{value:.9g}+{max(0.0, pace):.9g}x29"
    return series


class Watch:
    """Of nodes, by the addresses of their pages."""

    def __init__(self, urls: Iterable[str]) -> None:
        self.urls = list(urls)
        well = scrape(self.urls)
        self.cases = {"well": lasting(well, well)}
        self._rules: dict[str, set[str]] = {"well": set()}

    def until(self, told: Callable[[Scrape], object], what: str) -> Scrape:
        """A scrape of which that holds."""
        last: Scrape = {}

        def look() -> bool:
            nonlocal last
            time.sleep(PAUSE)
            last = scrape(self.urls)
            return bool(told(last))

        wait_until(look, WITHIN, lambda: f"{what}\n{shown(last)}")
        return last

    def after(
        self,
        rules: Iterable[str],
        deed: Callable[[], object],
        told: Callable[[Scrape], object],
        *,
        goes_on: bool = False,
    ) -> None:
        """Does it, and waits until a scrape tells of it."""
        name = getattr(deed, "__name__", "deed")
        begun, before = time.monotonic(), scrape(self.urls)
        deed()
        now = self.until(told, f"figures that tell of {name}")
        took = time.monotonic() - begun
        self.cases[name] = going_on(before, now, took) if goes_on else lasting(before, now)
        self._rules[name] = set(rules)

    def judge(self, folder: Path) -> None:
        """Each deed has fired its rules, and none fired before."""
        found = fired(folder, self.cases)
        assert found["well"] == set()
        earlier: set[str] = set()
        for name, rules in self._rules.items():
            missing = rules - found[name]
            assert not missing, f"{missing} did not fire by {name}: {sorted(found[name])}"
            assert not rules & earlier, f"{rules & earlier} fired before {name}"
            earlier |= found[name]
