"""Dead letters, from an event loop: threads of the loop's do what the blocking ones do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final

from penstock.client.admin.trim import TrimResult
from penstock.client.aio.waits import in_thread
from penstock.client.consumer.offsets import Offset
from penstock.client.deadletters.choice import Only
from penstock.client.deadletters.queue import DeadLetterQueue as BlockingDeadLetterQueue
from penstock.client.deadletters.replay import MAX_REPLAYS, ReplayResult
from penstock.client.deadletters.stats import DeadLetterStats
from penstock.client.deadletters.story import DeadLetter
from penstock.client.public_view import Shown

AT_ONCE: Final = 100
"""Dead letters that a thread brings, before the loop hands them out."""


class DeadLetterQueue(Shown):
    """See `penstock.DeadLetterQueue`, whose verbs these are. A call that is cancelled goes on in
    its thread; to stop a replay, raise an exception in `on_progress`, which is called there."""

    def __init__(self, core: BlockingDeadLetterQueue) -> None:
        self._core = core
        self.topic = core.topic

    def __aiter__(self) -> AsyncIterator[DeadLetter]:
        """Those that were not sent again yet."""
        return self.letters()

    async def letters(
        self,
        *,
        where: str | None = None,
        partition: int | Sequence[int] | None = None,
        only: Only | None = None,
        replayed: bool | None = False,
        limit: int | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """Dead letters, oldest first in each partition. See `penstock.DeadLetterQueue.letters`."""
        found = self._core.letters(
            where=where, partition=partition, only=only, replayed=replayed, limit=limit
        )
        is_bringing = False
        try:
            while True:
                is_bringing = True  # cancelled, its thread closes it
                some = await in_thread(lambda: [*islice(found, AT_ONCE)], lambda _: found.close())
                is_bringing = False
                if not some:
                    return
                for letter in some:
                    yield letter
        finally:
            if not is_bringing:
                await in_thread(found.close)

    async def letter(self, partition: int, offset: int) -> DeadLetter:
        """The dead letter at this place."""
        return await in_thread(partial(self._core.letter, partition, offset))

    async def stats(
        self,
        *,
        where: str | None = None,
        partition: int | Sequence[int] | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> DeadLetterStats:
        """How many there are, of whom, why, and how old."""
        return await in_thread(
            partial(self._core.stats, where=where, partition=partition, on_progress=on_progress)
        )

    async def replay(
        self,
        *,
        where: str | None = None,
        partition: int | Sequence[int] | None = None,
        only: Only | None = None,
        limit: int | None = None,
        rate: float | None = None,
        max_replays: int = MAX_REPLAYS,
        again: bool = False,
        dry_run: bool = False,
        to: str | None = None,
        topics: Collection[str] | None = None,
        on_progress: Callable[[ReplayResult], object] | None = None,
    ) -> ReplayResult:
        """Sends dead letters again. See `penstock.DeadLetterQueue.replay`."""
        return await in_thread(
            partial(
                self._core.replay, where=where, partition=partition, only=only, limit=limit,
                rate=rate, max_replays=max_replays, again=again, dry_run=dry_run, to=to,
                topics=topics, on_progress=on_progress,
            )
        )  # fmt: skip

    async def purge(
        self,
        *,
        before: Offset | str | int | datetime,
        partition: int | Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[TrimResult]:
        """Removes the oldest dead letters for ever. See `penstock.DeadLetterQueue.purge`."""
        return await in_thread(
            partial(self._core.purge, before=before, partition=partition, dry_run=dry_run)
        )

    def _described(self) -> str:
        return f"of {self.topic}"
