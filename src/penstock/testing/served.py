"""Helpers for tests of anything that serves topics: a client of it, and a topic in a line."""

from __future__ import annotations

import itertools
from typing import Any, Literal

from penstock.client.admin.admin import TopicConfig
from penstock.client.client import Client, connect
from penstock.core.errors import ConfigError

Durability = Literal["os", "interval", "fsync"]
Transport = Literal["shm", "tcp"]


class Served:
    """`url` is its owner's; the rest is here."""

    transport: Transport
    """How `url` and `connect` reach it."""

    def _serve(self, partitions: int, durability: Durability, transport: Transport) -> None:
        """Sets the transport, and the settings of topics that are made without their own."""
        if durability not in ("os", "interval", "fsync"):
            raise ConfigError(f"durability={durability!r} must be 'os', 'interval' or 'fsync'")
        self.transport = transport
        self._partitions = partitions
        self._durability = durability
        self._numbers = itertools.count()

    @property
    def url(self) -> str:
        """For `penstock.connect`, and for programs under test."""
        raise NotImplementedError

    def connect(self, *, client_id: str = "", timeout: float = 5.0) -> Client:
        """A client, as `penstock.connect` gives it."""
        kind: Literal["auto", "tcp"] = "tcp" if self.transport == "tcp" else "auto"
        return connect(self.url, client_id=client_id, timeout=timeout, transport=kind)

    def create_topic(
        self, name: str | None = None, *, partitions: int | None = None, **settings: Any
    ) -> str:
        """Makes a topic; its name, a fresh one if none is given.

        `settings` are the fields of `TopicConfig`; what is not said is as the broker was told.
        """
        name = name or f"topic-{next(self._numbers)}"
        settings.setdefault("durability", self._durability)
        config = TopicConfig(partitions=partitions or self._partitions, **settings)
        with self.connect() as client, client.admin() as admin:
            admin.create_topic(name, config)
        return name


def as_transport(name: str) -> Transport:
    """Raises `ConfigError` for a name that is none."""
    if name == "shm":
        return "shm"
    if name == "tcp":
        return "tcp"
    raise ConfigError(f"transport={name!r} must be 'shm' or 'tcp'")
