"""The pytest plugin `penstock`: a real node for tests, gone after them however they end.

    def test_orders(penstock_broker):
        with penstock_broker.connect() as client: ...

`penstock_broker` is one test's own, `penstock_broker_module` and `penstock_broker_session` are
shared. All of pytest loads this file when Penstock is installed, so it imports nothing of Penstock
before a test asks for a broker.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker

MARKER = "penstock"
_FIXTURES = ("penstock_broker", "penstock_broker_module", "penstock_broker_session")
_INI = {
    "partitions": (int, "partitions of a topic that is made without saying how many"),
    "durability": (str, "durability of such a topic: os, interval or fsync"),
    "writers": (int, "most writer processes of the node"),
    "transport": (str, "how it is reached: shm or tcp"),
    "start_timeout": (float, "seconds within which the node must admit clients"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, (_, text) in _INI.items():
        parser.addini(f"penstock_{name}", f"penstock_broker: {text}", default="")
    parser.addini(
        "penstock_options",
        "penstock_broker: further options of the node, NAME=VALUE, one a line",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(partitions=, durability=, writers=, transport=, start_timeout=, **options): "
        "what penstock_broker (and, on a module, penstock_broker_module) is made with; other names "
        "are options of the node",
    )


def _settings(config: pytest.Config) -> dict[str, Any]:
    """What the ini file says, as `Broker` takes it."""
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


def _broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    from penstock.testing import Broker

    settings = _settings(request.config)
    for marker in reversed(list(request.node.iter_markers(MARKER))):  # the closest one last
        if marker.args:
            raise pytest.UsageError(
                f"@pytest.mark.{MARKER}{marker.args!r}: it takes names with values only"
            )
        for name, value in marker.kwargs.items():
            (settings if name in _INI else settings["options"])[name] = value
    with Broker(**settings) as broker:
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
