"""A batch for a page that its writer has not opened yet in this boot."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dying import memory

from penstock.cluster.frames import messages as fr
from penstock.core.encode import encode_batch
from penstock.core.errors import ErrorCode
from penstock.ipc import layout as lo
from penstock.ipc import state
from penstock.server.gateway.counts import Counts
from penstock.server.gateway.events import Events
from penstock.server.gateway.producing import Outgoing, Producing
from penstock.server.gateway.states import Known, PageStates

TOPIC = b"t" * 16
PRODUCER = 7


class Sending:
    """A remote producer's endpoint as `Producing` sees it, over a state table without pages."""

    def __init__(self, folder: Path) -> None:
        fd, table = memory(lo.state_table_bytes())
        os.close(fd)
        state.format_table(table, bytes(16))
        self.events = Events()
        self.said: list[Any] = []
        self.asked: list[Any] = []
        self.charged: list[int] = []
        welcome = SimpleNamespace(lane_capacity=1 << 20)
        session = SimpleNamespace(
            writers=1, welcome=welcome, producer_id=PRODUCER, opening_lane=lambda *_: None
        )
        self.endpoint: Any = SimpleNamespace(
            number=1, principal="", client_id="", window=1 << 20, is_open=True, session=session,
            outgoing=Outgoing(), states=PageStates(table, Known(folder)), post=self.said.append,
            asks=SimpleNamespace(add=lambda *job: self.asked.append(job)),
            peer=SimpleNamespace(charge=self.charged.append),
        )  # fmt: skip
        self.page = self.endpoint.states.page(0)
        self.producing = Producing(
            self.events, Counts(), may_write=lambda *_: None, allow=lambda *_: 0.0,
            watch_durable=lambda *_: None, failed=lambda *_: None,
        )  # fmt: skip

    def send(self) -> None:
        encoded = encode_batch(
            [b"value"], base_timestamp=0, topic_id=TOPIC, partition=0, producer_id=PRODUCER,
            producer_epoch=0, base_sequence=0,
        )  # fmt: skip
        payload = memoryview(bytes(encoded.header) + bytes(encoded.body))
        assert not self.producing.produce(self.endpoint, fr.Produce(1, 0, 0, 0), payload, 0.0)
        self.producing.turn(0.0)


@pytest.fixture
def sending(tmp_path: Path) -> Any:
    made = Sending(tmp_path)
    yield made
    made.events.close()


def test_a_page_that_is_not_open_yet_is_left_to_its_writer(sending: Sending) -> None:
    """After a reboot the node admits clients after `drain_timeout`, open or not: it is no topic
    that was deleted, and the writer opens its partitions before it looks at any lane."""
    sending.send()
    assert sending.said == []
    assert len(sending.asked) == 1  # the lane


def test_a_page_of_another_topic_is_refused_here(sending: Sending) -> None:
    sending.page.claim(b"o" * 16, 0, 1)
    sending.send()
    [told] = sending.said
    assert [ack.error for ack in told.acks] == [ErrorCode.WRONG_TOPIC_ID]
    assert sending.charged == [1], "nothing else bounds how many are sent"
