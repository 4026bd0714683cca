"""For tests of programs that use Penstock: a real node of their own, and short ways to ask it.

    from penstock.testing import Broker, assert_records, produce

    with Broker() as broker:
        broker.create_topic("orders")
        produce(broker, "orders", [b"1", b"2"])
        assert_records(broker, "orders", [b"1", b"2"])

With pytest the fixture `penstock_broker` gives the same broker (see `penstock.pytest_plugin`);
nothing in here needs pytest. Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Broker": "broker",
    "assert_records": "records",
    "drain": "records",
    "produce": "records",
    "wait_until": "waiting",
}

__all__ = ["Broker", "assert_records", "drain", "produce", "wait_until"]

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.records import assert_records, drain, produce
    from penstock.testing.waiting import wait_until


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    found = getattr(import_module(f"penstock.testing.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
