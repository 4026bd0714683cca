"""What the crash machine's producers send: every record follows from its sender and number alone.

So the audit can say of any record found in a log whether somebody sent exactly these bytes, and of
any gap which record is missing. Owns that rule; never sends or reads anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from zlib import crc32

from penstock.client.producer.partitioner import murmur2

MIX = 2654435761
HEADER_EVERY = 64
LENGTHS = (0, 1, 8, 20, 60, 100, 250, 1000, 100, 20, 60, 4000)
FILLER = bytes(range(32, 127)) * 50


class Sent(NamedTuple):
    """One record as it is handed to `send`."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Cargo:
    """The records of one producer process. `who` names it among all of a run."""

    who: str
    topics: tuple[tuple[str, int], ...]
    """Names with their partitions."""
    keys: int

    def record(self, number: int) -> Sent:
        mixed = (number * MIX + crc32(self.who.encode())) & 0xFFFFFFFF
        topic, partitions = self.topics[(mixed >> 20) % len(self.topics)]
        key = (mixed >> 8) % self.keys
        length = LENGTHS[mixed % len(LENGTHS)]
        value = b"%s|%d|%d|%s" % (self.who.encode(), number, key, FILLER[number % 95 :][:length])
        headers = (("who", self.who.encode()),) if number % HEADER_EVERY == 0 else ()
        name = b"key-%d" % key
        return Sent(topic, partition_of(name, partitions), name, value, headers)


@cache
def partition_of(key: bytes, partitions: int) -> int:
    """Where the producer's partitioner puts this key too, so that naming it changes nothing."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def sender_of(value: bytes | None) -> tuple[str, int]:
    """Who sent this record and its number there. Raises ValueError for bytes nobody sends."""
    who, number, _, _ = (value or b"").split(b"|", 3)
    return who.decode("ascii"), int(number)
