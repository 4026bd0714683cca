"""The controller, pure: brokers, topics, partitions, leaders and ISRs as records over raft."""

from __future__ import annotations

from penstock.cluster.controller.elections import successors
from penstock.cluster.controller.image import Image, Place
from penstock.cluster.controller.machine import Controller, ControllerConfig, Heard, Registered
from penstock.cluster.controller.records import (
    BrokerRegistration,
    Partition,
    Topic,
    UncleanRecovery,
    pack,
    unpack,
)

__all__ = [
    "BrokerRegistration",
    "Controller",
    "ControllerConfig",
    "Heard",
    "Image",
    "Partition",
    "Place",
    "Registered",
    "Topic",
    "UncleanRecovery",
    "pack",
    "successors",
    "unpack",
]
