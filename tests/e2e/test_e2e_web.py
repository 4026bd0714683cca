"""A web application with workers beside, by uvicorn: what becomes of orders when it is stopped in
the middle."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_runner import environment

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install penstock[console]")

from penstock.testing import Broker, drain, wait_until

pytestmark = pytest.mark.over_tcp

TESTS = Path(__file__).resolve().parents[1]


@contextmanager
def served(
    node: Broker, orders: str, invoices: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The application, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "web_application:web", "--fd", str(door.fileno())],
            env=environment(node.url, {"ORDERS": orders, "INVOICES": invoices}),
            cwd=TESTS, pass_fds=[door.fileno()],
        )  # fmt: skip
        port = door.getsockname()[1]
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


def post(port: int, number: int) -> bool:
    """Whether it was accepted."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20.0)
    try:
        connection.request("POST", f"/orders/{number}")
        return connection.getresponse().status == 202
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def loaded(port: int, end: Callable[[], None]) -> list[int]:
    """Orders that were accepted by an application which `end` ends in the middle of them."""
    accepted: list[int] = []
    refused = threading.Event()

    def load(first: int) -> None:
        number = first
        while not refused.is_set():
            if post(port, number):
                accepted.append(number)
            else:
                refused.set()
            number += 4

    threads = [threading.Thread(target=load, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(accepted) > 100 or refused.is_set(), timeout=40.0)
    end()
    for thread in threads:
        thread.join()
    assert len(accepted) > 100
    return accepted


def numbers_in(node: Broker, topic: str) -> Counter[int]:
    return Counter(int(record.value or b"") for record in drain(node, topic))


def test_a_stop_under_load_loses_nothing_and_doubles_nothing(node):
    orders, invoices = node.create_topic(partitions=3), node.create_topic(partitions=1)
    with served(node, orders, invoices) as (process, port):
        accepted = loaded(port, lambda: process.send_signal(signal.SIGTERM))
        process.wait(40.0)
    sent, billed = numbers_in(node, orders), numbers_in(node, invoices)
    assert max(sent.values()) == 1
    assert set(accepted) <= set(sent)
    assert billed - sent == Counter()
    with node.connect() as client:
        left = client.admin().describe_group(orders).lag
        assert sum(billed.values()) + left == sum(sent.values())  # what is billed is committed
    with served(node, orders, invoices), node.connect() as client:
        wait_until(lambda: client.admin().describe_group(orders).lag == 0, timeout=40.0)
        assert numbers_in(node, invoices) == sent


def test_a_kill_under_load_loses_nothing(node):
    """What was accepted is billed by the next application: at least once, as its group says."""
    orders, invoices = node.create_topic(partitions=3), node.create_topic(partitions=1)
    with served(node, orders, invoices) as (process, port):
        accepted = loaded(port, process.kill)
    with served(node, orders, invoices), node.connect() as client:
        wait_until(lambda: client.admin().describe_group(orders).lag == 0, timeout=40.0)
        sent = numbers_in(node, orders)
        assert set(accepted) <= set(sent)
        assert max(sent.values()) == 1
        assert set(numbers_in(node, invoices)) == set(sent)
