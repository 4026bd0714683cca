"""Protobuf by generated classes, the extra `protobuf`.

    Protobuf(Order)                     the message's bytes
    Protobuf(Order, registry=registry)  with the id of its file in a schema registry, and which
                                        message of that it is

Fields that a reader does not know are kept, and those that a writer did not know have their
defaults: messages evolve without the writer's schema, which is not looked at.
"""

from __future__ import annotations

import base64
from typing import Any, TypeVar

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message

from penstock.core.errors import ConfigError
from penstock.serializers.framing import RegisteredSchema
from penstock.serializers.registry import SchemaRegistry
from penstock.serializers.serializer import Decode, Encode, Part, Serializer
from penstock.serializers.structs import SUBJECT

M = TypeVar("M", bound=Message)

DEPTH_MAX = 32
"""Messages within each other."""


class Protobuf(Serializer[M]):
    """Messages of one generated class.

    Args:
        message: the class.
        registry, subject, auto_register: as of `Avro`. The file of the message is registered as its
            descriptor, if it imports well-known types alone; others register it by their tools, and
            say auto_register=False.
    """

    def __init__(
        self,
        message: type[M],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = SUBJECT,
        auto_register: bool = True,
    ) -> None:
        if not (isinstance(message, type) and issubclass(message, Message)):
            raise TypeError(f"Protobuf({message!r}): name a generated message class")
        self._message = message
        self._registered = None
        if registry is not None:
            text = _file_of(message.DESCRIPTOR)
            self._registered = RegisteredSchema(registry, "PROTOBUF", text, subject, auto_register)

    def encoder(self, topic: str, part: Part) -> Encode[M]:
        if self._registered is None:
            return self._encode
        which = _written(_path_of(self._message.DESCRIPTOR))
        return self._registered.encoder(topic, part, self._encode, which)

    def decoder(self, topic: str, part: Part) -> Decode[M]:
        if self._registered is None:
            return self._decode
        return self._registered.decoder(lambda _: self._decode_behind_path)

    def _encode(self, value: M) -> bytes:
        if not isinstance(value, self._message):
            raise TypeError(f"a {self._message.__name__} is wanted, not {type(value).__name__}")
        return value.SerializeToString()

    def _decode(self, data: bytes) -> M:
        return self._message.FromString(data)

    def _decode_behind_path(self, data: bytes) -> M:
        path, at = _read_path(data)
        if path != _path_of(self._message.DESCRIPTOR):
            raise ValueError(f"it is message {path} of its file, not {self._message.__name__}")
        return self._message.FromString(data[at:])

    def __repr__(self) -> str:
        return f"Protobuf({self._message.__name__})"


def _file_of(message: Any) -> str:
    """Returns the descriptor of its file, as registries take it."""
    file = message.file
    foreign = [one.name for one in file.dependencies if not one.name.startswith("google/protobuf/")]
    if foreign:
        raise ConfigError(
            f"Protobuf({message.name}): {file.name} imports {', '.join(foreign)}: register such "
            "files by the tools of your registry"
        )
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return base64.b64encode(proto.SerializeToString()).decode()


def _path_of(message: Any) -> list[int]:
    """Returns which message of its file it is, from the outermost one on."""
    path: list[int] = []
    while (outer := message.containing_type) is not None:
        path.insert(0, list(outer.nested_types_by_name).index(message.name))
        message = outer
    return [list(message.file.message_types_by_name).index(message.name), *path]


def _written(path: list[int]) -> bytes:
    """As zigzag varints, the count first; the first message of a file is 0 alone."""
    if path == [0]:
        return b"\0"
    return b"".join(_varint(2 * number) for number in (len(path), *path))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _read_path(data: bytes) -> tuple[list[int], int]:
    """Returns the path and where the message begins. Raises ValueError."""
    count, at = _read_number(data, 0)
    if count > DEPTH_MAX:
        raise ValueError(f"a message {count} deep in others; {DEPTH_MAX} are read")
    path = []
    for _ in range(count):
        number, at = _read_number(data, at)
        path.append(number)
    return path or [0], at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    raw, shift = 0, 0
    while at < len(data) and shift < 35:
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            if raw & 1:
                break  # negative
            return raw >> 1, at
    raise ValueError("it does not say which message of its file it is")
