"""The values that are sent: prepared beforehand, each with its producer and number in front.

The first 8 bytes are a little-endian u64: producer << 48 | number in the pool. The rest looks like
the text of a service's events, so that compression has something real to do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Final

PRODUCER_SHIFT: Final = 48
NUMBER_MASK: Final = (1 << PRODUCER_SHIFT) - 1
_TEXT_BYTES: Final = 1 << 20


def event_text(seed: int, length: int) -> bytes:
    """Returns `length` bytes of lines like a log of events, the same for the same seed."""
    chance = random.Random(seed)
    lines = []
    size = 0
    while size < length:
        line = (
            f'{{"at":{chance.randrange(10**15)},"user":"{chance.getrandbits(64):016x}",'
            f'"path":"/{chance.choice(("cart", "item", "pay", "seek"))}/{chance.randrange(10**6)}",'
            f'"took":{chance.random():.6f},"ok":{chance.random() < 0.97}}}\n'
        ).encode()
        lines.append(line)
        size += len(line)
    return b"".join(lines)[:length]


def make_pool(producer: int, count: int, size: int) -> list[bytes]:
    """Returns `count` different values of `size` bytes."""
    body = size - 8
    text = event_text(producer, _TEXT_BYTES + body)
    step = 61  # odd, so that bodies begin at different places of a line
    return [
        (producer << PRODUCER_SHIFT | number).to_bytes(8, "little")
        + text[(at := number * step % _TEXT_BYTES) : at + body]
        for number in range(count)
    ]


def make_keys(count: int) -> list[bytes]:
    return [b"key-%08d" % number for number in range(count)]


def cycled(pool: list[bytes], records: int) -> Iterator[bytes]:
    """`records` values, going round the pool; no Python code per value."""
    return islice(chain.from_iterable(repeat(pool)), records)


def lists_of(pool: list[bytes], length: int, records: int) -> Iterator[list[bytes]]:
    """Yields the same in lists of `length` (the last may be shorter); the pool is a
    multiple of it."""
    lists = [pool[start : start + length] for start in range(0, len(pool), length)]
    whole, rest = divmod(records, length)
    yield from islice(chain.from_iterable(repeat(lists)), whole)
    if rest:
        yield lists[whole % len(lists)][:rest]
