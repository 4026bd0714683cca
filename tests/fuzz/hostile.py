"""What a hostile client may send to a gateway: from random bytes to batches that are almost good.

All of it comes from one seed. Nothing here is expected to be answered in any way.
"""

from __future__ import annotations

import contextlib
import random
import socket
import typing
from collections.abc import Callable
from typing import Any, Final

import batch_bytes
import lz4.block
import msgspec
import zmq
from wire import Dealer, batch_of

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core import header as hd
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms

NUMBERS: Final = (
    0, 1, 2, 3, -1, 127, 128, 255, 256, 4095, 4096, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    (1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63), -(1 << 31),
)  # fmt: skip
TYPES: Final = typing.get_args(fr.ClientMessage)
ASKED: Final = (
    ms.OpenLane, ms.FindTopic, ms.ListTopics, ms.CreateTopic, ms.DescribeNode,
    *typing.get_args(co.Request),
)  # fmt: skip
"""Requests that can do no harm to the topics of others."""
PRODUCER, CONSUMER, ADMIN = 1, 2, 3
LIVES_MAX: Final = 40
"""Messages that a connection says at most before it is made again."""


class Attacker:
    """`strike` once, again and again. `topic` is one that may be spoilt."""

    def __init__(self, url: str, topic: str, rng: random.Random, batch_bytes_max: int) -> None:
        self._url = url
        self._topic = topic
        self._rng = rng
        self._batch_bytes_max = batch_bytes_max
        self._dealer: Dealer | None = None
        self._left = 0
        self._sequence = 0
        self.strikes: dict[str, int] = {}
        self.unanswered = 0
        """Connections that were not let in: one of an address that attacks may be cut off with
        another, and this one does not try again as a client would."""
        self._ways: dict[str, Callable[[], None]] = {
            "noise on the port": self._noise,
            "half a handshake": self._handshake,
            "random frames": self._frames,
            "odd hello": self._hello,
            "fields of all kinds": self._fields,
            "bits flipped": self._flipped,
            "cut off": self._cut,
            "too large": self._large,
            "almost a batch": self._batch,
            "good batches, badly numbered": self._badly_numbered,
            "cursors": self._cursors,
            "requests": self._asks,
            "goes away in the middle": self._goes,
        }

    def strike(self) -> None:
        way = self._rng.choice(list(self._ways))
        self.strikes[way] = self.strikes.get(way, 0) + 1
        try:
            self._ways[way]()
        except AssertionError:  # no answer to an honest question
            self.unanswered += 1
            self.close()
        except (OSError, zmq.ZMQError):
            pass

    def close(self) -> None:
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None

    # --- its connection ---
    def _attached(self) -> Dealer:
        """A connection with a producer, a consumer and an admin."""
        self._left -= 1
        if self._dealer is not None and self._left > 0 and not self._is_ended():
            return self._dealer
        self.close()
        dealer = Dealer(self._url, hello=False)
        self._dealer = dealer
        dealer.greet(2.0)
        self._dealer, self._left, self._sequence = dealer, LIVES_MAX, 0
        self._attachment = dealer.attach(PRODUCER, lo.KIND_PRODUCER)
        dealer.attach(CONSUMER, lo.KIND_CONSUMER)
        dealer.attach(ADMIN, lo.KIND_ADMIN)
        self._info = dealer.find(ADMIN, self._topic)
        return dealer

    def _is_ended(self) -> bool:
        """Hear all that came, and whether the gateway has had enough."""
        assert self._dealer is not None
        ended = False
        with contextlib.suppress(zmq.Again):
            while True:
                frames = self._dealer.socket.recv_multipart(zmq.NOBLOCK)
                ended = ended or isinstance(codec.from_gateway(frames)[0], fr.Ended)
        return ended

    def _send(self, *frames: bytes) -> None:
        self._attached().socket.send_multipart(frames, zmq.NOBLOCK)

    # --- ways ---
    def _raw(self, data: bytes) -> None:
        host, _, port = self._url.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=2) as sock:
            sock.sendall(data)

    def _noise(self) -> None:
        self._raw(self._rng.choice([b"", b"GET / HTTP/1.1\r\n\r\n", self._bytes(3000)]))

    def _handshake(self) -> None:
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31)
        ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
        tail = self._rng.choice([
            b"\x02\xff" + b"\xff" * 8, b"\x06" + b"\xff" * 8, b"\x00\x00" * 50, self._bytes(200),
        ])  # fmt: skip
        whole = greeting + ready + tail
        self._raw(whole[: self._rng.randint(1, len(whole))])

    def _frames(self) -> None:
        self._send(*(self._bytes(300) for _ in range(self._rng.randint(1, 6))))

    def _hello(self) -> None:
        rng = self._rng
        dealer = Dealer(self._url, hello=False)
        try:
            hello: dict[str, Any] = {
                "type": "hello", "protocol": rng.choice([0, 1, 2, 1 << 31]),
                "apis": {"produce": [rng.choice(NUMBERS), rng.choice(NUMBERS)]},
                "software": "x" * rng.choice([0, 5, 101, 5000]),
                "incarnation": self._bytes(rng.choice([0, 16, 16, 17])),
            }  # fmt: skip
            for _ in range(rng.randint(1, 3)):
                dealer.socket.send(msgspec.msgpack.encode(hello), zmq.NOBLOCK)
            if rng.random() < 0.5:
                dealer.socket.poll(20)
        finally:
            dealer.close()

    def _fields(self) -> None:
        self._send(self._odd(self._rng.choice(TYPES)), *self._payload())

    def _odd(self, kind: type[msgspec.Struct]) -> bytes:
        """A message of that type whose fields hold anything."""
        names = kind.__struct_fields__
        fields = {name: self._value() for name in names if self._rng.random() < 0.95}
        return msgspec.msgpack.encode({"type": kind.__struct_config__.tag, **fields})

    def _value(self, depth: int = 0) -> Any:
        rng = self._rng
        way = rng.randrange(10 if depth < 3 else 7)
        if way < 3:
            return rng.choice(NUMBERS)
        if way == 3:
            return rng.choice([float("nan"), float("inf"), -1.5, 1e300, True, False, None])
        if way == 4:
            return rng.choice(["", "a", "fuzz", self._topic, "é" * 50, "\0", "../../x", "x" * 9000])
        if way < 7:
            return rng.choice([self._info_id(), self._bytes(16), self._bytes(100), b""])
        if way == 7:
            return {rng.choice(["a", "type", "offset"]): self._value(depth + 1) for _ in range(3)}
        return [self._value(depth + 1) for _ in range(rng.randrange(4))]

    def _info_id(self) -> bytes:
        return bytes(self._info.topic_id) if self._dealer is not None else bytes(16)

    def _payload(self) -> list[bytes]:
        return [self._bytes(500)] if self._rng.random() < 0.4 else []

    def _good(self) -> list[bytes]:
        """A message as it should be."""
        self._attached()
        page = self._info.pages[0]
        produce = fr.Produce(PRODUCER, page % self._attachment.writers, self._sequence, page)
        self._sequence += 1
        batch = batch_of(
            [self._bytes(50)], self._info, self._attachment.producer_id, self._sequence - 1
        )
        return [codec.encode(produce), batch]

    def _flipped(self) -> None:
        frames = self._good()
        which = self._rng.randrange(len(frames))
        data = bytearray(frames[which])
        for _ in range(self._rng.randint(1, 5)):
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        frames[which] = bytes(data)
        self._send(*frames)

    def _cut(self) -> None:
        frames = self._good()
        which = self._rng.randrange(len(frames))
        frames[which] = frames[which][: self._rng.randrange(len(frames[which]))]
        self._send(*frames)

    def _large(self) -> None:
        head = bytes(fr.CLIENT_HEADER_MAX + 1)
        if self._rng.random() < 0.5:
            self._send(head)
        else:
            self._send(self._good()[0], bytes(self._batch_bytes_max + 1))

    def _batch(self) -> None:
        """Checksums are right, what they cover is not."""
        rng, head = self._rng, self._good()[0]
        sections = [(1, 0, bytes(8)), (8, 0, self._bytes(64))]
        attributes = 0
        if rng.random() < 0.3:
            sections.append((rng.randint(15, 20), rng.randint(0, 4), self._bytes(64)))
            attributes = hd.ATTR_HAS_WORK
        body = batch_bytes.body_of(sections)
        fields: dict[str, Any] = {
            "topic_id": self._info_id(), "producer_id": self._attachment.producer_id,
            "base_sequence": self._sequence - 1, "record_count": rng.choice([0, 1, 1 << 31]),
            "attributes": attributes,
        }  # fmt: skip
        if rng.random() < 0.4:
            body = lz4.block.compress(bytes(1 << 22), store_size=False)
            fields |= {"codec": rng.choice([1, 2, 9]), "raw_body_length": rng.choice([1, 1 << 22])}
        for name in rng.sample(sorted(batch_bytes.FIELDS), rng.randint(0, 3)):
            width = {"B": 8, "H": 16, "I": 32, "Q": 64, "q": 63}.get(batch_bytes.FIELDS[name][1])
            if width is not None and name not in ("header_crc", "body_crc"):
                fields[name] = rng.choice([0, 1, rng.getrandbits(width), (1 << width) - 1])
        self._send(head, bytes(batch_bytes.batch(body, **fields)))

    def _badly_numbered(self) -> None:
        head, batch = self._good()
        message = msgspec.msgpack.decode(head)
        message[self._rng.choice(["endpoint", "writer", "sequence", "page", "flags"])] = (
            self._rng.choice([each for each in NUMBERS if each >= 0])
        )
        self._send(msgspec.msgpack.encode(message), batch)

    def _cursors(self) -> None:
        rng = self._rng
        self._attached()
        numbers = [each for each in NUMBERS if 0 <= each < 1 << 31]
        for _ in range(rng.randint(1, 50)):
            cursor = rng.randrange(20)
            message: msgspec.Struct = fr.Fetch(
                CONSUMER, cursor, rng.choice([*self._info.pages, rng.choice(numbers)]),
                rng.choice([self._info_id(), self._bytes(16)]), rng.choice([0, 1]),
                rng.choice(numbers), rng.choice([-1, 0, 1, 99]), rng.random() < 0.5,
                rng.choice([0, 1, 1 << 20, fr.CREDIT_MAX]),
            )  # fmt: skip
            if rng.random() < 0.5:
                message = rng.choice(
                    [fr.More(CONSUMER, cursor, fr.CREDIT_MAX), fr.Drop(CONSUMER, cursor)]
                )
            self._send(codec.encode(message))

    def _asks(self) -> None:
        body = self._odd(self._rng.choice(ASKED))
        ask = fr.Ask(ADMIN, self._rng.randrange(1 << 20), self._rng.choice([0.0, 0.1, 5.0]),
                     msgspec.Raw(body))  # fmt: skip
        self._send(codec.encode(ask))

    def _goes(self) -> None:
        self._send(*self._good())
        self.close()

    def _bytes(self, most: int) -> bytes:
        return self._rng.randbytes(most if most in (0, 16, 17) else self._rng.randint(0, most))
