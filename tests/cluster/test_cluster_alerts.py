"""Alert rules of a cluster, fired by what three real brokers tell of a real misfortune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_deeds import Scrape, Watch, total, url_of
from alert_rules import needs_promtool
from cluster_under_test import QUICK

from penstock.testing import Cluster, produce

pytestmark = needs_promtool
PARTITIONS = 12


class IllBrokers:
    """Three brokers. One of them follows, and leads the one partition that nobody else has."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.watch = Watch([url_of(each) for each in cluster.brokers])
        cluster.create_topic("whole", partitions=PARTITIONS, replication_factor=3)
        cluster.create_topic("half", partitions=6, replication_factor=2, min_insync_replicas=2)
        cluster.create_topic("single", partitions=3, replication_factor=1)
        produce(cluster, "whole", [b"%d" % number for number in range(100)])
        controller = cluster.controller()
        self.gone, self.other = [n for n in (1, 2, 3) if n != controller]

    def broker_dies(self) -> None:
        self.cluster.broker(self.gone).kill()

    def is_missed(self, now: Scrape) -> bool:
        return (
            max(_of_each(now, "penstock_isr_shrinks_total")) > 3
            and total(now, "penstock_broker_underreplicated_partitions") >= PARTITIONS
            and total(now, "penstock_broker_below_min_insync_partitions") > 0
            and total(now, "penstock_cluster_leaderless_partitions") > 0
        )

    def log_is_damaged(self) -> None:
        broker = self.cluster.broker(self.gone)
        folder = max(broker.data.glob("*-*"), key=_log_bytes)
        with (folder / f"{0:020d}.log").open("r+b") as file:
            file.write(b"garbage")
        broker.start()
        self.watch.urls[self.gone - 1] = url_of(broker)

    def majority_dies(self) -> None:
        for number in (self.gone, self.other):
            self.cluster.broker(number).kill()


def _of_each(found: Scrape, name: str) -> list[float]:
    return [value for series, value in found.items() if series.startswith(name)]


def _log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


@pytest.fixture
def scene() -> Iterator[IllBrokers]:
    with Cluster(3, writers=1, options={**QUICK, "metrics": "127.0.0.1:0"}) as cluster:
        yield IllBrokers(cluster)


def test_each_rule_of_a_cluster_is_fired_by_what_is_done_to_one(scene, tmp_path):
    watch = scene.watch
    watch.after(
        ["PenstockIsrShrinks", "PenstockUnderreplicated", "PenstockNothingCommitted",
         "PenstockLeaderless"], scene.broker_dies, scene.is_missed,
    )  # fmt: skip
    watch.after(
        ["PenstockReplicaOffline"], scene.log_is_damaged,
        lambda now: total(now, "penstock_broker_offline_replicas") > 0,
    )  # fmt: skip
    watch.after(
        ["PenstockNoController"], scene.majority_dies,
        lambda now: total(now, "penstock_broker_controller_active") == 0,
    )  # fmt: skip
    watch.judge(tmp_path)
