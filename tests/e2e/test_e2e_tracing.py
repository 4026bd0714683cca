"""Traces of records across processes, as an in-memory exporter of OpenTelemetry's SDK gets them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from cli_runner import cli_process
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import App, ConfigError, Record
from penstock.otel import SEMANTIC_CONVENTIONS, Tracing
from penstock.testing import wait_until

PRODUCER = """
import sys, penstock
from opentelemetry.sdk.trace import TracerProvider
from penstock.otel import Tracing

tracing = Tracing(TracerProvider())
with penstock.connect(sys.argv[1]) as client, client.producer(on_send=tracing.on_send) as producer:
    for number in range(int(sys.argv[3])):
        producer.send(sys.argv[2], b"%d" % number, headers={"own": b"1"})
"""
WORKER = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

log = open(os.environ["SPANS"], "a")
spans = ConsoleSpanExporter(out=log, formatter=lambda span: span.to_json(None) + chr(10))
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

def handle(job):
    if job.value == b"1":
        raise ValueError("a test")
"""


class Spans:
    """A provider, and the spans that it made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def produce_elsewhere(url: str, topic: str, count: int = 3) -> None:
    """From a process of its own."""
    subprocess.run([sys.executable, "-c", PRODUCER, url, topic, str(count)], check=True, timeout=60)


def sender(record: Any) -> tuple[int, int]:
    """Trace and span id in a record's headers."""
    assert record.headers[0] == ("own", b"1")
    _, trace, span, _ = dict(record.headers)["traceparent"].decode().split("-")
    return int(trace, 16), int(span, 16)


def ids(context: Any) -> tuple[int, int]:
    return context.trace_id, context.span_id


def test_a_record_is_one_trace_and_its_batch_links_to_it(node, spans):
    topic = node.create_topic()
    produce_elsewhere(node.url, topic)
    tracing = Tracing(spans.provider)
    with node.connect() as client, client.consumer(topic, group="traced") as consumer:
        while not (batch := consumer.poll(10, timeout=5)):
            pass
        with tracing.receive(batch, "traced"):
            for record in batch:
                with tracing.process(record, "traced"):
                    pass
    sent = [sender(record) for record in batch]
    assert len({trace for trace, _ in sent}) == len(sent) == 3
    [received] = spans.named(f"poll {topic}")
    assert received.kind is SpanKind.CLIENT
    assert [ids(link.context) for link in received.links] == sent
    assert received.attributes is not None
    assert received.attributes["messaging.batch.message_count"] == 3
    processed = spans.named(f"process {topic}")
    assert [(each.parent.trace_id, each.parent.span_id) for each in processed] == sent
    for each in processed:
        assert each.kind is SpanKind.CONSUMER
        assert [ids(link.context) for link in each.links] == [ids(received.context)]
    assert dict(processed[2].attributes or {}) == {
        "messaging.system": "penstock",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.penstock.offset": 2,
        "messaging.message.body.size": 1,
        "messaging.consumer.group.name": "traced",
    }
    scope = processed[0].instrumentation_scope
    assert scope is not None
    assert scope.schema_url == f"https://opentelemetry.io/schemas/{SEMANTIC_CONVENTIONS}"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_app_carries_the_trace_on_to_what_its_handlers_send(node, spans, is_async):
    source, target = node.create_topic(), node.create_topic()
    produce_elsewhere(node.url, source, 1)
    app = App(node.url, tracing=Tracing(spans.provider))
    done = threading.Event()

    def pass_on(record: Record) -> None:
        app.send(target, record.value)
        done.set()

    async def pass_on_async(record: Record) -> None:
        pass_on(record)

    app.consumer(source, group="apps")(pass_on_async if is_async else pass_on)
    with app:
        assert done.wait(25)
        wait_until(lambda: bool(spans.named(f"process {source}")), what="the span's end")
    [processed], [sent] = spans.named(f"process {source}"), spans.named(f"send {target}")
    assert sent.kind is SpanKind.PRODUCER
    assert (sent.parent.trace_id, sent.parent.span_id) == ids(processed.context)
    with node.connect() as client, client.consumer(source, start="earliest") as consumer:
        [first] = consumer.poll(1, timeout=25)
    assert processed.parent.trace_id == sent.context.trace_id == sender(first)[0]


def test_workers_trace_jobs_and_their_errors(node, tmp_path):
    topic = node.create_topic()
    produce_elsewhere(node.url, topic, 2)
    (tmp_path / "traced_jobs.py").write_text(WORKER)
    log = tmp_path / "spans.json"
    command = ("work", "traced_jobs:handle", "-t", topic, "-g", "w", "--max-deliveries", "1")
    env = {"PYTHONPATH": str(tmp_path), "SPANS": str(log)}
    with cli_process(*command, "--otel", url=node.url, env=env) as worker:
        wait_until(lambda: log.exists() and log.read_text().count("\n") == 2, what="two spans")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(25) == 0
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["status"]["status_code"] for each in found] == ["UNSET", StatusCode.ERROR.name]
    with node.connect() as client, client.consumer(topic, start="earliest") as consumer:
        batch = consumer.poll(2, timeout=25)
        traces = [sender(record)[0] for record in batch]
    assert [int(each["context"]["trace_id"], 16) for each in found] == traces


def test_a_record_without_a_trace_or_with_garbage_begins_one(spans):
    tracing = Tracing(spans.provider)
    for headers in ((), (("traceparent", b"\xff\x00garbage"),), (("traceparent", None),)):
        record = Record("t", 0, 5, 0, None, None, headers)
        with tracing.receive([record]), tracing.process(record):
            pass
    assert [span.links for span in spans.named("poll t")] == [()] * 3
    found = spans.named("process t")
    assert [span.parent is not None for span in found] == [True] * 3
    assert len({span.context.trace_id for span in found}) == 3


def test_without_the_package_nothing_is_imported_and_tracing_says_what_to_install(monkeypatch):
    program = (
        "import sys, penstock, penstock.otel\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[otel\]'"):
        Tracing()
