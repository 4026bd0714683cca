"""A transaction machine as its shell drives it: decisions are replayed, and kept in a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from penstock.cluster.decisions import Decision, Record
from penstock.cluster.shares import ShareGroups, TransactedJobs
from penstock.cluster.transactions import (
    EndedTransaction,
    Listed,
    StagesDecided,
    TransactionLimits,
    TransactionMachine,
)
from penstock.core.errors import StaleGenerationError

D = TypeVar("D")
T, U = b"t" * 16, b"u" * 16


class Offsets:
    """The part of a group machine that transactions use: grants are current or stale."""

    def __init__(self) -> None:
        self.stale: set[str] = set()

    def check_offsets(self, group: str, member_id: str, offsets: Sequence[Any]) -> None:
        if member_id in self.stale:
            raise StaleGenerationError(f"{member_id} of {group} owns this no more")

    def offset_records(self, now: float, group: str, offsets: Sequence[Any]) -> tuple[Record, ...]:
        return tuple(
            Record(msgspec.msgpack.encode(("offset", group, o)), b"%d" % o) for o in offsets
        )


class World:
    def __init__(self, limits: TransactionLimits | None = None) -> None:
        self.limits = limits
        self.offsets = Offsets()
        self.shares = ShareGroups(max)
        self.machine = TransactionMachine(self.offsets, TransactedJobs(self.shares), limits)
        self.log: list[Record] = []
        self.now = 1000.0
        self.producer_ids = 100

    def run(self, decision: Decision[D]) -> D:
        for record in decision.records:
            self.machine.replay(record)
            self.shares.replay(record)
        self.log += decision.records
        return decision.answer

    def replayed(self, log: Sequence[Record]) -> TransactionMachine:
        machine = TransactionMachine(self.offsets, TransactedJobs(ShareGroups(max)), self.limits)
        for record in log:
            machine.replay(record)
        return machine

    def compacted(self) -> list[Record]:
        newest = {record.key: place for place, record in enumerate(self.log)}
        return [record for place, record in enumerate(self.log) if newest[record.key] == place]

    def new_producer_id(self) -> int:
        self.producer_ids += 1
        return self.producer_ids

    def init(self, name: str = "a", timeout: float = 60.0) -> tuple[int, int]:
        return self.run(self.machine.init(self.now, name, timeout, self.new_producer_id()))

    def add(self, who: tuple[int, int], *places: tuple[bytes, int], name: str = "a") -> None:
        self.run(self.machine.add_partitions(self.now, name, *who, places))

    def end(
        self, who: tuple[int, int], commit: bool = True, offsets=(), name: str = "a", done=()
    ) -> EndedTransaction:
        return self.run(self.machine.end(self.now, name, *who, commit, offsets, done=done))

    def begin_stage(
        self, epoch: int, stage: str, name: str = "s", attempt: str = ""
    ) -> tuple[int, int]:
        new = self.new_producer_id()
        return self.run(self.machine.begin_stage(self.now, name, epoch, new, stage, attempt))

    def end_stages(self, *stages: str, name: str = "s") -> None:
        self.run(self.machine.end_stages(self.now, name, stages))

    def commit_stages(
        self,
        epoch: int,
        *stages: str,
        commit: bool = True,
        name: str = "s",
        is_last: bool = False,
    ) -> StagesDecided:
        return self.run(self.machine.commit_stages(self.now, name, epoch, stages, commit, is_last))

    def tick(self, to: float | None = None) -> None:
        self.now = self.now if to is None else to
        while (deadline := self.machine.deadline()) is not None and deadline <= self.now:
            self.run(self.machine.tick(self.now))

    def listed(self, after: str = "") -> list[Listed]:
        """All ids that sort after this one, in order."""
        names = self.machine.ids().after(after)
        return [row for name in names if (row := self.machine.listed(name)) is not None]

    def mark_all(self) -> dict[tuple[int, int], bool]:
        """Every missing marker is written; what they said, by (producer id, epoch)."""
        markings = list(self.machine.unmarked())
        for marking in markings:
            self.run(self.machine.marked(marking.producer_id, marking.epoch, marking.places))
        return {(m.producer_id, m.epoch): m.commit for m in markings}
