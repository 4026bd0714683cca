"""The progress of relays, in the topic where their records go.

    key     the outbox's id
    value   msgpack: number of the batch, runs of the ids that it sent, [first, count, ...], and a
            digest of these ids and of when their rows were inserted

It is written by the transaction that sends the rows. So after any crash the last one says which
rows are sent, though the database still has them. Only the last counts: a batch is sent after the
one before is settled. A database that is one batch older may have given the same ids to other rows:
the digest tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec


class SentBatch(NamedTuple):
    """The last batch that counts, and the ids of the rows in it."""

    batch: int = 0
    runs: tuple[int, ...] = ()
    digest: bytes = b""

    @classmethod
    def of(cls, batch: int, rows: Iterable[tuple[int, str]]) -> SentBatch:
        """`rows`: ids, which rise, mostly by one, and when they were inserted."""
        runs: list[int] = []
        digest = blake2b(digest_size=16)
        for each, created in rows:
            digest.update(f"{each} {created}\n".encode())
            if runs and each == runs[-2] + runs[-1]:
                runs[-1] += 1
            else:
                runs += (each, 1)
        return cls(batch, tuple(runs), digest.digest())

    def ids(self) -> Iterator[int]:
        for first, count in zip(self.runs[::2], self.runs[1::2], strict=True):
            yield from range(first, first + count)

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decoded(cls, value: bytes) -> SentBatch:
        """Raises `msgspec.MsgspecError`."""
        return msgspec.msgpack.decode(value, type=cls)
