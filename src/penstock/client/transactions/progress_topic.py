"""A compacted topic in which work says how far it is, as records of its own transactions.

    a run begins      its transactional id fences the run before, and ends what that left open
    it writes a token and reads until it sees it: all that counted is before that
    each transaction  what was done, and how far that is: both count, or neither

The caller decides who works and what the records say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.client.admin.topic_config import TopicConfig
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.client.admin.admin import Admin
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.transactions.producer import TransactionalProducer

FENCE: Final = b"fence"
"""The key of what a run that begins writes there."""
READ_WITHIN: Final = 30.0
"""Seconds without a record for which the reading of that topic waits."""
PROGRESS_CONFIG: Final = TopicConfig(cleanup="compact")


def is_made(admin: Admin, name: str, config: TopicConfig = PROGRESS_CONFIG) -> bool:
    """Makes the topic if it is not there, and returns whether it did. A client without the right to
    make topics may use one."""
    try:
        admin.describe_topic(name)
    except er.UnknownTopicError:
        return admin.create_topic(name, config, if_not_exists=True)
    return False


def check_progress_topic(admin: Admin, name: str, advice: str) -> None:
    """Raises `ConfigError` for a topic that keeps no progress; `advice` is what to do then."""
    kept = admin.describe_topic(name)
    if len(kept.partitions) != 1 or kept.settings["cleanup"] != "compact":
        raise er.ConfigError(
            f"topic {name!r} cannot tell how far this is: it needs one partition and "
            f"cleanup=compact; {advice}"
        )


def fenced(
    producer: TransactionalProducer, consumer: Consumer, name: str
) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of the topic, oldest first, once no other run can add any. The
    consumer reads the topic from its beginning, what is committed."""
    token = os.urandom(16)
    with producer.transaction():
        producer.send(name, token, key=FENCE, partition=0)
    while batch := consumer.poll(timeout=READ_WITHIN):
        for record in batch:
            if record.key == FENCE and record.value == token:
                return
            yield record.key or b"", record.value
    raise er.PenstockTimeout(
        f"topic {name!r} did not show within {READ_WITHIN:g} s what was written to it: "
        "a transaction that is open holds it back (`penstock transaction list --open`)"
    )
