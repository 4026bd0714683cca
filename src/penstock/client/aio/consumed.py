"""Holds what a loop consumed, for a producer's transaction that ends in a thread.

A thread never touches a consumer of the loop. It notes that there is something to bring again,
and the loop does that afterwards. Owns that note, and nothing of the consumers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

from penstock.client.aio.group import GroupConsumer
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.group.consumed import GroupBatch, batch_offsets
from penstock.client.consumer.group.consumer import GroupConsumer as BlockingGroupConsumer
from penstock.client.consumer.records import RecordBatch
from penstock.core import errors as er
from penstock.ipc.coordination import GroupOffsets

Consumed: TypeAlias = GroupBatch | GroupConsumer | Iterable[GroupBatch | GroupConsumer]
"""Input of a transaction: a group's batch, a group's consumer (all it handed out), or several."""


class Held:
    """One consumed input of a transaction, held for the blocking producer.

    It is an `OffsetSource` of `penstock.client.consumer.group.consumed`.
    """

    def __init__(self, consumed: GroupBatch | GroupConsumer) -> None:
        self._consumed = consumed
        self._is_due = False
        self.is_brought = False

    def offsets_of(self, _batch: GroupBatch | None = None) -> GroupOffsets:
        """In the loop: what to commit."""
        if isinstance(self._consumed, GroupBatch):
            return batch_offsets(self._consumed)
        return self._consumed.blocking.offsets_of()

    def rewind(self, _batch: GroupBatch | None = None) -> None:
        """From any thread: it is to come again. Once, lest what came since comes twice."""
        self._is_due = not self.is_brought

    async def bring_again(self) -> None:
        """In the loop: if it is to come again, see to that. Of a batch without waiting."""
        if not self._is_due:
            return
        self._is_due, self.is_brought = False, True
        with suppress(er.ClosedError):  # nobody is there to bring anything
            if isinstance(self._consumed, GroupConsumer):
                await self._consumed.rewind()
            elif self._consumed.source is not None:
                self._consumed.source.rewind(self._consumed)


def hold(consumed: Consumed | None) -> list[Held]:
    """Returns the inputs of a transaction, one by one.

    Raises `ConfigError` for an input that no group consumer brought, and for a blocking consumer.
    """
    if consumed is None:
        return []
    if isinstance(consumed, GroupBatch | GroupConsumer):
        return [Held(consumed)]
    if isinstance(consumed, str | RecordBatch | BlockingGroupConsumer | Consumer) or not isinstance(
        consumed, Iterable
    ):
        raise er.ConfigError(
            f"consumed={consumed!r}: a transaction in a loop commits what a consumer of a group "
            "brought: a batch of `client.consumer(..., group=...)`, or that consumer itself, of "
            "penstock.aio"
        )
    return [held for each in consumed for held in hold(each)]
