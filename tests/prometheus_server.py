"""A real Prometheus that scrapes nodes, and is asked as Grafana asks it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from cleanup_commands import Afterwards

from penstock.testing import wait_until

PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="Prometheus is not installed: Debian's package prometheus has it"
)
STARTS_WITHIN = 60.0
_LISTENS = re.compile(r'msg="Listening on" address=(\S+)')


class Series(NamedTuple):
    """One of an answer, with its value now."""

    labels: dict[str, str]
    value: float


class PrometheusServer:
    """`address`: where it answers."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1/query"

    def ask(self, query: str) -> list[Series]:
        """The query's answer at this time; raises `HTTPError` where there is none."""
        form = urllib.parse.urlencode({"query": query}).encode()
        with urllib.request.urlopen(self._url, form, timeout=20) as answer:
            found = json.load(answer)["data"]["result"]
        return [Series(each["metric"], float(each["value"][1])) for each in found]


@contextmanager
def prometheus_server(folder: Path, urls: Iterable[str]) -> Iterator[PrometheusServer]:
    """Scrapes the nodes whose pages have these addresses twice a second; its files are in
    `folder`."""
    assert PROMETHEUS is not None
    targets = [url.removeprefix("http://") for url in urls]
    jobs = [{"job_name": "penstock", "static_configs": [{"targets": targets}]}]
    settings, log = folder / "prometheus.json", folder / "prometheus.log"
    settings.write_text(
        json.dumps({"global": {"scrape_interval": "500ms"}, "scrape_configs": jobs})
    )
    with log.open("wb") as file:
        process = subprocess.Popen(
            [PROMETHEUS, f"--config.file={settings}", f"--storage.tsdb.path={folder / 'series'}",
             "--web.listen-address=127.0.0.1:0"],
            stdout=file, stderr=file,
        )  # fmt: skip
    cleanup = Afterwards("true", killed=f"kill -KILL {process.pid}")
    try:

        def address() -> str:
            assert process.poll() is None, log.read_text()
            told = _LISTENS.search(log.read_text())
            return told[1] if told else ""

        yield PrometheusServer(wait_until(address, STARTS_WITHIN, log.read_text))
    finally:
        process.kill()
        process.wait()
        cleanup.now()
