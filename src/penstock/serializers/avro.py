"""Avro by fastavro, the extra `avro`.

Avro(schema)                     dicts, of one schema that producers and consumers both have
Avro(schema, Order)              values of this type in place of dicts
Avro(schema, registry=registry)  the id of the writer's schema is in each record, so that
                                 schemas may change as Avro's rules of resolution allow
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any, Final, overload
from uuid import UUID

import fastavro
import msgspec
from fastavro import _read_py

from penstock.core.errors import ConfigError
from penstock.serializers.framing import RegisteredSchema
from penstock.serializers.registry import RegistrySchema, SchemaRegistry
from penstock.serializers.serializer import Decode, Encode, Part, Serializer, T
from penstock.serializers.structs import SUBJECT

AVRO_TYPES: Final = (bytes, bytearray, date, datetime, time, timedelta, Decimal, UUID)
"""Types that fastavro takes as they are, by logical types."""


class Avro(Serializer[T]):
    """Avro of a schema.

    Args:
        schema: as a dict, a list, or JSON text. Consumers read by it, whatever the writer had.
        kind: the type of values; none: what fastavro makes of the schema, such as dicts.
        registry: see `penstock.serializers.registry`. Without one a record has no schema with it.
        subject: where the schema is registered; "{topic}" is the record's, "{part}" "value" or
            "key".
        auto_register: False: the schema must be registered there before.
    """

    @overload
    def __init__(
        self: Avro[Any],
        schema: str | dict[str, Any] | list[Any],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = SUBJECT,
        auto_register: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        schema: str | dict[str, Any] | list[Any],
        kind: type[T],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = SUBJECT,
        auto_register: bool = True,
    ) -> None: ...
    def __init__(
        self,
        schema: str | dict[str, Any] | list[Any],
        kind: Any = None,
        *,
        registry: SchemaRegistry | None = None,
        subject: str = SUBJECT,
        auto_register: bool = True,
    ) -> None:
        given = _as_json(schema)
        self._kind = kind
        try:
            self._schema: Any = _parsed(given, {})
        except Exception as error:  # fastavro raises what it happens upon
            raise ConfigError(f"Avro: this is no schema: {error!r}") from error
        self._registered = None
        if registry is not None:
            text = json.dumps(given, separators=(",", ":"))
            self._registered = RegisteredSchema(registry, "AVRO", text, subject, auto_register)
        self._registry = registry

    def encoder(self, topic: str, part: Part) -> Encode[T]:
        if self._registered is None:
            return self._encode
        return self._registered.encoder(topic, part, self._encode)

    def decoder(self, topic: str, part: Part) -> Decode[T]:
        if self._registered is None:
            read = _reader_of([self._schema])
            return lambda data: self._decode(data, self._schema, read)
        return self._registered.decoder(self._decoder_of)

    def _decoder_of(self, schema: RegistrySchema) -> Decode[T]:
        assert self._registry is not None
        named: dict[str, Any] = {}
        schemas = [
            _parsed(json.loads(one.text), named)
            for one in (*self._registry.references(schema), schema)
        ]
        read = _reader_of(schemas)
        return lambda data: self._decode(data, schemas[-1], read)

    def _encode(self, value: T) -> bytes:
        plain = value if self._kind is None else _plain(value)
        out = BytesIO()
        fastavro.schemaless_writer(out, self._schema, plain, strict=True)
        return out.getvalue()

    def _decode(self, data: bytes, writer: Any, read: Callable[..., Any]) -> T:
        source = BytesIO(data)
        found: Any = read(source, writer, self._schema)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes are left behind its end")
        if self._kind is None:
            return found  # type: ignore[no-any-return]
        return msgspec.convert(found, self._kind, builtin_types=AVRO_TYPES)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        name = self._schema.get("name") if isinstance(self._schema, dict) else None
        return f"Avro({name or self._schema!r})"


def _as_json(schema: object) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        return schema  # the name of a primitive type


def _reader_of(schemas: Sequence[Any]) -> Callable[..., Any]:
    """Returns fastavro's reader for these. The compiled one looks after no stack: values of a type
    that holds itself may be so deep that the process ends. The one in Python raises."""
    is_recursive = any(map(_is_recursive, schemas))
    return _read_py.schemaless_reader if is_recursive else fastavro.schemaless_reader


def _parsed(schema: Any, named: dict[str, Any]) -> Any:
    """As fastavro does it, which knows types by `named`, and adds to them. Raises what it raises,
    and ValueError where a few bytes say that an array has 2**60 items: its readers take each."""
    parsed = fastavro.parse_schema(schema, named)
    _check_arrays(parsed, named)
    return parsed


def _check_arrays(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, dict) and schema["type"] == "array" and _is_empty(schema["items"], named):
        raise ValueError("an array of items that take no bytes has no bound")
    for part in _parts(schema):
        _check_arrays(part, named)


def _is_empty(schema: Any, named: dict[str, Any], within: frozenset[str] = frozenset()) -> bool:
    """Returns whether values of it take no bytes."""
    if isinstance(schema, str):
        is_known = schema in named and schema not in within
        return schema == "null" or (is_known and _is_empty(named[schema], named, within | {schema}))
    if isinstance(schema, list):
        return False
    if schema["type"] in ("record", "error"):
        return all(_is_empty(field["type"], named, within) for field in schema["fields"])
    return schema.get("size") == 0 or _is_empty(schema["type"], named, within)


def _is_recursive(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Returns whether a type of this parsed schema holds itself."""
    if isinstance(schema, str):
        return schema in within
    if isinstance(schema, dict) and "name" in schema:
        within |= {schema["name"]}
    return any(_is_recursive(part, within) for part in _parts(schema))


def _parts(schema: Any) -> list[Any]:
    """Returns the schemas that this parsed one is made of."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, list) else []
    found = [schema[name] for name in ("type", "items", "values") if name in schema]
    return found + [field["type"] for field in schema.get("fields", ())]


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, builtin_types=AVRO_TYPES)
