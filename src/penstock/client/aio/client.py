"""`connect`: the door to a node for an event loop, from which producers, consumers and admins are
made."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar, Unpack, cast, overload

from penstock.client.aio.admin import Admin
from penstock.client.aio.consumer import Consumer
from penstock.client.aio.dead_letters import DeadLetterQueue
from penstock.client.aio.group import GroupConsumer
from penstock.client.aio.producer import Producer
from penstock.client.aio.share import ShareConsumer
from penstock.client.aio.transactions import Stage, TransactionalProducer
from penstock.client.aio.waits import Opening, WaitRunner, in_thread
from penstock.client.closing import AsyncClosing
from penstock.client.deadletters.queue import DeadLetterQueue as BlockingDeadLetterQueue
from penstock.client.made import Made
from penstock.client.options import (
    ConsumerOptions,
    GroupOptions,
    ProducerOptions,
    ShareOptions,
    StageOptions,
    TransactionOptions,
    check_consumer_names,
    check_producer_names,
    check_share_names,
)
from penstock.client.remote.address import Place, RemoteAddress
from penstock.client.session import default_url
from penstock.client.transactions.stages import StagesOutcome, commit_stages, end_stages
from penstock.client.transport import Keys, Transport, reaching
from penstock.client.typed import K, V
from penstock.client.validation import telling_options
from penstock.core import errors as er
from penstock.serializers.serializer import Serializer


class _Made(Protocol):
    async def close(self) -> None: ...


M = TypeVar("M", bound=_Made)


class Client(AsyncClosing):
    """A node's address and the objects made from it. Closing the client closes all of them.

    The caller awaits the results of its methods, or enters them by `async with`.
    """

    def __init__(self, url: str, socket: Place, client_id: str) -> None:
        self.url = url
        self._socket = socket
        self._client_id = client_id
        self.made = Made()
        self._closed = False

    @classmethod
    async def make(
        cls, url: str, *, client_id: str, timeout: float | None, transport: Transport, keys: Keys
    ) -> Client:
        """Finds out that a node is there, and how it is reached."""
        place = await WaitRunner("client").carry(
            reaching(url, transport=transport, keys=keys, client_id=client_id, timeout=timeout)
        )
        return cls(url, place, client_id)

    @property
    def transport(self) -> str:
        """How the node is reached: "shm" or "tcp"."""
        return "tcp" if isinstance(self._socket, RemoteAddress) else "shm"

    def metrics(self) -> dict[str, float]:
        """As of `penstock.Client`."""
        return self._socket.metrics() if isinstance(self._socket, RemoteAddress) else {}

    @overload
    def producer(
        self, *, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Opening[TransactionalProducer[V, K]]: ...  # fmt: skip
    @overload
    def producer(
        self, *, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Opening[Producer[V, K]]: ...  # fmt: skip
    def producer(
        self, **options: Any
    ) -> Opening[Producer[Any, Any]] | Opening[TransactionalProducer[Any, Any]]:
        """A new producer; see `penstock.Producer` for the options. With a `transactional_id` it
        sends in transactions."""
        check_producer_names(options)
        options.setdefault("client_id", self._client_id)
        socket = self._socket
        if "transactional_id" in options:
            given = cast(TransactionOptions, options)
            return Opening(
                lambda: self._keep(TransactionalProducer.make_transactional(socket, given))
            )
        plain = cast(ProducerOptions, options)
        return Opening(lambda: self._keep(Producer.make(socket, plain)))

    def stage(
        self, transactional_id: str, epoch: int, **options: Unpack[StageOptions]
    ) -> Opening[Stage]:
        """A producer whose records wait until `commit_transaction` names it; see `Stage`."""
        options.setdefault("client_id", self._client_id)
        return Opening(
            lambda: self._keep(Stage.make_stage(self._socket, transactional_id, epoch, options))
        )

    async def commit_transaction(
        self,
        transactional_id: str,
        epoch: int,
        stages: Iterable[str],
        *,
        commit: bool = True,
        is_last: bool = False,
        timeout: float = 30.0,
    ) -> StagesOutcome:
        """Commits these stages and aborts all others of the id up to this epoch. See
        `penstock.Client.commit_transaction`. Cancelled it may be done all the same: done again it
        answers what was decided first."""
        self._check_open()
        deciding = partial(
            commit_stages, self._socket, transactional_id, epoch, stages, commit=commit,
            is_last=is_last, client_id=self._client_id, timeout=timeout,
        )  # fmt: skip
        return await in_thread(deciding)

    async def end_stages(
        self, transactional_id: str, stages: Iterable[str], *, timeout: float = 30.0
    ) -> None:
        """Gives these stages up; see `penstock.Client.end_stages`."""
        self._check_open()
        ending = partial(
            end_stages, self._socket, transactional_id, stages,
            client_id=self._client_id, timeout=timeout,
        )  # fmt: skip
        await in_thread(ending)

    @overload
    def consumer(
        self, *topics: str, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[GroupOptions],
    ) -> Opening[GroupConsumer[V, K]]: ...  # fmt: skip
    @overload
    def consumer(
        self, *topics: str, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[V, K]]: ...  # fmt: skip
    def consumer(
        self, *topics: str, **options: Any
    ) -> Opening[Consumer[Any, Any]] | Opening[GroupConsumer[Any, Any]]:
        """A new consumer of all partitions of `topics` (none: call `assign`); see
        `penstock.Consumer` for the options. With `group=` a member of that group."""
        check_consumer_names(options)
        options.setdefault("client_id", self._client_id)
        if "group" in options:
            group = cast(GroupOptions, options)
            return Opening(lambda: self._keep(GroupConsumer.make(self._socket, topics, group)))
        plain = cast(ConsumerOptions, options)
        return Opening(lambda: self._keep(Consumer.make(self._socket, topics, plain)))

    def share_consumer(
        self, *topics: str, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[ShareOptions],
    ) -> Opening[ShareConsumer[V, K]]:  # fmt: skip
        """A worker of the share group `group=`; see `penstock.ShareConsumer` for the options."""
        check_share_names(options)
        options.setdefault("client_id", self._client_id)
        given = {**options, "value": value, "key": key}
        return Opening(lambda: self._keep(ShareConsumer.make(self._socket, topics, given)))

    def dead_letters(
        self, topic: str, *, exact: bool = False, timeout: float = 15.0
    ) -> DeadLetterQueue:
        """The dead letters of this topic; see `penstock.Client.dead_letters`."""
        self._check_open()
        return DeadLetterQueue(
            BlockingDeadLetterQueue(
                self._socket, topic, exact=exact, client_id=self._client_id, timeout=timeout
            )
        )

    def admin(self, *, timeout: float = 15.0) -> Opening[Admin]:
        """Topics and the node; `timeout` bounds each request in seconds."""
        client_id = self._client_id
        return Opening(
            lambda: self._keep(Admin.make(self._socket, client_id=client_id, timeout=timeout))
        )

    async def _keep(self, making: Coroutine[Any, Any, M]) -> M:
        if self._closed:
            making.close()
            self._check_open()
        made = await making
        if self._closed:
            await made.close()
            self._check_open()
        self.made.add(made)
        return made

    def _described(self) -> str:
        if self._closed:
            return f"{self.url}, closed"
        return f"{self.url} by {self.transport}, {len(self.made.alive())} made"

    def _check_open(self) -> None:
        if self._closed:
            raise er.ClosedError("this client is closed")

    async def close(self) -> None:
        """Closes everything made from this client; the first error is raised after that."""
        self._closed = True
        failure: Exception | None = None
        for made in self.made.alive().values():
            try:
                await made.close()
            except er.PenstockError as error:
                failure = failure or error
        if isinstance(self._socket, RemoteAddress):
            self._socket.close()
            await in_thread(self._socket.join)
        if failure is not None:
            raise failure


@telling_options("connect()")
def connect(
    url: str | None = None,
    *,
    client_id: str = "",
    timeout: float | None = None,
    transport: Transport = "auto",
    keys: Keys = None,
) -> Opening[Client]:
    """Connects to a node, for `async with` or `await`. Arguments and errors as of
    `penstock.connect`."""
    where = default_url() if url is None else url
    return Opening(
        lambda: Client.make(
            where, client_id=client_id, timeout=timeout, transport=transport, keys=keys
        )
    )
