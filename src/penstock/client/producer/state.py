"""The state that a producer's parts share: its lock, its attachment, its counts.

Parts know this and the parts below them, never the producer: they return what they find out, or
count it here. Owns no batch on its way.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import NamedTuple

from penstock.client import process_exit
from penstock.client.producer.batch_builder import SealSettings
from penstock.client.producer.books import Books
from penstock.client.producer.config import ProducerConfig
from penstock.client.producer.routes import LaneLink
from penstock.client.remote.address import Place, RemoteAddress
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.core.codecs import CODECS
from penstock.ipc import layout as lo


class Terms(NamedTuple):
    """The terms of a producer's batches.

    `level`: the durability at which they are done. `committed`: in a cluster not before they are on
    all replicas that count. `producer_id`: that of their transactions; 0: that of their attachment.
    `name`: what `repr` calls the producer first."""

    level: str
    committed: bool
    idempotent: bool
    producer_id: int = 0
    attributes: int = 0
    name: str = ""


class ProducerState:
    """The shared state of a producer's parts. One per producer (and per forked child of it).

    `session`: the attachment that the I/O thread minds, also after its end. `settings`: the limits
    of that attachment, None before there is one and after the producer has left.
    """

    __slots__ = ("books", "config", "counts", "forbidden", "is_closed", "is_stale", "lock",
                 "session", "settings", "socket", "terms")  # fmt: skip

    def __init__(self, socket: Place, config: ProducerConfig, terms: Terms | None = None) -> None:
        self.socket = socket
        self.config = config
        self.terms = terms or Terms(
            config.level(remote=isinstance(socket, RemoteAddress)),
            committed=config.acks == "all",
            idempotent=config.idempotent,
        )
        self.books = Books()
        self.lock = self.books.lock
        self.session: Session | None = None
        self.settings: SealSettings | None = None
        self.counts = dict.fromkeys(("acknowledged", "failed"), 0)
        self.is_closed = False
        self.is_stale = False
        """It is the parent's, and this is a forked child."""
        self.forbidden = ""
        """Why nothing may be sent in this process; empty if it may."""

    @property
    def producer_id(self) -> int:
        """The id under which batches are in the log; 0 while there is none."""
        if self.terms.producer_id or self.session is None or self.settings is None:
            return self.terms.producer_id
        return self.session.producer_id

    def check_usable(self) -> None:
        if self.forbidden:
            raise er.ForkedClientError(self.forbidden)
        if self.is_closed:
            raise er.ClosedError(f"this producer is closed{process_exit.hint()}")

    def attach(self, timeout: float, resume: int | None = None) -> Session:
        """Makes a new attachment, of the producer with that id if there is one."""
        return Session.attach(
            self.socket, lo.KIND_PRODUCER, client_id=self.config.client_id, timeout=timeout,
            resume=resume,
        )  # fmt: skip

    def adopt(self, session: Session) -> None:
        """Works with this attachment from now on (lock held, or nobody else there yet)."""
        config, terms = self.config, self.terms
        settings = SealSettings.at(session, CODECS[config.compression], config.batch_bytes)
        if terms.producer_id:
            settings = replace(settings, producer_id=terms.producer_id, attributes=terms.attributes)
        self.session = session
        self.settings = settings

    def nudge(self) -> None:
        """Wakes the I/O thread: there is something for it to do."""
        if self.session is not None:
            with contextlib.suppress(er.ClosedError):  # the end was interrupted: nobody sleeps
                self.session.doorbell.ring()

    def open_lane(self, writer: int) -> LaneLink | None:
        """Opens a lane to a writer; None without an attachment. Raises what the node
        refuses with."""
        session, terms = self.session, self.terms
        if session is None:
            return None
        flags = lo.FRAME_SYNC if terms.level == "fsynced" else 0
        if terms.committed and session.is_clustered:
            flags |= lo.FRAME_COMMITTED
        return LaneLink(*session.open_lane(writer, self.config.timeout), flags)
