"""Records as JSON: text as text, other bytes as base64."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.consumer.records import Record
    from penstock.core.work import WorkFields


def _text(data: bytes) -> tuple[str, bool]:
    """Returns UTF-8 text, or base64 and True."""
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), True


def json_fields(record: Record) -> dict[str, Any]:
    """Returns a record as JSON: `timestamp` in microseconds. Bytes that are not UTF-8 become
    base64, marked by `key_encoding`, `value_encoding`, and a third item in a header. `due`,
    `expires`, `priority` and `dedup_id` of a record that has them."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": None,
        "value": None,
    }
    for name in ("key", "value"):
        data = getattr(record, name)
        if data is not None:
            fields[name], is_binary = _text(data)
            if is_binary:
                fields[f"{name}_encoding"] = "base64"
    if record.headers:
        fields["headers"] = [_json_header(name, value) for name, value in record.headers]
    if record.work is not None:
        fields |= _json_work(record.work)
    return fields


def _json_work(work: WorkFields) -> dict[str, Any]:
    fields = {name: value for name, value in work._asdict().items() if value is not None}
    if work.dedup_id is not None:
        fields["dedup_id"], is_binary = _text(work.dedup_id)
        if is_binary:
            fields["dedup_id_encoding"] = "base64"
    return fields


def _json_header(name: str, value: bytes | None) -> list[str | None]:
    if value is None:
        return [name, None]
    text, is_binary = _text(value)
    return [name, text, "base64"] if is_binary else [name, text]
