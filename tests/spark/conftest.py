"""One Spark for all tests that need one, and a node with room for each module.

Tests without the fixture `spark` need no Java; every module begins with
`pytest.importorskip("pyspark")`. Worker processes of Spark are on this host, so they reach the node
by shared memory, or by TCP with `broker.tcp_url`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from quick_java import QUICK_JAVA

from penstock.client.client import Client
from penstock.spark.clients import forget
from penstock.spark.errors import JavaMissingError
from penstock.spark.java import java_home
from penstock.spark.sessions import is_running, session
from penstock.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, two shuffle partitions, UTC, no UI."""
    try:
        java_home()
    except JavaMissingError as error:
        pytest.skip(str(error))
    made = session(
        "penstock-tests",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": 2,
            "spark.default.parallelism": 2,
            "spark.driver.memory": "1g",
            "spark.executorEnv.PYTHONPATH": f"{TESTS}/spark_workers:{TESTS.parent}/src",
            **QUICK_JAVA,
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Java starts beside all else that starts, and compiles what it runs."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Behind the last of these tests Spark and the clients of this process go: tests that count
    descriptors and threads may come next in it."""
    yield
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        if is_running():
            from pyspark.sql import SparkSession

            SparkSession.builder.getOrCreate().stop()
        forget()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A real node that the tests of a module share, reached by shared memory and by TCP."""
    with Broker(listen=True, transport="shm") as made:
        yield made
        forget()


# --- of the sink's tests ---
@pytest.fixture
def topic(broker: Broker) -> str:
    """Of three partitions, empty."""
    return broker.create_topic(partitions=3)


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with broker.connect() as made:
        yield made


@pytest.fixture
def options(broker: Broker, topic: str) -> dict[str, str]:
    """Of a writer to that topic."""
    return {"bootstrap": broker.url, "topic": topic}
