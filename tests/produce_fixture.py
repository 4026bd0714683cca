"""Remote producers without a network: `ProduceHandler` over a state table and a real lane, of which
the test is the writer."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lane_bytes
from store_crash import memory

from penstock.cluster.frames import messages as fr
from penstock.core.encode import encode_batch
from penstock.core.header import BatchIdentity
from penstock.ipc import layout as lo
from penstock.ipc import state
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import Ack, Frame
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.events import Events
from penstock.server.gateway.membership import Membership
from penstock.server.gateway.partition_states import Known, PageStates
from penstock.server.gateway.produce import ProduceHandler
from penstock.server.gateway.tokens import SECRET_BYTES, Tokens

TOPIC = b"t" * 16
PRODUCER = 7


class Endpoint(SimpleNamespace):
    """Each is another one."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class Sending:
    """A remote producer's endpoint as `ProduceHandler` sees it, over a state table without pages.
    Its lane comes by `open`."""

    def __init__(self, folder: Path, membership: Membership | None = None) -> None:
        fd, table = memory(lo.state_table_bytes())
        os.close(fd)
        state.format_table(table, bytes(16))
        self.events = Events()
        self.said: list[Any] = []
        self.asked: list[Any] = []
        self.charged: list[int] = []
        self.sent = 0
        self.now = 0.0
        self.sequences: dict[int, int] = {}
        welcome = SimpleNamespace(lane_capacity=1 << 20)
        session = SimpleNamespace(
            writers=1, welcome=welcome, producer_id=PRODUCER, opening_lane=lambda *_: None
        )
        self.endpoint: Any = Endpoint(
            number=1, principal="", client_id="", window=1 << 20, is_open=True, session=session,
            is_producer=True, states=PageStates(table, Known(folder)), post=self._post,
            requests=SimpleNamespace(add=lambda *job: self.asked.append(job)),
            peer=SimpleNamespace(charge=self.charged.append),
        )  # fmt: skip
        self.page = self.endpoint.states.page(0)
        self.counts = GatewayCounts()
        self.tokens = Tokens(bytes(SECRET_BYTES))
        self.producing = ProduceHandler(
            self.events, self.counts, membership or Membership(None), folder / "no.sock",
            self.tokens, may_write=lambda *_: None, allow=lambda *_: 0.0,
            watch_durable=lambda *_: None, failed=lambda *_: None,
        )  # fmt: skip

    def _post(self, message: Any) -> bool:
        self.said.append(message)
        return True

    def open(self) -> None:
        """The node gives it the lane that it asked for."""
        _, sender, self.receiver = lane_bytes.made(1 << 20)
        [(_, opened, _)] = self.asked
        opened((sender, Doorbell()))
        self.turn()

    def turn(self) -> None:
        self.producing.turn(self.now)

    def send(self, page: int = 0, flags: int = 0) -> None:
        """A batch of one record for partition `page` of the topic, which is on that page."""
        encoded = encode_batch(
            [b"value"],
            BatchIdentity(TOPIC, page, PRODUCER, 0, self.sequences.get(page, 0)),
            base_timestamp=0,
        )
        self.sequences[page] = self.sequences.get(page, 0) + 1
        payload = memoryview(bytes(encoded.header) + bytes(encoded.body))
        message = fr.Produce(1, 0, self.sent, page, flags)
        self.sent += 1
        assert not self.producing.produce(self.endpoint, message, payload, self.now)
        self.turn()

    def frames(self) -> list[Frame]:
        """What stands in the lane, and has no answer."""
        return self.receiver.frames(lo.ACKS_MAX, 1 << 20)

    def append(self, *answers: tuple[int, int, int]) -> None:
        """The writer answers what is in the lane, each with (base offset, error, leader epoch)."""
        frames = self.frames()
        assert len(frames) == len(answers)
        acks = [
            Ack(frame.sequence, offset, 1, error, epoch)
            for frame, (offset, error, epoch) in zip(frames, answers, strict=True)
        ]
        self.receiver.finish(frames, acks)
        self.look()

    def look(self) -> None:
        """Its doorbell rang, or the belt looks."""
        self.producing.rung(self.endpoint)
        self.turn()

    @property
    def answers(self) -> list[tuple[int, int]]:
        """(sequence, error) of what was answered so far."""
        acks = [ack for told in self.said if isinstance(told, fr.Acks) for ack in told.acks]
        return [(ack.sequence, ack.error) for ack in acks]

    def close(self) -> None:
        self.producing.gone(self.endpoint)
        self.producing.close()
        self.events.close()
