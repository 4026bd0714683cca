"""A remote client without a client: messages of the wire protocol over a plain DEALER."""

from __future__ import annotations

import itertools
import os
import socket
import time
from typing import Any, TypeVar

import msgspec
import zmq

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core.encode import encode_batch
from penstock.core.header import BatchIdentity
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms

WITHIN = 45.0
M = TypeVar("M", bound=msgspec.Struct)
_NODE = msgspec.msgpack.Decoder(ms.NodeMessage)


def batch_of(
    values: list[bytes], topic: ms.TopicInfo, producer_id: int, sequence: int, **more: Any
) -> bytes:
    """A batch as a producer makes it."""
    encoded = encode_batch(
        values,
        BatchIdentity(
            topic.topic_id, more.pop("partition", 0), producer_id, more.pop("producer_epoch", 0),
            sequence,
        ),
        base_timestamp=1_700_000_000_000_000, **more,
    )  # fmt: skip
    return encoded.image()


class Dealer:
    """A connection; `with` closes it. What it hears is waited for by its type. Many share a
    `context`, which they do not end."""

    def __init__(
        self,
        url: str,
        *,
        hello: bool = True,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        **options: int | bytes,
    ) -> None:
        self._owns_context = context is None
        self.context = context or zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name.upper()), value)
        self.socket.connect(url)
        self.heard: list[tuple[fr.GatewayMessage, codec.Piece | None]] = []
        self._requests = itertools.count()
        self.incarnation = os.urandom(16)
        if hello:
            self.welcome = self.greet()

    def greet(self, within: float = WITHIN) -> fr.Welcome:
        """Says hello again to a broker that has not heard from its cluster yet."""
        until = time.monotonic() + within
        while True:
            self.say(fr.Hello(fr.PROTOCOL_VERSION, fr.APIS, "wire", self.incarnation))
            said = self.hear_either((fr.Welcome, fr.Refused), until - time.monotonic())
            if isinstance(said, fr.Welcome):
                return said
            assert isinstance(said, fr.Refused)
            assert said.error == "NotConnectedError", said
            time.sleep(0.05)

    def say(self, message: msgspec.Struct, payload: bytes | None = None) -> None:
        parts = [codec.encode(message)]
        self.socket.send_multipart(parts if payload is None else [*parts, payload])

    def hear(self, kind: type[M], within: float = WITHIN) -> M:
        """The next message of that kind; others are kept in `heard`."""
        message = self.hear_either((kind,), within)
        assert isinstance(message, kind)
        return message

    def hear_either(
        self, kinds: tuple[type[msgspec.Struct], ...], within: float = WITHIN
    ) -> msgspec.Struct:
        for place, (message, _) in enumerate(self.heard):
            if isinstance(message, kinds):
                del self.heard[place]
                return message
        while self.socket.poll(max(0, int(within * 1000))):
            message, payload = codec.from_gateway(self.socket.recv_multipart())
            if isinstance(message, kinds):
                self.payload = payload
                return message
            self.heard.append((message, payload))
        names = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"no {names} came within {within:g} s, but {self.heard}")

    def attach(
        self, number: int, kind: int, *, resume: int | None = None, token: bytes = b""
    ) -> fr.Attached:
        self.say(fr.Attach(number, kind, f"wire-{number}", resume, token))
        return self.hear(fr.Attached)

    def producer(self, number: int = 1) -> fr.Attached:
        return self.attach(number, lo.KIND_PRODUCER)

    def ask(self, number: int, body: msgspec.Struct, deadline: float = 5.0) -> Any:
        """The node's answer to a request."""
        request = next(self._requests)
        raw = msgspec.Raw(msgspec.msgpack.encode(body))
        self.say(fr.Ask(number, request, deadline, raw))
        self.answer = self.hear(fr.Answer)
        assert self.answer.request == request
        return _NODE.decode(self.answer.body)

    def find(self, number: int, topic: str) -> ms.TopicInfo:
        found = self.ask(number, ms.FindTopic(topic))
        assert isinstance(found, ms.TopicFound), found
        return found.topic

    def acks(self, count: int) -> list[fr.Ack]:
        found: list[fr.Ack] = []
        while len(found) < count:
            found += self.hear(fr.Acks).acks
        return found

    def close(self) -> None:
        self.socket.close(0)
        if self._owns_context:
            self.context.term()

    def __enter__(self) -> Dealer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def mechanism(port: int, host: str = "127.0.0.1") -> str:
    """The security that whoever listens there wants, as ZMTP's greeting says."""
    with socket.create_connection((host, port), 10) as sock:
        sock.settimeout(10)
        sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00")  # and no word of a mechanism yet
        greeting = b""
        while len(greeting) < 64 and (more := sock.recv(64 - len(greeting))):
            greeting += more
    return greeting[12:32].rstrip(b"\0").decode()
