"""Traces records from producers to handlers, by OpenTelemetry's API and W3C's `traceparent`.

| span | kind | made by | parent, links |
|---|---|---|---|
| `send TOPIC` | producer | `on_send`, as a hook of a producer | parent: the span that is current |
| `poll TOPIC` | client | `receive(batch)` | parent: the span that is current; links: `send` spans |
| `process TOPIC` | consumer | `process(record)`, apps, workers | parent: `send`; link: `poll` |

The context of `send` travels in the record's headers, so a record is one trace, through all its
processes. A batch has records of many traces, so its span links to theirs.

Owns names and attributes. Never imports OpenTelemetry before a `Tracing` is made, so programs
without one pay nothing; without an SDK the API's spans record nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.client.validation import HeadersLike
from penstock.core.errors import ConfigError
from penstock.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, TracerProvider

    from penstock.client.consumer.records import Record, RecordBatch
    from penstock.client.share.jobs import Job

SEMANTIC_CONVENTIONS: Final = "1.44.0"
"""The version of OpenTelemetry's semantic conventions that the names below are of."""
SCHEMA: Final = f"https://opentelemetry.io/schemas/{SEMANTIC_CONVENTIONS}"
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
TOPIC: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
COUNT: Final = "messaging.batch.message_count"
SIZE: Final = "messaging.message.body.size"
OFFSET: Final = "messaging.penstock.offset"
"""The conventions have such a name for Kafka alone."""

LINKS_MAX: Final = 128
"""Links of a batch's span, as many as OpenTelemetry's SDK keeps by default."""
_FIELDS: Final = ("traceparent", "tracestate")


class Tracing:
    """Makes spans of records. Thread-safe; one does for a program.

    Args:
        tracer_provider: OpenTelemetry's; None for the global one.

    Raises `ConfigError` where OpenTelemetry's API is not installed.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(
                "traces need OpenTelemetry's API: pip install 'penstock[otel]'"
            ) from error
        self._trace = trace
        self._tracer = trace.get_tracer("penstock", __version__, tracer_provider, schema_url=SCHEMA)
        self._w3c = TraceContextTextMapPropagator()

    # --- producers ---
    def on_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike | None,
    ) -> HeadersLike:
        """Is a producer's hook: makes the span of a record and returns its headers with the
        `traceparent` of that span. The span ends when the record is handed over."""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_attributes("send", "send", topic) | {SIZE: len(value or b"")},
        )
        carrier: dict[str, str] = {}
        # Never the current span: nothing is done within it, and that costs 4 microseconds.
        self._w3c.inject(carrier, self._trace.set_span_in_context(span))
        span.end()
        given = headers.items() if isinstance(headers, Mapping) else headers or ()
        kept = [pair for pair in given if pair[0] not in carrier]
        return [*kept, *((name, text.encode()) for name, text in carrier.items())]

    # --- consumers ---
    @contextmanager
    def receive(
        self, batch: RecordBatch | Iterable[Record | Job], group: str = ""
    ) -> Iterator[None]:
        """Spans work on a batch, or on a list, with links to the spans of its records."""
        links: list[Link] = []
        topics: dict[str, None] = {}
        count = 0
        for record in batch:
            count += 1
            topics.setdefault(record.topic)
            if len(links) < LINKS_MAX and (sent := self._sender(record)) is not None:
                links.append(self._trace.Link(sent))
        name = ",".join(topics)
        found = _attributes("receive", "poll", name) | {COUNT: count}
        with self._tracer.start_as_current_span(
            f"poll {name}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=found | ({GROUP: group} if group else {}),
            links=links,
        ):
            yield

    @contextmanager
    def process(self, record: Record | Job, group: str = "") -> Iterator[None]:
        """Spans the work on one record. An exception is recorded, and goes on."""
        here = self._trace.get_current_span().get_span_context()
        found = _attributes("process", "process", record.topic) | {
            PARTITION: str(record.partition),
            OFFSET: record.offset,
            SIZE: len(record.value or b""),
        }
        with self._tracer.start_as_current_span(
            f"process {record.topic}",
            context=self._context(record),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=found | ({GROUP: group} if group else {}),
            links=[self._trace.Link(here)] if here.is_valid else [],
        ):
            yield

    def _context(self, record: Record | Job) -> Context | None:
        """Of the producer's span; None where the headers have none, so that the current span is
        the parent."""
        carrier = {
            name: value.decode("ascii", "replace")
            for name, value in record.headers
            if name in _FIELDS and value is not None
        }
        if "traceparent" not in carrier:
            return None
        context = self._w3c.extract(carrier)
        sent = self._trace.get_current_span(context).get_span_context()
        return context if sent.is_valid else None

    def _sender(self, record: Record | Job) -> SpanContext | None:
        context = self._context(record)
        if context is None:
            return None
        return self._trace.get_current_span(context).get_span_context()


def _attributes(kind: str, name: str, topic: str) -> dict[str, Any]:
    return {SYSTEM: "penstock", OPERATION_TYPE: kind, OPERATION_NAME: name, TOPIC: topic}
