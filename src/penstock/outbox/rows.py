"""Rows of an outbox: how a record is written into one, and read from it.

    headers   JSON: [["trace", "1"], ["raw", {"base64": "/w=="}], ["none", null]], or an object
    options   JSON: partition, timestamp, due, expires, priority, dedup_id, as far as they are given

Text is as good as bytes where it is UTF-8, so any language can insert a row. Owns that form.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.client.producer.record_options import RecordFields, RecordOptions, record_fields
from penstock.client.validation import HeadersLike, as_bytes, check_text
from penstock.core.encode import Headers
from penstock.core.errors import ConfigError
from penstock.core.work import WorkFields

_BASE64: Final = "base64"

_KNOWN: Final = frozenset({"partition", "timestamp", "due", "expires", "priority", "dedup_id"})


class OutboxRow(NamedTuple):
    """A row that waits, as the database has it. `created`: when it was inserted, as a text."""

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str | None
    options: str | None
    created: str


def parameters(
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: HeadersLike | None,
    partition: int | None,
    options: RecordOptions,
) -> dict[str, Any]:
    """Returns the columns of a record. Raises TypeError and ValueError, as `Producer.send` does."""
    check_text("topic", topic)
    if not topic:
        raise ConfigError("topic='' must have a name")
    fields = record_fields(headers, partition, options)
    return {
        "topic": topic,
        "key": as_bytes("key", key),
        "value": as_bytes("value", value),
        "headers": None if fields.headers is None else headers_text(fields.headers),
        "options": options_text(fields),
    }


def headers_text(headers: Headers) -> str:
    return json.dumps([[name, _as_json(value)] for name, value in headers])


def options_text(fields: RecordFields) -> str | None:
    given: dict[str, Any] = {"partition": fields.partition, "timestamp": fields.timestamp}
    if fields.work is not None:
        given |= fields.work._asdict()
    told = {
        name: _as_json(value) if isinstance(value, bytes) else value
        for name, value in given.items()
        if value is not None
    }
    return json.dumps(told) if told else None


def headers_of(row: OutboxRow) -> Headers | None:
    """Raises ValueError for a text that is no JSON of that form."""
    if row.headers is None:
        return None
    read = json.loads(row.headers)
    pairs = read.items() if isinstance(read, dict) else read
    try:
        return tuple((str(name), _as_bytes(value)) for name, value in pairs)
    except TypeError as error:
        raise ValueError(f"headers {row.headers[:80]!r} are no pairs of name and value") from error


def options_of(row: OutboxRow) -> dict[str, Any]:
    """Returns what `send` takes beside value, key and headers. Raises ValueError."""
    if row.options is None:
        return {}
    read = json.loads(row.options)
    if not isinstance(read, Mapping) or not _KNOWN.issuperset(read):
        raise ValueError(f"options {row.options[:80]!r} must be an object of {sorted(_KNOWN)}")
    found = {name: read[name] for name in ("partition", "timestamp") if name in read}
    work = WorkFields(
        read.get("due"), read.get("expires"), read.get("priority"), _as_bytes(read.get("dedup_id"))
    )
    if work != WorkFields():
        found["work"] = work
    return found


def _as_json(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(value).decode()}


def _as_bytes(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case {"base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{text[:80]!r} is no base64: {error}") from error
    raise ValueError(f'{value!r} must be text, null, or {{"base64": "..."}}')
