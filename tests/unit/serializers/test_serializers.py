"""Serializers: round trips, evolution, bad bytes; and the client of a schema registry."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from schema_registry import RegistryUnderTest, schema_registry

from penstock.core.errors import ConfigError
from penstock.serializers import (
    Arrow,
    Avro,
    IncompatibleSchemaError,
    Json,
    Msgpack,
    Protobuf,
    RegistryError,
    RegistrySchema,
    SchemaRegistry,
    Serializer,
    Text,
    UnknownSchemaError,
)

NAME = {"name": "who", "type": "string"}
CENTS = {"name": "cents", "type": "int"}
PAID = {"name": "paid", "type": "boolean", "default": False}


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [*fields]}


ORDER = schema(NAME, CENTS)
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


@dataclass
class Order:
    who: str
    cents: int


class Paid(msgspec.Struct):
    who: str
    cents: int
    paid: bool = False


ANN = Order("ann", 42)


def _messages() -> tuple[Any, Any, Any]:
    """Classes of a file: two messages, and one within the second."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    text, number = (
        getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{it}") for it in ("STRING", "INT32")
    )
    for name in ("Order", "Customer"):
        message = file.message_type.add(name=name)
        message.field.add(name="who", number=1, type=text, label=1)
        message.field.add(name="cents", number=2, type=number, label=1)
    inner = file.message_type[1].nested_type.add(name="Address")
    inner.field.add(name="city", number=1, type=text, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("shop.Order", "shop.Customer", "shop.Customer.Address")
    found = [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
    return found[0], found[1], found[2]


ProtoOrder, ProtoCustomer, ProtoAddress = _messages()


def there_and_back(serializer: Serializer[Any], value: Any) -> Any:
    data = serializer.encoder("orders", "value")(value)
    assert type(data) is bytes
    return serializer.decoder("orders", "value")(data)


@pytest.fixture(scope="module")
def served() -> Iterator[RegistryUnderTest]:
    with schema_registry() as registry:
        yield registry


@pytest.fixture
def registry(served: RegistryUnderTest) -> SchemaRegistry:
    """A client that knows nothing yet."""
    return SchemaRegistry(served.url)


# --- round trips ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Text(), "æ, and more"),
        (Json(), {"a": [1, None, "b"]}),
        (Json(Order), ANN),
        (Json(dict[str, int]), {"a": 1}),
        (Msgpack(), {"a": [1, b"b"]}),
        (Msgpack(Paid), Paid("ann", 42, True)),
        (Avro(ORDER), {"who": "ann", "cents": 42}),
        (Avro(json.dumps(ORDER), Order), ANN),
        (Avro("long"), 1 << 40),
        (Avro(MICROS), datetime(2026, 11, 23, tzinfo=UTC)),
        (Protobuf(ProtoOrder), ProtoOrder(who="ann", cents=42)),
        (Arrow(), pa.table({"a": [1, 2, None]})),
        (Arrow(compression="lz4"), pa.table({"a": ["x"] * 1000})),
    ],
    ids=lambda it: repr(it)[:30],
)  # fmt: skip
def test_what_was_encoded_is_decoded(serializer, value):
    assert there_and_back(serializer, value) == value


@given(st.text(), st.integers(-(1 << 31), (1 << 31) - 1))
def test_any_order_comes_back(who, cents):
    order = Order(who, cents)
    for serializer in (Msgpack(Order), Avro(ORDER, Order)):
        assert there_and_back(serializer, order) == order


@given(st.binary(max_size=60))
def test_bad_bytes_raise_exceptions_at_worst(data):
    """Or they happen to be a value. Nothing hangs, and nothing ends the process."""
    kinds = (Json(Order), Msgpack(Order), Avro(ORDER, Order), Protobuf(ProtoOrder), Arrow())
    for serializer in kinds:
        with suppress(Exception):
            serializer.decoder("orders", "value")(data)


def test_a_value_too_deep_to_decode_does_not_end_the_process(registry):
    link = {"name": "next", "type": ["null", "Link"]}
    links = {"type": "record", "name": "Link", "fields": [CENTS, link]}
    values = Avro(links)
    value: dict[str, Any] | None = None
    for cents in range(100):
        value = {"cents": cents, "next": value}
    assert there_and_back(values, value) == value
    deep = b"\2\2" * 100_000 + b"\2\0"
    with pytest.raises(RecursionError):
        values.decoder("links", "value")(deep)
    foreign = RegistrySchema("AVRO", json.dumps(schema(NAME, CENTS, {"name": "x", "type": links})))
    number = registry.register("others", foreign)
    orders = Avro(ORDER, registry=registry).decoder("orders", "value")
    with pytest.raises(RecursionError):  # what a reader passes over may be deep, too
        orders(struct.pack(">BI", 0, number) + b"\6ann\2" + deep)


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "no", "type": "null"}]}


@pytest.mark.parametrize(
    "fields",
    [
        [{"name": "x", "type": {"type": "array", "items": "null"}}],
        [{"name": "x", "type": ["null", {"type": "array", "items": EMPTY}]}],
        [{"name": "x", "type": EMPTY}, {"name": "y", "type": {"type": "array", "items": "Empty"}}],
        [{"name": "x", "type": {"type": "array", "items": {**EMPTY, "type": "fixed", "size": 0}}}],
    ],
    ids=["null", "record", "name", "fixed"],
)
def test_an_array_that_no_bytes_bound_is_refused(registry, fields):
    """Eight bytes of it kept a consumer busy for hours, and no Ctrl-C ended that."""
    with pytest.raises(ConfigError, match="no bound"):
        Avro(schema(NAME, *fields))
    foreign = RegistrySchema("AVRO", json.dumps(schema(NAME, CENTS, *fields)))
    number = registry.register(f"arrays-{uuid4()}", foreign)
    with pytest.raises(ValueError, match="no bound"):
        Avro(ORDER, registry=registry).decoder("orders", "value")(struct.pack(">BI", 0, number))


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        (Json(Order), b'{"who": 1}'), (Text(), b"\xff"), (Msgpack(Order), b"\x93\1\2\3"),
        (Avro(ORDER), b"\x06ann\x54 and more"), (Avro(ORDER), b"\x06an"),
        (Protobuf(ProtoOrder), b"\x0a\xff"), (Arrow(), b"no stream"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(serializer, data):
    with pytest.raises(Exception):  # noqa: B017, PT011 - of msgspec, fastavro, ...
        serializer.decoder("orders", "value")(data)


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Avro(ORDER), {"who": "ann"}), (Avro(ORDER), {"who": "ann", "cents": 1, "tip": 2}),
        (Protobuf(ProtoOrder), ProtoCustomer()), (Arrow(), [1]), (Text(), b"a"),
    ],
)  # fmt: skip
def test_values_of_other_kinds_are_not_encoded(serializer, value):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        serializer.encoder("orders", "value")(value)


def test_what_cannot_be_a_serializer_says_so():
    with pytest.raises(ConfigError, match="Avro: this is no schema"):
        Avro({"type": "no such type"})
    with pytest.raises(ConfigError, match=r"Json.*values cannot be of this type"):
        Json(Order | Paid)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="generated message class"):
        Protobuf(Order)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"registry='http.* must be a SchemaRegistry"):
        Avro(ORDER, registry="http://127.0.0.1")  # type: ignore[call-overload]


# --- with a registry ------------------------------------------------------------------------------
def test_each_value_carries_the_id_of_its_schema(served, registry):
    orders = Avro(ORDER, Order, registry=registry)
    encode = orders.encoder("framed", "value")
    asked = len(served.asked)
    magic, number = struct.unpack_from(">BI", encode(ANN))
    assert (magic, registry.by_id(number).kind) == (0, "AVRO")
    assert json.loads(registry.by_id(number).text) == ORDER
    assert encode(ANN)[5:] == Avro(ORDER, Order).encoder("framed", "value")(ANN)
    assert served.asked[asked:] == [f"GET /schemas/ids/{number}"]  # once
    assert registry.versions("framed-value") == [1]
    assert registry.version("framed-value") == registry.by_id(number)
    assert "framed-value" in registry.subjects()
    assert there_and_back(orders, ANN) == ANN


def test_readers_and_writers_may_have_other_versions(registry):
    """Avro's rules of resolution: a field that is new has its default, one that is gone is not
    read."""
    old = Avro(ORDER, registry=registry, subject="evolving")
    new = Avro(schema(NAME, CENTS, PAID), Paid, registry=registry, subject="evolving")
    written = old.encoder("orders", "value")({"who": "ann", "cents": 42})
    assert new.decoder("orders", "value")(written) == Paid("ann", 42, False)
    again = new.encoder("orders", "value")(Paid("bob", 7, True))
    assert old.decoder("orders", "value")(again) == {"who": "bob", "cents": 7}
    assert registry.versions("evolving") == [1, 2]


def test_a_schema_that_does_not_fit_is_refused(registry):
    Avro(ORDER, registry=registry, subject="strict").encoder("orders", "value")
    other = RegistrySchema("AVRO", json.dumps(schema(NAME, {"name": "tip", "type": "int"})))
    assert not registry.is_compatible("strict", other)
    assert registry.is_compatible("never-used", other)
    serializer = Avro(other.text, registry=registry, subject="strict")
    with pytest.raises(IncompatibleSchemaError, match="status 409: Schema being registered"):
        serializer.encoder("orders", "value")


def test_a_schema_that_must_be_there_is_not_registered(registry):
    orders = Avro(ORDER, registry=registry, subject="{topic}.{part}", auto_register=False)
    with pytest.raises(UnknownSchemaError, match=r"/subjects/there.key: status 404"):
        orders.encoder("there", "key")
    registry.register("there.key", RegistrySchema("AVRO", json.dumps(ORDER, separators=(",", ":"))))
    assert orders.encoder("there", "key")({"who": "ann", "cents": 1})[0] == 0


def test_json_and_protobuf_are_framed_too(registry):
    assert there_and_back(Json(Order, registry=registry, subject="json"), ANN) == ANN
    assert json.loads(registry.version("json").text)["$defs"]["Order"]["required"] == [
        "who",
        "cents",
    ]
    for kind, path in ((ProtoOrder, b"\0"), (ProtoCustomer, b"\2\2"), (ProtoAddress, b"\4\2\0")):
        serializer = Protobuf(kind, registry=registry, subject="proto")
        assert serializer.encoder("orders", "value")(kind())[5:] == path
        assert there_and_back(serializer, kind()) == kind()
    data = Protobuf(ProtoCustomer, registry=registry, subject="proto").encoder("o", "value")(
        ProtoCustomer()
    )
    with pytest.raises(ValueError, match=r"message \[1\] of its file, not Order"):
        Protobuf(ProtoOrder, registry=registry).decoder("o", "value")(data)
    with pytest.raises(ValueError, match="is PROTOBUF, not AVRO"):
        Avro(ORDER, registry=registry).decoder("o", "value")(data)


def test_a_schema_may_refer_to_others(registry):
    registry.register("name", RegistrySchema("AVRO", json.dumps({**schema(NAME), "name": "Name"})))
    body = schema({"name": "name", "type": "Name"})
    from penstock.serializers.registry import Reference

    named = RegistrySchema("AVRO", json.dumps(body), (Reference("Name", "name", 1),))
    number = registry.register("refers", named)
    whole = schema({"name": "name", "type": {**schema(NAME), "name": "Name"}})
    data = struct.pack(">BI", 0, number) + b"\x06ann"
    decode = Avro(whole, registry=registry).decoder("orders", "value")
    assert decode(data) == {"name": {"who": "ann"}}


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\0", b"\1\0\0\0\1", b"\0\xff\xff\xff\xff", b'{"a": 1}']
)
def test_bytes_without_a_known_schema_are_a_fault_of_the_record(served, registry, data):
    """An unknown id is asked for once, however many records carry it."""
    decode = Avro(ORDER, registry=registry).decoder("orders", "value")
    asked = len(served.asked)
    for _ in range(3):
        with pytest.raises(ValueError, match=r"begin with the byte 0|no schema|Schema not found"):
            decode(data)
    assert len(served.asked) - asked <= 1


# --- a registry that is away, or odd --------------------------------------------------------------
def test_a_registry_that_is_away_is_no_fault_of_a_record():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        registry = SchemaRegistry(f"http://127.0.0.1:{taken.getsockname()[1]}")
        decode = Avro(ORDER, registry=registry).decoder("orders", "value")
        with pytest.raises(
            RegistryError, match="no answer within 5 s: ConnectionRefused"
        ) as caught:
            decode(b"\0\0\0\0\1")
    assert caught.value.retriable


def test_a_registry_whose_answer_begins_without_end_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def drip() -> None:
            opened, _ = server.accept()
            with opened, suppress(OSError):
                opened.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not is_over.wait(0.02):
                    opened.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        silent = SchemaRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.2)
        with pytest.raises(RegistryError, match="its head does not end") as caught:
            silent.by_id(1)
        is_over.set()
        dripping.join()
    assert caught.value.retriable


def test_a_registry_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryError, match=r"no answer within 0.05 s: TimeoutError"):
            SchemaRegistry(url, timeout=0.05).subjects()


@pytest.mark.parametrize(
    ("trouble", "says", "retriable"),
    [
        ((500, {"error_code": 50001, "message": "no leader"}), "status 500: no leader", True),
        ((200, b"<html>"), "this is no answer of a schema registry", False),
        ((200, b" " * (5 << 20)), "more than 4194304 bytes", True),
        ((302, b""), "status 302: Found", False),
    ],
)
def test_other_answers_are_told(served, registry, trouble, says, retriable):
    served.trouble = trouble
    try:
        with pytest.raises(RegistryError, match=says) as caught:
            registry.subjects()
    finally:
        served.trouble = None
    assert caught.value.retriable is retriable


def test_names_and_passwords_are_in_requests_and_not_in_messages():
    with schema_registry(auth=("ann", "s3cret:")) as served:
        assert SchemaRegistry(served.url, auth=("ann", "s3cret:")).subjects() == []
        inside = served.url.replace("http://", "http://ann:s3cret%3A@")
        assert SchemaRegistry(inside).subjects() == []
        wrong = SchemaRegistry(inside.replace("s3cret", "other"))
        with pytest.raises(RegistryError, match="status 401: Unauthorized") as caught:
            wrong.subjects()
        assert "other" not in f"{caught.value}{wrong!r}{wrong.url}"


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", "http://"])
def test_other_addresses_are_refused(url):
    with pytest.raises(ConfigError, match="a schema registry is at http://HOST:PORT"):
        SchemaRegistry(url)
    with pytest.raises(ConfigError, match="timeout=0 must be above 0"):
        SchemaRegistry("http://registry", timeout=0)
