"""The cluster of this node, as its gateway was told: the leaders and their addresses.

A node outside a cluster leads all it has, and says so. Owns the last word of the node about the
cluster and its form for clients. Speaks to nobody.
"""

from __future__ import annotations

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr
from penstock.core.errors import NotLeaderError
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.state import StatePage


class Membership:
    """The brokers and leaders of the cluster. Changed by the loop's thread, read by any."""

    def __init__(self, broker: int | None) -> None:
        """`broker`: this one's number, None outside a cluster."""
        self.broker = fr.NOBODY if broker is None else broker
        self.is_broker = broker is not None
        self.cluster_id = b""
        self.version = -1
        self.leaders = b""
        """`fr.Leaders`, encoded; empty until the node has said anything."""
        self._leads: dict[int, int] = {}
        self._urls: dict[int, str] = {}

    @property
    def is_known(self) -> bool:
        """Whether there is anything to tell clients: they come only then."""
        return not self.is_broker or bool(self.leaders)

    def told(self, cluster: ms.GatewayCluster) -> bool:
        """The node says how the cluster is. False: it had said this, or something newer."""
        if cluster.version < self.version:
            return False
        encoded = codec.encode(
            fr.Leaders(cluster.version, cluster.brokers, cluster.leaders, cluster.coordinator)
        )
        if encoded == self.leaders:
            return False
        self.cluster_id = cluster.cluster_id
        self._leads = dict(cluster.leaders)
        self._urls = dict(cluster.brokers)
        self.version, self.leaders = cluster.version, encoded
        return True

    def leads(self, page: int) -> bool:
        """Whether the partition of that page is led here, by what the node has said."""
        return not self.is_broker or self._leads.get(page) == self.broker

    def is_elsewhere(self, page: StatePage, topic_id: bytes, partition: int) -> bool:
        """Returns whether another broker serves that partition. A page of a deleted partition, one
        that is about to be opened and one of another partition by now belong to no other broker."""
        if not self.is_broker:
            return False
        if page.identity == (topic_id, partition):
            return page.status == lo.STATUS_FOLLOWING
        return not self.leads(page.index)

    def check(self, page: StatePage, topic_id: bytes, partition: int) -> None:
        """Raise `NotLeaderError` where `is_elsewhere` says so."""
        if self.is_elsewhere(page, topic_id, partition):
            raise NotLeaderError(self.why_not(page.index))

    def why_not(self, page: int) -> str:
        """Returns the message to a client that has come to the wrong broker with that page."""
        leader = self._leads.get(page)
        if leader is None or leader == self.broker:
            return f"nobody leads the partition of page {page} just now: ask again"
        where = self._urls.get(leader, "which is away")
        return f"the partition of page {page} is led by broker {leader} ({where}): go there"
