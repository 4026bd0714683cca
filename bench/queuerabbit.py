"""RabbitMQ as a work queue: a quorum queue on one node.

The client is pika's asynchronous one, the fastest of its clients in Python that were tried: it does
not wait for anything between two messages.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock.bench.errors import BenchError, BenchTimeout
from penstock.bench.peerserver import HOST, free_port, is_open, serving
from penstock.bench.queuepeers import (
    IDLE,
    QUEUE,
    PortDoor,
    QueueDoor,
    QueuePeer,
    Setup,
    WorkTally,
    without,
)

DEBIAN: Final = Path("/usr/lib/rabbitmq/bin")
"""The scripts themselves: those on the path change to a user of their own."""
SERVER: Final = "rabbitmq"
UNCONFIRMED_MAX: Final = 1000
LOOK_EVERY: Final = 100
WITHIN: Final = 120.0


class RabbitLine:
    """A connection with one channel, and the loop that both live in."""

    def __init__(self, port: int, host: str = HOST) -> None:
        import pika
        from pika.adapters.select_connection import SelectConnection

        self.channel: Any = None
        self._why: object = None
        self._connection = SelectConnection(
            pika.ConnectionParameters(host, port),
            on_open_callback=lambda found: found.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, why: self.fail(why),
            on_close_callback=lambda _, why: self.fail(why),
        )
        self.loop = self._connection.ioloop
        self.run(WITHIN)

    def _opened(self, channel: Any) -> None:
        self.channel = channel
        self.loop.stop()

    def fail(self, why: object) -> None:
        self._why = why
        self.loop.stop()

    def run(self, timeout: float, *, patient: bool = False) -> None:
        """Until somebody stops the loop. Raises where that takes too long, unless it is `patient`,
        or the server hangs up."""
        late: list[bool] = []

        def give_up() -> None:
            late.append(True)
            self.loop.stop()

        timer = self.loop.call_later(timeout, give_up)
        self.loop.start()
        self.loop.remove_timeout(timer)
        if self._why is not None:
            raise BenchError(f"RabbitMQ closed the connection: {self._why}")
        if late and not patient:
            raise BenchTimeout(f"RabbitMQ did not answer within {timeout:g} s")

    def call(self, ask: Callable[..., object], *words: object, **options: object) -> None:
        """Ask the server for something, and wait until it is done."""
        ask(*words, **options, callback=lambda _: self.loop.stop())
        self.run(WITHIN)

    def settle(self) -> None:
        """Until the queue has everything that this channel has sent so far."""
        self.call(self.channel.queue_declare, QUEUE, passive=True)

    def close(self) -> None:
        """Until the server has said goodbye, too."""
        self._connection.close()
        with suppress(BenchError):  # that it is closed
            self.run(WITHIN)


class RabbitSender:
    def __init__(self, port: int, host: str = HOST) -> None:
        self._line = RabbitLine(port, host)
        self._line.channel.confirm_delivery(
            self._confirmed, callback=lambda _: self._line.loop.stop()
        )
        self._line.run(WITHIN)
        self._sent = self._confirms = 0
        self._rest: Iterator[bytes] = iter(())
        self._queue = QUEUE

    def send(self, values: Iterable[bytes], queue: str = QUEUE) -> None:
        self._rest, self._queue = iter(values), queue
        self._pump()
        if self._confirms < self._sent:
            self._line.run(WITHIN)

    def _pump(self) -> None:
        import pika

        persistent = pika.BasicProperties(delivery_mode=2)
        publish = self._line.channel.basic_publish
        for value in islice(self._rest, UNCONFIRMED_MAX - (self._sent - self._confirms)):
            publish("", self._queue, value, persistent)
            self._sent += 1

    def _confirmed(self, frame: Any) -> None:
        if type(frame.method).__name__ != "Ack":
            self._line.fail("it refused a message")
            return
        # Confirms of one queue come in order.
        self._confirms = frame.method.delivery_tag
        self._pump()
        if self._confirms == self._sent:
            self._line.loop.stop()

    def close(self) -> None:
        self._line.close()


class RabbitWorker:
    def __init__(self, port: int, prefetch: int) -> None:
        self._line = RabbitLine(port)
        self._channel = self._line.channel
        self._line.call(self._channel.basic_qos, prefetch_count=prefetch)
        self._waiting: collections.deque[tuple[int, bytes]] = collections.deque()
        self._tag: int | None = None
        self._consumer: str | None = None

    def work(self, tally: WorkTally) -> None:
        loop, take, count = self._line.loop, tally.take, 0

        def arrived(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal count
            take(body)
            channel.basic_ack(method.delivery_tag)
            count += 1
            if not count % LOOK_EVERY and tally.is_over():
                loop.stop()

        def look() -> None:
            if tally.is_over():
                loop.stop()
            else:
                loop.call_later(IDLE, look)

        consumer = self._channel.basic_consume(QUEUE, arrived)
        loop.call_later(IDLE, look)
        self._line.run(WITHIN)
        self._channel.basic_cancel(consumer, callback=lambda _: loop.stop())
        self._line.run(WITHIN)
        self._line.settle()

    def receive(self, timeout: float) -> bytes | None:
        if self._consumer is None:
            self._consumer = self._channel.basic_consume(QUEUE, self._arrived)
        if not self._waiting:
            self._line.run(timeout, patient=True)
        if not self._waiting:
            return None
        self._tag, body = self._waiting.popleft()
        return body

    def _arrived(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._waiting.append((method.delivery_tag, body))
        self._line.loop.stop()

    def ack(self) -> None:
        self._channel.basic_ack(self._tag)
        self._line.settle()

    def close(self) -> None:
        self._line.close()


@contextmanager
def rabbit_server(folder: Path) -> Iterator[int]:
    """One node with a name service of its own; yields its port."""
    port, names, between = free_port(), free_port(), free_port()
    (folder / "rabbit.conf").write_text(f"listeners.tcp.1 = {HOST}:{port}\n")
    (folder / "plugins").write_text("[].\n")
    env = {
        "HOME": str(folder),  # for its cookie
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbit.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(folder / "rabbit.pid"),
        "RABBITMQ_DIST_PORT": str(between),
        "RABBITMQ_SERVER_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RUNNING_UNDER_SYSTEMD": "true",  # the shell becomes the server
        "NOTIFY_SOCKET": "",
    }
    epmd = [shutil.which("epmd") or "epmd", "-port", str(names), "-address", HOST]
    with (
        serving("epmd", epmd, folder, lambda: is_open(names)),
        serving(SERVER, [_script("rabbitmq-server")], folder, lambda: is_open(port), env=env),
    ):
        yield port


@contextmanager
def _serve(setup: Setup) -> Iterator[QueueDoor]:
    with rabbit_server(setup.folder) as port:
        line = RabbitLine(port)
        line.call(
            line.channel.queue_declare, QUEUE, durable=True, arguments={"x-queue-type": "quorum"}
        )
        line.close()
        yield PortDoor(port, RabbitSender, RabbitWorker)


def _script(name: str) -> str:
    own = DEBIAN / name
    return str(own) if own.exists() else shutil.which(name) or name


def rabbit_missing(server: bool = True) -> str | None:
    if server and (
        shutil.which(_script("rabbitmq-server")) is None or shutil.which("epmd") is None
    ):
        return "its server is missing: on Debian, apt-get install rabbitmq-server"
    return without("pika", "pika")


def rabbit_versions(folder: Path | None) -> dict[str, str]:
    """Of the server that has run there, and of its client."""
    if folder is None:
        return {"pika": version("pika")}
    log = (folder / f"{SERVER}.log").read_text("utf-8", "replace")
    told = re.search(r"Starting RabbitMQ (\S+) on Erlang (\S+)", log)
    rabbit, erlang = told.groups() if told else ("unknown", "unknown")
    return {"RabbitMQ": rabbit, "Erlang": erlang, "pika": version("pika")}


def rabbit_peer() -> QueuePeer:
    return QueuePeer(
        key="rabbitmq",
        name="RabbitMQ, quorum queue",
        client="pika (SelectConnection)",
        level="fsync",
        serve=_serve,
        missing=lambda setup: rabbit_missing(),
        versions=lambda setup: rabbit_versions(setup.folder),
        jobs=0.5,
        prefetch=500,
        sent="fsync",
        answered="its log's next fsync: the server does not answer",
        by_default="at once: its connection is gone",
        settings=f"one node; {UNCONFIRMED_MAX:,} messages without a confirm",
    )
