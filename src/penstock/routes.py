"""Where a producer's batches go: partitions with their sequences, lanes with their flights.

Plain bookkeeping under the producer's lock; nothing here waits or talks to the node.
"""

from __future__ import annotations

from collections import deque

from penstock.core import header as hd
from penstock.core.encode import EncodedBatch
from penstock.core.header import HEADER
from penstock.delivery import Batch
from penstock.ipc.doorbell import Doorbell, fence
from penstock.ipc.lane import LaneSender
from penstock.ipc.messages import TopicInfo
from penstock.ipc.state import StatePage

from crc32c import crc32c  # isort: skip


class LaneLink:
    """A lane, the doorbell of the writer behind it, and what flies in it by lane sequence."""

    __slots__ = ("doorbell", "flights", "rung", "sender")

    def __init__(self, sender: LaneSender, doorbell: Doorbell) -> None:
        self.sender = sender
        self.doorbell = doorbell
        self.flights: dict[int, Batch] = {}
        self.rung = 0

    def wake_writer(self) -> None:
        """Ring the writer if it sleeps (after a fence), once per sleep."""
        fence()
        ticket = self.sender.writer_ticket()
        if ticket and ticket != self.rung:
            self.rung = ticket
            self.doorbell.ring()


class PartitionRoute:
    """One partition as this producer sees it: epoch, next sequence, batches waiting for room."""

    __slots__ = ("epoch", "in_flight", "link", "next_sequence", "page", "partition", "pending",
                 "state", "topic", "topic_id", "waiting_durable", "writer")  # fmt: skip

    def __init__(
        self, topic: str, topic_id: bytes, partition: int, page: int, writer: int, state: StatePage
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.page = page
        self.writer = writer
        self.state = state
        self.epoch = 0
        self.next_sequence = 0
        self.pending: deque[Batch] = deque()
        self.in_flight: dict[int, Batch] = {}  # by batch sequence, in order
        self.waiting_durable: deque[Batch] = deque()
        self.link: LaneLink | None = None

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicRoutes:
    """A topic and its partitions' routes; `sticky` moves on with every sealed box."""

    __slots__ = ("info", "record_bytes_max", "routes", "sticky")

    def __init__(self, info: TopicInfo, routes: list[PartitionRoute], record_bytes_max: int) -> None:
        self.info = info
        self.routes = routes
        self.record_bytes_max = record_bytes_max
        self.sticky = 0

    def next_sticky(self) -> int:
        chosen = self.sticky
        self.sticky = (chosen + 1) % len(self.routes)
        return chosen


def resequence(encoded: EncodedBatch, epoch: int, sequence: int) -> EncodedBatch:
    """The same records under another producer epoch and sequence (both checksums anew)."""
    fields = list(HEADER.unpack(encoded.header))
    named = hd.BatchHeader._make(fields)._replace(producer_epoch=epoch, base_sequence=sequence)
    head = bytearray(HEADER.pack(*named))
    body_crc = crc32c(encoded.body, crc32c(memoryview(head)[hd.BODY_CRC_FROM :]))
    hd.seal_header(head, body_crc)
    return EncodedBatch(head, encoded.body)
