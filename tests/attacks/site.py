"""Where tenants meet: a node with keys, or three brokers, and a key of each tenant.

Tenants are told of it as JSON, since each is a process of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from keyed_fixture import IN_USE, dealer_of
from node_helpers import eventually
from wire import WITHIN, Dealer

import penstock
from penstock.client.admin.access import LimitSetting
from penstock.security import keys
from penstock.testing import Broker, Cluster

VICTIM, NEIGHBOUR, ATTACKER = "victim", "neighbour", "attacker"
TENANTS: Final = (VICTIM, NEIGHBOUR, ATTACKER)
"""Each with a namespace of its own, and nothing beyond it."""
DISK_BYTES_MAX: Final = 16 << 20
"""Of the attacker's namespace: it is reached within the first second."""
TOPICS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Site:
    """`urls`: of every broker; the first one is whom raw connections go to."""

    urls: tuple[str, ...]
    folder: str

    def key(self, who: str) -> Path:
        return Path(self.folder, f"{who}.key")

    def connect(self, who: str) -> penstock.Client:
        url = "tcp://" + ",".join(each.removeprefix("tcp://") for each in self.urls)
        return penstock.connect(url, keys=self.key(who), transport="tcp", timeout=WITHIN)

    def dealer(self, who: str, **options: Any) -> Dealer:
        """A connection to the first broker; `options`: more of the socket."""
        return dealer_of(self.urls[0], self.key(who), **options)


@contextmanager
def served(folder: Path, brokers: int = 1) -> Iterator[Site]:
    """A node, or so many brokers, with a topic of the victim and one of each other tenant."""
    if brokers == 1:
        options: dict[str, Any] = {"client_silence_max": 120.0}
        with Broker(listen=True, options=options) as broker:
            _make_keys(folder, [broker])
            with broker.connect() as client:
                _furnish(client, 1)
            yield Site((broker.tcp_url,), str(folder))
        return
    keys.create_cluster_key(folder / "cluster.key")
    options = {"cluster_key": str(folder / "cluster.key"), "client_silence_max": 120.0}
    with Cluster(brokers=brokers, writers=2, options=options) as cluster:
        with cluster.connect(timeout=WITHIN) as client:
            _furnish(client, brokers)
            client.consumer(f"{VICTIM}.own", group=f"{VICTIM}.group").close()
        first = coordinator_of(cluster)
        _make_keys(folder, cluster.brokers)
        urls = sorted((each.tcp_url for each in cluster.brokers), key=lambda url: url != first)
        yield Site(tuple(urls), str(folder))


def coordinator_of(cluster: Cluster) -> str:
    """The URL of the broker that coordinates groups, where most of what attackers ask is done."""
    leader = cluster.leader_of("__coordinator")
    return next(each.tcp_url for each in cluster.brokers if each.number == leader)


def _make_keys(folder: Path, brokers: Any) -> None:
    first, *others = brokers
    for name in TENANTS:
        keys.create_key(first.data, name, folder / f"{name}.key", namespace=name)
    for other in others:
        shutil.copytree(Path(first.data, "keys"), Path(other.data, "keys"))
    eventually(lambda: all(IN_USE in each.log_path.read_text() for each in brokers), "keys")


def _furnish(client: penstock.Client, brokers: int) -> None:
    with client.admin() as admin:
        for name in TENANTS:
            # The victim is replicated. The others' is led where they connect, whichever that is.
            factor = min(brokers, 3)
            config = penstock.TopicConfig(partitions=brokers, replication_factor=factor)
            admin.create_topic(f"{name}.own", config)
        admin.set_limits(
            LimitSetting(ATTACKER, disk_bytes_max=DISK_BYTES_MAX, topics_max=TOPICS_MAX)
        )
