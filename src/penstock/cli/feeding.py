"""From a stream of bytes to records: lines, JSON objects one a line, or length-prefixed values.

Memory is bounded by one record, whatever the stream brings. A record that cannot be read is told
to `refuse` and skipped; framing that is lost for good raises.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock.core.errors import ConfigError, PenstockError
from penstock.core.work import WorkFields

RECORD_MAX: Final = 1 << 26
"""No more bytes than this are gathered for one record; a reader expands no larger batch."""
LENGTH: Final = struct.Struct("<I")
NULL_LENGTH: Final = 0xFFFFFFFF
"""The length of a null value, which has no bytes."""

HeaderPairs = tuple[tuple[str, "bytes | None"], ...]
Refuse = Callable[[str], None]


class Given(NamedTuple):
    """One record as it was read."""

    value: bytes | None
    key: bytes | None = None
    headers: HeaderPairs | None = None
    timestamp: int | None = None
    partition: int | None = None
    work: WorkFields | None = None


class Defaults(NamedTuple):
    """The command line's fields for every record."""

    key: bytes | None = None
    headers: HeaderPairs | None = None
    partition: int | None = None
    key_separator: bytes | None = None
    null: bytes | None = None


def split_lines(chunks: Iterable[bytes], refuse: Refuse) -> Iterator[bytes]:
    """Lines without their newline; the last one needs none. A line over the bound is refused."""
    pieces: list[bytes] = []
    held = 0
    skipping = False
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        if not skipping:
            pieces.append(first)
            held += len(first)
            if held > RECORD_MAX:
                refuse(f"it is over the bound of {RECORD_MAX} bytes")
                pieces, held, skipping = [], 0, True
        if not others:
            continue
        if not skipping:
            yield b"".join(pieces)
        *whole, last = others
        yield from whole
        pieces, held, skipping = [last], len(last), False
    if held and not skipping:
        yield b"".join(pieces)


def from_lines(chunks: Iterable[bytes], defaults: Defaults, refuse: Refuse) -> Iterator[Given]:
    """Yields each line as a value, or key and value around the separator."""
    key, headers, partition, separator, null = defaults
    for line in split_lines(chunks, refuse):
        value: bytes | None = line
        own = key
        if separator is not None:
            before, found, after = line.partition(separator)
            if found:
                own, value = before, after
        if null is not None:
            own = None if own == null else own
            value = None if value == null else value
        yield Given(value, own, headers, None, partition)


def from_lengths(chunks: Iterable[bytes], defaults: Defaults, refuse: Refuse) -> Iterator[Given]:
    """Yields values, each behind its length (u32, little-endian); all ones mean a null."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        at = 0
        while at + LENGTH.size <= len(held):
            (length,) = LENGTH.unpack_from(held, at)
            value: bytes | None = None
            if length == NULL_LENGTH:
                at += LENGTH.size
            elif length > RECORD_MAX:
                raise PenstockError(
                    f"the input says a record of {length} bytes follows, over the bound of "
                    f"{RECORD_MAX}: is it length-prefixed (u32, little-endian)?"
                )
            elif at + LENGTH.size + length > len(held):
                break
            else:
                at += LENGTH.size
                value = bytes(held[at : at + length])
                at += length
            yield Given(value, defaults.key, defaults.headers, None, defaults.partition)
        del held[:at]
    if held:
        raise PenstockError(f"the input ends within a record, {len(held)} bytes into it")


class JsonRecord(msgspec.Struct):
    """A line of `--ndjson`, and of `consume --format json` (whose other fields are passed over).

    Text means its UTF-8 bytes, or base64 where `*_encoding` says so; any other JSON means its own
    text.
    """

    value: msgspec.Raw
    key: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str | None] | list[list[str | None]] | None = None
    timestamp: int | datetime | None = None
    partition: int | None = None
    key_encoding: Literal["base64"] | None = None
    value_encoding: Literal["base64"] | None = None
    due: int | None = None
    expires: int | None = None
    priority: int | None = None
    dedup_id: str | None = None
    dedup_id_encoding: Literal["base64"] | None = None


def from_json(chunks: Iterable[bytes], defaults: Defaults, refuse: Refuse) -> Iterator[Given]:
    """Yields each line as an object; empty lines are passed over."""
    decoder = msgspec.json.Decoder(JsonRecord)
    for line in split_lines(chunks, refuse):
        if not line.strip():
            continue
        try:
            yield _given(decoder.decode(line), defaults)
        except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError, binascii.Error) as error:
            refuse(f"{error}: {line[:80].decode('utf-8', 'replace')}")


def _given(record: JsonRecord, defaults: Defaults) -> Given:
    value = _plain(record.value, record.value_encoding)
    key = defaults.key
    if record.key is not msgspec.UNSET:
        key = _plain(record.key, record.key_encoding)
    stamp = record.timestamp
    if isinstance(stamp, datetime):
        stamp = int(stamp.timestamp() * 1e6)
    if stamp is not None and not 0 <= stamp < 1 << 62:
        raise ConfigError(f"timestamp {stamp} is not microseconds since the epoch")
    headers = defaults.headers
    if record.headers:
        headers = (headers or ()) + _pairs(record.headers)
    partition = defaults.partition if record.partition is None else record.partition
    ident: bytes | None = None
    if record.dedup_id is not None:
        ident = record.dedup_id.encode()
        if record.dedup_id_encoding:
            ident = base64.b64decode(ident, validate=True)
    work = WorkFields(record.due, record.expires, record.priority, ident)
    return Given(value, key, headers, stamp, partition, None if work == WorkFields() else work)


def _plain(raw: msgspec.Raw, encoding: str | None) -> bytes | None:
    data = bytes(raw)
    if data == b"null":
        return None
    if not data.startswith(b'"'):
        if encoding:
            raise ConfigError("base64 needs a string")
        return data
    text = msgspec.json.decode(data, type=str)
    return base64.b64decode(text, validate=True) if encoding else text.encode()


def _pairs(given: dict[str, str | None] | list[list[str | None]]) -> HeaderPairs:
    """Reads `{"name": "value"}`, or `[["name", "value"], ["name", "dmFsdWU=", "base64"]]`."""
    entries: Iterable[Any] = given.items() if isinstance(given, dict) else given
    pairs: list[tuple[str, bytes | None]] = []
    for entry in entries:
        if not 2 <= len(entry) <= 3 or entry[0] is None or entry[2:] not in ([], ["base64"], ()):
            raise ConfigError(f"header {entry!r}: write [name, value] or [name, value, 'base64']")
        name, value = entry[0], entry[1]
        if value is None:
            pairs.append((name, None))
        elif len(entry) == 3:
            pairs.append((name, base64.b64decode(value, validate=True)))
        else:
            pairs.append((name, value.encode()))
    return tuple(pairs)
