"""Trimming as an admin does it: what a place means in each partition, what would go, what went.

Owns the resolution and the sums. Asks the node through a function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.client.consumer.logs import LogHandle, NodeLogs
from penstock.client.consumer.offset_lookup import resolving
from penstock.client.consumer.offsets import Offset
from penstock.core import errors as er
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage
from penstock.ipc.waits import run


@dataclass(frozen=True, slots=True)
class TrimResult:
    """Effect of a trim on a partition, done or predicted.

    `records` counts the offsets that went out of reach. `segments` counts the removed files,
    `nbytes` their bytes.
    """

    partition: int
    log_start_before: int
    log_start: int
    records: int
    segments: int
    nbytes: int


class PartitionTrim:
    """One partition and where its log is to start."""

    def __init__(
        self, topic: ms.TopicInfo, partition: int, page: StatePage, logs: NodeLogs, before: Offset
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._logs = logs
        self._log = LogHandle(page, topic.topic_id, partition)
        self._start = page.log_start
        if before.place == "exact" and before.number < self._start:
            before = Offset.earliest()  # that is done already
        name = f"{topic.name}-{partition}"
        self._before = run(resolving(before, name, logs, self._log, self._start))

    def foretell(self) -> TrimResult:
        """Returns the result that `do` would have now."""
        segments, nbytes = run(self._logs.sizing(self._log, self._before))
        return self._result(self._before, segments, nbytes)

    def do(self, ask: Callable[[ms.TrimPartition], ms.Cleaned]) -> TrimResult:
        topic = self._topic
        order = ms.TrimPartition(topic.name, self._partition, self._before, topic.topic_id)
        done = ask(order)
        return self._result(done.log_start, done.segments, done.freed)

    def _result(self, log_start: int, segments: int, nbytes: int) -> TrimResult:
        records = max(0, log_start - self._start)
        return TrimResult(self._partition, self._start, log_start, records, segments, nbytes)


def chosen(topic: ms.TopicInfo, partition: int | Sequence[int] | None) -> list[int]:
    """The partitions that are meant: one, some, or all."""
    count = len(topic.pages)
    if partition is None:
        return list(range(count))
    given = [partition] if isinstance(partition, int) else list(partition)
    for number in given:
        if not 0 <= number < count:
            raise er.UnknownTopicError(
                f"topic {topic.name!r} has partitions 0 to {count - 1}, not {number}"
            )
    return given
