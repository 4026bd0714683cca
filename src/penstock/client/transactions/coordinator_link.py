"""Requests to the node's coordinator, each asked again until it has an answer.

The coordinator decides each request once, however often it is asked. If an answer is lost with its
node, the link repeats the request to the next one. The link has an attachment of its own, so that a
slow answer keeps no record waiting. Thread-safe, one request at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.client.backoff import Retries
from penstock.client.remote.address import Place
from penstock.client.session import Reply, Session
from penstock.client.threads import Flag
from penstock.core import errors as er
from penstock.ipc import layout as lo

logger = logging.getLogger("penstock.transactions")

Check = Callable[[Session, float], None]

SLICE: Final = 5.0
"""Seconds for which an answer is awaited until the request is repeated."""
RETRY_FIRST: Final = 0.02
RETRY_LAST: Final = 1.0


class CoordinatorLink:
    """Link to the node's coordinator. It asks each request again until it has an answer."""

    def __init__(self, socket: Place, client_id: str) -> None:
        self._socket = socket
        self._client_id = client_id
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._closing = Flag()
        self.attached = 0
        """How often it was attached: a number that has not changed speaks for the same node."""
        self.repeated = 0
        """Requests that were asked again, since the link was made."""

    def ask(
        self,
        message: msgspec.Struct,
        expect: type[Reply],
        timeout: float,
        check: Check | None = None,
    ) -> Reply:
        """The answer, within `timeout` seconds also across a restart of the node. `check` is called
        before each try, with the session that it goes by and the seconds it has.

        Raises what `check` raises and the coordinator refuses with, or once the time is up, and
        nobody knows what became of the request, `NotConnectedError` or `PenstockTimeout`.
        """
        deadline = time.monotonic() + timeout
        retries = Retries(RETRY_FIRST, RETRY_LAST)
        while True:
            try:
                return self._once(message, expect, deadline - time.monotonic(), check)
            except er.PenstockError as error:
                wait = min(retries.next(), deadline - time.monotonic())
                if not error.retriable or wait <= 0:
                    raise
                logger.info("asking %s again: %s", type(message).__name__, error)
            if self._closing.wait(wait):
                raise er.ClosedError(f"closed while it asked {type(message).__name__}")
            self.repeated += 1

    def _once(
        self, message: msgspec.Struct, expect: type[Reply], left: float, check: Check | None
    ) -> Reply:
        with self._lock:
            if self._closing.is_set():
                raise er.ClosedError(f"closed before it asked {type(message).__name__}")
            left = max(0.05, min(left, SLICE))
            session = self._session
            if session is not None and session.farewell() is not None:
                self._hang_up()  # the node went away since the last request
                session = None
            if session is None:
                session = self._session = Session.attach(
                    self._socket, lo.KIND_ADMIN, client_id=self._client_id, timeout=left
                )
                self.attached += 1
            try:
                if check is not None:
                    check(session, left)
                return session.request(message, expect, left)
            except er.NotConnectedError:
                self._hang_up()
                raise

    def _hang_up(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def close(self) -> None:
        """Ends the attachment. A request under way ends with it, or within `SLICE` seconds."""
        self._closing.set()
        with self._lock:
            self._hang_up()

    def after_fork_in_child(self) -> None:
        """Gives up what belongs to the parent, without a word to the node."""
        self._closing.set()
        self._lock = threading.Lock()
        session, self._session = self._session, None
        if session is not None:
            session.close(polite=False)
