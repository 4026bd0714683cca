"""Gives Prometheus the counts of the clients and apps of this process.

    prometheus_client.REGISTRY.register(penstock.metrics.collector(client))

Counts are read when somebody asks, and cost nothing before. A producer or consumer that is gone
ends its series. How far groups are behind the node tells itself (`penstock_group_lag_records`).

Owns names and labels. Never counts, and imports prometheus_client when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.client.app.app import App

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.client.aio.client import Client as AsyncClient
    from penstock.client.client import Client

GAUGES: Final = frozenset({"buffered_bytes"})
"""Names of the values that are gauges; all other values are counters."""

Sample = tuple[str, dict[str, str], float]


class Collector:
    """Prometheus collector of clients and apps. `prometheus_client` calls `collect`."""

    def __init__(self, sources: tuple[Client | AsyncClient | App, ...]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """The families, each with all its series."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, labels, value in self._samples():
            family = families.get(name)
            if family is None:
                short = name.rpartition("_client_")[2].replace("_", " ")
                is_gauge = name.endswith(tuple(GAUGES))
                kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
                family = families[name] = kind(
                    name, f"Of this process: {short}.", labels=list(labels)
                )
            family.add_metric(list(labels.values()), value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        for number, source in enumerate(self._sources):
            where = {"client": str(number)}
            client: Client | AsyncClient | None
            if isinstance(source, App):
                yield from _each("app", where, source.metrics())
                client = source.client
            else:
                client = source
            if client is None:
                continue
            for order, made in client.made.alive().items():
                which = {**where, "number": str(order)}
                if hasattr(made, "poll"):
                    which["group"] = getattr(made, "group", "")
                    yield from _each("consumer", which, made.metrics())
                elif hasattr(made, "send"):
                    yield from _each("producer", which, made.metrics())


def _each(what: str, labels: dict[str, str], counts: dict[str, int]) -> Iterator[Sample]:
    for name, count in counts.items():
        yield f"penstock_client_{what}_{name}", labels, count


def collector(*sources: Client | AsyncClient | App) -> Collector:
    """A collector of what these clients, and all that was made from them, count:
    `prometheus_client.REGISTRY.register(collector(client))`.

    Series are `penstock_client_producer_records_total{client, number}` and so on: the names of
    `metrics()`, with the place of the client here, the number of the producer or consumer among
    what was made from it, and the group of a consumer.
    """
    return Collector(sources)
