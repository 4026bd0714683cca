"""The node of most end-to-end tests: one a module, by the plugin that users have too; and how its
clients reach it (`--transport`).

A test marked `over_tcp` runs both ways in the default suite; one of such a module that takes long
is marked `over_tcp(False)`. One marked `local` is never run over tcp. What a test starts, other
processes among it, finds the way in the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import pytest_plugin
from penstock.testing import Broker

if TYPE_CHECKING:  # few modules need a database
    from database_fixture import Database
    from postgresql_server import PostgresqlServer

WAYS = {"shm": ["shm"], "tcp": ["tcp"], "both": ["shm", "tcp"], "default": ["shm"]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    ways = WAYS[metafunc.config.getoption("--transport")]
    over_tcp = metafunc.definition.get_closest_marker("over_tcp")
    if metafunc.config.getoption("--transport") == "default" and over_tcp is not None:
        ways = WAYS["both"] if over_tcp.args != (False,) else ways
    if metafunc.definition.get_closest_marker("local") is not None:
        ways = WAYS["shm"]
    if ways != WAYS["shm"]:
        metafunc.parametrize("transport", ways, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """How clients reach nodes: "shm" or "tcp"."""
    way: str = getattr(request, "param", "shm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TEST_TRANSPORT", way)
        patch.setenv("PENSTOCK_TRANSPORT", "tcp" if way == "tcp" else "auto")
        yield way


@pytest.fixture
def penstock_broker(transport: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    yield from pytest_plugin._broker(request)


@pytest.fixture(scope="module")
def penstock_broker_module(transport: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    yield from pytest_plugin._broker(request)


@pytest.fixture(scope="module")
def node(penstock_broker_module: Broker) -> Broker:
    return penstock_broker_module


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresqlServer]:
    from postgresql_server import started_or_skipped

    server = started_or_skipped()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Each kind, without tables."""
    from database_fixture import postgresql_of, sqlite_at

    if request.param == "sqlite":
        return sqlite_at(tmp_path)
    return postgresql_of(request.getfixturevalue("postgresql"))
