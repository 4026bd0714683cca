"""Which dead letters were sent again: a bit for each, in a compacted topic beside theirs.

    key     topic id of the dead letters, partition, leader epoch, number of a block
    value   128 bytes: a bit for each of the block's 1024 offsets, the lowest first

A replay writes the blocks that it changes in the transaction that sends the letters. Blocks without
any bit are not there, so what this takes grows with what was sent again. The epoch is that of the
letter's batch: where a power cut took letters, others that get their offsets have another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.errors import ConfigError

SUFFIX: Final = ".replayed"
"""Behind the name of a topic of dead letters: the topic with these bits."""
BLOCK: Final = 1024
"""Offsets of a block."""
BLOCK_BYTES: Final = BLOCK // 8


Mark = tuple[int, int, int]
"""Partition, leader epoch and offset of a dead letter."""


class ReplayedLetters:
    """The bits, as a run knows them. `topic_id`: of the dead letters, in hexadecimal. Bits of an
    earlier topic of the same name count for nothing."""

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self._blocks: dict[Mark, int] = {}
        self._changed: set[Mark] = set()

    def learn(self, key: bytes, value: bytes | None) -> None:
        """A record of the topic with the bits, oldest first. Raises `ConfigError`."""
        topic_id, *numbers = key.decode("ascii", "replace").split("-")
        if topic_id != self._topic_id or len(numbers) != 3:
            return
        try:
            partition, epoch, block = map(int, numbers)
        except ValueError:
            return
        if value is None:
            self._blocks.pop((partition, epoch, block), None)
        elif len(value) == BLOCK_BYTES:
            self._blocks[partition, epoch, block] = int.from_bytes(value, "little")
        else:
            raise ConfigError(
                f"a record of {len(value)} bytes does not tell which of {BLOCK} dead letters were "
                "sent again: others write to that topic; delete it, and all count as not sent yet"
            )

    def __contains__(self, mark: Mark) -> bool:
        partition, epoch, offset = mark
        block, bit = divmod(offset, BLOCK)
        return bool(self._blocks.get((partition, epoch, block), 0) >> bit & 1)

    def add(self, mark: Mark) -> None:
        """It is sent again by the transaction that `changes` are written in."""
        partition, epoch, offset = mark
        block, bit = divmod(offset, BLOCK)
        name = partition, epoch, block
        self._blocks[name] = self._blocks.get(name, 0) | 1 << bit
        self._changed.add(name)

    def changes(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the blocks that changed since the last call."""
        for name in sorted(self._changed):
            yield self._key(name), self._blocks[name].to_bytes(BLOCK_BYTES, "little")
        self._changed.clear()

    def forgotten(self, starts: dict[int, int]) -> Iterator[bytes]:
        """The keys of blocks below these log starts, which nobody needs any more. They go."""
        for name in [*self._blocks]:
            partition, _, block = name
            if (block + 1) * BLOCK <= starts.get(partition, 0):
                del self._blocks[name]
                yield self._key(name)

    def _key(self, name: Mark) -> bytes:
        return "-".join([self._topic_id, *map(str, name)]).encode()
