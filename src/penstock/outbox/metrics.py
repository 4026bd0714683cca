"""Gives Prometheus the counts of a relay, and how many rows of its outbox wait.

    prometheus_client.REGISTRY.register(penstock.outbox.collector(relay))

Rows are counted when somebody asks, by a connection of its own. Never counts what is sent: the
relay does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from penstock.database.dsn import connect, dialect_of_dsn
from penstock.database.statements import execute
from penstock.outbox.schema import RowState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.outbox.relay import Relay

logger = logging.getLogger("penstock.outbox")

COUNTED_MAX: Final = 100_000
"""Rows of a state that are counted; more are told as so many."""
_AGE: Final = {
    "postgresql": "extract(epoch FROM clock_timestamp() - created_at)",
    "sqlite": "(julianday('now') - julianday(created_at)) * 86400.0",
}


class OutboxCollector:
    """Prometheus collector of one relay. `prometheus_client` calls `collect`."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._turn = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """The families, each with the outbox as label."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        table = self._relay.config.table
        for name, count in self._relay.metrics().items():
            counter = CounterMetricFamily(
                f"penstock_outbox_{name}", f"Of a relay: {name.replace('_', ' ')}.",
                labels=["outbox"],
            )  # fmt: skip
            counter.add_metric([table], count)
            yield counter
        gauges = {"active": float(self._relay.is_active), **self._looked_at()}
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(
                f"penstock_outbox_{name}", f"Of an outbox: {name.replace('_', ' ')}.",
                labels=["outbox"],
            )  # fmt: skip
            gauge.add_metric([table], value)
            yield gauge

    def _looked_at(self) -> dict[str, float]:
        """Rows that wait or are dead, and the age of the oldest that waits. Empty while the
        database does not answer."""
        config = self._relay.config
        age = _AGE[dialect_of_dsn(config.dsn)]
        try:
            with self._turn, closing(connect(config.dsn)) as connection:
                [[pending]], [[dead]] = (
                    execute(
                        connection,
                        f"SELECT count(*) FROM (SELECT 1 FROM {config.table} "
                        f"WHERE state = {state} LIMIT {COUNTED_MAX}) AS counted",
                        {},
                    ).fetchall()
                    for state in (RowState.PENDING, RowState.DEAD)
                )
                oldest = execute(
                    connection,
                    f"SELECT {age} FROM {config.table} WHERE state = {RowState.PENDING} "
                    "ORDER BY id LIMIT 1",
                    {},
                ).fetchall()
        except Exception as error:  # a driver's own: metrics of the rest are told all the same
            logger.warning("the rows of %r were not counted: %s", config.table, error)
            return {}
        return {
            "pending_rows": float(pending),
            "dead_rows": float(dead),
            "oldest_seconds": max(0.0, float(oldest[0][0])) if oldest else 0.0,
        }


def collector(relay: Relay) -> OutboxCollector:
    """A collector of this relay: `prometheus_client.REGISTRY.register(collector(relay))`.

    Series are `penstock_outbox_sent_total{outbox}` and so on: the names of `Relay.metrics()`, and
    the gauges `active`, `pending_rows`, `dead_rows`, `oldest_seconds`.
    """
    return OutboxCollector(relay)
