"""Each panel of Grafana's dashboards has data once a real Prometheus has scraped three real
brokers, which work meanwhile."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from alert_deeds import url_of
from cluster_under_test import QUICK
from dashboards import DASHBOARDS, Panel
from prometheus_server import PrometheusServer, needs_prometheus, prometheus_server

from penstock import TopicExistsError
from penstock.client.admin.access import QuotaSetting
from penstock.testing import Cluster, produce, wait_until

pytestmark = [
    needs_prometheus,
    pytest.mark.slow,
    pytest.mark.local("brokers of a cluster are reached by tcp alone"),
]
WITHIN = 60.0
PANELS = {panel.title: panel for _, panels in DASHBOARDS.values() for panel in panels}
BY_A_DEATH = {"Followers behind"}
"""Panels that are empty while all is well: they show what is wrong, and nothing else."""


class BusyBrokers:
    """Three brokers, each kind of client that a panel tells of, and Prometheus."""

    def __init__(self, folder: Path, end: ExitStack) -> None:
        options = {**QUICK, "metrics": "127.0.0.1:0"}
        self.cluster = end.enter_context(Cluster(3, writers=1, options=options))
        urls = [url_of(each) for each in self.cluster.brokers]
        self.prometheus = end.enter_context(prometheus_server(folder, urls))
        self.cluster.create_topic(
            "orders", partitions=3, replication_factor=3, durability="fsync", retention=3600
        )
        self.client = end.enter_context(self.cluster.connect(timeout=WITHIN))
        self.client.admin().set_quota(QuotaSetting("anonymous", "greedy", produce_bytes=64 << 10))
        greedy = end.enter_context(self.cluster.connect(client_id="greedy", timeout=WITHIN))
        self.greedy = end.enter_context(greedy.producer(linger=0.0))

    def send(self) -> None:
        produce(self.cluster, "orders", [b"%d" % number for number in range(30)], timeout=WITHIN)

    def work(self) -> None:
        """What applications do in a second or less."""
        self.send()
        with pytest.raises(TopicExistsError):
            self.client.admin().create_topic("orders")
        for _ in range(4):  # twice as much as a second allows, however slow the machine is
            self.greedy.send("orders", bytes(32 << 10)).result(WITHIN)
        with self.client.consumer("orders", group="readers", follow=False) as consumer:
            for count, _ in enumerate(consumer):
                if count == 10:  # and the group is behind
                    break
            consumer.commit()
        with self.client.share_consumer("orders", group="works", max_deliveries=1) as works:
            for job in works.poll(5, timeout=WITHIN):
                job.reject(reason="a test")


def is_answered(prometheus: PrometheusServer, panel: Panel) -> bool:
    """With a number, and each label that the panel's legend has; one number alone where it shows
    one."""
    found = prometheus.ask(panel.query.replace("$__rate_interval", "1m"))
    found = [series for series in found if math.isfinite(series.value)]
    legend = set(re.findall(r"\{\{(\w+)\}\}", panel.legend))
    for series in found:
        assert legend <= set(series.labels), f"{panel.title}: {series.labels}"
    assert panel.kind != "stat" or len(found) <= 1, f"{panel.title}: {found}"
    return bool(found)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[BusyBrokers]:
    with ExitStack() as end:
        yield BusyBrokers(tmp_path, end)


def test_each_panel_has_data_of_three_brokers(busy: BusyBrokers) -> None:
    empty = dict(PANELS)

    def are_answered(titles: set[str]) -> bool:
        for title in titles & set(empty):
            if is_answered(busy.prometheus, empty[title]):
                del empty[title]
        return not titles & set(empty)

    def is_all_shown() -> bool:
        busy.work()
        return are_answered(set(PANELS) - BY_A_DEATH)

    def is_death_shown() -> bool:
        busy.send()
        return are_answered(BY_A_DEATH)

    wait_until(lambda: len(busy.prometheus.ask("up == 1")) == 3, WITHIN, "three pages that it read")
    wait_until(is_all_shown, WITHIN, lambda: f"data of {sorted(empty)}")
    assert set(empty) == BY_A_DEATH
    busy.cluster.broker(3).kill()
    wait_until(is_death_shown, WITHIN, lambda: f"data of {sorted(empty)}")
