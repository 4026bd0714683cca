"""How far the partitions of a consumer go, and what is left of them to read.

Owns the sums. What stands in shared memory is read there; a node on another host is asked first,
unless the caller cannot wait: then what it last told stands (`known_...`).
"""

from __future__ import annotations

import logging

from penstock.client.consumer.iteration import HandOut
from penstock.client.consumer.logs import Logs
from penstock.client.consumer.partition_cursor import AssignedPartition, TopicPartition
from penstock.client.remote.logs import logs_of
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.ipc.waits import Waits, run

logger = logging.getLogger("penstock.consumer")


class Standing:
    """A part of `penstock.client.consumer.consumer.Consumer`."""

    _assigned: dict[TopicPartition, AssignedPartition]
    _handout: HandOut
    _timeout: float

    @property
    def _session(self) -> Session:
        raise NotImplementedError

    def _logs(self) -> Logs:
        return logs_of(self._session, self._timeout)

    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and end (see `end_offsets`), from shared memory."""
        run(self.refreshing())
        return self.known_lag()

    def known_lag(self) -> dict[TopicPartition, int]:
        """`lag` by what is known of the ends: those of a remote node may have moved on."""
        return {
            name: max(0, partition.end - self._handout.offset_of(partition))
            for name, partition in self._assigned.items()
        }

    def end_offsets(self) -> dict[TopicPartition, int]:
        """The high watermarks, under `read_committed` the last stable offsets."""
        run(self.refreshing())
        return self.known_ends()

    def known_ends(self) -> dict[TopicPartition, int]:
        """`end_offsets` as far as they are known: those of a remote node may have moved on."""
        return {name: part.end for name, part in self._assigned.items()}

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """The log starts."""
        run(self.refreshing())
        return self.known_beginnings()

    def known_beginnings(self) -> dict[TopicPartition, int]:
        """`beginning_offsets` as far as they are known."""
        return {name: part.page.log_start for name, part in self._assigned.items()}

    def refreshing(self) -> Waits[None]:
        """Let a remote node say how the partitions stand now. While it is away, what is known of
        them stands. A node on this host need not be asked."""
        if self._session.far is None or not self._assigned:
            return
        try:
            yield from self._logs().refreshing([part.page for part in self._assigned.values()])
        except er.PenstockError as error:
            if not error.retriable:
                raise
            logger.info("nobody tells how partitions stand now, going by what is known: %s", error)
