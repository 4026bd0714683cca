r"""Records as bytes for stdout: by a format like '%t %p %o %k %v\n', or as JSON lines.

    %t topic   %p partition   %o offset   %k key   %v value   %% percent
    %T timestamp (ISO 8601, UTC)   %h headers (name=value,...)

Owns both spellings. Formats are compiled once, so that a record costs one pass.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.errors import ConfigError
from penstock.operations import values
from penstock.operations.wording import iso_time

if TYPE_CHECKING:
    from penstock.client.consumer.records import Record
    from penstock.core.work import WorkFields

Render = Callable[[Iterable["Record"]], bytes]
DEFAULT: Final = r"%v\n"
WIDE: Final = r"%t-%p %o %T %k %v %h\n"


def headers_text(headers: Iterable[tuple[str, bytes | None]], null: bytes = b"") -> bytes:
    return b",".join(
        name.encode() + b"=" + (null if value is None else value) for name, value in headers
    )


def compile_format(text: str, null: bytes = b"") -> Render:
    """Returns a function from records to bytes. `null` is the text of keys and values that are
    null."""
    fields: dict[str, Callable[[Record], bytes]] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "k": lambda record: null if record.key is None else record.key,
        "v": lambda record: null if record.value is None else record.value,
        "T": lambda record: iso_time(record.timestamp).encode(),
        "h": lambda record: headers_text(record.headers, null),
    }
    getters: list[Callable[[Record], bytes]] = []
    template = b""
    pieces = text.replace("%%", "\0").split("%")
    for i, piece in enumerate(pieces):
        rest = piece
        if i:
            getter = fields.get(piece[:1])
            if getter is None:
                raise ConfigError(
                    f"format {text!r} has %{piece[:1]}; there are "
                    f"{', '.join('%' + name for name in fields)} and %%"
                )
            getters.append(getter)
            template += b"%b"
            rest = piece[1:]
        template += values.unescape(rest.replace("\0", "%")).replace(b"%", b"%%")
    if not getters:
        raise ConfigError(f"format {text!r} shows nothing of a record: use %v, %k, %o ...")

    def render(records: Iterable[Record]) -> bytes:
        return b"".join(
            template % tuple(getter(record) for getter in getters) for record in records
        )

    return render


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


def render_json(records: Iterable[Record]) -> bytes:
    encode = msgspec.json.encode
    return b"".join(encode(json_fields(record)) + b"\n" for record in records)
