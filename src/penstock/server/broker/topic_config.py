"""The part of a topic that the controller keeps without reading it: its pages and its settings.

Pages are the same on all brokers, so that a client can name a partition to any of them. Owns the
bytes of that part. Decides nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.ipc.messages import TopicSettings


class ClusterTopic(msgspec.Struct, frozen=True):
    """The pages and settings of a topic. `pages[k]` is the page of partition k. There may be more
    pages than partitions: they were taken for growth that never completed."""

    pages: list[int]
    settings: TopicSettings

    def encode(self) -> bytes:
        """Encodes it in the form of `Topic.config`."""
        return _encode(self)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ClusterTopic).decode


def cluster_topic(config: bytes) -> ClusterTopic:
    """Read `Topic.config`."""
    return _decode(config)
