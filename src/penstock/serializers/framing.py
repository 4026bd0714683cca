"""A value with the id of its schema in front, as Confluent's clients write it.

    0        magic byte, 0
    1 to 4   id of the schema in the registry, big-endian
    5 ...    the value; of Protobuf first which message of the file it is

Owns this frame, and which subject a topic's schema is registered under.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from penstock.core.errors import ConfigError
from penstock.serializers.registry import (
    RegistrySchema,
    SchemaKind,
    SchemaRegistry,
    UnknownSchemaError,
)
from penstock.serializers.serializer import Decode, Encode, Part, T

MAGIC: Final = 0
_PREFIX: Final = struct.Struct(">BI")
DECODERS_MAX: Final = 1000
"""Decoders of schemas that one serializer keeps for a topic."""


class RegisteredSchema:
    """A schema of a registry, under a subject of each topic.

    Args:
        subject: its name; "{topic}" is the record's, "{part}" "value" or "key".
        auto_register: False: the schema must be registered under the subject before.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        kind: SchemaKind,
        schema: str,
        subject: str,
        auto_register: bool,
    ) -> None:
        if not isinstance(registry, SchemaRegistry):
            raise TypeError(
                f"registry={registry!r} must be a SchemaRegistry, as SchemaRegistry('http://...')"
            )
        if not subject or not isinstance(subject, str):
            raise ConfigError(f"subject={subject!r} must name a subject, as '{{topic}}-{{part}}'")
        self._registry = registry
        self._schema = RegistrySchema(kind, schema)
        self._subject = subject
        self._auto_register = auto_register

    def encoder(
        self, topic: str, part: Part, encode: Encode[T], after_id: bytes = b""
    ) -> Encode[T]:
        """Returns `encode` with the frame. Asks the registry for the id."""
        subject = self._subject.replace("{topic}", topic).replace("{part}", part)
        ask = self._registry.register if self._auto_register else self._registry.find
        prefix = _PREFIX.pack(MAGIC, ask(subject, self._schema)) + after_id
        return lambda value: prefix + encode(value)

    def decoder(self, of_schema: Callable[[RegistrySchema], Decode[T]]) -> Decode[T]:
        """Returns a function that takes the frame off, and decodes by what `of_schema` returns for
        the schema of the writer. It asks the registry for ids that are new."""
        known: dict[int, Decode[T]] = {}

        def decode(data: bytes) -> T:
            number = _id_of(data)
            found = known.get(number)
            if found is None:
                found = of_schema(self._of(number))
                if len(known) >= DECODERS_MAX:
                    known.clear()
                known[number] = found
            return found(data[_PREFIX.size :])

        return decode

    def _of(self, number: int) -> RegistrySchema:
        try:
            schema = self._registry.by_id(number)
        except UnknownSchemaError as error:
            raise ValueError(str(error)) from error  # a fault of the record
        if schema.kind != self._schema.kind:
            raise ValueError(
                f"schema {number} of the registry is {schema.kind}, not {self._schema.kind}"
            )
        return schema


def _id_of(data: bytes) -> int:
    if len(data) < _PREFIX.size or data[0] != MAGIC:
        raise ValueError(
            f"it does not begin with the byte 0 and the id of a schema, but with {data[:5]!r}"
        )
    number: int = _PREFIX.unpack_from(data)[1]
    return number
