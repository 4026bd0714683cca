"""A producer that reads none of its answers holds up its own lane, and nothing else."""

from __future__ import annotations

import time

import pytest

from penstock import TopicConfig
from penstock.client.session import Session, place_of
from penstock.core.encode import encode_batch
from penstock.core.header import BatchIdentity
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel
from penstock.ipc.doorbell import fence
from penstock.testing import Broker, wait_until

WITHIN = 45.0


def passes(session, writer):
    """How often a writer has gone through its loop."""
    at = lo.WRITER_SLOTS_AT + writer * lo.WRITER_SLOT_BYTES
    return session.state.q[at // 8 + lo.Q_WRITER_PASSES]


@pytest.mark.rule(1)
@pytest.mark.local("it writes into the ring that it shares with the writer")
def test_rule_1_a_writer_sleeps_while_a_ring_of_answers_is_full_and_goes_on_after():
    with Broker(writers=1) as node, node.connect() as client:
        client.admin().create_topic("t", TopicConfig(partitions=1))
        session = Session.attach(
            place_of(node.url), lo.KIND_PRODUCER, client_id="mute", timeout=WITHIN
        )
        info = session.find_topic("t", WITHIN)
        sender, doorbell = session.open_lane(0, WITHIN)
        for sequence in range(200):
            encoded = encode_batch(
                [b"%d" % sequence],
                BatchIdentity(info.topic_id, 0, session.producer_id, base_sequence=sequence),
                base_timestamp=0,
            )
            assert sender.try_write(info.pages[0], encoded, encoded.length) == sequence
        doorbell.ring()
        page = session.page(info.pages[0])
        wait_until(lambda: page.high_watermark == lo.ACKS_MAX, WITHIN, "the ring is full")

        before, started = passes(session, 0), time.monotonic()
        with client.producer() as other:  # others are served meanwhile
            assert other.send_and_wait("t", b"other", timeout=WITHIN).offset == lo.ACKS_MAX
        wait_until(lambda: time.monotonic() - started > 0.5, WITHIN, "half a second goes by")
        assert passes(session, 0) - before < 200, "the writer spins"
        assert page.high_watermark == lo.ACKS_MAX + 1

        answers = sender.acks()
        assert [answer.sequence for answer in answers] == list(range(lo.ACKS_MAX))
        fence()
        if sender.writer_ticket():
            doorbell.ring()
        wait_until(lambda: page.high_watermark == 201, WITHIN, "the rest is drained")
        wait_until(sender.has_acks, WITHIN, "the rest is answered")
        sender.detach()
        session.close()


def test_an_interrupted_request_leaves_no_answer_to_the_next_one(monkeypatch):
    """Ctrl-C between sending and noting that: the next would take the answer for its own."""
    with Broker(writers=1) as node:
        session = Session.attach(
            place_of(node.url), lo.KIND_ADMIN, client_id="hasty", timeout=WITHIN
        )
        send = Channel._send

        def interrupted(*message):
            send(*message)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Channel, "_send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.request(ms.ListTopics(), ms.Topics, WITHIN)
        assert session.request(ms.DescribeNode(), ms.NodeDescription, WITHIN).writers is not None
        session.close()
