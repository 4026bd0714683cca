"""All partitions with a replica on this broker: their assignments, and the changes of their pages.

Owns the set of partitions, the watched pages, and the requests to the controller. Knows nothing of
sockets: `follower_fetch` and `leader_fetch` own fetching and sending.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.cluster.replica import LogEnd, ReplicaConfig, ReplicaLeader
from penstock.core.errors import ConfigError
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.state import StatePage
from penstock.server.replicator import messages as rm
from penstock.server.replicator.checkpoint import Checkpoint
from penstock.server.replicator.counts import ReplicatorCounts
from penstock.server.replicator.lanes import Lanes
from penstock.server.replicator.partition import ReplicatedPartition

logger = logging.getLogger("penstock.replicator")

ISR_RETRY: Final = 0.5
"""Seconds until a change of an ISR is asked for again."""


class Hosting:
    """The replicas of this process. It is the `partition.ReplicaHost` of its partitions. `turned`
    and `moved` get partitions. `watch` gets the pages whose changes have to wake this process.
    `tell` sends to the node."""

    def __init__(
        self,
        storage: Storage,
        lanes: Lanes,
        counts: ReplicatorCounts,
        checkpoint: Checkpoint,
        *,
        state_of: Callable[[int], StatePage],
        lag_time: float,
        turned: Callable[[ReplicatedPartition], None],
        moved: Callable[[ReplicatedPartition], None],
        watch: Callable[[Iterable[int]], None],
        tell: Callable[[rm.Report], None],
    ) -> None:
        self.storage = storage
        self.lanes = lanes
        self.counts = counts
        self.config = ReplicaConfig(lag_time, ISR_RETRY)
        self.number = -1
        self.epoch = 0
        self.living: dict[int, int] = {}
        self.partitions: dict[int, ReplicatedPartition] = {}
        self.now = time.monotonic()
        self._checkpoint = checkpoint
        self._state_of = state_of
        self._on_turned = turned
        self._on_moved = moved
        self._watch = watch
        self._tell = tell
        self._untold: dict[ReplicatedPartition, None] = {}
        self._is_another = False  # which pages are led
        self._led: list[ReplicatedPartition] = []
        self._words: list[int] = []
        self._seen: list[int] = []
        self._trimmable: list[ReplicatedPartition] = []
        self._starts: list[int] = []
        self._starts_seen: list[int] = []
        self._q: Any = None
        self._turning: dict[ReplicatedPartition, None] = {}
        self._uneven: dict[ReplicatedPartition, None] = {}
        """Led, and maybe not all followers have all, or an ISR is asked for: `check` ends it."""

    # --- what the node says ---
    def take(self, order: rm.Order) -> None:
        match order:
            case rm.Assign():
                self._assign(order)
            case rm.Opened():
                known = self.partitions.get(order.page)
                if known is not None:
                    known.opened()
            case rm.Forget():
                self._forget(order.page)
            case rm.IsrAnswer():
                known = self.partitions.get(order.page)
                if known is not None and (leader := known.leader) is not None:
                    before = len(leader.isr)
                    known.isr_answer(order.change, order.answer)
                    self._note_isr(known, leader, before)
                    self.counts.isr_refused += order.answer.refused is not None
            case rm.LivingBrokers():
                self._cluster(order)

    def _cluster(self, order: rm.LivingBrokers) -> None:
        if self.number not in (-1, order.broker):
            raise ConfigError(f"this was broker {self.number} and is now to be {order.broker}")
        self.number, self.epoch = order.broker, order.broker_epoch
        self.living.clear()  # the machines look at this very one
        self.living.update({broker: epoch for broker, (epoch, _) in order.brokers.items()})
        self._uneven.update(dict.fromkeys(self.partitions.values()))

    def _assign(self, order: rm.Assign) -> None:
        known = self.partitions.get(order.page)
        if known is not None and (known.topic_id, known.partition) != (
            order.topic_id,
            order.partition,
        ):
            self._forget(order.page)
            known = None
        if known is None:
            known = ReplicatedPartition(self, order, self._state_of(order.page))
            self.partitions[order.page] = known
            known.turn()
        else:
            leader = known.leader
            before = 0 if leader is None else len(leader.isr)
            known.hear(order)
            self._note_isr(known, leader, before)

    def _note_isr(
        self, known: ReplicatedPartition, leader: ReplicaLeader | None, before: int
    ) -> None:
        """How it has changed, by the controller's word or its answer."""
        if leader is not None and known.leader is leader:
            self._uneven[known] = None
            self._on_moved(known)
            self.counts.isr_grows += len(leader.isr) > before
            self.counts.isr_shrinks += len(leader.isr) < before

    def _forget(self, page: int) -> None:
        known = self.partitions.pop(page, None)
        if known is not None:
            known.is_gone = True
            self._checkpoint.forget((known.topic_id, known.partition))
            self._untold.pop(known, None)
            self._turning.pop(known, None)
            self._uneven.pop(known, None)
            self._is_another = True
            self._on_turned(known)

    # --- what partitions say ---
    def high_watermark(self, topic_id: bytes, partition: int) -> int:
        return self._checkpoint.of((topic_id, partition))

    def turned(self, partition: ReplicatedPartition) -> None:
        self._is_another = True
        self._uneven[partition] = None
        self.counts.elections += partition.leader is not None
        self._on_turned(partition)
        partition.look()

    def turns(self, partition: ReplicatedPartition) -> None:
        self._turning[partition] = None

    def leaderless(self, partition: ReplicatedPartition, end: LogEnd) -> None:
        self._tell(rm.Leaderless(partition.page, partition.topic_id, partition.partition, end))

    def moved(self, partition: ReplicatedPartition) -> None:
        self._untold[partition] = None

    # --- each turn ---
    def look(self) -> None:
        """At the pages that are led: their writers append, and sync."""
        if self._is_another:
            self._choose()
        if not self._words:
            return
        seen = list(map(self._q.__getitem__, self._words))
        if seen == self._seen:
            return
        before, self._seen = self._seen, seen
        for at, word in enumerate(seen):
            if word != before[at]:
                partition = self._led[at]
                partition.look()
                self._uneven[partition] = None
                self._on_moved(partition)

    @property
    def has_moved(self) -> bool:
        """Whether `look` would find something."""
        if self._is_another:
            return True
        return bool(self._words) and list(map(self._q.__getitem__, self._words)) != self._seen

    def _choose(self) -> None:
        """Which pages are looked at."""
        self._is_another = False
        led = [each for each in self.partitions.values() if each.leader is not None]
        self._led, self._words, self._starts = [], [], []
        for partition in led:
            q, log_end, _, _ = partition.state.words()
            self._q = q
            self._led.append(partition)
            self._words.append(log_end)
            self._starts.append(log_end - lo.Q_PAGE_LOG_END + lo.Q_PAGE_LOG_START)
            if partition.is_synced:
                self._led.append(partition)
                self._words.append(log_end - lo.Q_PAGE_LOG_END + lo.Q_PAGE_DURABLE)
        self._seen = [-1] * len(self._words)
        self._trimmable, self._starts_seen = led, [-1] * len(led)
        self._watch([each.page for each in led])

    def tell(self) -> None:
        """Tell writers what they are to know by now."""
        if self._untold:
            untold, self._untold = self._untold, {}
            for partition in untold:
                partition.tell()
                if partition.leader is not None:
                    self._on_moved(partition)

    def asked(self, partition: ReplicatedPartition) -> None:
        """A follower has fetched: the ISR may have to grow, the high watermark has moved maybe."""
        partition.noted()
        self._uneven[partition] = None
        leader = partition.leader
        if leader is not None and leader.wanted is not None:
            self._ask(partition)

    def _ask(self, partition: ReplicatedPartition) -> None:
        leader = partition.leader
        change = None if leader is None else leader.isr_change(self.now)
        if change is not None:
            self._tell(
                rm.ChangeIsr(partition.page, partition.topic_id, partition.partition, change)
            )

    # --- time ---
    def check(self) -> None:
        """Finds followers that lag, logs that were trimmed, and writers that have not taken a role
        yet. A partition of which nothing is to come costs nothing."""
        for partition in list(self._turning):
            if partition.has_turned:
                del self._turning[partition]
            elif not partition.is_turning:
                partition.turn()
        self._check_starts()
        for partition in list(self._uneven):
            leader = partition.leader
            if leader is not None:
                leader.tick(self.now)
                if leader.wanted is not None:
                    self._ask(partition)
            if leader is None or leader.is_even:
                del self._uneven[partition]

    def _check_starts(self) -> None:
        """Logs that are led here may have been trimmed."""
        if not self._starts:
            return
        before, self._starts_seen = self._starts_seen, list(map(self._q.__getitem__, self._starts))
        if self._starts_seen != before:
            for at, start in enumerate(self._starts_seen):
                if start != before[at]:
                    self._trimmable[at].look()

    def lags(self) -> list[tuple[int, int, int]]:
        """(page, follower, offsets behind) of those furthest behind."""
        behind = [
            (partition.log.log_end - stored, partition.page, follower)
            for partition in self._uneven
            if (leader := partition.leader) is not None
            for follower, stored in leader.followers.items()
            if stored < partition.log.log_end
        ]
        behind.sort(reverse=True)
        return [(page, follower, lag) for lag, page, follower in behind[: rm.LAGS_MAX]]

    def write_down(self) -> None:
        """High watermarks as they are now."""
        for each in self.partitions.values():
            if each.replica is not None:
                self._checkpoint.note((each.topic_id, each.partition), each.log.high_watermark)
        self._checkpoint.write()
