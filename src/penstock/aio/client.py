"""`connect`: the door to a node for an event loop, from which producers, consumers and admins are
made."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast, overload

from penstock.aio.admin import Admin
from penstock.aio.consumer import Consumer
from penstock.aio.group import GroupConsumer
from penstock.aio.producer import Producer
from penstock.aio.waiting import Carrier, Opening
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.options import (
    ConsumerOptions,
    GroupOptions,
    ProducerOptions,
    check_consumer_names,
    check_producer_names,
)
from penstock.session import Session, default_url, socket_of

M = TypeVar("M", Producer, Consumer, GroupConsumer, Admin)


class Client:
    """A node's address and what was made from it. Closing the client closes all of that.

    What its methods return is awaited, or entered by `async with`.
    """

    def __init__(self, url: str, socket: Path, client_id: str) -> None:
        self.url = url
        self._socket = socket
        self._client_id = client_id
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False

    @classmethod
    async def make(cls, url: str, *, client_id: str, timeout: float) -> Client:
        """Find out that a node is there."""
        socket = socket_of(url)
        session = await Carrier("client").carry(
            Session.attaching(socket, lo.KIND_ADMIN, client_id=client_id, timeout=timeout)
        )
        session.close()
        return cls(url, socket, client_id)

    def producer(self, **options: Unpack[ProducerOptions]) -> Opening[Producer]:
        """A new producer; see `penstock.Producer` for the options."""
        if "transactional_id" in options:
            raise er.ConfigError(
                "transactions are the blocking client's: run them in a thread (asyncio.to_thread)"
            )
        check_producer_names(options)
        options.setdefault("client_id", self._client_id)
        return Opening(lambda: self._keep(Producer.make(self._socket, options)))

    @overload
    def consumer(self, *topics: str, **options: Unpack[GroupOptions]) -> Opening[GroupConsumer]: ...
    @overload
    def consumer(self, *topics: str, **options: Unpack[ConsumerOptions]) -> Opening[Consumer]: ...
    def consumer(self, *topics: str, **options: Any) -> Opening[Consumer] | Opening[GroupConsumer]:
        """A new consumer of all partitions of `topics` (none: call `assign`); see
        `penstock.Consumer` for the options. With `group=` a member of that group."""
        check_consumer_names(options)
        options.setdefault("client_id", self._client_id)
        if "group" in options:
            group = cast(GroupOptions, options)
            return Opening(lambda: self._keep(GroupConsumer.make(self._socket, topics, group)))
        plain = cast(ConsumerOptions, options)
        return Opening(lambda: self._keep(Consumer.make(self._socket, topics, plain)))

    def admin(self, *, timeout: float = 15.0) -> Opening[Admin]:
        """Topics and the node; `timeout` bounds each request in seconds."""
        client_id = self._client_id
        return Opening(
            lambda: self._keep(Admin.make(self._socket, client_id=client_id, timeout=timeout))
        )

    async def _keep(self, making: Awaitable[M]) -> M:
        made = await making
        if self._closed:
            await made.close()
            raise er.ClosedError("this client is closed")
        self._made.add(made)
        return made

    async def close(self) -> None:
        """Close everything made from this client; the first error is raised after that."""
        self._closed = True
        failure: Exception | None = None
        for made in list(self._made):
            try:
                await made.close()
            except er.PenstockError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def connect(
    url: str | None = None, *, client_id: str = "", timeout: float = 5.0
) -> Opening[Client]:
    """Connect to a node, for `async with` or `await`: `shm://` (the default node of this user),
    `shm://NAME`, or `shm:///PATH/OF/DATA/FOLDER`. Without a URL: `$PENSTOCK_URL`, else `shm://`.

    Waits up to `timeout` seconds for a node that is starting. Raises `NotConnectedError`,
    `AttachRefusedError`, `ConfigError`.
    """
    where = default_url() if url is None else url
    return Opening(lambda: Client.make(where, client_id=client_id, timeout=timeout))
