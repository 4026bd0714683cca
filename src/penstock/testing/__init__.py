"""For tests of programs that use Penstock: a real node of their own, and short ways to ask it.

    from penstock.testing import Broker, assert_records, produce

    with Broker() as broker:
        broker.create_topic("orders")
        produce(broker, "orders", [b"1", b"2"])
        assert_records(broker, "orders", [b"1", b"2"])

With pytest the fixture `penstock_broker` gives the same broker (see `penstock.pytest_plugin`);
nothing in here needs pytest. Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazily import loaded

_HOMES = {
    "Broker": "broker",
    "Cluster": "cluster",
    "HandledJob": "jobs",
    "assert_jobs": "jobs",
    "assert_records": "records",
    "deliver": "jobs",
    "drain": "records",
    "produce": "records",
    "wait_until": "waiting",
}

__all__ = [
    "Broker",
    "Cluster",
    "HandledJob",
    "assert_jobs",
    "assert_records",
    "deliver",
    "drain",
    "produce",
    "wait_until",
]

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.cluster import Cluster
    from penstock.testing.jobs import HandledJob, assert_jobs, deliver
    from penstock.testing.records import assert_records, drain, produce
    from penstock.testing.waiting import wait_until

__getattr__, __dir__ = loaded(__name__, _HOMES)
