"""The configuration that a broker shares with its routers, subscribers and publishers."""

from __future__ import annotations

from dataclasses import dataclass, field

from faststream._internal.configs import BrokerConfig
from faststream.exceptions import IncorrectState

from penstock.client.aio.client import Client
from penstock.faststream.producer import PenstockProducer


@dataclass(kw_only=True)
class PenstockConfig(BrokerConfig):
    """`opened`: the client of a broker that is connected."""

    producer: PenstockProducer = field(default_factory=PenstockProducer)
    opened: Client | None = None

    @property
    def client(self) -> Client:
        if self.opened is None:
            raise IncorrectState("the broker is not connected: await broker.connect() first")
        return self.opened
