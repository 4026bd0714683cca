"""Annotations by which handlers ask for the message or the broker: `message: PenstockMessage`."""

from __future__ import annotations

from typing import Annotated

from faststream.annotations import ContextRepo, Logger
from faststream.params import Context, NoCast

from penstock.faststream.broker import PenstockBroker as _Broker
from penstock.faststream.message import PenstockMessage as _Message

__all__ = ["ContextRepo", "Logger", "NoCast", "PenstockBroker", "PenstockMessage"]

PenstockMessage = Annotated[_Message, Context("message")]
PenstockBroker = Annotated[_Broker, Context("broker")]
