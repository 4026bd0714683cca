"""A partition's follower: copies the leader's log, after making sure that its own agrees with it.

It asks with its log end and the epoch of its last record. A leader whose log has that epoch end
elsewhere says where (KIP-101, KIP-279, KIP-320 explain the failures without this). The follower
cuts its log there, or where its own record of that epoch ends. Then it asks again, an epoch further
down each time. It never cuts at its high watermark: a follower knows only a lower bound of the
committed offset. Only after an unclean election they can part below its log start. Then it begins
again, since its log would lack the leader's records there. One request is under way at a time; only
its own answer is taken.
"""

from __future__ import annotations

from penstock.cluster.replica.ledger import LogEnds
from penstock.cluster.replica.messages import (
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    PartitionAssignment,
    ReplicaRefusal,
)


class ReplicaFollower:
    """`leader` is None while nobody leads: then it waits for the controller."""

    def __init__(self, broker: int, log: LogEnds, word: PartitionAssignment) -> None:
        self.broker = broker
        self.leader = word.leader
        self.epoch = word.leader_epoch
        self.is_waiting = word.leader is None
        """For the controller's next word, because the leader did not know of this epoch, or has
        another."""
        self.counts = {"truncations": 0, "refused": 0}
        self.number: int | None = None
        """Of the request that is under way."""
        self._log = log

    def request(self, number: int, broker_epoch: int) -> FetchRequest | None:
        """Returns the next request to the leader. `number`: one that no request of this broker ever
        had, in this life or an earlier one."""
        if self.leader is None or self.is_waiting:
            return None
        log = self._log
        self.number = number
        return FetchRequest(
            number, self.broker, broker_epoch, self.epoch, log.log_end, log.last_epoch,
            log.stored,
        )  # fmt: skip

    def diverged(self, answer: Diverged) -> int | None:
        """Cut the log: its end from now on, None if the answer is of another time. An end below the
        log start is that of an empty log, which begins again there."""
        if not self._is_due(answer):
            return None
        log = self._log
        _, own_end = log.end_of(answer.epoch)
        end = min(answer.end, own_end, log.log_end)
        self.counts["truncations"] += 1
        log.truncate(max(end, log.log_start))
        if end >= log.log_start:
            return end
        log.restart(0)  # its leader says where its own starts
        return 0

    def fetched(self, answer: Fetched, ends: list[tuple[int, int]]) -> bool:
        """Records came and are appended: (offset behind them, their epoch), rising. False: they are
        of another time, nothing was to be appended."""
        log = self._log
        if not self._is_due(answer):
            return False
        if answer.offset != log.log_end:
            assert answer.offset == answer.log_start, answer
            log.restart(answer.log_start)
        for end, epoch in ends:
            log.appended(end, epoch)
        log.high_watermark = max(log.high_watermark, min(answer.high_watermark, log.log_end))
        log.trim(answer.log_start)
        return True

    def refused(self, answer: FetchRefused) -> None:
        """Only the controller's next word helps where epochs differ; all else is asked again."""
        if not self._is_due(answer):
            return
        self.counts["refused"] += 1
        if answer.why == ReplicaRefusal.OLD_EPOCH and answer.leader_epoch > self.epoch:
            self.is_waiting = True

    def _is_due(self, answer: Fetched | Diverged | FetchRefused) -> bool:
        """Whether it is of the request that is under way."""
        if answer.number != self.number:
            return False
        self.number = None
        return isinstance(answer, FetchRefused) or answer.leader_epoch == self.epoch
