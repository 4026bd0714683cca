"""One replica of a partition on a broker: leader, follower, or neither, as the controller says.

| word of the controller | role |
|---|---|
| an older leader epoch, or the same one with an older partition epoch | as it was |
| this broker leads, in a new leader epoch | leader, whose epoch begins at its log end |
| this broker leads, in the same one | leader; the ISR may be another |
| another one leads, or nobody | follower of it, whatever the leader epoch was |
| it has no replica any more | none: the shell deletes the log |
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cluster.replica.follower import ReplicaFollower
from penstock.cluster.replica.leader import ReplicaLeader
from penstock.cluster.replica.ledger import LogEnds
from penstock.cluster.replica.messages import (
    Diverged,
    Fetched,
    FetchRefused,
    FetchRequest,
    PartitionAssignment,
    ReplicaConfig,
    ReplicaRefusal,
)

Role = ReplicaLeader | ReplicaFollower | None


class Replica:
    """The role is `role`; the log's ends are `log`'s. Roles change in `assign` alone. `brokers` is
    the epoch of each broker that is there and stays, kept true by the shell."""

    def __init__(
        self, broker: int, log: LogEnds, config: ReplicaConfig, brokers: Mapping[int, int]
    ) -> None:
        self.broker = broker
        self._brokers = brokers
        self.log = log
        self.config = config
        self.role: Role = None
        self._epochs = (-1, -1)

    @property
    def leader_epoch(self) -> int:
        return self._epochs[0]

    def assign(self, now: float, word: PartitionAssignment) -> bool:
        """Takes the controller's assignment. Returns whether the role changed: waiters for an
        acknowledgement of the old one then get NOT_LEADER."""
        epochs = (word.leader_epoch, word.partition_epoch)
        if epochs <= self._epochs:
            return False
        is_same = word.leader_epoch == self._epochs[0]
        self._epochs = epochs
        role = self.role
        if self.broker not in word.replicas:
            self.role = None
        elif word.leader != self.broker:
            if is_same and isinstance(role, ReplicaFollower) and role.leader == word.leader:
                return False
            # Epochs that this broker led without a record are not in its log.
            self.log.epochs.truncate_end(self.log.log_end)
            self.role = ReplicaFollower(self.broker, self.log, word)
        elif is_same and isinstance(role, ReplicaLeader):
            role.hear(now, word)
            return False
        else:
            self.log.epochs.truncate_end(self.log.log_end)
            self.log.epochs.assign(word.leader_epoch, self.log.log_end)
            self.role = ReplicaLeader(self.broker, self.log, self.config, self._brokers, now, word)
            self.role.appended()
        return True

    def appended(self, log_end: int) -> None:
        """The leader's log has grown up to there."""
        assert isinstance(self.role, ReplicaLeader), self.role
        self.log.appended(log_end, self.role.epoch)
        self.role.appended()

    def synced(self, upto: int) -> None:
        """The log is on stable storage up to there, where that counts."""
        self.log.synced = max(self.log.synced or 0, upto)
        if isinstance(self.role, ReplicaLeader):
            self.role.appended()

    def fetch(self, now: float, request: FetchRequest) -> Fetched | Diverged | FetchRefused:
        """A follower asks this broker."""
        if not isinstance(self.role, ReplicaLeader):
            is_new = request.leader_epoch > self.leader_epoch
            why = ReplicaRefusal.NEW_EPOCH if is_new else ReplicaRefusal.NOT_LEADER
            return FetchRefused(request.number, why, self.leader_epoch)
        return self.role.fetch(now, request)
