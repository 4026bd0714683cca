"""A partition's leader: tracks the log ends of its followers, and decides the committed offset.

**Theory.** A record is committed once every in-sync replica (ISR) has it. Elections choose only
from the ISR, so the next leader has every committed record. The controller owns the ISR. A leader
asks for a change. Until it knows the result it counts both, the old ISR and the requested one (the
*maximal* ISR, rule 23). So a change that was made and whose answer got lost costs nothing.

| event | decides |
|---|---|
| a follower's fetch, up to `stored` | its log end; HW = min over the maximal ISR |
| it has reached HW and the begin of this leader's epoch | ask for it in the ISR |
| it was not at the log end within `lag_time`, or is away | ask for it out of the ISR |
| the ISR has fewer than `min_insync` | HW does not move, acks=all is refused |

The last rule is KIP-966's: committed records are on `min_insync` replicas, also when the ISR
shrinks below that afterwards. So the last replica cannot be the only one that ever had them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.cluster.replica.ledger import LogEnds
from penstock.cluster.replica.messages import (
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    IsrChange,
    IsrChanged,
    PartitionAssignment,
    ReplicaConfig,
    ReplicaRefusal,
)

FINAL: Final = (
    ReplicaRefusal.NOT_ELIGIBLE,
    ReplicaRefusal.OLD_BROKER,
    ReplicaRefusal.NOT_A_REPLICA,
)
"""The controller examined the members of the change. Other refusals say nothing about the change:
it may have been made."""


@dataclass(slots=True)
class FollowerProgress:
    """Of one follower. `caught_up_at`: the last time that it had all that the log had then."""

    broker_epoch: int
    caught_up_at: float
    stored: int = 0
    fetched_at: float = float("-inf")
    end_then: int = 0
    """The log end here when it last fetched."""


class ReplicaLeader:
    """`isr` is what the controller said last, `wanted` what this leader asked for and does not know
    the outcome of."""

    def __init__(
        self,
        broker: int,
        log: LogEnds,
        config: ReplicaConfig,
        brokers: Mapping[int, int],
        now: float,
        word: PartitionAssignment,
    ) -> None:
        self.broker = broker
        self.epoch = word.leader_epoch
        self.counts = {"isr_grows": 0, "isr_shrinks": 0, "isr_refused": 0}
        self._log = log
        self._config = config
        self._brokers = brokers
        self.first_offset = log.log_end
        """Where this epoch begins."""
        self.wanted: tuple[int, ...] | None = None
        self._asked_at = float("-inf")
        self._asked: IsrChange | None = None
        self._progress: dict[int, FollowerProgress] = {}
        self._take(now, word)

    # --- what can be asked ---
    @property
    def maximal_isr(self) -> frozenset[int]:
        return frozenset(self.isr) | frozenset(self.wanted or ())

    @property
    def is_short(self) -> bool:
        """Fewer than `min_insync` are sure to be in the ISR: nothing more is committed."""
        sure = set(self.isr) if self.wanted is None else set(self.isr) & set(self.wanted)
        return len(sure) < self._min_insync

    @property
    def followers(self) -> dict[int, int]:
        """How far each is that has fetched or is in the ISR."""
        return {broker: each.stored for broker, each in self._progress.items()}

    @property
    def is_even(self) -> bool:
        """Every follower has all there is and nothing is asked for: until the next event, `tick`
        has nothing to find."""
        log_end, brokers = self._log.log_end, self._brokers
        return (
            self.wanted is None
            and all(known.stored >= log_end for known in self._progress.values())
            and all(member in brokers for member in self.isr)
        )

    # --- events ---
    def appended(self) -> None:
        """The log has grown here, or more of it is on stable storage."""
        self._advance()

    def hear(self, now: float, word: PartitionAssignment) -> None:
        """The controller says of this partition what is newer, in this leader's epoch; or all of
        what an answer of its told the ISR of. That leaves alone what was asked for since."""
        if word.partition_epoch < self.partition_epoch:
            return
        if word.partition_epoch > self.partition_epoch:
            self.wanted = self._asked = None
        self._take(now, word)
        self._advance()

    def fetch(self, now: float, request: FetchRequest) -> Fetched | Diverged | FetchRefused:
        """Answers a follower's fetch. The shell sends it the records."""
        log, number = self._log, request.number
        why = self._refusal(request)
        if why is not None:
            return FetchRefused(number, why, self.epoch)
        offset = request.offset
        if offset < log.log_start or (request.last_epoch is None and offset > log.log_end):
            return Fetched(number, self.epoch, log.log_start, log.high_watermark, log.log_start)
        if request.last_epoch is not None:
            epoch, end = log.end_of(request.last_epoch)
            if epoch != request.last_epoch or offset > end:
                return Diverged(number, self.epoch, epoch, end)
        self._note(now, request)
        self._advance()
        return Fetched(number, self.epoch, offset, log.high_watermark, log.log_start)

    def tick(self, now: float) -> None:
        """Asks for an ISR without the members that lag. The request is in `isr_change`."""
        if self.wanted is not None:
            return
        late = {member for member in self.isr if self._lags(now, member)}
        if late:
            self.counts["isr_shrinks"] += 1
            self._want(tuple(member for member in self.isr if member not in late))

    def isr_change(self, now: float) -> IsrChange | None:
        """Returns the ISR change to request from the controller now, again while no answer
        comes."""
        if self._asked is None or now < self._asked_at + self._config.retry:
            return None
        self._asked_at = now
        return self._asked

    def isr_changed(self, now: float, asked: IsrChange, answer: IsrChanged) -> None:
        """The controller answered. A refusal because of epochs tells nothing of the change itself,
        which may have been made: the controller's next word does."""
        if asked is not self._asked and asked != self._asked:
            return
        if answer.refused is None:
            self.partition_epoch, self.isr = answer.partition_epoch, answer.isr
            self.wanted = self._asked = None
            self._advance()
        elif answer.refused in FINAL and answer.partition_epoch > self.partition_epoch:
            self.counts["isr_refused"] += 1
            self.partition_epoch = answer.partition_epoch
            self.wanted = self._asked = None
            self._advance()

    # --- inside ---
    def _take(self, now: float, word: PartitionAssignment) -> None:
        self.isr, self.partition_epoch = word.isr, word.partition_epoch
        self.replicas, self._offline = word.replicas, word.offline
        self._min_insync = min(word.min_insync, len(word.replicas))
        for member in self.isr:
            if member != self.broker and member not in self._progress:
                epoch = self._brokers.get(member, 0)
                self._progress[member] = FollowerProgress(epoch, caught_up_at=now)

    def _refusal(self, request: FetchRequest) -> ReplicaRefusal | None:
        if request.leader_epoch != self.epoch:
            return (
                ReplicaRefusal.OLD_EPOCH
                if request.leader_epoch < self.epoch
                else ReplicaRefusal.NEW_EPOCH
            )
        if request.broker not in self.replicas:
            return ReplicaRefusal.NOT_A_REPLICA
        known = self._progress.get(request.broker)
        epoch = max(self._brokers.get(request.broker, 0), known.broker_epoch if known else 0)
        return ReplicaRefusal.OLD_BROKER if request.broker_epoch < epoch else None

    def _note(self, now: float, request: FetchRequest) -> None:
        known = self._progress.get(request.broker)
        if known is None or known.broker_epoch != request.broker_epoch:
            # Another life: what the last one had may be gone.
            known = FollowerProgress(request.broker_epoch, caught_up_at=float("-inf"))
            self._progress[request.broker] = known
        log_end = self._log.log_end
        known.stored = request.stored
        if request.stored >= log_end:
            known.caught_up_at = now
        elif request.stored >= known.end_then:
            known.caught_up_at = max(known.caught_up_at, known.fetched_at)
        known.fetched_at, known.end_then = now, log_end
        if self.wanted is None and request.broker not in self.isr and self._fits(request):
            self.counts["isr_grows"] += 1
            self._want((*self.isr, request.broker))

    def _fits(self, request: FetchRequest) -> bool:
        """Into the ISR: it has all that may count, its log takes more, and its life is the one that
        the controller knows."""
        enough = max(self._log.high_watermark, self.first_offset)
        return (
            request.stored >= enough
            and request.broker not in self._offline
            and self._brokers.get(request.broker) == request.broker_epoch
        )

    def _lags(self, now: float, member: int) -> bool:
        known = self._progress.get(member)
        if known is None or member == self.broker:
            return False
        if known.stored >= self._log.log_end and member in self._brokers:
            return False  # one that is away has read nothing, also of an empty log
        return now - known.caught_up_at > self._config.lag_time

    def _want(self, isr: tuple[int, ...]) -> None:
        """With the lives that were looked at: later ones may have less."""
        epochs = {member: known.broker_epoch for member, known in self._progress.items()}
        epochs[self.broker] = self._brokers.get(self.broker, 0)
        members = tuple((member, epochs[member]) for member in isr)
        self.wanted, self._asked_at = isr, float("-inf")
        self._asked = IsrChange(self.broker, self.epoch, self.partition_epoch, members)

    def _advance(self) -> None:
        """The high watermark never falls."""
        log = self._log
        if self.is_short:
            return
        ends = [
            log.stored if member == self.broker else self._stored(member)
            for member in self.maximal_isr
        ]
        log.high_watermark = max(log.high_watermark, min(ends))

    def _stored(self, member: int) -> int:
        known = self._progress.get(member)
        return known.stored if known is not None else 0
