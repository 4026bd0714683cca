"""Looks at jobs of a share group without leasing them: where each is, who has it, and its record.

Owns nothing: what it shows may be different a moment later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from penstock.client.admin.share_groups import Ask
from penstock.client.admin.trim import chosen
from penstock.client.consumer.group.options import check_group_name
from penstock.client.remote.address import Place
from penstock.client.session import Session
from penstock.client.validation import check_choice, check_integer, check_range
from penstock.core import errors as er
from penstock.ipc import messages as ms
from penstock.ipc import sharing as sh

if TYPE_CHECKING:  # it needs numpy, which administration does without
    from penstock.client.consumer.records import Record

PEEK_LIMIT: Final = 20
PEEK_MAX: Final = 10_000
"""Jobs of a partition that one call shows, at most."""
BYTES_AT_ONCE: Final = 1 << 20

JobState = Literal["ready", "behind", "leased", "waiting", "condemned", "new"]


@dataclass(frozen=True, slots=True)
class PeekedJob:
    """A record that a share group has not finished. `due`: when one that waits is ready; `since`:
    since when `worker` has a leased one (seconds since the epoch). `reason`: of its last failure.
    `record`: None where it was not asked for, or is there no more."""

    topic: str
    partition: int
    offset: int
    state: JobState
    deliveries: int = 0
    due: float | None = None
    worker: str | None = None
    since: float | None = None
    reason: str = ""
    record: Record | None = None


class JobPeek:
    """Asks the coordinator through a function that it is given, and reads records by a consumer of
    its own."""

    def __init__(
        self, ask: Ask, socket: Place, client_id: str, session: Session, timeout: float
    ) -> None:
        self._ask = ask
        self._socket = socket
        self._client_id = client_id
        self._session = session
        self._timeout = timeout

    def look(
        self,
        group: str,
        topic: ms.TopicInfo,
        state: str | None,
        partitions: int | Sequence[int] | None,
        limit: int,
        *,
        values: bool,
    ) -> list[PeekedJob]:
        check_group_name(group)
        if state is not None:
            check_choice("state", state, get_args(JobState))
        check_integer("limit", limit)
        check_range("limit", limit, 1, PEEK_MAX)
        found: list[PeekedJob] = []
        for number in chosen(topic, partitions):
            jobs = [*self._known(group, topic, number, state, limit)]
            found += self._with_records(topic, number, jobs) if values else jobs
        return found

    def _known(
        self, group: str, topic: ms.TopicInfo, number: int, state: str | None, limit: int
    ) -> Iterator[PeekedJob]:
        """Yields those that the coordinator tells of, and then new ones."""
        first, left, frontier = 0, limit, -1
        while left:
            asked: Any = "" if state in (None, "new") else state
            most = 1 if state == "new" else min(left, sh.PEEKED_MAX)
            answer: sh.SharePeeked = self._ask(
                sh.PeekShare(group, topic.topic_id, number, asked, first, most), sh.SharePeeked
            )
            frontier = answer.frontier
            if state == "new" or not answer.records:
                break
            for one in answer.records:
                yield _job(topic.name, number, one)
            first, left = answer.records[-1].offset + 1, left - len(answer.records)
            if not answer.more:
                break
        if state in (None, "new") and frontier >= 0:
            page = self._session.page(topic.pages[number])
            end = min(page.last_stable, frontier + left)
            for offset in range(max(frontier, page.log_start), end):
                yield PeekedJob(topic.name, number, offset, "new")

    def _with_records(
        self, topic: ms.TopicInfo, number: int, jobs: list[PeekedJob]
    ) -> Iterator[PeekedJob]:
        """The same with their records; new offsets without one are no jobs."""
        from penstock.client.consumer.consumer import Consumer  # these need numpy
        from penstock.client.consumer.span_scan import scanning

        records: dict[int, Record] = {}
        with Consumer(
            self._socket, (topic.name,), client_id=self._client_id, isolation="read_committed",
            on_out_of_range="earliest", prefetch_bytes=BYTES_AT_ONCE, timeout=self._timeout,
        ) as consumer:  # fmt: skip
            start = consumer.beginning_offsets()[topic.name, number]
            for first, end in _spans([job for job in jobs if job.offset >= start]):
                try:
                    for chunks in scanning(
                        consumer, {(topic.name, number): (first, end)}, self._timeout, end - first
                    ):
                        for chunk in chunks:
                            records |= {one.offset: one for one in chunk.records()}
                except (er.CorruptBatchError, er.OffsetOutOfRangeError):
                    continue  # damaged, or deleted just now: what is known of the job is shown
        for job in jobs:
            record = records.get(job.offset)
            if record is not None or job.state != "new":
                yield replace(job, record=record)


def _job(topic: str, number: int, told: sh.PeekedInfo) -> PeekedJob:
    state: Any = told.state
    return PeekedJob(
        topic, number, told.offset, state, told.deliveries,
        told.due_us / 1e6 if told.due_us else None, told.member_id or None,
        told.at_us / 1e6 if told.at_us else None, told.reason,
    )  # fmt: skip


def _spans(jobs: list[PeekedJob]) -> list[tuple[int, int]]:
    """Runs of their offsets."""
    found = []
    for _, run in groupby(enumerate(jobs), lambda pair: pair[1].offset - pair[0]):
        offsets = [job.offset for _, job in run]
        found.append((offsets[0], offsets[-1] + 1))
    return found
