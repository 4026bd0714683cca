r"""Records as bytes for stdout: by a format like '%t %p %o %k %v\n', or as JSON lines.

    %t topic   %p partition   %o offset   %k key   %v value   %% percent
    %T timestamp (ISO 8601, UTC)   %h headers (name=value,...)

Owns both spellings. Formats are compiled once, so that a record costs one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.errors import ConfigError
from penstock.operations import values
from penstock.operations.record_json import json_fields
from penstock.operations.wording import iso_time

if TYPE_CHECKING:
    from penstock.client.consumer.records import Record

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


def render_json(records: Iterable[Record]) -> bytes:
    encode = msgspec.json.encode
    return b"".join(encode(json_fields(record)) + b"\n" for record in records)
