"""Orders about old records on their way to the writers and back.

A request becomes an order with a ticket; its answer is the report that carries the ticket. A writer
that dies in between is told again, since every such order may be repeated. Runs in the node. Owns
the tickets, and does not know the callers and their reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from penstock.core import errors as er
from penstock.ipc import messages as ms
from penstock.ipc.cleaning import CleaningOrder
from penstock.server.config import NodeConfig
from penstock.server.node.partitions import Partitions, Post
from penstock.server.node.topic_catalog import check_not_internal
from penstock.server.node.topics import TopicRequests


class CleaningOrders:
    """All orders that are under way, by ticket."""

    def __init__(
        self,
        config: NodeConfig,
        topics: TopicRequests,
        partitions: Partitions,
        post: Post,
        follows: Callable[[int], bool] = lambda _page: False,
    ) -> None:
        """`follows`: whether the partition of a page is led by another broker, or by nobody."""
        self._config = config
        self._topics = topics
        self._partitions = partitions
        self._post = post
        self._follows = follows
        self._tickets = 0
        self._orders: dict[int, tuple[CleaningOrder, asyncio.Future[ms.LogCleaned]]] = {}

    async def trim(self, request: ms.TrimPartition) -> ms.Cleaned:
        """Let a partition's log start elsewhere. Raises what the writer refused it with."""
        check_not_internal(request.name)
        page = await self._page(request.name, request.partition, request.topic_id)
        if request.before < 0:
            raise er.ConfigError(f"before is {request.before}: offsets begin at 0")
        if self._follows(page):
            raise er.NotLeaderError(
                f"{request.name}-{request.partition} is led by another broker, or by nobody now: "
                "its log starts where its leader's does"
            )
        return await self._done(
            f"trim {request.name}-{request.partition} to {request.before}",
            lambda ticket: ms.TrimLog(page, ticket, request.before),
        )

    async def swap(self, request: ms.SwapSegments) -> ms.Cleaned:
        """Put a segment that the cleaner has prepared in its place, or drop it."""
        page = await self._page(request.name, request.partition, request.topic_id)
        return await self._done(
            f"put cleaned segment {request.segment.base} of {request.name}-{request.partition} in "
            "its place",
            lambda ticket: ms.SwapLog(page, ticket, request.segment, request.records),
        )

    async def _page(self, name: str, partition: int, topic_id: bytes) -> int:
        """The page of a partition that is open."""
        topic = (await self._topics.find(name)).topic
        if topic_id not in (b"", topic.topic_id):
            raise er.UnknownTopicError(f"topic {name!r} was deleted and made again in the meantime")
        if not 0 <= partition < len(topic.pages):
            raise er.UnknownTopicError(
                f"topic {name!r} has partitions 0 to {len(topic.pages) - 1}, not {partition}"
            )
        page = topic.pages[partition]
        here = self._partitions.live.get(page)
        if here is None:
            raise er.NotLeaderError(f"{name}-{partition} has no replica on this broker")
        if here.failure is not None:
            raise er.LogOfflineError(f"{name}-{partition} is offline: {here.failure}")
        return page

    async def _done(self, what: str, make: Callable[[int], CleaningOrder]) -> ms.Cleaned:
        self._tickets += 1
        ticket = self._tickets
        order = make(ticket)
        answer: asyncio.Future[ms.LogCleaned] = asyncio.get_running_loop().create_future()
        self._orders[ticket] = order, answer
        try:
            self._post(self._partitions.writer_of(order.page), order)
            report = await asyncio.wait_for(answer, self._config.topic_timeout)
        except TimeoutError:
            raise er.PenstockTimeout(
                f"cannot {what}: its writer did not say that it is done within "
                f"{self._config.topic_timeout:g} s (topic_timeout); it may still happen, ask again"
            ) from None
        finally:
            del self._orders[ticket]
        if report.error:
            raise _refusal(report.error, f"cannot {what}: {report.message}")
        return ms.Cleaned(report.log_start, report.segments, report.freed, report.done)

    def orders_for(self, writer: int) -> Iterator[ms.WriterOrder]:
        """Yields the orders that a fresh writer must get once its partitions are open."""
        for order, _ in self._orders.values():
            if self._partitions.writer_of(order.page) == writer:
                yield order

    def reported(self, report: ms.LogCleaned) -> None:
        _, answer = self._orders.get(report.ticket, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(report)


def _refusal(name: str, message: str) -> er.PenstockError:
    """The error that a writer named."""
    found = er.named(name, message)
    if isinstance(found, er.StorageError) and not isinstance(found, er.LogOfflineError):
        return er.StorageError(message, retriable=True)
    return found
