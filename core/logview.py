"""What an open log can be asked: its bounds, its parts, and plain reading for tools and tests.

Consumers never come this way: they map the segments (`reader`). Changes nothing; see `log` for all
that does.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.aborted import AbortedWriter
from penstock.core.chain import Chain
from penstock.core.cleanup import Cleanup
from penstock.core.epochs import EpochCache
from penstock.core.errors import OffsetOutOfRangeError
from penstock.core.flush import Syncs
from penstock.core.header import BatchHeader
from penstock.core.logconfig import LogConfig
from penstock.core.lookup import find_timestamp, read_batches
from penstock.core.opentransactions import OpenTransaction
from penstock.core.producers import ProducerTable
from penstock.core.storage import Storage


class LogView:
    """The asking half of `Log`, which sets all of these."""

    _storage: Storage
    _folder: str
    _config: LogConfig
    _generation: int
    _chain: Chain
    _syncs: Syncs
    _cleanup: Cleanup
    _log_end: int
    _append_timestamp: int
    _producers: ProducerTable
    _aborted: AbortedWriter
    _epochs: EpochCache
    _leader_epoch: int
    _offline: str

    # ---- what it is

    @property
    def config(self) -> LogConfig:
        return self._config

    @property
    def log_start(self) -> int:
        return self._cleanup.log_start

    @property
    def log_end(self) -> int:
        return self._log_end

    @property
    def durable(self) -> int:
        return self._syncs.durable

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def segment_base(self) -> int:
        return self._chain.active.base_offset

    @property
    def segments(self) -> Sequence[int]:
        """Where its segments begin, rising; the last one is active."""
        return tuple(self._chain.bases)

    @property
    def valid_bytes(self) -> int:
        return self._chain.active.valid

    @property
    def append_timestamp(self) -> int:
        return self._append_timestamp

    @property
    def epochs(self) -> EpochCache:
        return self._epochs

    @property
    def producers(self) -> ProducerTable:
        return self._producers

    @property
    def offline(self) -> str:
        """Why the log takes nothing any more; empty while it does."""
        return self._offline

    @property
    def last_stable(self) -> int:
        """Below it every transaction is decided, and readers can tell which were aborted: the first
        offset of the oldest open one, or the log's end."""
        transactions, aborted = self._producers.transactions, self._aborted
        if not transactions and not aborted.pending:
            return self._log_end
        end, oldest, held = self._log_end, transactions.oldest, aborted.held
        if oldest is not None:
            end = oldest.first_offset
        if held is not None:
            end = min(end, held)
        return max(end, self.log_start)

    def stand(self) -> tuple[int, int, int, int, OpenTransaction | None]:
        """`segment_base`, `valid_bytes`, `log_end`, `last_stable` and `oldest_open`, all that is
        published after an append, in one call."""
        active, end = self._chain.active, self._log_end
        oldest = self._producers.transactions.oldest
        stable = end if oldest is None and not self._aborted.pending else self.last_stable
        return active.base_offset, active.valid, end, stable, oldest

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The transaction that holds `last_stable` back."""
        return self._producers.transactions.oldest

    def needs_roll(self, now_us: int) -> bool:
        """Whether the active segment has reached its age or size."""
        active, config = self._chain.active, self._config
        if not active.valid or self._offline:
            return False
        if active.valid >= config.segment_bytes:
            return True
        if config.segment_age is None or active.first_append is None:
            return False
        return now_us - active.first_append >= config.segment_age * 1e6

    def sync_due(self, seconds_since_last: float) -> bool:
        """Whether the flush mode, a closed segment or the bound on recovery asks for a sync."""
        return not self._offline and self._syncs.due(
            self._config, self._log_end, seconds_since_last
        )

    # ---- reading, for tools and tests

    def read(self, offset: int, max_bytes: int) -> list[tuple[BatchHeader, bytes]]:
        """Whole batches from the one that holds `offset` on, up to `max_bytes` but at least one;
        none at the log's end."""
        self._check_offset(offset)
        return read_batches(
            self._storage, self._folder, self._chain.bases, self._log_end, offset, max_bytes
        )

    def _check_offset(self, offset: int) -> None:
        if not self.log_start <= offset <= self._log_end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the log in {self._folder}: it holds {self.log_start} "
                f"to {self._log_end}"
            )

    def offset_for_timestamp(self, timestamp: int) -> int | None:
        """The base offset of the first batch with a record at or after this time (microseconds);
        None if there is none. Which record of the batch it is, only its columns tell."""
        return find_timestamp(
            self._storage,
            self._folder,
            self._chain.bases,
            self.log_start,
            self._log_end,
            timestamp,
        )
