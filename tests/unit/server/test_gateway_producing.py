"""Rule 27: what a remote producer's batch is and says of itself is checked before the lane."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_bytes import identified
from produce_fixture import PRODUCER, TOPIC, Sending

from penstock.cluster.frames import messages as fr
from penstock.core.control import ControlType, encode_control
from penstock.core.encode import encode_batch
from penstock.core.errors import AccessDeniedError, ErrorCode, UnknownTopicError
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.ipc import layout as lo

OTHER = PRODUCER + 1
COORDINATOR = 3 << lo.PRODUCER_COUNTER_BITS
DENIED = b"d" * 16


def batch(**changes: Any) -> bytes:
    options: dict[str, Any] = {
        "base_timestamp": 0, "topic_id": TOPIC, "partition": 0, "producer_id": PRODUCER,
        "producer_epoch": 0, "base_sequence": 0, **changes,
    }  # fmt: skip
    return encode_batch([b"value"], **identified(**options)).image()


def control(producer_id: int) -> bytes:
    return encode_control(
        ControlType.COMMIT, producer_id=producer_id, producer_epoch=1, coordinator_epoch=1,
        timestamp=0, topic_id=TOPIC, partition=0,
    )  # fmt: skip


def may_write(endpoint: Any, topic_id: bytes) -> None:
    if topic_id == DENIED:
        raise AccessDeniedError("not there")
    if topic_id != TOPIC:
        raise UnknownTopicError("nowhere")


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    made = Sending(tmp_path)
    made.endpoint.principal = "ann"
    made.producing._may_write = may_write
    made.page.claim(TOPIC, 0, 1)
    made.send()
    made.open()
    made.append((0, 0, 0))
    yield made
    made.close()


def said_of(sending: Sending, image: bytes, page: int = 0, proof: bytes = b"") -> str:
    """Why the connection is to be dropped, or empty."""
    message = fr.Produce(1, 0, sending.sent, page, 0, proof)
    why = sending.producing.produce(sending.endpoint, message, memoryview(image), sending.now)
    if not why:
        sending.sent += 1
        sending.turn()
    return why


def answer_to(
    sending: Sending, image: bytes, page: int = 0, proof: bytes = b""
) -> ErrorCode | None:
    """What it is answered at once; None: it is in the lane."""
    before = len(sending.answers)
    assert not said_of(sending, image, page, proof)
    told = sending.answers[before:]
    assert bool(told) != bool(sending.frames()), "answered, or in the lane, and not both"
    return ErrorCode(told[0][1]) if told else None


def flipped(image: bytes, at: int) -> bytes:
    data = bytearray(image)
    data[at] ^= 1
    return bytes(data)


BAD: dict[str, tuple[bytes, ErrorCode]] = {
    "a commit": (control(PRODUCER), ErrorCode.CORRUPT_BATCH),
    "a commit of the coordinator": (control(COORDINATOR), ErrorCode.CORRUPT_BATCH),
    "under the coordinator's name": (batch(producer_id=COORDINATOR), ErrorCode.UNKNOWN_PRODUCER),
    "so in a transaction": (
        batch(producer_id=COORDINATOR, attributes=ATTR_TRANSACTIONAL), ErrorCode.UNKNOWN_PRODUCER,
    ),
    "its own, in a transaction": (
        batch(attributes=ATTR_TRANSACTIONAL), ErrorCode.UNKNOWN_PRODUCER,
    ),
    "another producer's": (batch(producer_id=OTHER), ErrorCode.UNKNOWN_PRODUCER),
    "damaged head": (flipped(batch(), 20), ErrorCode.CORRUPT_BATCH),
    "damaged body": (flipped(batch(), -1), ErrorCode.CORRUPT_BATCH),
    "longer than it says": (batch() + bytes(64), ErrorCode.CORRUPT_BATCH),
    "another partition": (batch(partition=3), ErrorCode.WRONG_TOPIC_ID),
    "another topic": (batch(topic_id=b"o" * 16), ErrorCode.WRONG_TOPIC_ID),
}  # fmt: skip


@pytest.mark.rule(27)
@pytest.mark.parametrize("what", BAD)
def test_rule_27_a_bad_batch_never_gets_into_the_lane(sending: Sending, what: str) -> None:
    image, error = BAD[what]
    assert answer_to(sending, image) is error
    assert answer_to(sending, batch(base_sequence=1)) is None


@pytest.mark.rule(27)
def test_rule_27_access_is_looked_at_for_plain_batches_and_those_of_transactions(
    sending: Sending,
) -> None:
    for kind in (0, ATTR_TRANSACTIONAL):
        for topic_id, error in (
            (DENIED, ErrorCode.ACCESS_DENIED),
            (b"n" * 16, ErrorCode.WRONG_TOPIC_ID),
        ):
            page = sending.endpoint.states.page(1)
            page.claim(topic_id, 0, 1)
            image = batch(topic_id=topic_id, attributes=kind, base_sequence=1)
            proof = sending.tokens.prove(PRODUCER, 0, "ann")
            assert answer_to(sending, image, 1, proof) is error, kind
    assert answer_to(sending, batch(base_sequence=1)) is None


@pytest.mark.rule(27)
def test_rule_27_a_batch_of_a_transaction_shows_the_proof_of_its_producer_and_epoch(
    sending: Sending,
) -> None:
    prove = sending.tokens.prove
    epochs = [batch(producer_id=OTHER, producer_epoch=n, attributes=ATTR_TRANSACTIONAL)
              for n in range(2)]  # fmt: skip
    good = prove(OTHER, 0, "ann")
    for bad in (b"", prove(OTHER, 0, "bob"), prove(OTHER, 1, "ann"), prove(PRODUCER, 0, "ann")):
        assert answer_to(sending, epochs[0], proof=bad) is ErrorCode.UNKNOWN_PRODUCER
    assert answer_to(sending, epochs[0], proof=good) is None
    sending.append((1, 0, 0))
    assert answer_to(sending, epochs[1], proof=good) is ErrorCode.UNKNOWN_PRODUCER
    assert answer_to(sending, epochs[0], proof=b"") is ErrorCode.UNKNOWN_PRODUCER
    assert answer_to(sending, epochs[1], proof=prove(OTHER, 1, "ann")) is None


def test_a_batch_out_of_turn_or_over_the_window_ends_the_connection(sending: Sending) -> None:
    image = memoryview(batch(base_sequence=1))
    for sequence in (sending.sent + 1, sending.sent - 1):
        message = fr.Produce(1, 0, sequence, 0, 0)
        assert "was due" in sending.producing.produce(sending.endpoint, message, image, 0.0)
    sending.endpoint.window = 2 * len(image)
    assert not said_of(sending, bytes(image))
    assert not said_of(sending, batch(base_sequence=2))
    assert "over its window" in said_of(sending, batch(base_sequence=3))
    sending.append((1, 0, 0), (2, 0, 0))
    assert not said_of(sending, batch(base_sequence=3))


def test_the_writer_is_rung_once_a_sleep_behind_a_fence(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It falls asleep between the gateway's store and its look: the fence is what shows that."""
    from penstock.server.gateway import produce

    lane: Any = next(iter(sending.producing._outgoing[sending.endpoint].lanes.values()))
    seen = []

    def fence() -> None:
        seen.append((sending.receiver.has_frames, bool(sending.receiver.producer_ticket())))
        sending.receiver.publish_sleeping(99)

    monkeypatch.setattr(produce, "fence", fence)
    assert answer_to(sending, batch(base_sequence=1)) is None
    assert seen == [(True, True)], "the frame and the gateway's own ticket come before it"
    assert os.eventfd_read(lane.doorbell.fileno()) == 1
    assert not said_of(sending, batch(base_sequence=2))
    with pytest.raises(BlockingIOError):
        os.eventfd_read(lane.doorbell.fileno())


def test_a_quota_holds_back_what_comes_after(sending: Sending) -> None:
    waits = [5.0, 0.0]
    sending.producing._allow = lambda *_: waits.pop(0)
    assert answer_to(sending, batch(base_sequence=1)) is None
    assert not said_of(sending, batch(base_sequence=2))
    assert len(sending.frames()) == 1, "held, not sent"
    sending.now += 4.9
    sending.look()
    assert len(sending.frames()) == 1
    sending.now += 0.2
    sending.look()
    assert len(sending.frames()) == 2
