"""Dead letters for tests: written as workers write them, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import penstock
from penstock.client.share.dead_letters import DeadRecord, _joined, headers_of
from penstock.ipc.sharing import CondemnedRecord, FailureInfo

ID = bytes(16)


def bury(
    client: penstock.Client,
    topic: str,
    values: Iterable[bytes | None],
    *,
    to: str | None = None,
    group: str = "workers",
    reason: str = "ValueError: no",
    headers: tuple[tuple[str, bytes | None], ...] = (),
    start: int = 0,
    partition: int = 0,
    into: int = 0,
) -> None:
    """Dead letters of records with these values, at offsets from `start` of a partition on, in the
    partition `into` of theirs."""
    to = to or f"{topic}.dlq"
    client.admin().create_topic(to, if_not_exists=True)
    with client.producer() as producer:
        for offset, value in enumerate(values, start):
            failures = [FailureInfo("member-1", 1_500_000 + offset, reason)]
            told = CondemnedRecord(ID, partition, offset, 5, failures)
            story = headers_of(DeadRecord(topic, told), group)
            stamped = (*story, ("penstock.dlq.timestamp", b"%d" % (1000 + offset)))
            producer.send(to, value, headers=_joined(headers, stamped), partition=into)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def came(client: penstock.Client, topic: str) -> Counter[bytes | None]:
    """Values that committed readers see of a topic, and how often."""
    with client.consumer(topic, follow=False, isolation="read-committed") as consumer:
        return Counter(record.value for record in consumer)


def once(count: int, start: int = 0) -> Counter[bytes]:
    """Each of these, once."""
    return Counter(numbers(count, start))


def each_of(*spans: range) -> Counter[bytes]:
    """Each of these, once."""
    return Counter(b"%d" % number for span in spans for number in span)
