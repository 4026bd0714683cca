"""A copy in a retry topic tells which record it is of, and gives it back as it was at first.

    copy in a retry topic        the record's key, value, own headers and options of jobs;
                                 due: when it is to be tried again;
                                 header `penstock.retry`: the story, as JSON
    what the handler gets        topic, partition, offset, timestamp and headers of the record, and
                                 the header `penstock.retry.deliveries`: which try this is

Owns this header. Only copies in retry topics are believed: elsewhere it says nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.client.consumer.records import Record
from penstock.client.validation import HEADERS_MAX
from penstock.core.columns import HeaderList
from penstock.ipc.sharing import FailureInfo

HEADER: Final = "penstock.retry"
DELIVERIES: Final = "penstock.retry.deliveries"
FAILURES_KEPT: Final = 5
"""Of each record, as share groups keep them."""


class RetryStory(msgspec.Struct, frozen=True):
    """Which record it is, and what came of it by now. `due`: what the record itself had.
    `rest`: the header that had no room beside this one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    group: str
    deliveries: int = 0
    failures: list[FailureInfo] = []
    due: int | None = None
    rest: list[tuple[str, bytes | None]] = []

    def failed(self, failure: FailureInfo) -> RetryStory:
        """One more delivery has."""
        failures = [*self.failures[1 - FAILURES_KEPT :], failure]
        return msgspec.structs.replace(self, deliveries=self.deliveries + 1, failures=failures)

    def shortened(self) -> RetryStory:
        """With the last reason alone, and little of that."""
        last = [msgspec.structs.replace(one, reason=one.reason[:100]) for one in self.failures[-1:]]
        return msgspec.structs.replace(self, failures=last)


_decoder: Final = msgspec.json.Decoder(RetryStory)


def begun(record: Record[Any, Any], group: str) -> RetryStory:
    """Of a record that was not tried yet."""
    return RetryStory(
        record.topic, record.partition, record.offset, record.timestamp, group, due=record.due
    )


def told(record: Record[Any, Any]) -> RetryStory | None:
    """The story of a copy; None of what somebody else has sent there."""
    for name, value in record.headers:
        if name == HEADER and value is not None:
            try:
                return _decoder.decode(value)
            except msgspec.DecodeError:
                return None
    return None


def own_headers(record: Record[Any, Any]) -> HeaderList:
    """Without those of retries."""
    return tuple(pair for pair in record.headers if pair[0] not in (HEADER, DELIVERIES))


def copied_headers(own: HeaderList, story: RetryStory) -> HeaderList:
    """Those of a copy."""
    room = HEADERS_MAX - 1
    story = msgspec.structs.replace(story, rest=list(own[room:]))
    return (*own[:room], (HEADER, msgspec.json.encode(story)))


def as_it_was(record: Record[Any, Any], story: RetryStory) -> Record[Any, Any]:
    """The record of a copy."""
    headers = (*own_headers(record), *story.rest, (DELIVERIES, b"%d" % (story.deliveries + 1)))
    due = {} if record.work is None else {"due": story.due}
    return msgspec.structs.replace(
        record, topic=story.topic, partition=story.partition, offset=story.offset,
        timestamp=story.timestamp, headers=headers, **due,
    )  # fmt: skip
