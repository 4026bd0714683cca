"""The relay: sends the rows of an outbox to their topics, each once.

It lives in sessions. Whatever fails on either side ends one; the next asks the database and the
topic where they are (see `penstock.outbox.session`). While another relay is at work this one waits,
and takes over at once.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final, Self

from penstock.client.backoff import Retries
from penstock.client.client import connect
from penstock.client.stop_signals import stopped_by_signals
from penstock.core import errors as er
from penstock.outbox.config import RelayConfig
from penstock.outbox.session import COUNTERS, RelaySession
from penstock.outbox.store import OutboxStore, is_passing, open_store

logger = logging.getLogger("penstock.outbox")

STANDBY: Final = 0.1
"""Seconds between two tries to become the relay, while another one is."""
BACKOFF: Final = (0.05, 5.0)
"""Bounds of the first and of each later wait between two sessions, in seconds."""


class Relay:
    """Sends committed rows until it is told to stop.

    Args:
        config: which outbox, and how.
        url: of the node; None: `$PENSTOCK_URL`, else shm://.

    Use one object for one run: `run` blocks, `stop` may be called from any thread.
    """

    def __init__(self, config: RelayConfig, *, url: str | None = None) -> None:
        self.config = config
        self._url = url
        self._counts = dict.fromkeys((*COUNTERS, "sessions", "failures"), 0)
        self._is_active = False
        self._is_stopped = False
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self, on_active: Callable[[], object] | None = None) -> None:
        """Relays until SIGTERM, SIGINT or `stop`; the batch in hand is finished. `on_active` is
        called whenever this relay begins to be the one that sends.

        Raises `ConfigError` where tables are missing or do not fit the topic, and what does not
        pass by waiting. A database or node that is away is waited for.
        """
        retries = Retries(*BACKOFF)
        with stopped_by_signals(self.stop):
            while not self._is_stopped:
                try:
                    self._session(on_active, retries)
                except Exception as error:
                    if not _may_pass(error):
                        raise
                    self._counts["failures"] += 1
                    logger.warning("the relay of %r begins again: %s", self.config.table, error)
                    self._pause(retries.next())
                finally:
                    self._is_active = False

    def _session(self, on_active: Callable[[], object] | None, retries: Retries) -> None:
        with closing(open_store(self.config)) as store:
            store.check()
            if not self._is_chosen(store):
                return
            with connect(self._url, client_id="penstock-outbox") as client:
                session = RelaySession(self.config, store, client, self._counts)
                try:
                    self._counts["sessions"] += 1
                    self._is_active = True
                    if on_active is not None:
                        on_active()
                    while not self._is_stopped:
                        session.step(self._reader)
                        retries.reset()
                finally:
                    session.close()

    def _is_chosen(self, store: OutboxStore) -> bool:
        """Waits until no other relay has the outbox. False: stopped before."""
        is_told = False
        while not store.is_locked():
            if not is_told:
                logger.info("another relay has %r: waiting", self.config.table)
                is_told = True
            self._pause(STANDBY)
            if self._is_stopped:
                return False
        return True

    def _pause(self, seconds: float) -> None:
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        poller.poll(seconds * 1000)

    @property
    def is_active(self) -> bool:
        """Returns whether this relay is the one that sends."""
        return self._is_active

    def metrics(self) -> dict[str, int]:
        """Counters since the relay was made.

        `sent`, `dead`: rows; `recovered`: rows that an earlier relay had sent and not settled.
        `batches`: transactions that counted, `refused_batches`: that did not. `sessions`,
        `failures`: beginnings, and ends by an error.
        """
        return dict(self._counts)

    def stop(self) -> None:
        """Ends `run` after the batch in hand. Callable from any thread and signal handler."""
        self._is_stopped = True
        with suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def close(self) -> None:
        """Gives the relay's descriptors back, after `run` has returned."""
        if self._reader >= 0:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _may_pass(error: Exception) -> bool:
    """Whether another session may get further."""
    if isinstance(error, er.PenstockError):
        passing = (er.TransactionError, er.AttachRefusedError, er.ClosedError)
        return error.retriable or isinstance(error, passing)
    return isinstance(error, OSError) or is_passing(error)
