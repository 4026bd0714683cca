"""JSON and MessagePack by msgspec: checked against a type, decoded in C.

Json(Order)                  a dataclass, msgspec struct, TypedDict, dict[str, int], ...
Json()                       anything
Json(Order, registry=...)    with its JSON Schema in a schema registry
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import msgspec

from penstock.core.errors import ConfigError
from penstock.serializers.serializer import Decode, Encode, Part, Serializer, T

if TYPE_CHECKING:
    from penstock.serializers.registry import SchemaRegistry

SUBJECT = "{topic}-{part}"


class Json(Serializer[T]):
    """JSON of a type.

    Args:
        kind: the type; none: whatever JSON has.
        registry: where the type's JSON Schema is registered, and the id of which each record
            carries; see `penstock.serializers.registry` for `subject` and `auto_register`.
    """

    @overload
    def __init__(self: Json[Any]) -> None: ...
    @overload
    def __init__(
        self,
        kind: type[T],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = SUBJECT,
        auto_register: bool = True,
    ) -> None: ...
    def __init__(
        self,
        kind: Any = Any,
        *,
        registry: SchemaRegistry | None = None,
        subject: str = SUBJECT,
        auto_register: bool = True,
    ) -> None:
        self._kind = kind
        self._encode = msgspec.json.Encoder().encode
        self._decode: Decode[T] = _made(self, msgspec.json.Decoder, kind).decode
        self._registered = None
        if registry is not None:
            from penstock.serializers.framing import RegisteredSchema  # few have a registry

            schema = msgspec.json.encode(msgspec.json.schema(kind)).decode()
            self._registered = RegisteredSchema(registry, "JSON", schema, subject, auto_register)

    def encoder(self, topic: str, part: Part) -> Encode[T]:
        if self._registered is None:
            return self._encode
        return self._registered.encoder(topic, part, self._encode)

    def decoder(self, topic: str, part: Part) -> Decode[T]:
        if self._registered is None:
            return self._decode
        return self._registered.decoder(lambda _: self._decode)

    def __repr__(self) -> str:
        return f"Json({_name(self._kind)})"


class Msgpack(Serializer[T]):
    """MessagePack of a type; `kind` as of `Json`."""

    @overload
    def __init__(self: Msgpack[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[T]) -> None: ...
    def __init__(self, kind: Any = Any) -> None:
        self._kind = kind
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Decode[T] = _made(self, msgspec.msgpack.Decoder, kind).decode

    def encoder(self, topic: str, part: Part) -> Encode[T]:
        return self._encode

    def decoder(self, topic: str, part: Part) -> Decode[T]:
        return self._decode

    def __repr__(self) -> str:
        return f"Msgpack({_name(self._kind)})"


def _made(serializer: object, decoder: Any, kind: Any) -> Any:
    try:
        return decoder(kind)
    except TypeError as error:
        raise ConfigError(f"{serializer!r}: values cannot be of this type: {error}") from error


def _name(kind: Any) -> str:
    return "" if kind is Any else getattr(kind, "__qualname__", repr(kind))
