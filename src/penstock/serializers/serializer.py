"""`Serializer`: how values of one type become the bytes of records, and come back.

A producer takes one for values and one for keys, and a consumer as well. The same object serves
both, and any number of topics and threads.

    None            travels as it is: a tombstone, or no key. A consumer takes it only by `optional`
    cannot encode   `EncodeError`, by `send`: nothing is sent
    cannot decode   `DecodeError`, where the value is asked for

Owns the interface and its errors. Never touches clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from penstock.core.errors import PenstockError

T = TypeVar("T")
Part = Literal["value", "key"]
Encode = Callable[[T], bytes]
Decode = Callable[[bytes], T]


class DecodeError(PenstockError):
    """A record's value, or key, is not what a serializer or a handler's annotation says. It is the
    same each time, so it is not tried again."""


class EncodeError(PenstockError):
    """A value, or key, cannot be encoded by its producer's serializer. Nothing was sent."""


class Serializer(ABC, Generic[T]):
    """A kind of value. Subclasses say how it is encoded and decoded for a topic.

    Both functions are asked for once for each topic and part, and called for each record, by any
    thread. Whatever they raise, but for a `PenstockError`, is the fault of the value.
    """

    takes_none: bool = False
    """Whether a consumer's record may have none."""

    @abstractmethod
    def encoder(self, topic: str, part: Part) -> Encode[T]:
        """Returns the function that makes bytes."""

    @abstractmethod
    def decoder(self, topic: str, part: Part) -> Decode[T]:
        """Returns the function that reads bytes."""


class Custom(Serializer[T]):
    """A pair of functions, such as `Custom(str.encode, bytes.decode)`."""

    def __init__(self, encode: Encode[T], decode: Decode[T]) -> None:
        self._encode = encode
        self._decode = decode

    def encoder(self, topic: str, part: Part) -> Encode[T]:
        return self._encode

    def decoder(self, topic: str, part: Part) -> Decode[T]:
        return self._decode

    def __repr__(self) -> str:
        return f"Custom({self._encode!r}, {self._decode!r})"


class Text(Serializer[str]):
    """Text as UTF-8."""

    def encoder(self, topic: str, part: Part) -> Encode[str]:
        return str.encode

    def decoder(self, topic: str, part: Part) -> Decode[str]:
        return bytes.decode

    def __repr__(self) -> str:
        return "Text()"


class _Optional(Serializer[Any]):
    takes_none = True

    def __init__(self, inner: Serializer[Any]) -> None:
        self._inner = inner

    def encoder(self, topic: str, part: Part) -> Encode[Any]:
        return self._inner.encoder(topic, part)

    def decoder(self, topic: str, part: Part) -> Decode[Any]:
        return self._inner.decoder(topic, part)

    def __repr__(self) -> str:
        return f"optional({self._inner!r})"


def optional(serializer: Serializer[T]) -> Serializer[T | None]:
    """Returns the same for consumers of topics with tombstones, or with records without a key: what
    is not there is None."""
    return _Optional(check_serializer("serializer", serializer))


def check_serializer(name: str, given: Any) -> Any:
    """Returns it. Raises TypeError for what is no serializer."""
    if given is None or isinstance(given, Serializer):
        return given
    hint = f"; write {given.__name__}()" if _is_serializer_class(given) else ""
    raise TypeError(
        f"{name}={given!r} must be a serializer, such as penstock.serializers.Json(Order){hint}"
    )


def _is_serializer_class(given: Any) -> bool:
    return isinstance(given, type) and issubclass(given, Serializer)
