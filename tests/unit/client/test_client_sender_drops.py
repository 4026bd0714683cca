"""Rule 4: what waits for a lane may be given up at any time, and the log sees no gap for it.

A real sender over a real lane in private memory, whose writer's end the test plays.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from lane_bytes import MANY, ack, made
from store_crash import memory

from penstock.client.backoff import Retries
from penstock.client.producer.routes import Batch, LaneLink, PartitionRoute, TopicRoutes
from penstock.client.producer.sender import Sender
from penstock.core import header as hd
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.errors import DroppedError
from penstock.ipc import layout as lo
from penstock.ipc import state
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.state import StatePage

PAGES = 2


class DropMachine(RuleBasedStateMachine):
    """`sent`: the batches by their number, which is their first value. `log`: what the writer took,
    (number, epoch, sequence, count) by partition."""

    def __init__(self) -> None:
        super().__init__()
        fd, table = memory(lo.state_table_bytes(PAGES))
        os.close(fd)
        state.format_table(table, bytes(16), PAGES)
        _, sender, self.receiver = made(64 * 64)
        self.doorbell = Doorbell()
        link = LaneLink(sender, self.doorbell)
        self.finished: list[Batch] = []
        self.sender = Sender(
            Path("/nowhere"), level="appended", idempotent=True, delivery_timeout=60.0,
            open_lane=lambda _: link, finished=self.finished.append, retries=Retries(0.05, 1.0),
        )  # fmt: skip
        self.sender.links[0] = link
        self.routes = [
            PartitionRoute("t", bytes(16), page, page, 0, StatePage(table, page))
            for page in range(PAGES)
        ]
        info: Any = None
        self.sender.topics["t"] = TopicRoutes(info, self.routes, 1 << 20)
        self.sent: list[Batch] = []
        self.log: dict[int, list[tuple[int, int, int, int]]] = {page: [] for page in range(PAGES)}
        self.dropped: set[int] = set()

    def teardown(self) -> None:
        for _ in range(len(self.sent)):
            self.drain(128)
            self.sender.reap()
        self.sequences_have_no_gap()
        found = {entry[0] for taken in self.log.values() for entry in taken}
        assert found == set(range(len(self.sent))) - self.dropped
        assert self.sender.buffered == 0
        assert [route.next_sequence for route in self.routes] == [
            sum(entry[3] for entry in taken) for taken in self.log.values()
        ]
        self.doorbell.close()

    @rule(
        page=st.integers(0, PAGES - 1), counts=st.lists(st.integers(1, 5), min_size=1, max_size=3)
    )
    def post(self, page: int, counts: list[int]) -> None:
        route, batches = self.routes[page], []
        for count in counts:
            number = b"%08d" % len(self.sent)
            encoded = encode_batch(
                [number] + [b"x" * 60] * (count - 1),
                hd.BatchIdentity(bytes(16), page, 1, route.epoch, route.next_sequence),
                base_timestamp=0,
            )
            box: Any = SimpleNamespace(deadline=time.monotonic() + 60.0)
            batches.append(Batch(box, route, encoded, count, route.next_sequence))
            route.next_sequence += count
            self.sent.append(batches[-1])
        self.sender.post(batches)

    @rule(choice=st.integers(0, 1 << 20))
    def give_up(self, choice: int) -> None:
        waiting = [batch for batch in self.sent if not (batch.flew or batch.done)]
        if waiting:
            batch = waiting[choice % len(waiting)]
            self.sender.give_up(batch, DroppedError("to make room"))
            self.dropped.add(self.sent.index(batch))

    @rule(frames=st.integers(1, 20))
    def drain(self, frames: int) -> None:
        taken = self.receiver.frames(frames, MANY)
        for frame in taken:
            view = memoryview(bytes(frame.batch))
            head = hd.checked(view, 0)
            number = int(decode(view, 0, head).values[0] or b"")
            self.log[frame.page].append(
                (number, head.producer_epoch, head.base_sequence, head.record_count)
            )
        if taken:
            self.receiver.finish(taken, [ack(frame) for frame in taken])

    @rule()
    def reap(self) -> None:
        self.sender.reap()

    @rule(page=st.integers(0, PAGES - 1))
    def expire(self, page: int) -> None:
        """The oldest that waits in a partition reaches its delivery timeout."""
        route = self.routes[page]
        if route.pending and not route.pending[0].flew:
            self.dropped.add(self.sent.index(route.pending[0]))
            route.pending[0].deadline = 0.0
            self.sender.expire(time.monotonic())

    @invariant()
    def sequences_have_no_gap(self) -> None:
        for taken in self.log.values():
            expected = 0
            for _, epoch, sequence, count in taken:
                assert (epoch, sequence) == (0, expected)
                expected += count

    @invariant()
    def what_was_dropped_is_not_in_the_log_and_the_rest_in_order(self) -> None:
        for taken in self.log.values():
            numbers = [entry[0] for entry in taken]
            assert numbers == sorted(numbers)
            assert not self.dropped & set(numbers)

    @invariant()
    def the_buffer_holds_what_is_not_done(self) -> None:
        left = sum(batch.length for batch in self.sent if not batch.done)
        assert self.sender.buffered == left
        assert len(self.finished) == sum(batch.done for batch in self.sent)


@pytest.mark.rule(4)
def test_rule_4_batches_that_wait_are_given_up_and_the_log_sees_no_gap() -> None:
    run_state_machine_as_test(
        DropMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
