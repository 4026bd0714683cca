"""The roles of a raft node: one class a role, with the state that belongs to that role alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cluster.raft.config import RaftConfig
from penstock.cluster.raft.log import RaftLog
from penstock.cluster.raft.messages import (
    Accepted,
    Append,
    Install,
    RaftMessage,
    Rejected,
    TimeoutNow,
)
from penstock.cluster.raft.progress import PROBING, SNAPSHOT, Progress


@dataclass(slots=True)
class Follower:
    """Starts an election at `deadline`. `heard_at`: the last message of `leader`, which is None
    until it speaks."""

    deadline: float
    leader: int | None = None
    heard_at: float = float("-inf")


@dataclass(slots=True)
class Candidate:
    """Asks for votes, first whether it would get them (`is_pre`); again at `deadline`.

    `votes`: what others said. Its own counts as soon as it is on stable storage."""

    deadline: float
    is_pre: bool
    votes: dict[int, bool] = field(default_factory=dict)
    leader: None = None


class Leader:
    """Sends the log to everybody and hears how far they are. `first_index` is the first of its
    term, a NOOP. `receiver` is who shall lead next; forgotten at `receiver_until`."""

    def __init__(
        self,
        node: int,
        term: int,
        log: RaftLog,
        config: RaftConfig,
        counts: Counter[str],
        send: Callable[[int, RaftMessage], None],
        now: float,
    ) -> None:
        self.leader = node
        self.first_index = log.last_index + 1
        self.heartbeat_at = now + config.heartbeat
        self.receiver: int | None = None
        self.receiver_until = 0.0
        self.progress: dict[int, Progress] = {}
        self._term = term
        self._log = log
        self._config = config
        self._counts = counts
        self._send = send
        self.know(now)

    def know(self, now: float) -> None:
        """Members are others now: progress of everybody else, and of nobody more."""
        old, following = self.progress, self._log.last_index + 1
        self.progress = {
            node: old.get(node) or Progress(following, now)
            for node in self._log.members.everybody()
            if node != self.leader
        }

    # --- sending ---
    def replicate(self, now: float, commit: int) -> None:
        """Send everybody what may be sent of what it misses."""
        for node, progress in self.progress.items():
            self._replicate(node, progress, now, commit)

    def heartbeat(self, now: float, commit: int) -> None:
        """Speak to everybody, which also shows what got lost."""
        self.heartbeat_at = now + self._config.heartbeat
        if now >= self.receiver_until:
            self.receiver = None
        for node, progress in self.progress.items():
            is_late = now - progress.sent_at > self._config.snapshot_timeout
            is_gone = self._log.term_at(progress.next - 1) is None  # from here, before it arrived
            if is_late if progress.state == SNAPSHOT else is_gone:
                progress.probe(progress.match + 1)
            progress.is_paused = False
            at = progress.next - 1
            term = self._log.term_at(at)
            if progress.state == SNAPSHOT or term is None:
                at = term = 0  # everybody has that
            self._send(node, Append(self._term, at, term, (), commit))
            self._replicate(node, progress, now, commit)

    def _replicate(self, node: int, progress: Progress, now: float, commit: int) -> None:
        log, config = self._log, self._config
        while progress.may_send(config.in_flight_max) and progress.match < log.last_index:
            at = progress.next - 1
            term = log.term_at(at)
            if term is None:
                self._counts["snapshots_sent"] += 1
                progress.snapshot(log.snapshot.index, now)
                self._send(node, Install(self._term, log.snapshot))
                return
            entries = log.entries(at + 1, log.last_index + 1, config.message_bytes)
            if not entries and progress.state != PROBING:
                return  # all of it is under way
            self._send(node, Append(self._term, at, term, entries, commit))
            progress.sent(at + len(entries))

    def hand_over(self) -> None:
        """Asks the receiver to start an election, once it has everything."""
        progress = self.progress.get(self.receiver or 0)
        if progress is not None and progress.match == self._log.last_index:
            assert self.receiver is not None
            self._counts["transfers"] += 1
            self._send(self.receiver, TimeoutNow(self._term))

    # --- hearing ---
    def answered(self, now: float, sender: int, message: Accepted | Rejected) -> bool:
        """Take an answer; whether it is of a member."""
        progress = self.progress.get(sender)
        if progress is None:
            return False
        progress.heard_at = now
        if isinstance(message, Accepted):
            assert message.index <= self._log.last_index, f"{sender} has {message}"
            progress.accepted(message.index)
        else:
            hint, _ = self._log.agreement(message.hint_index, message.hint_term)
            progress.rejected(message.index, hint)
        return True

    def send_on(self, node: int, now: float, commit: int) -> None:
        """Sends that node the entries that its answer makes room for."""
        self._replicate(node, self.progress[node], now, commit)
        self.hand_over()

    def majority(self, stored: int) -> int:
        """How far a majority has the log on stable storage; this node has it up to `stored`."""
        members = self._log.members
        matches = [
            stored if voter == self.leader else self.progress[voter].match
            for voter in members.voters
        ]
        return sorted(matches, reverse=True)[members.quorum - 1]

    def hears_quorum(self, now: float) -> bool:
        """Whether a majority was heard within `election_timeout`."""
        since = now - self._config.election_timeout
        members = self._log.members
        heard = sum(
            voter == self.leader or self.progress[voter].heard_at >= since
            for voter in members.voters
        )
        return heard >= members.quorum


Role = Follower | Candidate | Leader
