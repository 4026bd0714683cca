"""The present rights, quotas and limits of each principal.

Asked before a batch goes into a lane, before a cursor reads, and when somebody connects. Follows
`access.json` and the keys by `look`, which the loop calls each sweep.
"""

from __future__ import annotations

from penstock.cluster.access import CLUSTER, Kind, Operation, limit_of
from penstock.cluster.quotas import CONSUME, PRODUCE, Quotas
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.server.config import NodeConfig
from penstock.server.gateway.endpoints import GatewayEndpoint
from penstock.server.node.topic_names import TopicNames
from penstock.server.security.access_store import Access, shares_of
from penstock.server.security.authorizer import Guard


class Authorization:
    """The rights and quotas of the gateway's principals, as the node's access files have them
    now."""

    def __init__(self, config: NodeConfig, names: TopicNames) -> None:
        self.access = Access(config.data_folder)
        self.access.share(shares_of(config))
        self._names = names
        self.guard = Guard(self.access, names.of)
        self._quotas = Quotas(self.access.quotas)
        self._seen = self.access.changes

    def look(self, now: float) -> bool:
        """Follow what has changed; whether anything has since the last look."""
        self.access.look(now)
        if self._seen == self.access.changes:
            return False
        self._seen = self.access.changes
        self._quotas.set_table(now, self.access.quotas)
        return True

    # --- rights ---
    def may_write(self, endpoint: GatewayEndpoint, topic_id: bytes) -> None:
        """Raise unless it may send batches there."""
        self.guard.check_topic(endpoint.principal, Operation.write, topic_id)

    def may_read(self, principal: str, topic: str) -> None:
        self.guard.check(principal, Operation.read, Kind.topic, topic)

    def may_know(self, principal: str, topic_id: bytes) -> bool:
        """Returns whether a principal may learn the state of that topic's partitions. The right to
        describe, read or write it suffices, even where a deny keeps it from looking the topic up.
        """
        if self.access.policy.is_open:
            return True
        name = self._names.of(topic_id)
        return name is not None and any(
            self.guard.allows(principal, operation, Kind.topic, name)
            for operation in (Operation.describe, Operation.read, Operation.write)
        )

    def may_look_up(self, endpoint: GatewayEndpoint, request: lk.Request) -> None:
        self.guard.check_request(endpoint.principal, request)

    def shown(self, endpoint: GatewayEndpoint, reply: lk.Reply) -> lk.Reply:
        """An answer about any pages, without those of topics that it may not describe."""
        if self.access.policy.is_open:
            return reply
        match reply:
            case lk.PagesLookedUp():
                pages = [page for page in reply.pages if self._sees(endpoint, page)]
                return lk.PagesLookedUp(pages, self._disk(endpoint, reply.disk))
            case lk.PositionsLookedUp():
                return lk.PositionsLookedUp(
                    [
                        [place for place in places if self._sees(endpoint, place[0])]
                        for places in reply.positions
                    ],
                    reply.poll_ages,
                )
            case _:
                return reply

    def _disk(self, endpoint: GatewayEndpoint, disk: list[int]) -> list[int]:
        """Its level, which answers to batches tell; in bytes for clients that describe the node."""
        told = self.guard.allows(endpoint.principal, Operation.describe, Kind.cluster, CLUSTER)
        return disk if told else [*disk[:1], *[0] * len(disk[1:])]

    def _sees(self, endpoint: GatewayEndpoint, page: int) -> bool:
        if not 0 <= page < lo.PAGES_MAX:
            return False
        identity = endpoint.states.page(page).identity
        name = self._names.of(identity[0]) if identity is not None else None
        return name is not None and self.guard.sees(endpoint.principal, Kind.topic, name)

    # --- quotas: seconds for which a client is to be held back now ---
    def produced(self, principal: str, client_id: str, nbytes: int, now: float) -> float:
        return self._quotas.charge(now, PRODUCE, principal, client_id, nbytes)

    def consumed(self, principal: str, client_id: str, nbytes: int, now: float) -> float:
        return self._quotas.charge(now, CONSUME, principal, client_id, nbytes)

    # --- limits ---
    def connections_max(self, principal: str) -> int | None:
        """None: only what all connections together may be."""
        quota = self.access.quotas.of_principal(principal)
        return quota.connections_max if quota is not None else None

    def namespace_of(self, principal: str) -> str | None:
        return self.access.keys.namespaces.get(principal)

    def connections_of(self, namespace: str) -> int | None:
        """The same of all principals of a namespace together."""
        return limit_of(self.access.limits, namespace, "connections_max")

    def clients_max(self, principal: str) -> int | None:
        """The same of producers, consumers and admins."""
        quota = self.access.quotas.of_principal(principal)
        return quota.clients_max if quota is not None else None

    def bytes_max(self, principal: str, default: int) -> int:
        """Bytes without an answer that its producers may have under way."""
        quota = self.access.quotas.of_principal(principal)
        given = quota.inflight_bytes_max if quota is not None else None
        return default if given is None else min(given, default)
