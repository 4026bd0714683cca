"""Transactions as a pure machine: who may write, what is decided, what misses markers.

`Transactions` is the machine; it decides records and is changed by `replay` alone. It opens with
its theory and its transition table, and so do the stages.
"""

from __future__ import annotations

from penstock.cluster.transactions.answers import (
    ConsumedOffsets,
    EndedTransaction,
    JobKeeper,
    Listed,
    Marking,
    OffsetKeeper,
    ProducerIdentity,
    StagesDecided,
)
from penstock.cluster.transactions.limits import TransactionLimits
from penstock.cluster.transactions.machine import EPOCH_LAST, TransactionMachine

__all__ = [
    "EPOCH_LAST",
    "ConsumedOffsets",
    "EndedTransaction",
    "JobKeeper",
    "Listed",
    "Marking",
    "OffsetKeeper",
    "ProducerIdentity",
    "StagesDecided",
    "TransactionLimits",
    "TransactionMachine",
]
