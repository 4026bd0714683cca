"""The pytest plugin `penstock`: a real node for tests, gone after them however they end.

    def test_orders(penstock_broker):
        with penstock_broker.connect() as client: ...

    def test_a_failover(penstock_cluster):
        penstock_cluster.broker(1).kill()

`penstock_broker` is one test's own, `penstock_broker_module` and `penstock_broker_session` are
shared; `penstock_cluster` is several brokers of one test's own. All of pytest loads this file when
Penstock is installed, so it imports nothing of Penstock before a test asks for a broker.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker, Cluster

MARKER = "penstock"
_FIXTURES = (
    "penstock_broker", "penstock_broker_module", "penstock_broker_session", "penstock_cluster"
)  # fmt: skip
_INI = {
    "partitions": (int, "partitions of a topic that is made without saying how many"),
    "durability": (str, "durability of such a topic: os, interval or fsync"),
    "writers": (int, "most writer processes of the node"),
    "transport": (str, "how it is reached: shm or tcp"),
    "start_timeout": (float, "seconds within which the node must admit clients"),
    "brokers": (int, "how many there are in a cluster"),
}
_OF_A_BROKER = ("transport",)
_OF_A_CLUSTER = ("brokers",)
"""Settings that only one of them has."""


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, (_, text) in _INI.items():
        parser.addini(f"penstock_{name}", f"brokers of tests: {text}", default="")
    parser.addini(
        "penstock_options",
        "brokers of tests: further options of the node, NAME=VALUE, one a line",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(partitions=, durability=, writers=, transport=, start_timeout=, brokers=, "
        "**options): what penstock_broker and penstock_cluster (and, on a module, "
        "penstock_broker_module) are made with; other names are options of the node",
    )


def _settings(config: pytest.Config) -> dict[str, Any]:
    """Returns the settings of the ini file, as `Broker` takes them."""
    found: dict[str, Any] = {}
    for name, (kind, _) in _INI.items():
        text = str(config.getini(f"penstock_{name}")).strip()
        if text:
            try:
                found[name] = kind(text)
            except ValueError:
                raise pytest.UsageError(
                    f"penstock_{name} = {text!r} in the ini file: {kind.__name__} is wanted"
                ) from None
    options = {}
    for line in config.getini("penstock_options"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"penstock_options in the ini file: {line!r} is not NAME=VALUE")
        options[name.strip()] = value.strip()
    return {**found, "options": options}


def _wanted(request: pytest.FixtureRequest, without: tuple[str, ...]) -> dict[str, Any]:
    """Returns the settings of ini file and markers, without the names in `without`."""
    settings = _settings(request.config)
    for marker in reversed(list(request.node.iter_markers(MARKER))):  # the closest one last
        if marker.args:
            raise pytest.UsageError(
                f"@pytest.mark.{MARKER}{marker.args!r}: it takes names with values only"
            )
        for name, value in marker.kwargs.items():
            (settings if name in _INI else settings["options"])[name] = value
    return {name: value for name, value in settings.items() if name not in without}


def _broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    from penstock.testing import Broker

    with Broker(**_wanted(request, _OF_A_CLUSTER)) as broker:
        yield broker


@pytest.fixture
def penstock_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real Penstock node of this test's own."""
    yield from _broker(request)


@pytest.fixture(scope="module")
def penstock_broker_module(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real Penstock node that the tests of a module share."""
    yield from _broker(request)


@pytest.fixture(scope="session")
def penstock_broker_session(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real Penstock node that all tests share (with pytest-xdist: those of a worker)."""
    yield from _broker(request)


@pytest.fixture
def penstock_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Real brokers of this test's own that are one cluster: three, unless told otherwise."""
    from penstock.testing import Cluster

    with Cluster(**_wanted(request, _OF_A_BROKER)) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A failure shows the end of the node's log."""
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {})
        for name in _FIXTURES:
            if name in fixtures and (tail := fixtures[name].log_tail()):
                report.sections.append((f"log of {name}", tail))
    return report
