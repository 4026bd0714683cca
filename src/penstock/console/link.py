"""The connections of a console to its node: a few, each for one thread at a time.

A page's work waits for the node, so it runs in a thread of a bounded pool. Owns the clients; where
one lost its node it is closed, and the next work connects again.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.client.admin.admin import Admin, is_gone
from penstock.client.client import Client, connect
from penstock.core import errors as er
from penstock.security.keys import KEY_VARIABLE

SEATS: Final = 4
"""Works at one time, and connections to the node."""
WAITING_MAX: Final = 64
"""Works that wait for a seat; more are refused."""
PLACES_MAX: Final = 16
"""Addresses of brokers that are tried."""
CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 10.0
CLIENT_ID: Final = "penstock-console"

T = TypeVar("T")


class BusyError(er.PenstockError):
    """More pages are asked for at once than the console works on."""


class NodePlaces:
    """The address that was given, and those of the brokers that the cluster told of since: where
    the first one is away, another one is asked. Any thread."""

    def __init__(self, url: str) -> None:
        self.given = url
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def learn(self, brokers: Iterable[str]) -> None:
        """Takes the addresses of brokers that are up. A node that was reached by shared memory has
        no other place: its rights are those of a user of this host."""
        prefix = "tcp://"
        if not self.given.startswith(prefix):
            return
        hosts = self.given.removeprefix(prefix).split(",")
        for each in brokers:
            host = each.removeprefix(prefix)
            if each.startswith(prefix) and host not in hosts and len(hosts) < PLACES_MAX:
                hosts.append(host)
        self._url = prefix + ",".join(hosts)


class ConsoleSeat:
    """A client of the node, made when it is first used."""

    def __init__(self, places: NodePlaces, keys: str | None) -> None:
        self.url = places.given
        self._places = places
        self._keys = keys
        self._client: Client | None = None
        self._admin: Admin | None = None

    @property
    def client(self) -> Client:
        if self._client is None:
            # With a key it is that principal, also where shared memory would be nearer.
            has_key = self._keys is not None or KEY_VARIABLE in os.environ
            by_key = has_key and self.url.startswith("tcp://")
            self._client = connect(
                self._places.url, client_id=CLIENT_ID, timeout=CONNECT_SECONDS, keys=self._keys,
                transport="tcp" if by_key else "auto",
            )  # fmt: skip
        return self._client

    @property
    def admin(self) -> Admin:
        if self._admin is not None and is_gone(self._admin):
            self.close()
        if self._admin is None:
            self._admin = self.client.admin(timeout=ANSWER_SECONDS)
        return self._admin

    def read(self, work: Callable[[ConsoleSeat], T]) -> T:
        """Does what only reads, and once more by a new connection where this one was lost."""
        try:
            return work(self)
        except (er.NotConnectedError, er.ClosedError):
            self.close()
            return work(self)

    def close(self) -> None:
        client, self._client, self._admin = self._client, None, None
        if client is not None:
            try:
                client.close()
            except (er.PenstockError, OSError):
                return  # the node is away, and what was open with it


class NodeLink:
    """The pool. `run` is for the event loop, `close` for any thread."""

    def __init__(self, places: NodePlaces, keys: str | None = None) -> None:
        self._seats: queue.LifoQueue[ConsoleSeat] = queue.LifoQueue()
        for _ in range(SEATS):
            self._seats.put(ConsoleSeat(places, keys))
        self._pool = ThreadPoolExecutor(SEATS, thread_name_prefix="console")
        self._lock = threading.Lock()
        self._pending = 0

    async def run(self, work: Callable[[ConsoleSeat], T], *, reads: bool = True) -> T:
        """Does this with a connection; what only `reads` is done once more where the broker went
        away meanwhile. Raises what it raises, and `BusyError`."""
        with self._lock:
            if self._pending >= SEATS + WAITING_MAX:
                raise BusyError(
                    f"{self._pending} pages are asked for at once, which is the most "
                    "(WAITING_MAX): try again"
                )
            self._pending += 1
        begun = self._pool.submit(self._do, work, reads)
        begun.add_done_callback(self._ended)
        return await asyncio.wrap_future(begun)

    def _ended(self, _done: object) -> None:
        with self._lock:
            self._pending -= 1

    def _do(self, work: Callable[[ConsoleSeat], T], reads: bool) -> T:
        seat = self._seats.get()
        try:
            return seat.read(work) if reads else work(seat)
        except (er.NotConnectedError, er.ClosedError, er.PenstockTimeout):
            seat.close()
            raise
        finally:
            self._seats.put(seat)

    def close(self) -> None:
        """Ends the connections once their works are done."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for _ in range(SEATS):
            self._seats.get_nowait().close()
