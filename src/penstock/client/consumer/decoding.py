"""Records of a consumer with serializers: a value is decoded once it is asked for.

    record.value, record.key            decoded at the first look, and kept
    record.raw_value, record.raw_key    the bytes
    batch.decode()                      all values of a batch, as a list

What cannot be decoded raises `DecodeError` there, so that a loop may pass it over.

Owns decoding and its errors. Never decides what becomes of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET
from msgspec.structs import force_setattr

from penstock.client.consumer.records import Chunk, Record, WorkRecord, place_of
from penstock.core.errors import PenstockError
from penstock.core.work import WorkFields
from penstock.serializers.serializer import DecodeError, Part, Serializer, check_serializer

SHOWN_BYTES: Final = 40
"""Of a value that cannot be decoded."""


class Decoders:
    """The serializers of a consumer; None: bytes, as they are. Raises TypeError for what is no
    serializer."""

    def __init__(self, value: Serializer[Any] | None, key: Serializer[Any] | None) -> None:
        self._serializers: dict[Part, Serializer[Any] | None] = {"value": value, "key": key}
        self._known: dict[tuple[str, Part], Any] = {}

    @property
    def kind(self) -> type[Record]:
        return DecodedRecord

    def columns(self, work: Sequence[Iterable[Any]]) -> list[Iterable[Any]]:
        """Returns what such records have beside those of a batch with these columns for work
        queues."""
        return [*(work or [repeat(None)] * len(WorkFields._fields)), repeat(self)]

    def decode(self, record: Record, part: Part, data: bytes | None) -> Any:
        """Raises `DecodeError`, and what keeps a serializer from its registry."""
        serializer = self._serializers[part]
        if serializer is None:
            return data
        if data is None:
            if serializer.takes_none:
                return None
            what = "no value (a tombstone)" if part == "value" else "no key"
            raise DecodeError(
                f"{place_of(record)} has {what}, which {serializer!r} does not take: wrap it, as "
                f"in {part}=optional({serializer!r})"
            )
        try:
            return self._decoder(serializer, record.topic, part)(data)
        except PenstockError:
            raise
        except Exception as error:
            raise DecodeError(
                f"the {part} of {place_of(record)} cannot be decoded by {serializer!r}: "
                f"{type(error).__name__}: {error}; it begins with {data[:SHOWN_BYTES]!r}"
            ) from error

    def _decoder(self, serializer: Serializer[Any], topic: str, part: Part) -> Any:
        decode = self._known.get((topic, part))
        if decode is None:
            decode = self._known[topic, part] = serializer.decoder(topic, part)
        return decode

    def values(self, chunk: Chunk) -> list[Any]:
        """Returns all values of a chunk, by one call for all where each of them can be decoded."""
        serializer, values = self._serializers["value"], chunk.values.to_list()
        if serializer is None or None in values:
            return [record.value for record in chunk.records()]
        try:
            return list(map(self._decoder(serializer, chunk.topic, "value"), values))
        except Exception:  # the record says which one it is
            return [record.value for record in chunk.records()]


def decoders_of(value: Serializer[Any] | None, key: Serializer[Any] | None) -> Decoders | None:
    """Returns None where there is nothing to decode. Raises TypeError for what is no serializer."""
    check_serializer("value", value)
    check_serializer("key", key)
    return None if value is None and key is None else Decoders(value, key)


_RAW_VALUE: Final[Any] = vars(Record)["value"]
_RAW_KEY: Final[Any] = vars(Record)["key"]


class DecodedRecord(WorkRecord, frozen=True, gc=True, eq=False):
    """A record whose fields `value` and `key` are decoded once they are asked for."""

    decoders: Any = None
    seen_value: Any = UNSET
    seen_key: Any = UNSET

    if not TYPE_CHECKING:

        @property
        def value(self):
            found = self.seen_value
            if found is UNSET:
                found = self.decoders.decode(self, "value", _RAW_VALUE.__get__(self))
                force_setattr(self, "seen_value", found)
            return found

        @property
        def key(self):
            found = self.seen_key
            if found is UNSET:
                found = self.decoders.decode(self, "key", _RAW_KEY.__get__(self))
                force_setattr(self, "seen_key", found)
            return found

    @property
    def raw_value(self) -> bytes | None:
        raw: bytes | None = _RAW_VALUE.__get__(self)
        return raw

    @property
    def raw_key(self) -> bytes | None:
        raw: bytes | None = _RAW_KEY.__get__(self)
        return raw

    @property
    def work(self) -> WorkFields | None:
        found = WorkFields(self.due, self.expires, self.priority, self.dedup_id)
        return None if found == (None,) * len(found) else found

    def _fields(self) -> tuple[object, ...]:
        place = (self.topic, self.partition, self.offset, self.timestamp)
        return (*place, self.raw_key, self.raw_value, self.headers, *(self.work or ()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodedRecord) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return (
            f"Record({place_of(self)}, timestamp={self.timestamp}, raw_key={self.raw_key!r}, "
            f"raw_value={self.raw_value!r}, headers={self.headers!r})"
        )
