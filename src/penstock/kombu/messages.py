"""Messages of kombu as records: the body is the value, as it is, and all else one header of JSON.

    value              the body
    header `kombu`     {"content-type", "content-encoding", "headers", "properties"}
    priority, expiry,  what properties and headers say of it: `priority`, `expiration`, and `eta` of
    due time           Celery or `x-delay`

So a message that is not due, or has expired, reaches no worker. Celery's `expires` is left to its
workers, which tell the result backend that the task is revoked. A record that somebody else has put
into a queue is a message without properties.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kombu.utils.json import dumps, loads

from penstock.client.consumer.records import Record
from penstock.client.producer.record_options import SPAN_MAX
from penstock.core.work import PRIORITY_MAX

HEADER: Final = "kombu"
_FIELDS: Final = ("content-type", "content-encoding", "headers", "properties")

Raw = dict[str, Any]
"""A message as virtual channels have it."""


def record_of(message: Raw) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Value and headers of its record."""
    body = message["body"]
    value = body.encode() if isinstance(body, str) else bytes(body or b"")
    return value, [(HEADER, dumps({name: message.get(name) for name in _FIELDS}).encode())]


def message_of(record: Record, deliveries: int = 1) -> Raw:
    """The message of a record, without a delivery tag."""
    fields: Raw = {}
    for name, text in record.headers:
        if name == HEADER:
            fields = _parsed(text)
    properties = _dict(fields.get("properties"))
    info = properties["delivery_info"] = _dict(properties.get("delivery_info"))
    info["redelivered"] = deliveries > 1
    properties.pop("body_encoding", None)
    return {
        "body": record.value or b"",
        "content-type": _text(fields.get("content-type"), "application/octet-stream"),
        "content-encoding": _text(fields.get("content-encoding"), "binary"),
        "headers": _dict(fields.get("headers")),
        "properties": properties,
    }


def work_options(message: Raw, queue_ttl: float | None) -> dict[str, Any]:
    """Options of `send` that a message asks for. `queue_ttl`: seconds that its queue keeps one."""
    properties, headers = message["properties"], message["headers"]
    options: dict[str, Any] = {}
    if priority := _number(properties.get("priority")):
        options["priority"] = min(max(int(priority), 0), PRIORITY_MAX)
    delay = min(_delay(headers), SPAN_MAX)
    if delay > 0:
        options["delay"] = delay
    milliseconds = _number(properties.get("expiration"))
    ttls = [queue_ttl, None if milliseconds is None else milliseconds / 1000]
    if given := [ttl for ttl in ttls if ttl is not None]:
        # It counts from when workers may have it, as it does where they keep what is not due.
        options["ttl"] = min(max(min(given), 0.001) + max(delay, 0.0), SPAN_MAX)
    return options


def _delay(headers: Mapping[str, Any]) -> float:
    """Seconds until it is due."""
    eta = headers.get("eta")
    if isinstance(eta, str):
        try:
            due = datetime.fromisoformat(eta)
        except ValueError:
            return 0.0
        # Without a zone only workers know which one is meant: they wait themselves.
        return 0.0 if due.tzinfo is None else due.timestamp() - time.time()
    return (_number(headers.get("x-delay")) or 0.0) / 1000


def _number(given: Any) -> float | None:
    try:
        number = float(given)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _parsed(text: bytes | None) -> Raw:
    try:
        return _dict(loads(text or b""))
    except Exception:  # whatever: anybody may write into a topic
        return {}


def _text(given: Any, default: str) -> str:
    return given if isinstance(given, str) else default


def _dict(given: Any) -> Raw:
    return given if isinstance(given, dict) else {}
