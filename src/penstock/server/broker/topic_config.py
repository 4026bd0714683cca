"""What the controller keeps of a topic without reading it: its pages and its settings.

Pages are the same on all brokers, so that a client can say which partition it means to any of them.
Owns the bytes of that. Decides nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.ipc.messages import TopicSettings


class ClusterTopic(msgspec.Struct, frozen=True):
    """`pages[k]` is the page of partition k; there may be more of them than partitions, taken for
    growth that did not come to its end."""

    pages: list[int]
    settings: TopicSettings

    def encode(self) -> bytes:
        """As it stands in `Topic.config`."""
        return _encode(self)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ClusterTopic).decode


def cluster_topic(config: bytes) -> ClusterTopic:
    """Read `Topic.config`."""
    return _decode(config)
