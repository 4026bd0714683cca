"""Decodes a record's value for a handler, by the handler's annotations.

    def bill(order: Order) -> None           JSON, checked against the type: a dataclass, a msgspec
                                             struct, TypedDict, dict, list, int, ...
    def bill(order: str), (order: bytes)     UTF-8; as it is
    def bill(record: Record), def bill(x)    the whole record
    def bill(order: Order, record: Record)   both
    def bill(order: Order | None)            None for a record without a value

Handlers of a share group have `Job` in place of `Record`. Where the consumer has a serializer of
values, that decodes, and annotations of values are for readers alone.

Owns decoding. Never decides what becomes of a record that cannot be decoded.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock.client.consumer.records import Record, place_of
from penstock.core.errors import ConfigError
from penstock.serializers.serializer import DecodeError

if TYPE_CHECKING:
    from penstock.client.share.jobs import Job

Function = Callable[..., Any]
Decode = Callable[[bytes], Any]

_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class Handler:
    """A function with the way from a record to its arguments. `whole`: the type of all of it.
    `is_decoded`: its consumer has a serializer of values, so annotations decode nothing. Raises
    `ConfigError` where its parameters or their types cannot be served."""

    def __init__(
        self, function: Function, whole: type[Any] = Record, *, is_decoded: bool = False
    ) -> None:
        self.function = function
        self._whole = whole
        self.name = getattr(function, "__qualname__", repr(function))
        self.is_async = inspect.iscoroutinefunction(function)
        kinds = self._kinds()
        first = kinds[0]
        self._takes_both = len(kinds) == 2
        self._takes_record = first is whole
        self._takes_none = self._is_decoded = is_decoded
        if (
            not is_decoded
            and get_origin(first) in (Union, types.UnionType)
            and type(None) in get_args(first)
        ):
            self._takes_none = True
            rest = [each for each in get_args(first) if each is not type(None)]
            first = rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007 - made here
        is_given = is_decoded or self._takes_record
        self._decode = None if is_given else self._decoder(first)

    def __call__(self, record: Record | Job) -> Any:
        """Calls it. Raises `DecodeError`, and what the function raises."""
        if self._takes_record:
            return self.function(record)
        value = self._value(record)
        return self.function(value, record) if self._takes_both else self.function(value)

    def _value(self, record: Record | Job) -> Any:
        if self._is_decoded:
            return record.value
        if record.value is None:
            if self._takes_none:
                return None
            raise DecodeError(
                f"{place_of(record)} has no value (a tombstone), and {self.name} takes no None"
            )
        try:
            return self._decode(record.value) if self._decode is not None else record.value
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DecodeError(
                f"{place_of(record)} cannot be decoded for {self.name}: {error}; its value begins "
                f"with {record.value[:40]!r}"
            ) from error

    def _kinds(self) -> list[Any]:
        """Returns the types of its one or two parameters."""
        try:
            hints = get_type_hints(self.function)
            parameters = inspect.signature(self.function).parameters.values()
        except (NameError, TypeError, ValueError) as error:
            raise ConfigError(f"handler {self.name}: its types are not known: {error}") from error
        whole = self._whole
        wanted = [each for each in parameters if each.default is inspect.Parameter.empty]
        kinds = [_plain(hints.get(each.name, whole), whole) for each in wanted]
        if (
            any(each.kind not in _POSITIONAL for each in wanted)
            or not 1 <= len(wanted) <= 2
            or (len(wanted) == 2 and (kinds[1] is not whole or kinds[0] is whole))
        ):
            raise ConfigError(
                f"handler {self.name}{inspect.signature(self.function)}: it takes a value or a "
                f"{whole.__name__}, or a value and a {whole.__name__}"
            )
        return [whole if kind is Any else kind for kind in kinds]

    def _decoder(self, kind: Any) -> Decode | None:
        if kind is bytes:
            return None
        if kind is str:
            return bytes.decode
        try:
            return msgspec.json.Decoder(kind).decode
        except TypeError as error:
            raise ConfigError(
                f"handler {self.name}: values cannot be decoded as {kind!r}: {error}"
            ) from error


def _plain(kind: Any, whole: type[Any]) -> Any:
    """Returns `Record` for `Record[Order]`."""
    return whole if get_origin(kind) is whole else kind
