"""Counts the resources of a namespace's clients at this node, beside bytes on the disk.

These are shared memory, and the used part of each limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.cluster.access import LIMITS, NamespaceLimits, limit_of, over_limit
from penstock.ipc import accessing as ac
from penstock.ipc import layout as lo
from penstock.server.config import NodeConfig
from penstock.server.node.attached_client import AttachedClient
from penstock.server.node.lanes import Lane
from penstock.server.security.access_store import Access


class NamespaceUse:
    """`clients`, `lanes`: all of the node."""

    def __init__(
        self,
        config: NodeConfig,
        writers: int,
        access: Access,
        clients: Callable[[], Iterable[AttachedClient]],
        lanes: Callable[[], Iterable[Lane]],
    ) -> None:
        self._of_producer = writers * lo.lane_bytes(config.lane_capacity)
        self._access = access
        self._clients = clients
        self._lanes = lanes

    def _of(self, namespace: str) -> Iterator[AttachedClient]:
        return (client for client in self._clients() if self.namespace_of(client) == namespace)

    def shm_bytes(self, namespace: str) -> int:
        """Of its producers, a lane to each writer; and of lanes that are being drained."""
        producers = sum(client.kind == lo.KIND_PRODUCER for client in self._of(namespace))
        left = sum(
            lo.lane_bytes(lane.identity.capacity)
            for lane in self._lanes()
            if lane.retired and lane.namespace == namespace
        )
        return producers * self._of_producer + left

    def connections(self, namespace: str) -> int:
        """Those of clients that have attached something."""
        return len({client.owner for client in self._of(namespace)})

    def namespace_of(self, client: AttachedClient) -> str:
        """That of its principal; empty where it has none."""
        if client.remote is None:
            return ""
        return self._access.keys.namespaces.get(client.remote.principal, "")

    def check_producer(self, principal: str, resume: int | None) -> None:
        """Raise ResourceLimitError where one more producer of that principal is too many. One that
        resumes takes the place of what it was."""
        self._access.look(time.monotonic())
        namespace = self._access.keys.namespaces.get(principal)
        if namespace is None or any(one.producer_id == resume for one in self._of(namespace)):
            return
        most = limit_of(self._access.limits, namespace, "shm_bytes_max")
        if most is None:
            return
        there = self.shm_bytes(namespace)
        if there + self._of_producer > most:
            raise over_limit(namespace, "shm_bytes", there, self._of_producer, most)


def uses(
    limits: Iterable[NamespaceLimits], used: Mapping[str, Callable[[str], int | None]]
) -> list[ac.LimitUse]:
    """All limits of these namespaces. `used`: by the limit's name, how much a namespace has."""
    return [
        ac.LimitUse(each.namespace, limit, used[limit](each.namespace), getattr(each, limit))
        for each in limits
        for limit in LIMITS
    ]
