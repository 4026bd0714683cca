"""Proofs that transactions are this process's own. Their batches show them to gateways.

The answer to each `AddPartitions` brings one. It holds for one producer id and epoch, at every
broker and over new connections. Used by the carrier's thread only.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.frames import messages as fr
from penstock.core.header import ATTR_TRANSACTIONAL, HEADER_BYTES, parse
from penstock.ipc import coordination as co

PRODUCERS_MAX: Final = 10_000
"""Producers of transactions, and stages, whose proofs are kept: those that registered last."""


class Proofs:
    """One for each producer id, of its latest epoch: those before have ended. It is false while
    there is none."""

    def __init__(self) -> None:
        self._latest: dict[int, tuple[int, fr.Proof]] = {}

    def __bool__(self) -> bool:
        return bool(self._latest)

    def learn(self, request: co.AddPartitions, proof: fr.Proof) -> None:
        """Keeps a gateway's answer to that request."""
        self._latest.pop(request.producer_id, None)
        self._latest[request.producer_id] = request.producer_epoch, proof
        if len(self._latest) > PRODUCERS_MAX:
            del self._latest[next(iter(self._latest))]

    def of(self, batch: memoryview) -> fr.Proof:
        """Returns the proof that goes with that batch; unset for one outside of transactions."""
        if len(batch) < HEADER_BYTES:
            return msgspec.UNSET
        head = parse(batch)
        if not head.attributes & ATTR_TRANSACTIONAL:
            return msgspec.UNSET
        epoch, proof = self._latest.get(head.producer_id, (-1, msgspec.UNSET))
        return proof if epoch == head.producer_epoch else msgspec.UNSET
