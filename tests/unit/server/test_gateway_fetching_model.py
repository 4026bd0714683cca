"""Random writes, transactions, trims, compactions, kills and power cuts, read by remote cursors.

whatever happens   a cursor brings exactly what `AssignedPartition` brings on the node's host
                   from the same place: the same records, as many aborted ones left out, the
                   same position at the end, and the same error
                   no credit is passed by a batch, payloads are whole batches, and each begins
                   where the one before ended (`fetch_world.Reading` asserts it)
"""

from __future__ import annotations

import os
from typing import Any

from fetch_fixture import Client, Gateway, folder_in
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from partition_fixture import Partition
from unit.core.log_helpers import MemoryStorage

from penstock.client.consumer.partition_cursor import Isolation
from penstock.core import errors as er
from penstock.server.gateway.fetch import BELT, FetchLimits

LIVES = int(os.environ.get("PENSTOCK_HISTORIES", "100"))
PRODUCERS = st.integers(1, 3)
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


class Life(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([700, 3000, 20_000]),
        payload_bytes=st.sampled_from([1, 500, 4000, 1 << 20]),
        files_max=st.sampled_from([1, 2, 100]),
    )
    def begin_life(self, segment_bytes: int, payload_bytes: int, files_max: int) -> None:
        self.at = Partition(segment_bytes, MemoryStorage(), folder_in("/data"))
        self.limits = FetchLimits(payload_bytes=payload_bytes, files_max=files_max)
        self.attach()

    def attach(self) -> None:
        self.gateway = Gateway(self.at, self.limits)
        self.client: Client = self.gateway.client()

    @property
    def memory(self) -> MemoryStorage:
        assert isinstance(self.at.storage, MemoryStorage)
        return self.at.storage

    @rule(producer=PRODUCERS, count=st.integers(1, 5))
    def write(self, producer: int, count: int) -> None:
        self.at.write(producer, count)

    @rule(producer=PRODUCERS)
    def begin(self, producer: int) -> None:
        if producer not in self.at.open_from:
            self.at.begin(producer)

    @precondition(lambda self: self.at.open_from)
    @rule(which=st.integers(0, 3), committed=st.booleans())
    def end(self, which: int, committed: bool) -> None:
        self.at.end(list(self.at.open_from)[which % len(self.at.open_from)], committed=committed)

    @rule(delete_retention=st.sampled_from([0, 1 << 40]))
    def compact(self, delete_retention: int) -> None:
        self.at.compact(delete_retention)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.at.sync()
        self.at.trim(share)

    @rule(chance=st.one_of(st.none(), st.randoms(use_true_random=False)))
    def power_cut(self, chance: Any) -> None:
        """What was not synced is lost, and the log goes on in another epoch; clients come back with
        what they remember."""
        self.at.sync()
        self.at.write(4, 2)
        readings = dict(self.client.cursors)
        self.at.power_cut(chance)
        self.attach()
        for number, reading in readings.items():
            if reading.failed is None:
                self.fetch(number, number % 2, reading.offset, 700, reading.epoch)

    @rule(number=st.integers(0, 3), share=st.floats(0, 1.1), credit=st.sampled_from([1, 700, 9000]))
    def begin_anew(self, number: int, share: float, credit: int) -> None:
        self.fetch(number, number % 2, int(share * self.at.page.log_end), credit, -1)

    def fetch(self, number: int, which: int, offset: int, credit: int, epoch: int) -> None:
        self.gateway.fetch(
            self.client, offset, cursor=number, credit=credit, committed=bool(which),
            leader_epoch=epoch,
        )  # fmt: skip

    @rule(number=st.integers(0, 3))
    def some_rounds(self, number: int) -> None:
        """What is mapped in memory is as it was then, so cursors map again."""
        self.gateway.fetching._files.rest()
        self.gateway.fetching.rung(self.client)
        self.gateway.turn()
        if number in self.client.cursors:
            self.gateway.more(self.client, number)

    @rule()
    def read_on(self) -> None:
        """To the end, beside readers on the host that begin where the cursors stand."""
        gateway, client, at = self.gateway, self.client, self.at
        gateway.fetching._files.rest()
        expected = {}
        for number, reading in client.cursors.items():
            if reading.failed is not None:
                continue
            local = at.reader(ISOLATIONS[number % 2])
            local.jump(reading.offset, reading.epoch)
            error, records = None, []
            try:
                if not local.has_more:
                    local.check()
                while True:
                    before = local.offset
                    records += drained_once(local)
                    if local.offset == before:
                        break
            except er.PenstockError as raised:
                error = type(raised).__name__, str(raised)
            came = len(reading.records)
            expected[number] = came, records, reading.aborted + local.aborted, local.offset, error
        gateway.fetching.rung(client)
        gateway.turn(after=BELT)
        gateway.settle(client)
        for number, (came, records, aborted, offset, error) in expected.items():
            reading = client.cursors[number]
            failed = reading.failed
            assert reading.records[came:] == records
            assert (failed and (failed.error, failed.message)) == error
            assert (reading.aborted, reading.offset) == (aborted, offset)

    def teardown(self) -> None:
        if not hasattr(self, "at"):
            return
        self.read_on()
        for which, isolation in enumerate(ISOLATIONS):
            self.fetch(which, which, self.at.page.log_start, 1000, -1)
            self.gateway.settle(self.client)
            assert self.client.cursors[which].records == self.at.read(isolation)


def drained_once(reader: Any) -> list[Any]:
    """One fetch of a local reader."""
    found: list[Any] = []
    for chunk in reader.take(None) if reader.has_more else []:
        rows = slice(chunk.start, chunk.stop)
        offsets = chunk.columns.offsets[rows].tolist()
        found += zip(offsets, chunk.columns.values[rows].to_list(), strict=True)
    return found


TestLives = Life.TestCase
TestLives.settings = settings(
    max_examples=LIVES, stateful_step_count=40, deadline=None, derandomize=True
)
