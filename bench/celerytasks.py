"""The application of `penstock bench celery`, as its workers import it.

Each task tells the run, by a datagram, when it was sent, when it began, and in which process.
"""

from __future__ import annotations

import json
import os
import socket
import time
from functools import cache
from typing import Final

from celery import Celery

import penstock.kombu  # noqa: F401 (registers the transport)
from penstock.bench.celerywire import BROKER, OPTIONS, SOCKET, TOLD

HOLD: Final = 600.0

app = Celery("penstock.bench.celerytasks", broker=os.environ[BROKER])
app.conf.update(
    broker_transport_options=json.loads(os.environ.get(OPTIONS, "{}")),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


@cache
def _line() -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.connect(os.environ[SOCKET])
    return line


def _tell(sent: float) -> None:
    _line().send(TOLD.pack(sent, time.monotonic(), os.getpid()))


@app.task  # type: ignore[untyped-decorator]
def note(sent: float) -> None:
    _tell(sent)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def hold(sent: float) -> None:
    """Runs until its worker is killed."""
    _tell(sent)
    time.sleep(HOLD)
