"""What `penstock.metrics.collector` tells Prometheus of real clients."""

from __future__ import annotations

import gc
from typing import Any

from event_loops import run
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock import App, aio
from penstock.metrics import collector
from penstock.testing import produce


def told(registry: CollectorRegistry) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By the names of samples, as a scrape reads them."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def registered(*sources: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector(*sources))
    return registry


def test_producers_and_consumers_are_told_with_their_numbers_and_groups(node):
    topic = node.create_topic()
    with node.connect() as client:
        registry = registered(client)
        assert told(registry) == {}
        with client.producer() as producer, client.consumer(topic, group=topic) as consumer:
            producer.send_batch(topic, [b"a", b"b"]).result(20)
            assert len(consumer.poll(timeout=20.0)) == 2
            seen = told(registry)
            assert seen["penstock_client_producer_acknowledged_total"] == [
                ({"client": "0", "number": "0"}, 2.0)
            ]
            assert seen["penstock_client_producer_buffered_bytes"][0][1] == 0.0
            labels = {"client": "0", "number": "1", "group": topic}
            assert seen["penstock_client_consumer_records_total"] == [(labels, 2.0)]
        del producer, consumer
        gc.collect()
        assert told(registry) == {}


def test_an_app_is_told_with_its_workers_also_while_it_does_not_run(node):
    topic = node.create_topic()
    app = App(node.url)

    @app.consumer(topic, group=topic, follow=False)
    def handle(value: bytes) -> None:
        if value == b"asks":
            names.update(told(registry))

    names: dict[str, Any] = {}
    registry = registered(app)
    produce(node, topic, [b"", b"asks"])
    app.run()
    assert names["penstock_client_app_handled_total"] == [({"client": "0"}, 1.0)]
    [(labels, count)] = names["penstock_client_consumer_records_total"]
    assert (labels["group"], count) == (topic, 2.0)
    assert told(registry)["penstock_client_app_handled_total"] == [({"client": "0"}, 2.0)]


def test_a_client_of_asyncio_is_told_as_well(node):
    topic = node.create_topic()

    async def main():
        async with (
            aio.connect(node.url) as client,
            client.producer() as producer,
            client.consumer(topic, group=topic) as consumer,
        ):
            await producer.send_and_wait(topic, b"a")
            assert len(await consumer.poll(timeout=20.0)) == 1
            return told(registered(client))

    seen = run(main())
    assert [value for _, value in seen["penstock_client_producer_acknowledged_total"]] == [1.0]
    [(labels, value)] = seen["penstock_client_consumer_records_total"]
    assert (labels["group"], value) == (topic, 1.0)
