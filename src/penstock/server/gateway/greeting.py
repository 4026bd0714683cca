"""Which connections are served, once they have said hello: versions, and how many there may be."""

from __future__ import annotations

from collections.abc import Collection

from penstock.cluster.frames import messages as fr
from penstock.core.errors import ResourceLimitError, UnsupportedVersionError
from penstock.server.gateway.peers import Peer


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
