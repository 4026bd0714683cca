"""A remote producer that never gives up: what has no answer goes again, by new connections too."""

from __future__ import annotations

import time

from wire import Dealer, batch_of

from penstock.cluster.frames import messages as fr
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms

IN_FLIGHT = 64
HEAR = 0.3


class Resender:
    """Sends `count` records of one topic, one a batch, and notes where each of them is."""

    def __init__(self, url: str, topic: ms.TopicInfo, count: int, flags: int = 0) -> None:
        self._url = url
        self._topic = topic
        self._count = count
        self._flags = flags
        self._attached: fr.Attached | None = None
        self._dealer: Dealer | None = None
        self._number = 0
        self._sent = 0
        self._lane_base = 0
        self.connections = 0
        self.offsets: list[int] = []

    @property
    def is_done(self) -> bool:
        return len(self.offsets) == self._count

    def step(self) -> None:
        """Send what there is room for, take answers that are there."""
        dealer = self._dealer or self._connect()
        if dealer is None:
            return
        assert self._attached is not None
        page = self._topic.pages[0]
        while self._sent < self._count and self._sent - len(self.offsets) < IN_FLIGHT:
            batch = batch_of(
                [b"%d" % self._sent], self._topic, self._attached.producer_id, self._sent
            )
            sequence = self._sent - self._lane_base
            writer = page % self._attached.writers
            dealer.say(fr.Produce(1, writer, sequence, page, self._flags), batch)
            self._sent += 1
        try:
            acks = dealer.hear(fr.Acks, HEAR)
        except AssertionError:
            if any(isinstance(message, fr.Ended) for message, _ in dealer.heard):
                self.lose()
            else:
                dealer.say(fr.Ping(1))
            return
        for ack in acks.acks:
            assert ack.error == 0, ack
            assert ack.sequence == len(self.offsets) - self._lane_base
            self.offsets.append(ack.base_offset)

    def run(self, within: float = 40.0) -> None:
        deadline = time.monotonic() + within
        while not self.is_done:
            assert time.monotonic() < deadline, f"{len(self.offsets)} of {self._count}"
            self.step()

    def _connect(self) -> Dealer | None:
        dealer = Dealer(self._url, hello=False)
        before = self._attached
        try:
            dealer.greet(HEAR)
            self._attached = dealer.attach(
                1,
                lo.KIND_PRODUCER,
                resume=None if before is None else before.producer_id,
                token=b"" if before is None else before.token,
            )
        except AssertionError:
            dealer.close()
            return None
        if before is not None:
            assert self._attached.producer_id == before.producer_id
        self._sent = self._lane_base = len(self.offsets)
        self._dealer = dealer
        self.connections += 1
        return dealer

    def lose(self) -> None:
        """Forget the connection, as when it was cut."""
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None
