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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_runner import environment

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install penstock[console]")

from penstock.testing import Broker, drain, wait_until

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


def test_a_stop_under_load_loses_nothing_and_doubles_nothing(node):
    orders, invoices = node.create_topic(partitions=3), node.create_topic(partitions=1)
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

    with served(node, orders, invoices) as (process, port):
        threads = [threading.Thread(target=load, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(accepted) > 100 or refused.is_set(), timeout=40.0)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        process.wait(40.0)
    assert len(accepted) > 100
    sent = Counter(int(record.value or b"") for record in drain(node, orders))
    billed = Counter(int(record.value or b"") for record in drain(node, invoices))
    assert max(sent.values()) == 1
    assert set(accepted) <= set(sent)
    assert billed - sent == Counter()
    with node.connect() as client:
        left = client.admin().describe_group(orders).lag
        assert sum(billed.values()) + left == sum(sent.values())  # what is billed is committed
    with served(node, orders, invoices), node.connect() as client:
        wait_until(lambda: client.admin().describe_group(orders).lag == 0, timeout=40.0)
        assert Counter(int(one.value or b"") for one in drain(node, invoices)) == sent
