"""One client of a node for each process and address, for all readers and writers.

Python workers of Spark run one task after another: each task asks the node through the client that
the first one made. A forked worker makes its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar, cast

import penstock
from penstock.client.admin.admin import Admin, TopicDescription
from penstock.client.client import Client
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.partition_cursor import Isolation
from penstock.client.session import default_url
from penstock.client.transport import Transport
from penstock.core.errors import (
    ConfigError,
    NotConnectedError,
    PenstockError,
    UnknownTopicError,
)
from penstock.ipc.paths import parse_url
from penstock.observe.place import folder_for
from penstock.server.node.data_folder import NODE_FILE
from penstock.spark.errors import NoSuchNodeError

logger = logging.getLogger("penstock.spark")

CONNECT_WITHIN: Final = 15.0
"""Seconds for a node to answer: longer than users wait for one, since a task that fails is run
again as a whole."""
AWAY_MAX: Final = 30.0
"""Seconds for a node that went away to be back, as long as a consumer waits for it."""
PAUSE_FIRST, PAUSE_LAST = 0.05, 1.0
CLIENT_ID: Final = "spark"
KAFKAS_BOOTSTRAP: Final = "kafka.bootstrap.servers"

Answer = TypeVar("Answer")


class NodeAddress(NamedTuple):
    """The address of a node, as it travels from the driver to the tasks. `keys`: a key file, at
    that path on every host."""

    url: str
    transport: Transport = "auto"
    keys: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> NodeAddress:
        """Reads the options `bootstrap`, `transport` and `keys`, in lower case. Without `bootstrap`
        it is `$PENSTOCK_URL` of this process, else the default node."""
        if KAFKAS_BOOTSTRAP in options and "bootstrap" not in options:
            raise ConfigError(
                f"option {KAFKAS_BOOTSTRAP} is {options[KAFKAS_BOOTSTRAP]!r}: it names brokers of "
                "Kafka; set the option bootstrap to the node's URL, such as tcp://HOST:9640"
            )
        transport = options.get("transport", "auto")
        if transport not in ("auto", "tcp"):
            raise ConfigError(f"option transport is {transport!r}: it is 'auto' or 'tcp'")
        return cls(
            options.get("bootstrap") or default_url(),
            cast("Transport", transport),
            options.get("keys") or None,
        )

    def options(self) -> dict[str, str]:
        """Returns the options from which `of` makes this again: for a reader or a writer."""
        found = {"bootstrap": self.url, "transport": self.transport, "keys": self.keys}
        return {name: value for name, value in found.items() if value is not None}

    def connect(self, client_id: str) -> Client:
        """Makes a client of its own, which the caller closes. Raises as `penstock.connect` does."""
        return penstock.connect(
            self.url, client_id=client_id, transport=self.transport, keys=self.keys
        )


_lock = threading.Lock()
_clients: dict[tuple[int, NodeAddress], Client] = {}
_admins: dict[tuple[int, int, NodeAddress], Admin] = {}


def client_of(address: NodeAddress, *, is_first: bool = False) -> Client:
    """Returns the client of this process for that address. The caller does not close it: the next
    task wants it too. Raises `NotConnectedError`, with advice for the hosts of Spark's workers."""
    place = (os.getpid(), address)
    with _lock:
        client = _clients.get(place)
        if client is None:
            client = _clients[place] = _connected(address, is_first)
        return client


def reach(address: NodeAddress) -> None:
    """Checks, before a query begins, that a node answers. Where none does it raises
    `NoSuchNodeError` without waiting. Tasks, and queries that run, are patient."""
    client_of(address, is_first=True)


def admin_of(address: NodeAddress) -> Admin:
    """Returns the admin of this process and thread for that address, which the caller does not
    close."""
    place = (os.getpid(), threading.get_ident(), address)
    admin = _admins.get(place)
    if admin is None:
        admin = _admins[place] = client_of(address).admin()
    return admin


def forget() -> None:
    """Closes all clients and admins of this process, for callers that know that no task
    wants them."""
    with _lock:
        mine = [place for place in _clients if place[0] == os.getpid()]
        for place in [place for place in _admins if place[0] == os.getpid()]:
            _admins.pop(place).close()
        for each in mine:
            _clients.pop(each).close()


def consumer_of(address: NodeAddress, partition: tuple[str, int], isolation: Isolation) -> Consumer:
    """Makes a consumer of that partition, which the caller closes. Raises `UnknownTopicError`."""

    def attached() -> Consumer:
        consumer = client_of(address).consumer(isolation=isolation)
        try:
            consumer.assign([partition])
        except BaseException:
            consumer.close()
            raise
        return consumer

    return patiently(attached)


def describe(address: NodeAddress, topic: str) -> TopicDescription | None:
    """Describes a topic; None: there is none of that name."""
    try:
        return patiently(lambda: admin_of(address).describe_topic(topic))
    except UnknownTopicError:
        return None


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Asks again while the node is away. A query that fails has to be started by hand; a node that
    restarts is back within a second."""
    until = time.monotonic() + AWAY_MAX
    pause = PAUSE_FIRST
    while True:
        try:
            return ask()
        except PenstockError as error:
            if not error.retriable or time.monotonic() + pause > until:
                raise
            logger.info("asking again in %.2f s: %s", pause, error)
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_LAST)


def _connected(address: NodeAddress, is_first: bool) -> Client:
    is_far = parse_url(address.url).scheme == "tcp"
    is_final = is_first if is_far else not os.path.exists(folder_for(address.url) / NODE_FILE)
    try:
        return penstock.connect(
            address.url,
            client_id=CLIENT_ID,
            timeout=None if is_final else CONNECT_WITHIN,
            transport=address.transport,
            keys=address.keys,
        )
    except NotConnectedError as error:
        kind = NoSuchNodeError if is_final else NotConnectedError
        raise kind(
            f"{os.uname().nodename} does not reach the node at {address.url!r}: {error}. Set the "
            "option bootstrap to a URL that every worker of Spark reaches; on other hosts than the "
            "node's that is tcp://HOST:PORT"
        ) from None
