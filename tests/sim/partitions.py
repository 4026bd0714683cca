"""Partition logs as the simulator has them: the rules of BEGIN, data and markers, without bytes.

What is answered is on the device: these logs are of topics with `durability="fsync"`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.cluster.transactions.records import Place
from penstock.testing.sim import Network, Node, Reply, Simulation

OK = "ok"
STALE = "STALE_PRODUCER_EPOCH"
NOT_OPEN = "TRANSACTION_NOT_OPEN"
OTHER_OPEN = "ANOTHER_TRANSACTION_IS_OPEN"
OUT_OF_ORDER = "OUT_OF_ORDER_SEQUENCE"


class Begin(NamedTuple):
    place: Place
    producer_id: int
    epoch: int


class Data(NamedTuple):
    place: Place
    producer_id: int
    epoch: int
    sequence: int
    value: str
    transactional: bool


class Marker(NamedTuple):
    """`epoch` is that of the transaction it ends."""

    place: Place
    producer_id: int
    epoch: int
    commit: bool


class ProducerState:
    def __init__(self) -> None:
        self.epoch = 0
        self.next_sequence = 0
        self.open_since: int | None = None


class PartitionLog:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.entries: list[Begin | Data | Marker] = []
        self.producers: dict[int, ProducerState] = {}
        self.outcomes: dict[tuple[int, int], bool] = {}
        self.begun_at: dict[tuple[int, int], float] = {}
        self.stable_seen = 0

    @property
    def last_stable(self) -> int:
        begins = (state.open_since for state in self.producers.values())
        return min((at for at in begins if at is not None), default=len(self.entries))

    def open(self) -> list[tuple[int, int]]:
        """(producer id, epoch) of what is open."""
        states = self.producers.items()
        return [(who, state.epoch) for who, state in states if state.open_since is not None]

    def begin(self, entry: Begin, now: float) -> str:
        state = self.producers.setdefault(entry.producer_id, ProducerState())
        if entry.epoch < state.epoch:
            return STALE
        if state.open_since is not None:
            return OK if entry.epoch == state.epoch else OTHER_OPEN
        state.epoch, state.next_sequence, state.open_since = entry.epoch, 0, len(self.entries)
        self.begun_at[entry.producer_id, entry.epoch] = now
        self.entries.append(entry)
        return OK

    def data(self, entry: Data) -> str:
        state = self.producers.setdefault(entry.producer_id, ProducerState())
        if entry.epoch < state.epoch:
            return STALE
        if entry.transactional and (state.open_since is None or entry.epoch != state.epoch):
            return NOT_OPEN
        if entry.sequence < state.next_sequence:
            return OK  # it is there already
        if entry.sequence > state.next_sequence:
            return OUT_OF_ORDER
        state.next_sequence += 1
        self.entries.append(entry)
        return OK

    def mark(self, entry: Marker) -> str:
        who = (entry.producer_id, entry.epoch)
        state = self.producers.setdefault(entry.producer_id, ProducerState())
        said = self.outcomes.setdefault(who, entry.commit)
        assert said == entry.commit, f"markers both ways of {who} in {self.place}"
        if entry.epoch >= state.epoch:
            if state.open_since is not None and state.epoch != entry.epoch:
                # An older one, whose registration went with the power, and which was not swept yet.
                assert not entry.commit, "a COMMIT ends another transaction than its own"
                older = self.outcomes.setdefault((entry.producer_id, state.epoch), False)
                assert not older, "a transaction that was committed is open"
            state.epoch, state.next_sequence, state.open_since = entry.epoch + 1, 0, None
            self.entries.append(entry)
        return OK

    def read(self, offset: int, count: int, committed: bool) -> tuple[list[tuple[int, str]], int]:
        """(offset, value) from `offset` on, and where to go on."""
        end = self.last_stable if committed else len(self.entries)
        found: list[tuple[int, str]] = []
        while offset < end and len(found) < count:
            entry = self.entries[offset]
            if isinstance(entry, Data) and not (
                committed
                and entry.transactional
                and not self.outcomes[entry.producer_id, entry.epoch]
            ):
                found.append((offset, entry.value))
            offset += 1
        return found, offset

    def values(self, committed: bool = True) -> list[str]:
        return [value for _, value in self.read(0, len(self.entries), committed)[0]]

    def check(self) -> None:
        """Invariants 1 and 3, as far as the last entry goes."""
        stable = self.last_stable
        assert self.stable_seen <= stable <= len(self.entries), f"last stable fell: {self.place}"
        self.stable_seen = stable


class Writer(Node):
    """All partitions of a host. It may be down for a while, and forgets nothing."""

    def __init__(self, sim: Simulation, network: Network, places: list[Place]) -> None:
        super().__init__(sim, network, "writer")
        self.logs = {place: PartitionLog(place) for place in places}
        self.last: PartitionLog | None = None

    def on_ask(self, source: str, question: Begin | Data | Marker, reply: Reply) -> None:
        self.last = log = self.logs[question.place]
        match question:
            case Begin():
                reply(log.begin(question, self.sim.now))
            case Data():
                reply(log.data(question))
            case Marker():
                reply(log.mark(question))

    def check(self) -> None:
        if self.last is not None:
            self.last.check()
            self.last = None
