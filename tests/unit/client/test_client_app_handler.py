"""What a handler's annotations make of a record, and which handlers there cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from penstock import App, ConfigError, DecodeError, Record, Retry
from penstock.client.app.handler import Handler


@dataclass
class Order:
    who: str
    count: int = 1


def given(value: bytes | None) -> Record:
    return Record("orders", 2, 7, 0, None, value)


def whole(record: Record):
    return record


def plain(x):
    return x


def anything(x: Any):
    return x


def raw(value: bytes):
    return value


def text(value: str):
    return value


def table(value: dict[str, Any]):
    return value


def order(value: Order, times: int = 1):
    return value


def both(value: Order, record: Record):
    return value.who, record.offset


def perhaps(value: Order | None):
    return value


@pytest.mark.parametrize(
    ("function", "value", "wanted"),
    [
        (whole, b"x", given(b"x")),
        (plain, b"x", given(b"x")),
        (anything, None, given(None)),
        (raw, b"\xff", b"\xff"),
        (text, "ä".encode(), "ä"),
        (table, b'{"who": "ann"}', {"who": "ann"}),
        (order, b'{"who": "ann", "count": 3}', Order("ann", 3)),
        (both, b'{"who": "ann"}', ("ann", 7)),
        (perhaps, b'{"who": "ann"}', Order("ann")),
        (perhaps, None, None),
    ],
)
def test_the_annotation_says_what_a_handler_gets(function, value, wanted):
    assert Handler(function)(given(value)) == wanted


@pytest.mark.parametrize(
    ("function", "value", "said"),
    [
        (
            order,
            b"{",
            "orders-2 offset 7 cannot be decoded for order: .*its value begins with b'{'",
        ),
        (order, b'{"who": 3}', "Expected `str`, got `int`"),
        (text, b"\xff", "invalid start byte"),
        (raw, None, r"orders-2 offset 7 has no value \(a tombstone\), and raw takes no None"),
    ],
)
def test_what_is_no_such_value_names_the_record(function, value, said):
    with pytest.raises(DecodeError, match=said):
        Handler(function)(given(value))


def three(a: str, b: Record, c: int): ...
def twice(a: Record, b: Record): ...
def by_name(*, a: str): ...
def none(): ...


@pytest.mark.parametrize("function", [three, twice, by_name, none])
def test_other_parameters_are_refused(function):
    with pytest.raises(ConfigError, match="it takes a value or a Record, or a value and a Record"):
        Handler(function)


def test_types_that_json_does_not_have_are_refused():
    def strange(value: threading.Lock): ...  # type: ignore[name-defined]  # noqa: F821

    def either(value: dict[str, int] | dict[str, str]): ...

    with pytest.raises(ConfigError, match="strange: its types are not known: name 'threading'"):
        Handler(strange)
    with pytest.raises(ConfigError, match="either: values cannot be decoded as"):
        Handler(either)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency=0 must lie between 1 and 256"),
        ({"on_error": "retry"}, "on_error='retry' must be one of 'stop', 'skip'"),
        ({"retries": -1}, "retries=-1 must lie between"),
        ({"group": "a b"}, "group 'a b': a name has"),
        ({"retry": Retry(), "retries": 1, "on_error": "skip"}, "leave retries=, on_error= out"),
        ({"retry": Retry(), "guarantee": "at-most-once"}, "leave guarantee= out"),
        ({"retry": Retry(), "pattern": "a.*"}, "leave pattern= out"),
    ],
)
def test_options_are_checked_where_the_handler_is_registered(options, said):
    with pytest.raises(ConfigError, match=said):
        App().consumer("orders", **{"group": "g", **options})(plain)


def test_an_app_that_cannot_start_says_why():
    app = App()
    with pytest.raises(ConfigError, match=r"no handlers: register one by @app.consumer"):
        app.start()
    with pytest.raises(ConfigError, match="name topics, or give pattern="):
        app.consumer(group="g")(plain)
    with pytest.raises(ConfigError, match="guarantee='manual' must be one of 'at-least-once'"):
        app.consumer("t", group="g", guarantee="manual")(plain)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="retries=1 would handle a record more than once"):
        app.consumer("t", group="g", guarantee="at-most-once", retries=1)(plain)
    with pytest.raises(TypeError, match=r"retry=3 must be a penstock\.Retry, not int"):
        app.consumer("t", group="g", retry=3)(plain)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="share_consumer of group 'g': name topics"):
        app.share_consumer(group="g")(plain)
    with pytest.raises(ConfigError, match="it takes a value or a Job, or a value and a Job"):
        app.share_consumer("t", group="g")(none)
    with pytest.raises(TypeError, match="has no option 'retries'"):
        app.share_consumer("t", group="g", retries=1)(plain)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no option 'instance_id'"):
        app.consumer("t", group="g", instance_id="a")(plain)  # type: ignore[call-arg]
