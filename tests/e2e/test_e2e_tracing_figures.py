"""What traces cost: rates and CPU without them, and with one record of 100 sampled, or all.

One round after the other, and medians of them.

make test ARGS="-m bench -n0 -s -k tracing_figures"
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from penstock.testing import Broker

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK of OpenTelemetry is missing")
from opentelemetry.sdk.trace.export import (  # noqa: E402
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: E402

from penstock import otel  # noqa: E402

pytestmark = pytest.mark.bench
RECORDS = 20_000
ROUNDS = 3
SHARES = {"none": None, "1 %": 0.01, "100 %": 1.0}


class Nowhere(SpanExporter):
    """Takes spans and does nothing: what an exporter sends costs besides."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def tracing_of(share: float | None) -> otel.Tracing | None:
    if share is None:
        return None
    provider = sdk.TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=1 << 16))
    return otel.Tracing(provider)


def once(broker: Broker, tracing: otel.Tracing | None) -> tuple[float, float, float, float]:
    """Microseconds a record: time and CPU of sending, time and CPU of handling."""
    topic, value = broker.create_topic(), bytes(100)
    with broker.connect() as client:
        with client.producer(on_send=tracing.on_send if tracing else None) as producer:
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(RECORDS):
                producer.send(topic, value)
            producer.flush(60)
            sent = time.perf_counter() - began, time.process_time() - cpu
        with client.consumer(topic, start="earliest") as consumer:
            began, cpu, seen = time.perf_counter(), time.process_time(), 0
            while seen < RECORDS:
                batch = consumer.poll(500, timeout=20)
                with tracing.receive(batch, "g") if tracing else nullcontext():
                    for record in batch:
                        with tracing.process(record, "g") if tracing else nullcontext():
                            seen += 1
            handled = time.perf_counter() - began, time.process_time() - cpu
    each = 1e6 / RECORDS
    return sent[0] * each, sent[1] * each, handled[0] * each, handled[1] * each


@pytest.fixture(params=["shm", "tcp"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(transport=request.param, writers=1) as broker:
        yield broker


def test_what_traces_cost(broker: Broker) -> None:
    found: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in SHARES}
    once(broker, None)
    for _ in range(ROUNDS):
        for name, share in SHARES.items():
            found[name].append(once(broker, tracing_of(share)))
    print(f"\n{broker.transport}: microseconds a record: send, its CPU, handle, its CPU")
    for name, rows in found.items():
        print(f"{name:>6}", *(f"{statistics.median(row):8.1f}" for row in zip(*rows, strict=True)))
