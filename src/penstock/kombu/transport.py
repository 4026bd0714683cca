"""The transport of kombu: makes connections, and has their channels look for messages.

    drain_events     the caller waits, for a time
    event loop       the loop of a Celery worker watches one descriptor, and a timer for the waits
                     that end by time; nothing polls

Owns the link to the node, and the order in which channels take turns.
"""

from __future__ import annotations

import time
from typing import Any, Final

from kombu.transport import base, virtual

from penstock.core import errors as er
from penstock.kombu.channel import KombuChannel
from penstock.kombu.link import KombuLink
from penstock.kombu.names import node_url, url_of_parts
from penstock.kombu.options import TransportOptions
from penstock.version import __version__

DEFAULT_HOST: Final = "localhost"
"""The host of a connection of kombu that was given no URL."""
TIMER_SLACK: Final = 0.001
"""Seconds by which a timer may be early: it is not set again for less."""


class KombuTransport(virtual.Transport):
    """Penstock as a broker of kombu."""

    Channel = KombuChannel
    can_parse_url = True
    driver_type = "penstock"
    driver_name = "penstock"
    polling_interval = None
    connection_errors = (
        *virtual.Transport.connection_errors,
        *(er.NotConnectedError, er.PenstockTimeout, er.ClosedError, er.ForkedClientError, OSError),
    )
    channel_errors = (
        *virtual.Transport.channel_errors,
        *(er.AccessDeniedError, er.ConfigError, er.UnknownTopicError, er.GroupError),
    )
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = channel_errors
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.link: KombuLink | None = None
        self._loop: Any = None
        self._timer: Any = None
        self._timer_at = float("inf")

    def driver_version(self) -> str:
        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """A URL of a node holds no secret."""
        return f"penstock+{uri}" if uri.startswith(("shm:", "tcp:")) else uri

    # --- life ---
    def establish_connection(self) -> Any:
        client = self.client
        options = TransportOptions.of(client.transport_options)
        url = client.hostname or ""
        if "://" not in url and (client.port or url != DEFAULT_HOST):
            url = url_of_parts(url, client.port, client.virtual_host)
        self.link = KombuLink(node_url(url), options, client.connect_timeout)
        return super().establish_connection()

    def verify_connection(self, connection: Any) -> bool:
        return self.link is not None and self.link.is_open

    def close_connection(self, connection: Any) -> None:
        self._leave_loop()
        for channel in [*self._avail_channels, *self.channels]:
            channel.close()
        self._avail_channels.clear()
        self.channels.clear()
        if self.link is not None:
            self.link.close()

    # --- messages ---
    def _pull(self) -> bool:
        """Delivers what is there, channel by channel."""
        found = False
        for channel in [*self.channels]:
            if not channel.closed:
                found = channel.pull() or found
        return found

    def _sleep(self, seconds: float) -> None:
        """Until messages may be there, or answers are to be sent."""
        assert self.link is not None
        for source in self.link.waits.poll(seconds):
            source.is_due = True

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers the messages that are there, or the first that come. Raises `socket.timeout`
        without any for so many seconds."""
        if self.link is None or not self.link.is_open:
            raise er.ClosedError("this connection is closed")
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._pull():
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError()
            self._sleep(left)

    # --- an event loop ---
    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        assert self.link is not None
        self._loop = loop
        loop.add_reader(self.link.waits.fileno(), self._on_ready)
        loop.on_tick.add(self._set_timer)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        self._leave_loop()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.on_tick.discard(self._set_timer)
        if self._timer is not None:
            self._timer.cancel()
        if self.link is not None and self.link.is_open:
            loop.remove_reader(self.link.waits.fileno())

    def _on_ready(self) -> None:
        if self.link is not None and self.link.is_open:
            self._sleep(0.0)
            self._pull()

    def _set_timer(self) -> None:
        """Before the loop sleeps: it wakes up when the first wait is over."""
        assert self.link is not None
        at = self.link.waits.next_at()
        now = time.monotonic()
        if at >= self._timer_at - TIMER_SLACK and self._timer_at > now:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, float("inf")
        if at < float("inf"):
            self._timer_at = max(at, now)
            self._timer = self._loop.call_later(max(at - now, 0.0), self._on_ready)
