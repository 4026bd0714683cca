"""Serializers: values and keys of records as objects of the program.

    from penstock.serializers import Json

    with client.producer(value=Json(Order)) as producer:
        producer.send("orders", Order("ann", 42))

    with client.consumer("orders", group="billing", value=Json(Order)) as consumer:
        for record in consumer:  # a Record[Order]
            bill(record.value)

Names are loaded when first used: those of extras need no extra until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazily import loaded

_HOMES = {
    "Arrow": "arrow",
    "Avro": "avro",
    "Custom": "serializer",
    "DecodeError": "serializer",
    "EncodeError": "serializer",
    "IncompatibleSchemaError": "registry",
    "Json": "structs",
    "Msgpack": "structs",
    "Protobuf": "protobuf",
    "RegistryError": "registry",
    "RegistrySchema": "registry",
    "SchemaRegistry": "registry",
    "Serializer": "serializer",
    "Text": "serializer",
    "UnknownSchemaError": "registry",
    "optional": "serializer",
}

__all__ = [
    "Arrow",
    "Avro",
    "Custom",
    "DecodeError",
    "EncodeError",
    "IncompatibleSchemaError",
    "Json",
    "Msgpack",
    "Protobuf",
    "RegistryError",
    "RegistrySchema",
    "SchemaRegistry",
    "Serializer",
    "Text",
    "UnknownSchemaError",
    "optional",
]

if TYPE_CHECKING:
    from penstock.serializers.arrow import Arrow
    from penstock.serializers.avro import Avro
    from penstock.serializers.protobuf import Protobuf
    from penstock.serializers.registry import (
        IncompatibleSchemaError,
        RegistryError,
        RegistrySchema,
        SchemaRegistry,
        UnknownSchemaError,
    )
    from penstock.serializers.serializer import (
        Custom,
        DecodeError,
        EncodeError,
        Serializer,
        Text,
        optional,
    )
    from penstock.serializers.structs import Json, Msgpack

__getattr__, __dir__ = loaded(__name__, _HOMES)
