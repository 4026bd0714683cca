"""The source of a partition's batches: the interface between reading and the log's place.

Owns the requests to a log in files of this host. A log on another host comes through
`penstock.client.remote.source`, by the same methods. Knows no positions of consumers and never
waits.
"""

from __future__ import annotations

from typing import Protocol

from penstock.core.committed import AbortedTransactions
from penstock.core.header import BatchHeader
from penstock.core.reader import Found, Limit, LogReader, divergence
from penstock.core.storage import Storage


class Source(Protocol):
    """A cursor over the batches of one partition. `offset` is the next one it will bring."""

    offset: int

    def fetch(self, limit: Limit, bytes_max: int) -> list[Found]:
        """Fetches as `core.reader.LogReader.fetch`."""

    def alone(self, offset: int, base: int, valid_bytes: int) -> Found | None:
        """Reads as `core.reader.LogReader.alone`."""

    def seek(self, offset: int) -> None:
        """Goes on at `offset` with the next `fetch`."""

    def look(self, offset: int, bytes_max: int | None) -> None:
        """Seeks as `core.reader.LogReader.look`. `bytes_max`: how much is wanted from there on;
        None: all that follows."""

    def let_go_below(self, start: int) -> None:
        """Closes as `core.reader.LogReader.let_go_below`."""

    def parted(self, offset: int, epoch: int, log_end: int) -> int | None:
        """Computes as `core.reader.divergence`."""

    def leaves_out(self, head: BatchHeader, last_stable: int) -> bool:
        """Returns whether this transactional batch, below the last stable offset, was aborted."""

    def forget_aborted(self) -> None:
        """Notes another leader epoch of the log: the known transactions may be wrong."""

    def close(self) -> None: ...


class LocalSource(LogReader):
    """The log's own files, mapped. See `Source`."""

    def __init__(self, storage: Storage, folder: str) -> None:
        super().__init__(storage, folder)
        self._aborted = AbortedTransactions(storage, folder)

    def look(self, offset: int, bytes_max: int | None = None) -> None:
        super().look(offset)

    def parted(self, offset: int, epoch: int, log_end: int) -> int | None:
        return divergence(self._storage, self._folder, offset, epoch, log_end)

    def leaves_out(self, head: BatchHeader, last_stable: int) -> bool:
        return self._aborted.has(head, last_stable)

    def forget_aborted(self) -> None:
        self._aborted.forget()


def folder_of(topic_id: bytes, partition: int) -> str:
    """Returns the name of a partition's folder below the data folder."""
    return f"{topic_id.hex()}-{partition}"
