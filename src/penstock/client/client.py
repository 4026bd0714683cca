"""`connect`: the door to a node, from which producers, consumers and admins are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack, overload

from penstock.client.admin.admin import Admin
from penstock.client.closing import Closing
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.client.deadletters.queue import DeadLetterQueue
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
from penstock.client.producer.producer import PlainProducer, Producer
from penstock.client.remote.address import RemoteAddress
from penstock.client.session import default_url
from penstock.client.share.consumer import ShareConsumer
from penstock.client.transactions.producer import TransactionalProducer
from penstock.client.transactions.stages import Stage, StagesOutcome, commit_stages, end_stages
from penstock.client.transport import Keys, Transport, reaching
from penstock.client.typed import K, V
from penstock.client.validation import telling_options
from penstock.core import errors as er
from penstock.ipc.waits import run
from penstock.serializers.serializer import Serializer


class Client(Closing):
    """A node's address and the objects made from it. Closing the client closes all of them."""

    def __init__(
        self,
        url: str,
        *,
        client_id: str = "",
        timeout: float | None = None,
        transport: Transport = "auto",
        keys: Keys = None,
    ) -> None:
        self._socket = run(
            reaching(url, transport=transport, keys=keys, client_id=client_id, timeout=timeout)
        )
        self.url = url
        self._client_id = client_id
        self.made = Made()
        self._closed = False

    @property
    def transport(self) -> str:
        """How the node is reached: "shm" or "tcp"."""
        return "tcp" if isinstance(self._socket, RemoteAddress) else "shm"

    def metrics(self) -> dict[str, float]:
        """The connection to a node on another host: counters since it was first made, and what is
        under way now. Empty where the node is reached through shared memory."""
        return self._socket.metrics() if isinstance(self._socket, RemoteAddress) else {}

    @overload
    def producer(
        self, *, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[TransactionOptions],
    ) -> TransactionalProducer[V, K]: ...  # fmt: skip
    @overload
    def producer(
        self, *, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[V, K]: ...  # fmt: skip
    def producer(self, **options: Any) -> Producer[Any, Any]:
        """A new producer; its options are those of `ProducerConfig`. With a `transactional_id` it
        sends in transactions: see `TransactionalProducer`, which has three more."""
        self._check_open()
        check_producer_names(options)
        options.setdefault("client_id", self._client_id)
        producer = (
            TransactionalProducer(self._socket, **options)
            if "transactional_id" in options
            else PlainProducer(self._socket, **options)
        )
        self.made.add(producer)
        return producer

    def stage(self, transactional_id: str, epoch: int, **options: Unpack[StageOptions]) -> Stage:
        """A producer whose records wait until `commit_transaction` names it; see `Stage`."""
        self._check_open()
        options.setdefault("client_id", self._client_id)
        stage = Stage(self._socket, transactional_id, epoch, **options)
        self.made.add(stage)
        return stage

    def commit_transaction(
        self,
        transactional_id: str,
        epoch: int,
        stages: Iterable[str],
        *,
        commit: bool = True,
        is_last: bool = False,
        timeout: float = 30.0,
    ) -> StagesOutcome:
        """Commits these stages (see `Stage.name`), aborts all others of the id up to this epoch;
        `commit=False` aborts all. Done again, by whomever, it changes nothing: the answer is what
        was decided first. `is_last`: no later epoch of the id will come, so the node forgets it
        some 15 minutes after.

        Raises `TransactionError` if a stage is not there any more, with nothing decided;
        `PenstockTimeout` or `NotConnectedError` without an answer in `timeout` seconds: ask again.
        """
        self._check_open()
        return commit_stages(
            self._socket, transactional_id, epoch, stages, commit=commit, is_last=is_last,
            client_id=self._client_id, timeout=timeout,
        )  # fmt: skip

    def end_stages(
        self, transactional_id: str, stages: Iterable[str], *, timeout: float = 30.0
    ) -> None:
        """Gives these stages up, so that they hold no reader back. Those that are decided, or gone,
        stay as they are; of their epoch nothing is decided."""
        self._check_open()
        end_stages(
            self._socket, transactional_id, stages, client_id=self._client_id, timeout=timeout
        )

    @overload
    def consumer(
        self, *topics: str, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[GroupOptions],
    ) -> GroupConsumer[V, K]: ...  # fmt: skip
    @overload
    def consumer(
        self, *topics: str, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[V, K]: ...  # fmt: skip
    def consumer(
        self, *topics: str, **options: Any
    ) -> Consumer[Any, Any] | GroupConsumer[Any, Any]:
        """A new consumer of all partitions of `topics` (none: call `assign`); see `Consumer`. With
        `group=` a member of that group, which is given its partitions; see `GroupConsumer`."""
        self._check_open()
        check_consumer_names(options)
        options.setdefault("client_id", self._client_id)
        consumer: Consumer[Any, Any] | GroupConsumer[Any, Any]
        if "group" not in options:
            consumer = Consumer(self._socket, topics, **options)
        else:
            consumer = GroupConsumer(self._socket, topics, **options)
        self.made.add(consumer)
        return consumer

    def share_consumer(
        self, *topics: str, value: Serializer[V] | None = None, key: Serializer[K] | None = None,
        **options: Unpack[ShareOptions],
    ) -> ShareConsumer[V, K]:  # fmt: skip
        """A worker of the share group `group=`, which gets single records of these topics and
        answers for each; see `ShareConsumer`."""
        self._check_open()
        check_share_names(options)
        options.setdefault("client_id", self._client_id)
        consumer = ShareConsumer(self._socket, topics, value=value, key=key, **options)
        self.made.add(consumer)
        return consumer

    def dead_letters(
        self, topic: str, *, exact: bool = False, timeout: float = 15.0
    ) -> DeadLetterQueue:
        """The dead letters of this topic: to look at, to count, to send again; see
        `DeadLetterQueue`. They are in `<topic>.dlq`, unless workers said `dead_letters="..."`: then
        name that topic, with `exact=True`. `timeout` bounds each request in seconds."""
        self._check_open()
        return DeadLetterQueue(
            self._socket, topic, exact=exact, client_id=self._client_id, timeout=timeout
        )

    def admin(self, *, timeout: float = 15.0) -> Admin:
        """Topics and the node; `timeout` bounds each request in seconds."""
        self._check_open()
        admin = Admin(self._socket, client_id=self._client_id, timeout=timeout)
        self.made.add(admin)
        return admin

    def _described(self) -> str:
        if self._closed:
            return f"{self.url}, closed"
        return f"{self.url} by {self.transport}, {len(self.made.alive())} made"

    def _check_open(self) -> None:
        if self._closed:
            raise er.ClosedError("this client is closed")

    def close(self) -> None:
        """Closes everything made from this client; the first error is raised after that."""
        self._closed = True
        failure: Exception | None = None
        for made in self.made.alive().values():
            try:
                made.close()
            except er.PenstockError as error:
                failure = failure or error
        if isinstance(self._socket, RemoteAddress):
            self._socket.close()
            self._socket.join()
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
) -> Client:
    """Connects to a node: `shm://` (the default node of this user), `shm://NAME`,
    `shm:///PATH/OF/DATA/FOLDER`, or `tcp://HOST:PORT`, with more after commas for what answers
    first. Without a URL: `$PENSTOCK_URL`, else `shm://`.

    Waits up to `timeout` seconds for a node. Without it: 5 s for one that is starting or has not
    answered yet, and less than one where nothing listens and no node is starting. A node that is
    reached by tcp and turns out to be on this host is used through shared memory, unless
    `transport` is "tcp". `keys`: this client's key file, for brokers that want one; default
    `$PENSTOCK_KEY`. Raises `NotConnectedError`, `AttachRefusedError`, `ConfigError`.
    """
    return Client(
        default_url() if url is None else url, client_id=client_id, timeout=timeout,
        transport=transport, keys=keys,
    )  # fmt: skip
