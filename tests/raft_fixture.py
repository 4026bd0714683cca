"""A few raft nodes whose messages and disks go on only when a test says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from penstock.cluster.raft import Effects, LogEntry, Raft, RaftConfig, Saved, Write, fresh
from penstock.cluster.raft.messages import RaftMessage

CONFIG = RaftConfig(election_timeout=1.0, heartbeat=0.2)
Wire = tuple[int, int, RaftMessage]


class Group:
    """`wire` holds (sender, receiver, message); `stores` says whose disks are not stuck."""

    def __init__(
        self,
        saved: dict[int, Saved] | int,
        machine: type[Raft] = Raft,
        config: RaftConfig = CONFIG,
    ) -> None:
        if isinstance(saved, int):
            saved = {n: fresh(*range(1, saved + 1)) for n in range(1, saved + 1)}
        self.now = 0.0
        self.machine, self.config, self.saved = machine, config, saved
        self.wire: deque[Wire] = deque()
        self.pending: dict[int, deque[Write]] = {n: deque() for n in saved}
        self.written: dict[int, list[Write]] = {n: [] for n in saved}
        self.stores = set(saved)
        self.committed: dict[int, list[LogEntry]] = {n: [] for n in saved}
        self.cut: set[tuple[int, int]] = set()
        self.nodes = {n: self._start(n, found) for n, found in saved.items()}

    def _start(self, number: int, saved: Saved) -> Raft:
        return self.machine(number, saved, self.config, random.Random(number).random, self.now)

    # --- what is done ---
    def do(self, number: int, effects: Effects) -> None:
        self.pending[number].extend(effects.writes)
        self.wire.extend((number, to, message) for to, message in effects.messages)
        self.committed[number].extend(effects.committed)
        while number in self.stores and self.pending[number]:
            self.store(number)

    def store(self, number: int) -> None:
        """One write gets to the disk."""
        write = self.pending[number].popleft()
        self.written[number].append(write)
        self.do(number, self.nodes[number].persisted(self.now, write.number))

    def deliver(self, keep: Callable[[Wire], bool] = lambda _: True) -> None:
        """All messages, and what they lead to; those that `keep` says no to get lost."""
        while self.wire:
            sender, to, message = item = self.wire.popleft()
            if keep(item) and (sender, to) not in self.cut and to in self.nodes:
                self.do(to, self.nodes[to].receive(self.now, sender, message))

    def pass_time(self, seconds: float, *numbers: int) -> None:
        """For these nodes, or for all; messages wait."""
        self.now += seconds
        for number in numbers or list(self.nodes):
            self.do(number, self.nodes[number].tick(self.now))

    def elect(self, number: int) -> Raft:
        """Make that one the leader."""
        self.pass_time(2 * self.config.election_timeout, number)
        self.deliver()
        assert self.nodes[number].is_leader, self.nodes[number].role
        return self.nodes[number]

    def propose(self, number: int, data: bytes) -> int:
        index, effects = self.nodes[number].propose(self.now, data)
        self.do(number, effects)
        return index

    def isolate(self, number: int) -> None:
        self.cut |= {(number, n) for n in self.nodes} | {(n, number) for n in self.nodes}

    # --- what is so ---
    def terms(self, number: int) -> list[int]:
        log = self.nodes[number].log
        return [e.term for e in log.entries(log.first_index, log.last_index + 1)]

    def data(self, number: int) -> list[bytes]:
        return [entry.data for entry in self.committed[number] if entry.data]


def logged(terms: list[int], voters: int, term: int | None = None) -> Saved:
    """A node with a log of entries of these terms."""
    entries = tuple(LogEntry(i, t, 1, b"%d" % i) for i, t in enumerate(terms, 1))
    first = fresh(*range(1, voters + 1))
    last = max(terms, default=0)
    return Saved(first.snapshot, last if term is None else term, None, entries)
