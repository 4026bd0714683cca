"""Where a remote node is, as clients name it: what they hold instead of an attach socket's path.

All that is made from one `Client` shares an address, and with it one carrier (see `carrier`), which
is started when the first of them attaches. Owns when the carrier comes to be and when it is let go
of; never speaks to a gateway itself. A forked child starts a carrier of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.client import fork_safety
from penstock.client.remote.link import Host, Link, host_text
from penstock.core.errors import ClosedError, NotConnectedError
from penstock.ipc.channel import pair

if TYPE_CHECKING:
    from penstock.client.remote.carrier import Carrier
    from penstock.cluster.frames.messages import Welcome
    from penstock.security.keys import KeyFile


class RemoteAddress:
    """See the module. Reads as its URL. Thread-safe."""

    def __init__(self, hosts: tuple[Host, ...], key: KeyFile | None = None) -> None:
        self.hosts = hosts
        self.key = key
        self._lock = threading.Lock()
        self._carrier: Carrier | None = None
        self._end: weakref.finalize[..., RemoteAddress] | None = None
        self._closed = False
        fork_safety.remember(self)

    @classmethod
    def of_url(
        cls, hosts: tuple[Host, ...], keys: str | os.PathLike[str] | None = None
    ) -> RemoteAddress:
        """With the client's key file `keys`, or the one that `$PENSTOCK_KEY` names. ConfigError
        where it is none."""
        from penstock.security.keys import KEY_VARIABLE, KeyFile  # only for clients of keys

        path = keys or os.environ.get(KEY_VARIABLE)
        return cls(hosts, KeyFile(path) if path else None)

    def __str__(self) -> str:
        return "tcp://" + ",".join(map(host_text, self.hosts))

    def __repr__(self) -> str:
        return f"RemoteAddress({str(self)!r})"

    def link(self) -> Link:
        """A new attachment's link to the carrier, which is started if need be. Never blocks."""
        ours, theirs = pair()
        link = Link(ours)
        ends = [theirs]
        try:
            self._running().serve(link, ends)
        except BaseException:
            ours.close()
            with suppress(IndexError):
                ends.pop().close()
            raise
        return link

    def _running(self) -> Carrier:
        from penstock.client.remote.carrier import (
            Carrier,  # loads ZeroMQ, which local clients do without
        )

        with self._lock:
            if self._closed:
                raise ClosedError(f"this client is closed: {self}")
            carrier = self._carrier
            if carrier is None or carrier.is_over:
                carrier = Carrier(self.hosts, self.key, str(self))
                self._end = weakref.finalize(self, carrier.finish)
                self._end.atexit = False
                self._carrier = carrier
            carrier.start()
            return carrier

    def silent(self) -> NotConnectedError:
        """What to raise where no answer came in time."""
        carrier = self._carrier
        return NotConnectedError(
            f"{self} does not answer" if carrier is None else carrier.hopeless()
        )

    @property
    def is_anybody_there(self) -> bool:
        """Whether something has listened at one of the hosts since a broker was connected last."""
        carrier = self._carrier
        return carrier is not None and carrier.is_anybody_there

    @property
    def welcome(self) -> Welcome | None:
        """What the broker that is connected said of itself."""
        carrier = self._carrier
        return None if carrier is None else carrier.welcome

    def metrics(self) -> dict[str, float]:
        """Counters of the connection since it was first made; empty before."""
        carrier = self._carrier
        return {} if carrier is None else carrier.metrics()

    def close(self) -> None:
        """Let the carrier end once nothing uses it any more. Nothing new attaches."""
        with self._lock:
            self._closed = True
            if self._end is not None:
                self._end()
        fork_safety.forget(self)

    def join(self) -> None:
        """After `close`: wait until the broker was told, if nothing uses the address any more."""
        carrier = self._carrier
        if carrier is not None:
            carrier.join()

    def after_fork_in_child(self) -> None:
        """The connection is the parent's: what attaches here gets one of its own."""
        self._lock = threading.Lock()
        carrier, self._carrier = self._carrier, None
        if self._end is not None:
            self._end.detach()
            self._end = None
        if carrier is not None:
            carrier.abandon()


Place = Path | RemoteAddress
"""What clients attach to: a socket of this host, or a gateway."""


def lost_level(place: Place) -> int:
    """How loud it is said that a client lost its node: of another host its connection says so, by
    whether that is normal, and another leader is."""
    return logging.INFO if isinstance(place, RemoteAddress) else logging.WARNING
