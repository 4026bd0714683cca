"""Which connections are served, once they have said hello: versions, and how many there may be;
and what those that are hear first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.cluster.access import over_limit
from penstock.cluster.frames import messages as fr
from penstock.core.errors import (
    NotConnectedError,
    PenstockError,
    ResourceLimitError,
    UnsupportedVersionError,
)
from penstock.ipc.liveness import boot_id
from penstock.ipc.paths import socket_in
from penstock.server.config import NodeConfig
from penstock.server.gateway.authorization import Authorization
from penstock.server.gateway.membership import Membership
from penstock.server.gateway.peers import Peer, Peers
from penstock.version import __version__

CLUSTER_API: Final = "cluster"


class Handshake:
    """Judges hellos. `stopping`: nobody is served any more."""

    def __init__(
        self,
        config: NodeConfig,
        node_uuid: bytes,
        membership: Membership,
        standing: Authorization,
        peers: Peers,
    ) -> None:
        self._config = config
        self._node_uuid = node_uuid
        self._boot_id = boot_id()
        self._membership = membership
        self._standing = standing
        self._peers = peers
        self.stopping = False

    def refusal(self, hello: fr.Hello, principal: str) -> fr.Refused | None:
        """Why this connection cannot be served."""
        try:
            if self.stopping:
                raise NotConnectedError("this node is stopping")
            check_versions(hello)
            self._check_cluster(hello)
            own = self._standing.connections_max(principal)
            check_connections(
                principal, self._peers.by_identity.values(), self._config.connections_max, own
            )
            self._check_namespace(principal)
        except PenstockError as error:
            return fr.Refused(-1, type(error).__name__, str(error))
        return None

    def _check_namespace(self, principal: str) -> None:
        standing = self._standing
        namespace = standing.namespace_of(principal)
        most = standing.connections_of(namespace) if namespace is not None else None
        if namespace is None or most is None:
            return
        peers = self._peers.by_identity.values()
        there = sum(standing.namespace_of(peer.principal) == namespace for peer in peers)
        if there >= most:
            raise over_limit(namespace, "connections", there, 1, most)

    def _check_cluster(self, hello: fr.Hello) -> None:
        membership = self._membership
        if not membership.is_known:
            raise NotConnectedError(
                f"broker {membership.broker} has not heard from its cluster yet, which needs "
                "most of its controller_quorum: try again, or another broker"
            )
        if membership.is_broker and CLUSTER_API not in hello.apis:
            raise UnsupportedVersionError(
                f"this is broker {membership.broker} of a cluster, and the client "
                f"({hello.software}) knows of no clusters: use a later version of it"
            )

    def welcome(self) -> fr.Welcome:
        """Returns the first message on a connection that is served."""
        config, membership = self._config, self._membership
        return fr.Welcome(
            fr.PROTOCOL_VERSION,
            fr.APIS,
            f"penstock {__version__}",
            self._node_uuid,
            self._boot_id,
            str(socket_in(config.data_folder)),
            config.client_heartbeat,
            config.client_silence_max,
            config.batch_bytes_max,
            membership.cluster_id,
            membership.broker,
        )


def check_versions(hello: fr.Hello) -> None:
    """Raise UnsupportedVersionError where the two have no version in common."""
    if hello.protocol != fr.PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"the client speaks protocol version {hello.protocol}, this gateway "
            f"{fr.PROTOCOL_VERSION}: use Penstock versions that fit each other"
        )
    for api, (low, high) in fr.APIS.items():
        theirs = hello.apis.get(api)
        if theirs is not None and not (theirs[0] <= high and low <= theirs[1]):
            raise UnsupportedVersionError(
                f"the client speaks {api!r} in versions {theirs[0]} to {theirs[1]}, this gateway "
                f"in {low} to {high}: use Penstock versions that fit each other"
            )


def check_connections(principal: str, peers: Collection[Peer], most: int, own: int | None) -> None:
    """Raise ResourceLimitError where there are `most` in all, or `own` of that principal."""
    if len(peers) >= most:
        raise ResourceLimitError(
            f"the node has {most} remote connections, its bound connections_max: close some, or "
            "start the node with a larger one (and clients_max with it)"
        )
    if own is not None and sum(peer.principal == principal for peer in peers) >= own:
        raise ResourceLimitError(
            f"principal {principal!r} has {own} connections, its limit connections_max: close "
            "some, or have the node's operator raise it (`penstock quota set`)"
        )
