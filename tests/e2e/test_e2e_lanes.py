"""Producers that break the rules of their lane: refused, or sent away with a reason; nobody else
notices, and the writer lives (rule 27)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from batch_bytes import identified
from crash.node_under_test import NodeUnderTest
from crc32c import crc32c

from penstock.client.client import Client
from penstock.client.session import Session, place_of
from penstock.core import header as hd
from penstock.core.encode import EncodedBatch, encode_batch
from penstock.core.errors import ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc.lane import Ack, LaneSender
from penstock.testing import wait_until

pytestmark = pytest.mark.local("frames are written into lanes, past the producer")
WITHIN = 45.0


@pytest.fixture(scope="module")
def node(transport: str) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(writers_max=1) as node:
        with node.connect() as client:
            client.admin().create_topic("t")
            client.admin().create_topic("other")
        yield node
        assert node.stop() == 0
        node.check_gone()


@pytest.fixture
def client(node: NodeUnderTest) -> Iterator[Client]:
    with node.connect() as client:
        yield client


class Rogue:
    """A producer by its lane alone, which may write what it wants."""

    def __init__(self, node: NodeUnderTest) -> None:
        self.session = Session.attach(
            place_of(node.url), lo.KIND_PRODUCER, client_id="rogue", timeout=WITHIN
        )
        self.topic = self.session.find_topic("t", WITHIN)
        self.sender, self.bell = self.session.open_lane(0, WITHIN)
        self.sequence = 0

    def batch(self, **changes: Any) -> EncodedBatch:
        """The next batch that this producer may send, with some of it otherwise."""
        fields: dict[str, Any] = {
            "base_timestamp": time.time_ns() // 1000,
            "topic_id": self.topic.topic_id,
            "partition": 0,
            "producer_id": self.session.producer_id,
            "producer_epoch": 0,
            "base_sequence": self.sequence,
        }
        return encode_batch([b"rogue %d" % self.sequence], **identified(**{**fields, **changes}))

    def send(self, batch: EncodedBatch, page: int | None = None) -> None:
        page = self.topic.pages[0] if page is None else page
        assert self.sender.try_write(page, batch, batch.length) is not None
        self.bell.ring()

    def answer(self) -> Ack:
        """The one acknowledgement that comes."""
        (ack,) = wait_until(self.sender.acks, WITHIN, "an answer of the writer")
        return Ack(*ack)

    def send_good(self) -> Ack:
        self.send(self.batch())
        ack = self.answer()
        assert ack.error == 0
        self.sequence += 1
        return ack

    def reason(self) -> str:
        """Why the node sent it away."""
        return str(wait_until(self.session.farewell, WITHIN, "the node sends it away"))

    def leave(self) -> None:
        self.sender.mark_closed()
        self.sender.detach()
        self.bell.close()
        self.session.close()


@pytest.fixture
def rogue(node: NodeUnderTest) -> Iterator[Rogue]:
    rogue = Rogue(node)
    yield rogue
    rogue.leave()
    wait_until(
        lambda: not [name for name in node.shared_memory() if "-lane-" in name],
        WITHIN, "its lane is gone",
    )  # fmt: skip


# --- bad frames: the lane is dropped -------------------------------------------------------------
def rewrite_frame(sender: LaneSender, **changes: int) -> Callable[[], None]:
    """Bend the header of the frame that will be written next; the tail moves after that."""
    names = ("size", "page", "sequence", "fetch_epoch", "kind", "flags", "length")
    at = lo.LANE_FRAMES_AT + sender.tail % sender._capacity

    def bend() -> None:
        fields = dict(zip(names, lo.FRAME.unpack_from(sender._bytes, at), strict=True))
        packed = lo.FRAME.pack(*{**fields, **changes}.values())
        crc = lo.FRAME_CRC.pack(crc32c(packed))
        sender._bytes[at : at + len(packed) + len(crc)] = packed + crc

    return bend


def flip_checksum(sender: LaneSender) -> Callable[[], None]:
    at = lo.LANE_FRAMES_AT + sender.tail % sender._capacity + lo.FRAME_CRC_AT

    def bend() -> None:
        sender._bytes[at] ^= 1

    return bend


def store(sender: LaneSender, word: int, value: Callable[[], int]) -> Callable[[], None]:
    def bend() -> None:
        sender._q[word] = value()

    return bend


BAD_FRAMES: dict[str, Callable[[LaneSender], Callable[[], None]]] = {
    "checksum": flip_checksum,
    "size 0": lambda sender: rewrite_frame(sender, size=0),
    "size unaligned": lambda sender: rewrite_frame(sender, size=100),
    "size beyond what was published": lambda sender: rewrite_frame(sender, size=1 << 16),
    "size beyond the lane": lambda sender: rewrite_frame(sender, size=(1 << 31) + 64),
    "length beyond the frame": lambda sender: rewrite_frame(sender, length=1 << 20),
    "unknown kind": lambda sender: rewrite_frame(sender, kind=77),
    "sequence skipped": lambda sender: rewrite_frame(sender, sequence=10_000),
    "tail unaligned": lambda sender: store(sender, lo.Q_LANE_TAIL, lambda: sender.tail + 1),
    "tail beyond the lane": lambda sender: store(
        sender, lo.Q_LANE_TAIL, lambda: sender.tail + (1 << 40)
    ),
    "tail before the head": lambda sender: store(sender, lo.Q_LANE_TAIL, lambda: 0),
    "tail at the end of numbers": lambda sender: store(
        sender, lo.Q_LANE_TAIL, lambda: (1 << 64) - 64
    ),
    "answers read that were not given": lambda sender: store(
        sender, lo.Q_LANE_ACK_HEAD, lambda: 1 << 40
    ),
}


def send_bent(rogue: Rogue, bend: Callable[[], None]) -> None:
    """Written, bent, published: the writer must not see it in between."""
    words = rogue.sender._q

    class Held:
        def __getitem__(self, index: int) -> Any:
            return words[index]

        def __setitem__(self, index: int, value: int) -> None:
            if index == lo.Q_LANE_TAIL:
                bend()
            words[index] = value

    rogue.sender._q = Held()  # type: ignore[assignment]
    rogue.send(rogue.batch())
    rogue.sender._q = words


@pytest.mark.rule(27)
@pytest.mark.parametrize("what", BAD_FRAMES)
def test_rule_27_a_bad_frame_costs_its_producer_the_lane_and_nobody_else_anything(
    node: NodeUnderTest, client: Client, rogue: Rogue, what: str
) -> None:
    (writer,) = node.writer_pids()
    with client.producer(linger=0.0) as producer:
        producer.send_and_wait("other", b"before", timeout=WITHIN)
        end = rogue.send_good().base_offset + 1
        bend = BAD_FRAMES[what](rogue.sender)
        if what.startswith("tail"):
            bend()
            rogue.bell.ring()
        else:
            send_bent(rogue, bend)
        reason = rogue.reason()
        assert rogue.sender.name in reason
        assert "dropped lane" in reason
        producer.send_and_wait("other", b"after", timeout=WITHIN)
        assert node.writer_pids() == [writer]
        assert producer.metrics()["reconnects"] == 0
    (described,) = client.admin().describe_topic("t").partitions
    assert described.log_end == end, "nothing of it is in the log"


@pytest.mark.rule(27)
def test_rule_27_good_frames_in_front_of_a_bad_one_are_written(
    node: NodeUnderTest, client: Client, rogue: Rogue
) -> None:
    """At `ring` they were accepted, and a dead producer cannot send them again."""
    end = rogue.send_good().base_offset + 1
    (writer,) = node.writer_pids()
    os.kill(writer, signal.SIGSTOP)  # it finds all of them in one pass
    try:
        for _ in range(4):
            rogue.send(rogue.batch())
            rogue.sequence += 1
        bend = flip_checksum(rogue.sender)
        rogue.send(rogue.batch())
        bend()
    finally:
        os.kill(writer, signal.SIGCONT)
    assert "dropped lane" in rogue.reason()
    with client.consumer("t", start=end, follow=False) as consumer:
        assert [record.value for record in consumer] == [b"rogue %d" % n for n in range(1, 5)]
    assert node.writer_pids() == [writer]


# --- bad batches: refused, and the lane goes on --------------------------------------------------
def resealed(batch: EncodedBatch, at: int, value: bytes) -> EncodedBatch:
    """Other bytes in the producer's part of the header, with both checksums right again."""
    header = bytearray(batch.header)
    header[at : at + len(value)] = value
    body_crc = crc32c(batch.body, crc32c(memoryview(header)[hd.BODY_CRC_FROM :]))
    hd.seal_header(header, body_crc)
    return EncodedBatch(header, batch.body)


def with_bad_body(rogue: Rogue) -> EncodedBatch:
    batch = rogue.batch()
    body = bytearray(batch.body)
    body[-1] ^= 1
    return EncodedBatch(batch.header, bytes(body))


def with_bad_header(rogue: Rogue) -> EncodedBatch:
    batch = rogue.batch()
    header = bytearray(batch.header)
    header[20] ^= 1
    return EncodedBatch(header, batch.body)


BAD_BATCHES: dict[str, tuple[ErrorCode, Callable[[Rogue], EncodedBatch]]] = {
    "body": (ErrorCode.CORRUPT_BATCH, with_bad_body),
    "header": (ErrorCode.CORRUPT_BATCH, with_bad_header),
    "somebody else's": (ErrorCode.CORRUPT_BATCH, lambda rogue: rogue.batch(producer_id=1)),
    "another topic": (ErrorCode.WRONG_TOPIC_ID, lambda rogue: rogue.batch(topic_id=bytes(16))),
    "another partition": (ErrorCode.UNKNOWN_PARTITION, lambda rogue: rogue.batch(partition=7)),
    "a sequence ahead": (
        ErrorCode.OUT_OF_ORDER_SEQUENCE,
        lambda rogue: rogue.batch(base_sequence=rogue.sequence + 5),
    ),
    "a length that is not the frame's": (
        ErrorCode.CORRUPT_BATCH,
        lambda rogue: resealed(rogue.batch(), 12, (1 << 16).to_bytes(4, "little")),
    ),
    "more records than offsets": (
        ErrorCode.CORRUPT_BATCH,
        lambda rogue: resealed(rogue.batch(), 56, (9).to_bytes(4, "little")),
    ),
    "columns for work queues that are not there": (
        ErrorCode.CORRUPT_BATCH,
        lambda rogue: rogue.batch(attributes=hd.ATTR_HAS_WORK),
    ),
}


@pytest.mark.rule(27)
@pytest.mark.parametrize("what", BAD_BATCHES)
def test_rule_27_a_bad_batch_is_refused_and_its_lane_goes_on(
    node: NodeUnderTest, client: Client, rogue: Rogue, what: str
) -> None:
    (writer,) = node.writer_pids()
    code, make = BAD_BATCHES[what]
    end = rogue.send_good().base_offset + 1
    rogue.send(make(rogue))
    assert ErrorCode(rogue.answer().error) is code
    # Rule 4: what follows in that epoch is refused, and the next epoch is taken from 0 on.
    rogue.send(rogue.batch())
    behind = ErrorCode(rogue.answer().error)
    if behind is not ErrorCode.NONE:
        assert behind is ErrorCode.POISONED
        rogue.send(rogue.batch(producer_epoch=1, base_sequence=0))
        assert rogue.answer().error == 0
    (described,) = client.admin().describe_topic("t").partitions
    assert described.log_end == end + 1
    assert rogue.session.farewell() is None
    assert node.writer_pids() == [writer]


@pytest.mark.rule(27)
def test_rule_27_a_page_that_is_nobodys_is_refused(rogue: Rogue, client: Client) -> None:
    for page in (1000, lo.PAGES_MAX + 5, (1 << 32) - 1):
        rogue.send(rogue.batch(), page=page)
        assert ErrorCode(rogue.answer().error) is ErrorCode.UNKNOWN_PARTITION
    assert rogue.send_good().error == 0


@pytest.mark.rule(27)
def test_rule_27_a_batch_too_short_for_a_header_is_refused(rogue: Rogue) -> None:
    for short in (b"", b"x", bytes(64)):
        sequence = rogue.sender.try_write(rogue.topic.pages[0], [short], len(short))
        assert sequence is not None
        rogue.bell.ring()
        assert ErrorCode(rogue.answer().error) is ErrorCode.CORRUPT_BATCH
    rogue.send_good()


@pytest.mark.rule(4)
def test_rule_4_a_final_refusal_poisons_what_follows_until_the_epoch_is_raised(
    rogue: Rogue, client: Client
) -> None:
    first = rogue.send_good()
    bad = with_bad_body(rogue)
    rogue.send(bad)
    for ahead in range(3):
        rogue.send(rogue.batch(base_sequence=rogue.sequence + 1 + ahead))
    errors: list[ErrorCode] = []
    while len(errors) < 4:
        errors += [ErrorCode(ack.error) for ack in wait_until(rogue.sender.acks, WITHIN, "acks")]
    assert errors == [ErrorCode.CORRUPT_BATCH, *[ErrorCode.POISONED] * 3]
    rogue.send(rogue.batch(producer_epoch=1, base_sequence=0))
    ack = rogue.answer()
    assert (ack.error, ack.base_offset) == (0, first.base_offset + 1)


@pytest.mark.rule(1)
def test_rule_1_a_producer_that_reads_no_answers_is_drained_no_further_than_they_have_places(
    rogue: Rogue, client: Client
) -> None:
    (described,) = client.admin().describe_topic("t").partitions
    start = described.log_end
    for _ in range(lo.ACKS_MAX + 40):
        rogue.send(rogue.batch())
        rogue.sequence += 1

    def end() -> int:
        return client.admin().describe_topic("t").partitions[0].log_end - start

    wait_until(lambda: end() == lo.ACKS_MAX, WITHIN, lambda: f"{end()} are appended")
    assert end() == lo.ACKS_MAX
    rogue.sender.acks()
    rogue.bell.ring()
    wait_until(lambda: end() == lo.ACKS_MAX + 40, WITHIN, lambda: f"{end()} are appended")
