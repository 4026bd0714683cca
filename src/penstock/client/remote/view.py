"""The state that all attachments of a carrier share: leaders, pages and proofs.

Plain state, which `attachments` and `connections` change. Used by the carrier's thread only.
"""

from __future__ import annotations

from penstock.client.remote.leaders import Brokers
from penstock.client.remote.mirror import MirroredPages
from penstock.client.remote.proofs import Proofs
from penstock.cluster.frames.messages import PageState


class ClusterView:
    """The cluster as a carrier knows it. `proofs`: what transactions show to gateways."""

    __slots__ = ("boot_id", "brokers", "is_cluster", "pages", "proofs")

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.proofs = Proofs()
        self.is_cluster = False
        """Whether there is more than the home branch at all."""
        self.boot_id = ""
        """Of the node that is home."""
        self.pages: MirroredPages | None = None
        """None before the first connection."""

    def knows(self, page: int) -> bool:
        """Returns whether the state of that page was ever heard."""
        return self.pages is not None and self.pages.knows(page)

    def publish(self, states: list[PageState], broker: int) -> list[PageState]:
        """Publishes the states of partitions, as that broker knows them. Returns those that
        count."""
        pages = self.pages
        if pages is None or not states:
            return []
        if self.is_cluster:
            states = pages.of_leaders(states, broker, self.brokers)
        if states:
            pages.publish(states)
        return states
