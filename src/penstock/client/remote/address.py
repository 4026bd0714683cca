"""The address of a remote node, which clients hold instead of an attach socket's path.

All parts of one `Client` share an address, and with it one carrier (see `carrier`), which starts
when the first of them attaches. Owns the carrier's start and release; never speaks to a gateway
itself. A forked child starts a carrier of its own.
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
    """The hosts and key of a remote node, and its carrier. Its text is its URL. Thread-safe."""

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
        """Makes an address with the client's key file `keys`, or the one that `$PENSTOCK_KEY`
        names. Raises ConfigError for a file that is no key."""
        from penstock.security.keys import KEY_VARIABLE, KeyFile  # only for clients of keys

        path = keys or os.environ.get(KEY_VARIABLE)
        return cls(hosts, KeyFile(path) if path else None)

    def __str__(self) -> str:
        return "tcp://" + ",".join(map(host_text, self.hosts))

    def __repr__(self) -> str:
        return f"RemoteAddress({str(self)!r})"

    def link(self) -> Link:
        """Returns a new attachment's link to the carrier, which is started if need be. Never
        blocks."""
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
        """Returns the error for a client that got no answer in time."""
        carrier = self._carrier
        return NotConnectedError(
            f"{self} does not answer" if carrier is None else carrier.hopeless()
        )

    @property
    def is_anybody_there(self) -> bool:
        """Returns whether any of the hosts has listened since a broker was connected last."""
        carrier = self._carrier
        return carrier is not None and carrier.is_anybody_there

    @property
    def welcome(self) -> Welcome | None:
        """Returns the greeting of the connected broker."""
        carrier = self._carrier
        return None if carrier is None else carrier.welcome

    def metrics(self) -> dict[str, float]:
        """Counters of the connection since it was first made; empty before."""
        carrier = self._carrier
        return {} if carrier is None else carrier.metrics()

    def close(self) -> None:
        """Lets the carrier end once nothing uses it any more. Nothing new attaches."""
        with self._lock:
            self._closed = True
            if self._end is not None:
                self._end()
        fork_safety.forget(self)

    def join(self) -> None:
        """Waits, after `close`, until the broker was told, if nothing uses the address any more."""
        carrier = self._carrier
        if carrier is not None:
            carrier.join()

    def after_fork_in_child(self) -> None:
        """Gives up the carrier, which is the parent's: attachments made here get one of
        their own."""
        self._lock = threading.Lock()
        carrier, self._carrier = self._carrier, None
        if self._end is not None:
            self._end.detach()
            self._end = None
        if carrier is not None:
            carrier.abandon()


Place = Path | RemoteAddress
"""The place that clients attach to: a socket of this host, or a gateway."""


def lost_level(place: Place) -> int:
    """Returns the level at which a lost node is logged. For another host the connection logs the
    loss, and whether it is normal: a change of leader is."""
    return logging.INFO if isinstance(place, RemoteAddress) else logging.WARNING
