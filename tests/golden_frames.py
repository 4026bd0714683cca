"""The messages behind tests/golden/frames.txt, and the way to write that file again.

    python tests/golden_frames.py [name ...]

writes the named ones (all of them without a name) and keeps the others. The protocol is frozen: do
so only together with a new version of it, or for a message that is new.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.ipc import messages as ms

FILE: Final = Path(__file__).parent / "golden" / "frames.txt"
TOPIC_ID: Final = bytes(range(16))
INCARNATION: Final = bytes(range(16, 32))
TOKEN: Final = bytes(range(32, 64))
PRODUCER_ID: Final = 0xABCDEF << 40 | 7
"""24 bits of a folder's uuid: such a number may have its highest bit set."""
PAGE: Final = fr.PageState(
    5, TOPIC_ID, 2, 1, 0, 9, 3, 100, 180, 190, 200, 200, [(1, 0), (3, 150)]
)  # fmt: skip
WIDE: Final = fr.PageState(
    6, TOPIC_ID, 3, 2, 28, 9, 3, 0, 0, 0, 0, 0, [], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]
)  # fmt: skip


def _raw(body: msgspec.Struct) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(body))


CLIENT: Final[dict[str, fr.ClientMessage]] = {
    "hello": fr.Hello(1, {"connection": (1, 1), "fetch": (1, 2)}, "penstock 0.1.0", INCARNATION),
    "attach": fr.Attach(1, 2, "reader"),
    "attach-resume": fr.Attach(7, 1, "writer", PRODUCER_ID, TOKEN),
    "detach": fr.Detach(1),
    "detach-returns": fr.Detach(1, True),
    "ask": fr.Ask(1, 3, 2.5, _raw(ms.FindTopic("orders"))),
    "produce": fr.Produce(7, 1, 42, 5, 1),
    "produce-proved": fr.Produce(7, 1, 43, 5, 0, TOKEN),
    "fetch": fr.Fetch(1, 11, 5, TOPIC_ID, 2, 123_456, 3, True, 4 << 20),
    "fetch-unknown-epoch": fr.Fetch(1, 11, 5, TOPIC_ID, 2, 0, -1, False, 1),
    "more": fr.More(1, 11, 65_536),
    "drop": fr.Drop(1, 11),
    "positions": fr.Positions(1, [(5, 123_460), (6, 0)], 3),
    "ping": fr.Ping(1_234_567_890_123),
}
GATEWAY: Final[dict[str, fr.GatewayMessage]] = {
    "welcome": fr.Welcome(
        1, {"connection": (1, 1), "ask": (1, 1)}, "penstock 0.1.0", TOPIC_ID, "boot",
        "/data/attach.sock", 2.0, 10.0, 1 << 20,
    ),
    "welcome-cluster": fr.Welcome(
        1, {"connection": (1, 1), "cluster": (1, 1)}, "penstock 0.1.0", TOPIC_ID, "boot",
        "/data/attach.sock", 2.0, 10.0, 1 << 20, INCARNATION, 2,
    ),
    "leaders": fr.Leaders(
        42, [(1, "tcp://a:7077"), (3, "tcp://c:7077")], [(0, 1), (5, 3)], 1
    ),
    "attached": fr.Attached(7, 2, 4 << 20, PRODUCER_ID, TOKEN, 2 << 20, 4),
    "refused": fr.Refused(-1, "UnsupportedVersionError", "speak version 1"),
    "answer": fr.Answer(1, 3, _raw(ms.Refused("UnknownTopicError", "no orders")), []),
    "answer-pages": fr.Answer(1, 4, _raw(ms.Done()), [PAGE, WIDE]),
    "answer-proved": fr.Answer(1, 5, _raw(ms.Done()), [], TOKEN),
    "acks": fr.Acks(7, 1, [fr.Ack(42, 200, 1_700_000_000_000_000, 0, 3), fr.Ack(43, 0, 0, 8, 3)],
                    [PAGE]),
    "fetched": fr.Fetched(1, 11, 123_456, 123_460, 2, [PAGE], 3),
    "cursor-failed": fr.CursorFailed(1, 11, 90, "LogTruncatedError", "it parted", 80),
    "pages": fr.Pages(1, [PAGE]),
    "notice": fr.Notice(1, 5),
    "throttled": fr.Throttled(7, "produce", 0.25),
    "ended": fr.Ended(-1, "the node is stopping"),
    "pong": fr.Pong(1_234_567_890_123),
}  # fmt: skip
CASES: Final[dict[str, fr.ClientMessage | fr.GatewayMessage]] = {**CLIENT, **GATEWAY}


def load() -> dict[str, bytes]:
    lines = (line.split(" ") for line in FILE.read_text().splitlines())
    return {name: bytes.fromhex(frame) for name, frame in lines}


def write(names: list[str]) -> None:
    frames = load() if FILE.exists() else {}
    for name in names or list(CASES):
        frames[name] = codec.encode(CASES[name])
    FILE.write_text("".join(f"{name} {frames[name].hex()}\n" for name in CASES if name in frames))


if __name__ == "__main__":
    write(sys.argv[1:])
