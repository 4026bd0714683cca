"""Raft: a log that a majority of nodes agrees on, and one leader at a time that writes it.

**Theory.** A term has at most one leader, for each node votes once in it and a leader has a
majority's votes. Only a node whose log is at least as new as a majority's is elected. An entry
counts (is *committed*) once a majority has it on stable storage and it, or one behind it, is of the
leader's own term. So each later leader has it. Logs that have the same term at an index are the
same up to there.

| role | event | next |
|---|---|---|
| follower | no word of a leader until the deadline | pre-candidate |
| follower | the leader's host says that it is gone | follower of nobody, for a moment, in turn |
| pre-candidate | a majority would vote for it | candidate in a new term |
| candidate | a majority's votes | leader, which begins with a NOOP |
| pre-candidate, candidate | the deadline | pre-candidate |
| candidate, pre-candidate | a leader of its term speaks | follower |
| leader | a majority was not heard for `election_timeout` | follower |
| leader | its removal is committed | follower without a vote |
| any | a higher term | follower of that term |

A node that has heard a leader within `election_timeout` answers no request for votes. So a node
that comes back cannot depose it (Ongaro's thesis, 6.2 and 9.6). Members change by one voter at a
time, each change when the one before is committed. The leader's own NOOP must be committed first
(single-server changes, thesis 4.1, with the fix of 2015).

Storing is an event. Messages about this node's log or vote wait until `persisted` says that these
are on stable storage. The node's own part in a majority waits too. A leader sends entries while it
stores them.

Pure: time and randomness are arguments. Handlers return `Effects`, which the shell carries out in
their order. Ideas from etcd-io/raft (progress, hints of rejections, held-back messages).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

import msgspec

from penstock.cluster.raft.config import RaftConfig
from penstock.cluster.raft.log import RaftLog
from penstock.cluster.raft.messages import (
    DATA,
    MEMBERS,
    NOOP,
    Accepted,
    Append,
    Install,
    LogEntry,
    Members,
    PreVote,
    RaftMessage,
    Rejected,
    Saved,
    Snapshot,
    TimeoutNow,
    Vote,
    VoteReply,
    Write,
)
from penstock.cluster.raft.roles import Candidate, Follower, Leader, Role
from penstock.core.errors import ConfigError, NotLeaderError, ResourceLimitError

_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Effects:
    """The work for the shell, in this order: begin `writes`, send `messages` (node, message), load
    `restore`, apply `committed`."""

    writes: list[Write] = field(default_factory=list)
    messages: list[tuple[int, RaftMessage]] = field(default_factory=list)
    restore: Snapshot | None = None
    committed: tuple[LogEntry, ...] = ()


class Raft:
    """One node. Invariants: applied <= commit <= last index; committed entries are never truncated.
    The term never falls, and in a term the vote, once given, does not change."""

    def __init__(
        self, node: int, saved: Saved, config: RaftConfig, chance: Callable[[], float], now: float
    ) -> None:
        self.node = node
        self.config = config
        self.term = saved.term
        self.vote = saved.vote
        self.log = RaftLog(saved.snapshot, saved.entries)
        self.commit = saved.snapshot.index
        self.counts: Counter[str] = Counter()
        self._chance = chance
        self._patience = config.election_timeout
        self._applied = saved.snapshot.index
        self._stored = self.log.last_index
        """The log is on stable storage up to there."""
        self._number = 0
        self._stored_number = 0
        self._stored_vote = (saved.term, saved.vote)
        self._writes: deque[Write] = deque()
        """Under way."""
        self._held: deque[tuple[int, int, RaftMessage]] = deque()
        """Messages that wait for a write, in its order."""
        self._out = Effects()
        is_alone = saved.snapshot.members.voters == (node,) == self.log.members.voters
        self.role: Role = Follower(now if is_alone else self._soon(now))
        if saved.snapshot.index:
            self._out.restore = saved.snapshot

    # --- what can be asked ---
    @property
    def leader(self) -> int | None:
        return self.role.leader

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def is_ready(self) -> bool:
        """Whether it leads, and everything that was committed before is applied here."""
        return isinstance(self.role, Leader) and self._applied >= self.role.first_index

    @property
    def members(self) -> Members:
        return self.log.members

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        role = self.role
        return role.heartbeat_at if isinstance(role, Leader) else role.deadline

    # --- events ---
    def tick(self, now: float) -> Effects:
        """Time has passed; nothing happens before `deadline`."""
        role = self.role
        if isinstance(role, Leader):
            if not role.hears_quorum(now):
                self.counts["quorum_lost"] += 1
                self._follow(now, self.term, None)
            elif now >= role.heartbeat_at:
                role.heartbeat(now, self.commit)
        elif now >= role.deadline:
            if isinstance(role, Candidate):
                self._patience = min(2 * self._patience, self.config.election_timeout)
            if self.node in self.members.voters:
                self._stand(now, is_pre=True)
            else:
                role.deadline = self._soon(now)
        return self._done()

    def receive(self, now: float, sender: int, message: RaftMessage) -> Effects:
        """A message came; in any order, any number of times, or never."""
        if self._minds_term(now, sender, message):
            match message:
                case PreVote() | Vote():
                    self._asked(now, sender, message)
                case VoteReply():
                    self._voted(now, sender, message)
                case Append():
                    self._append(now, sender, message)
                case Install():
                    self._install(now, sender, message)
                case Accepted() | Rejected():
                    self._answered(now, sender, message)
                case TimeoutNow():
                    if self.node in self.members.voters and sender == self.leader:
                        self._stand(now, is_pre=False, forced=True)
                case _:
                    assert_never(message)
        return self._done()

    def persisted(self, now: float, number: int) -> Effects:
        """All writes up to that one are on stable storage."""
        self._stored_number = max(self._stored_number, number)
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            self._stored_vote = (write.term, write.vote)
            last = write.first_index + len(write.entries) - 1
            if self.log.term_at(last) is not None:
                # A later write stores entries again that were cut off meanwhile.
                self._stored = min([last, *(w.first_index - 1 for w in self._writes)])
        while self._held and self._held[0][0] <= number:
            _, to, message = self._held.popleft()
            if message.term == self.term:
                self._out.messages.append((to, message))
        if isinstance(self.role, Candidate):
            self._count_votes(now, self.role)
        if isinstance(self.role, Leader):
            self._advance(now, self.role)
        return self._done()

    def propose(self, now: float, data: bytes) -> tuple[int, Effects]:
        """Append to the log: its index. It counts when it is among `committed` with this term.
        Raises `NotLeaderError`, also while the place is being given away; `ResourceLimitError`."""
        role = self._leading("propose")
        if self.log.last_index - self.commit >= self.config.uncommitted_max:
            raise ResourceLimitError(
                f"{self.log.last_index - self.commit} entries wait for a majority "
                f"(uncommitted_max): try again, and look which of {self.members.voters} are up"
            )
        index = self._lead_on(now, role, DATA, data)
        return index, self._done()

    def change_members(self, now: float, members: Members) -> tuple[int, Effects]:
        """Have other members from this entry on: its index. One voter more or less at a time; a
        node that is to be a voter should have been a learner that has caught up.

        Raises `NotLeaderError`; `ConfigError` for a larger step, and while the last one, or the
        leader's first entry, is not committed."""
        role = self._leading("change members")
        if self.commit < max(self.log.members_index, role.first_index):
            raise ConfigError(
                "the last change of members, or the leader's first entry, is not committed yet: "
                "try again when it is"
            )
        if len(set(members.voters) ^ set(self.members.voters)) > 1 or not members.voters:
            raise ConfigError(
                f"from {self.members.voters} to {members.voters}: one voter comes or goes at a time"
            )
        index = self._lead_on(now, role, MEMBERS, _encode(members))
        return index, self._done()

    def transfer(self, now: float, to: int) -> Effects:
        """Give the place to that voter as soon as it has the whole log. Forgotten after an
        `election_timeout`. Raises `NotLeaderError`, `ConfigError`."""
        role = self._leading("give the leadership away")
        if to not in self.members.voters:
            raise ConfigError(f"{to} has no vote among {self.members.voters}: it cannot lead")
        if to != self.node:
            role.receiver, role.receiver_until = to, now + self.config.election_timeout
            role.hand_over()
        return self._done()

    def compacted(self, data: bytes, index: int) -> Effects:
        """`data` say all that was applied up to `index`: the entries up to it are not needed."""
        assert self.log.snapshot.index < index <= self._applied, (index, self._applied)
        term = self.log.term_at(index)
        assert term is not None
        snapshot = Snapshot(index, term, self.log.members_at(index), data)
        self.log.compact(snapshot)
        self._store((), snapshot)
        return self._done()

    def gone(self, now: float, node: int) -> Effects:
        """Takes the report of that node's host that nothing listens for the node any more. A
        follower does not wait for a leader that is gone. It starts an election soon, after others
        have seen it too. The followers do so one after the other, so that they do not split the
        votes; without a winner they try soon again. If the node still leads, it is followed again;
        nothing but time depends on this."""
        role = self.role
        if isinstance(role, Follower) and role.leader == node:
            self.counts["leaders_gone"] += 1
            heartbeat = self.config.heartbeat
            turn = sum(voter < self.node for voter in self.members.voters if voter != node)
            soon = now + (0.5 + turn + self._chance() / 2) * heartbeat
            self.role = Follower(min(role.deadline, soon))
            self._patience = min(2 * heartbeat, self.config.election_timeout)
        return self._done()

    # --- terms ---
    def _minds_term(self, now: float, sender: int, message: RaftMessage) -> bool:
        """Follow a higher term. Whether the message is of this one then, or to be answered."""
        if message.term > self.term:
            if isinstance(message, (PreVote, Vote)) and self._hears_leader(now, message):
                self.counts["votes_ignored"] += 1
                return False
            if isinstance(message, PreVote):
                return True
            if isinstance(message, VoteReply) and message.is_pre and message.granted:
                return True  # the term that it would be
            leads = isinstance(message, (Append, Install))
            self._follow(now, message.term, sender if leads else None)
            return True
        if message.term == self.term:
            return True
        if isinstance(message, (Append, Install)):
            # Of a leader that does not know of this term: that tells it.
            self._send(sender, Rejected(self.term, 0, 0, 0))
        elif isinstance(message, PreVote):
            self._send(sender, VoteReply(self.term, is_pre=True, granted=False))
        self.counts["old_terms"] += 1
        return False

    def _hears_leader(self, now: float, message: PreVote | Vote) -> bool:
        if isinstance(message, Vote) and message.forced:
            return False
        role = self.role
        if isinstance(role, Leader):
            return role.hears_quorum(now)
        heard_at = role.heard_at if isinstance(role, Follower) else float("-inf")
        return now < heard_at + self.config.election_timeout

    def _follow(self, now: float, term: int, leader: int | None) -> None:
        heard_at = now if leader is not None else float("-inf")
        self.role = Follower(self._soon(now), leader, heard_at)
        if term > self.term:
            self.term, self.vote = term, None
            self._store(())

    # --- elections ---
    def _soon(self, now: float) -> float:
        """Returns a time up to twice the `election_timeout` from now. It is less after a leader
        that is gone for certain. It grows with each try in vain: a disk may take long to store a
        vote."""
        return now + (1 + self._chance()) * self._patience

    def _stored_soon(self, now: float) -> float:
        """The same where a vote is to be stored first."""
        return now + (1 + self._chance()) * min(2 * self._patience, self.config.election_timeout)

    def _stand(self, now: float, *, is_pre: bool, forced: bool = False) -> None:
        """Ask for votes, in a term of its own or for one."""
        self.role = role = Candidate(self._soon(now) if is_pre else self._stored_soon(now), is_pre)
        self.counts["pre_elections" if is_pre else "elections"] += 1
        last = self.log.last_index, self.log.last_term
        others = [voter for voter in self.members.voters if voter != self.node]
        if is_pre:
            for voter in others:
                self._send(voter, PreVote(self.term + 1, *last))
        else:
            self.term += 1
            self.vote = self.node
            self._store(())
            for voter in others:
                self._send_stored(voter, Vote(self.term, *last, forced))
        self._count_votes(now, role)

    def _asked(self, now: float, sender: int, message: PreVote | Vote) -> None:
        is_pre = isinstance(message, PreVote)
        is_free = is_pre and message.term > self.term
        if not is_pre and self.term == message.term:
            is_free = self.vote == sender or (self.vote is None and self.leader is None)
        granted = is_free and self.log.is_behind(message.last_index, message.last_term)
        if granted and is_pre:
            self._send(sender, VoteReply(message.term, is_pre=True, granted=True))
            return
        if granted:
            if isinstance(self.role, Follower):
                self.role.deadline = self._stored_soon(now)
            if self.vote is None:
                self.vote = sender
                self._store(())
        self._send_stored(sender, VoteReply(self.term, is_pre, granted))

    def _voted(self, now: float, sender: int, message: VoteReply) -> None:
        role = self.role
        if isinstance(role, Candidate) and role.is_pre == message.is_pre:
            wanted = self.term + 1 if role.is_pre else self.term
            if message.granted and message.term != wanted:
                return
            role.votes.setdefault(sender, message.granted)
            self._count_votes(now, role)

    def _count_votes(self, now: float, role: Candidate) -> None:
        members = self.members
        if self.node not in members.voters:
            return
        votes = {voter for voter in members.voters if role.votes.get(voter)}
        if role.is_pre or self._stored_vote == (self.term, self.node):
            votes.add(self.node)
        if len(votes) < members.quorum:
            return
        if role.is_pre:
            self._stand(now, is_pre=False)
        else:
            self._lead(now)

    def _lead(self, now: float) -> None:
        self._patience = self.config.election_timeout
        self.role = role = Leader(
            self.node, self.term, self.log, self.config, self.counts, self._send, now
        )
        self._lead_on(now, role, NOOP, b"")

    # --- the follower's log ---
    def _heard(self, now: float, sender: int) -> None:
        """The leader of this term spoke."""
        assert not isinstance(self.role, Leader), f"{sender} and {self.node} lead term {self.term}"
        self._patience = self.config.election_timeout
        self.role = Follower(self._soon(now), sender, now)

    def _append(self, now: float, sender: int, message: Append) -> None:
        self._heard(now, sender)
        index = message.index
        if index < self.commit:
            # The leader's log has the committed entries, too; entries behind them may be old.
            self._send_stored(sender, Accepted(self.term, self.commit))
            return
        if self.log.term_at(index) != message.index_term:
            hint = self.log.agreement(index, message.index_term)
            self._send(sender, Rejected(self.term, index, *hint))
            self.counts["appends_rejected"] += 1
            return
        known = self.log.conflict(message.entries)
        fresh = message.entries[known:]
        if fresh:
            first = fresh[0].index
            assert first > self.commit, f"{first} is committed and differs"
            if first <= self.log.last_index:
                self.counts["truncations"] += 1
                self.log.truncate(first)
                self._stored = min(self._stored, first - 1)
            self.log.append(fresh)
            self._store(fresh)
        last = index + len(message.entries)
        self._commit_to(min(message.commit, last))
        self._send_stored(sender, Accepted(self.term, last))

    def _install(self, now: float, sender: int, message: Install) -> None:
        self._heard(now, sender)
        snapshot = message.snapshot
        if snapshot.index > self.commit:
            self.counts["snapshots_installed"] += 1
            self.log.compact(snapshot)
            self.commit = self._applied = snapshot.index
            self._out.restore, self._out.committed = snapshot, ()
            self._store((), snapshot)
        self._send_stored(sender, Accepted(self.term, self.commit))

    def _commit_to(self, index: int) -> None:
        self.commit = max(self.commit, index)
        assert self.commit <= self.log.last_index, (self.commit, self.log.last_index)

    # --- the leader's ---
    def _leading(self, what: str) -> Leader:
        role = self.role
        if not isinstance(role, Leader) or role.receiver is not None:
            leader = self.leader if not isinstance(role, Leader) else role.receiver
            raise NotLeaderError(
                f"node {self.node} cannot {what}: "
                + (f"{leader} leads" if leader is not None else "no leader is known now")
            )
        return role

    def _lead_on(self, now: float, role: Leader, kind: int, data: bytes) -> int:
        entry = LogEntry(self.log.last_index + 1, self.term, kind, data)
        self.log.append((entry,))
        self._store((entry,))
        if kind == MEMBERS:
            role.know(now)
        role.replicate(now, self.commit)
        self._advance(now, role)
        return entry.index

    def _answered(self, now: float, sender: int, message: Accepted | Rejected) -> None:
        role = self.role
        if not isinstance(role, Leader) or not role.answered(now, sender, message):
            return
        self._advance(now, role)
        if self.role is role:
            role.send_on(sender, now, self.commit)

    def _advance(self, now: float, role: Leader) -> None:
        """Commit what a majority has, if it is of this term."""
        index = role.majority(self._stored)
        if index > self.commit and self.log.term_at(index) == self.term:
            self._commit_to(index)
            if self.node not in self.members.voters and self.commit >= self.log.members_index:
                self._follow(now, self.term, None)
                return
            # Others are told with what is sent next, and soon.
            role.heartbeat_at = min(role.heartbeat_at, now + self.config.heartbeat / 10)

    # --- out ---
    def _store(self, entries: Iterable[LogEntry], snapshot: Snapshot | None = None) -> None:
        entries = tuple(entries)
        first = entries[0].index if entries else self.log.last_index + 1
        begun = self._out.writes
        if begun and not (begun[-1].entries or begun[-1].snapshot or snapshot):
            begun.pop()  # the same event changed the term, or the vote: one write is enough
            self._writes.pop()
        else:
            self._number += 1
        write = Write(self._number, self.term, self.vote, first, entries, snapshot)
        self._writes.append(write)
        begun.append(write)

    def _send(self, to: int, message: RaftMessage) -> None:
        self._out.messages.append((to, message))

    def _send_stored(self, to: int, message: RaftMessage) -> None:
        """Once all that was to be stored until now is."""
        if self._stored_number >= self._number:
            self._send(to, message)
        else:
            self._held.append((self._number, to, message))

    def _done(self) -> Effects:
        out, self._out = self._out, Effects()
        if self._applied < self.commit:
            out.committed = self.log.entries(self._applied + 1, self.commit + 1)
            self._applied = self.commit
        return out
