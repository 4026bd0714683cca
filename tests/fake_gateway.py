"""A gateway that does what a test tells it, for what a real one does only by chance: answers that
are late, twice there, or of an old connection; silence; attachments that take long."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.ipc import liveness
from penstock.ipc import messages as ms

WITHIN = 25.0
PRODUCER_ID = 1 << 40 | 7


class GatewayDouble:
    """Greets, and lets in what `lets_in`; everything else is for the test, by `next` and `say`.

    A message is (peer, message, payload); `peer` names the connection that it came by.
    """

    def __init__(self, *, node_uuid: bytes = b"n" * 16, port: int = 0, heartbeat: float = 0.2,
                 silence_max: float = 1.0, window: int = 1 << 20, local: str = "",
                 boot_id: str = "", cluster: bytes = b"", broker: int = fr.NOBODY,
                 writers: int = 1) -> None:  # fmt: skip
        self.lets_in = True
        self.answers_pings = True
        self.greets = True
        self.window = window
        self.writers = writers
        self.leaders: fr.Leaders | None = None
        """What whoever connects is told right after the welcome."""
        self.welcome = fr.Welcome(
            fr.PROTOCOL_VERSION, fr.APIS, "double", node_uuid, boot_id or liveness.boot_id(), local,
            heartbeat, silence_max, 1 << 20, cluster, broker,
        )  # fmt: skip
        self._came: queue.Queue[tuple[bytes, Any, Any]] = queue.Queue()
        self._orders: queue.Queue[Callable[[], None]] = queue.Queue()
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        if port:
            self._router.bind(f"tcp://127.0.0.1:{port}")
            self.port = port
        else:
            self.port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def _run(self) -> None:
        while not self._stopping:
            while not self._orders.empty():
                self._orders.get()()
            if self._router.poll(5):
                peer, *frames = self._router.recv_multipart()
                message, payload = codec.from_client(frames)
                self._take(peer, message, payload)
        self._router.close(0)

    def _take(self, peer: bytes, message: Any, payload: Any) -> None:
        if isinstance(message, fr.Ping):
            if self.answers_pings:
                self._send(peer, fr.Pong(message.stamp))
            return
        if isinstance(message, fr.Hello) and self.greets:
            self._send(peer, self.welcome)
            if self.leaders is not None:
                self._send(peer, self.leaders)
        if isinstance(message, fr.Attach) and self.lets_in:
            self._send(peer, self.attached(message.endpoint))
        self._came.put((peer, message, payload))

    def attached(self, endpoint: int) -> fr.Attached:
        return fr.Attached(endpoint, self.writers, 1 << 20, PRODUCER_ID, b"token", self.window, 0)

    def _send(self, peer: bytes, message: Any, payload: bytes | None = None) -> None:
        self._router.send_multipart(
            [peer, codec.encode(message), *([] if payload is None else [payload])]
        )

    def say(self, peer: bytes, message: Any, payload: bytes | None = None) -> None:
        self._orders.put(lambda: self._send(peer, message, payload))

    def answer(self, peer: bytes, ask: fr.Ask, body: Any, *pages: fr.PageState) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode(body))
        self.say(peer, fr.Answer(ask.endpoint, ask.request, raw, list(pages)))

    def next(self, kind: Any = object, within: float = WITHIN) -> tuple[bytes, Any, Any]:
        """The next message of that kind; others before it are dropped."""
        deadline = time.monotonic() + within
        while True:
            peer, message, payload = self._came.get(timeout=max(0.001, deadline - time.monotonic()))
            if isinstance(message, kind):
                return peer, message, payload

    def ask(self, kind: type[Any], within: float = WITHIN) -> tuple[bytes, fr.Ask, Any]:
        """The next request, which must be of that kind."""
        peer, ask, _ = self.next(fr.Ask, within)
        return peer, ask, msgspec.msgpack.decode(ask.body, type=kind)

    def find_topic(self, name: str, topic_id: bytes = b"t" * 16) -> tuple[bytes, fr.Ask]:
        """Answer the next request, which must be for that topic, by one partition on page 0."""
        peer, ask, _ = self.next(fr.Ask)
        assert msgspec.msgpack.decode(ask.body, type=ms.FindTopic).name == name
        info = ms.TopicInfo(name, topic_id, [0], ms.TopicSettings())
        state = fr.PageState(0, topic_id, 0, 1, 0, 1, 3, 0, 0, 0, 0, 0)
        self.answer(peer, ask, ms.TopicFound(info), state)
        return peer, ask

    def close(self) -> None:
        """As a broker that was killed."""
        self._stopping = True
        self._thread.join(WITHIN)
        self._context.destroy(0)

    def __enter__(self) -> GatewayDouble:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
