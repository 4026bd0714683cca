"""Records as pages show them: a bounded preview of each, one whole record, one to be sent."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from penstock.client.consumer.records import Record
from penstock.console.pages.links import command, page_link
from penstock.console.pages.plans import ActionPlan
from penstock.core.errors import ConfigError
from penstock.operations import values
from penstock.operations.record_json import json_fields
from penstock.operations.wording import counted, iso_time

PREVIEW: Final = 300
"""Characters of a key or value in a row."""
WHOLE: Final = 128 << 10
"""Bytes of a value that its page shows; the rest is in the file."""
HEADERS_SHOWN: Final = 100
EDITED_MAX: Final = 1 << 20
"""Bytes of a record that is edited here."""
COMMAND_CHARACTERS: Final = 4000

View = Literal["text", "json", "msgpack", "hex"]


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record in a list. `size`: bytes of its value; None: a tombstone."""

    topic: str
    partition: int
    offset: int
    time: str
    key: str | None
    value: str | None
    size: int | None
    headers: int


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record in one of the views. `cut`: bytes of the value that are not shown. `command`
    brings the same to a terminal."""

    row: RecordRow
    view: View
    key: str | None
    value: str | None
    cut: int
    headers: tuple[tuple[str, str | None], ...]
    headers_left: int
    work: tuple[tuple[str, str], ...]
    command: str
    end: int


@dataclass(frozen=True, slots=True)
class RecordDraft:
    """A record as a form has it. Bytes that are no text are hexadecimal digits."""

    topic: str
    partition: str = ""
    key: str = ""
    key_kind: Literal["none", "text", "hex"] = "none"
    value: str = ""
    value_kind: Literal["text", "hex", "null"] = "text"
    headers: str = ""
    lost: str = ""


def row_of(record: Record) -> RecordRow:
    value = record.value
    return RecordRow(
        record.topic, record.partition, record.offset, iso_time(record.timestamp),
        preview(record.key), preview(value), None if value is None else len(value),
        len(record.headers),
    )  # fmt: skip


def preview(data: bytes | None) -> str | None:
    """The beginning of bytes as one line of text."""
    if data is None:
        return None
    text = data[: PREVIEW * 4].decode(errors="replace")
    cut = text[:PREVIEW] + ("..." if len(text) > PREVIEW or len(data) > PREVIEW * 4 else "")
    return "".join(sign if sign.isprintable() else " " for sign in cut)


def view_of(record: Record, view: str, end: int, url: str) -> RecordView:
    """The page of a record. `view`: "" is JSON where it is some, else text, else hex."""
    chosen = _view(view, record.value)
    value, cut = _shown(record.value, chosen)
    key, _ = _shown(record.key, "text" if _is_text(record.key) else "hex")
    shown = record.headers[:HEADERS_SHOWN]
    work = () if record.work is None else tuple(
        (name, str(item)) for name, item in record.work._asdict().items() if item is not None
    )  # fmt: skip
    return RecordView(
        row_of(record), chosen, key, value, cut,
        tuple((name, None if item is None else preview(item)) for name, item in shown),
        len(record.headers) - len(shown), work,
        command(url, "consume", record.topic, "-p", record.partition, "-o", record.offset, "-n", 1),
        end,
    )  # fmt: skip


def _view(view: str, value: bytes | None) -> View:
    if view == "json" or (not view and _is_json(value)):
        return "json"
    if view == "msgpack" and _unpacked(value) is not None:
        return "msgpack"
    if view == "hex" or (not view and not _is_text(value)):
        return "hex"
    return "text"


def _is_json(value: bytes | None) -> bool:
    if not value or len(value) > WHOLE or value[:1] not in b'{["':
        return False
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _unpacked(value: bytes | None) -> str | None:
    """MessagePack as JSON; bytes in it are base64, and what JSON does not have is its name. None:
    it is none, or larger than a page shows."""
    if not value or len(value) > WHOLE:
        return None
    try:
        found = msgspec.msgpack.decode(value)
        text = msgspec.json.encode(found, enc_hook=str)
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        return None
    return msgspec.json.format(text, indent=2).decode()


def _is_text(data: bytes | None) -> bool:
    if data is None:
        return True
    try:
        text = data[:WHOLE].decode()
    except UnicodeDecodeError as error:
        return len(data) > WHOLE and error.start > WHOLE - 4
    return all(sign.isprintable() or sign in "\n\t\r" for sign in text[:4096])


def _shown(data: bytes | None, view: View) -> tuple[str | None, int]:
    """The text of a value in a view, and how many of its bytes are left out."""
    if data is None:
        return None, 0
    if view == "json" and _is_json(data):
        return msgspec.json.format(data, indent=2).decode(), 0
    unpacked = _unpacked(data) if view == "msgpack" else None
    if unpacked is not None:
        return unpacked, 0
    if view == "hex":
        part = data[: WHOLE // 8]
        return "\n".join(_hex_line(part, at) for at in range(0, len(part), 16)), len(data) - len(
            part
        )
    part = data[:WHOLE]
    return part.decode(errors="backslashreplace"), len(data) - len(part)


def _hex_line(data: bytes, at: int) -> str:
    line = data[at : at + 16]
    signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
    return f"{at:08x}  {line.hex(' '):<47}  {signs}"


# --- a record to be sent --------------------------------------------------------------------------
def draft_of(record: Record) -> RecordDraft:
    """A record as a form has it, to be edited and sent again. Raises `ConfigError` for one that is
    too large for a form."""
    size = len(record.value or b"") + len(record.key or b"")
    if size > EDITED_MAX:
        raise ConfigError(
            f"a record of {size:,} bytes is too large to be edited here: {EDITED_MAX:,} at most "
            "(EDITED_MAX)"
        )
    key_text, value_text = _editable(record.key), _editable(record.value)
    lines, lost = [], []
    for name, item in record.headers:
        text = _editable(item)
        if text is None or "\n" in text or "=" in name:
            lost.append(name)
        else:
            lines.append(f"{name}={text}")
    return RecordDraft(
        record.topic, str(record.partition),
        "" if record.key is None else record.key.hex() if key_text is None else key_text,
        "none" if record.key is None else "hex" if key_text is None else "text",
        "" if record.value is None else record.value.hex() if value_text is None else value_text,
        "null" if record.value is None else "hex" if value_text is None else "text",
        "\n".join(lines), ", ".join(lost),
    )  # fmt: skip


def _editable(data: bytes | None) -> str | None:
    """Text that a browser sends back as it was."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\r" in text or "\0" in text else text


def bytes_of(text: str, kind: str, what: str) -> bytes | None:
    """The bytes that a form means. A browser ends lines by two signs, which become one."""
    if kind in ("none", "null"):
        return None
    if kind == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise ConfigError(f"the {what} is not made of hexadecimal digits: {error}") from error
    return text.replace("\r\n", "\n").encode()


def headers_of(text: str) -> tuple[tuple[str, bytes | None], ...]:
    return values.headers(line for line in text.replace("\r\n", "\n").split("\n") if line.strip())


def produce_plan(
    url: str, topic: str, partition: int | None, key: bytes | None, value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> ActionPlan:  # fmt: skip
    """The plan of sending one record."""
    headers = tuple(headers)
    told: dict[str, Any] = json_fields(Record(topic, 0, 0, 0, key, value, headers))
    given = {
        name: told[name]
        for name in ("key", "value", "headers", "key_encoding", "value_encoding")
        if name in told
    }
    line = shlex.quote(msgspec.json.encode(given).decode())
    words = ["produce", topic, "--ndjson", *([] if partition is None else ["-p", partition])]
    text = f"printf '%s\\n' {line} | {command(url, *words)}"
    if len(text) > COMMAND_CHARACTERS:
        text = f"{command(url, *words)} < record.ndjson"
    where = "by its key, or in turn" if partition is None else str(partition)
    says = [f"One record is appended to {topic}; partition: {where}."]
    size = "a tombstone (null)" if value is None else counted(len(value), "byte")
    says.append(f"Value: {size}; key: {'none' if key is None else counted(len(key), 'byte')}; "
                f"{counted(len(headers), 'header')}.")  # fmt: skip
    says.append("All who read the topic get it. Records that are there stay as they are.")
    back = page_link("records", topic=topic)
    return ActionPlan(f"Produce to {topic}", tuple(says), text, "Send it", back)
