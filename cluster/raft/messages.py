"""The messages between raft nodes, and the state that a node stores.

Structs are array-like: their fields travel in this order (see `penstock.cluster.frames`). All carry
the sender's term first. The connection of a message tells its sender.
"""

from __future__ import annotations

from typing import Final

import msgspec

NOOP: Final = 0
"""The first entry of each leader: with it, all entries before it can be committed."""
DATA: Final = 1
MEMBERS: Final = 2
"""Its data are the `Members` from this entry on, committed or not."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """`term` is the sender's, but for `PreVote` and what grants it: the term to come."""

    term: int


class Members(msgspec.Struct, frozen=True, array_like=True):
    """Node ids, rising. Learners get the log and have no vote."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()

    def __contains__(self, node: int) -> bool:
        return node in self.voters or node in self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    def everybody(self) -> tuple[int, ...]:
        return self.voters + self.learners


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """One place in the log. Indexes begin at 1."""

    index: int
    term: int
    kind: int
    data: bytes


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """All that the log said up to `index`, whose entry was of `term`."""

    index: int
    term: int
    members: Members
    data: bytes


class PreVote(_Message, frozen=True, tag=True):
    """Asks for a promise of a vote. It changes nobody's term, so a node that comes back from a
    partition does not depose a leader that all others hear."""

    last_index: int
    last_term: int


class Vote(_Message, frozen=True, tag=True):
    """`forced`: the leader itself asked for it, so that its being there is no reason against it."""

    last_index: int
    last_term: int
    forced: bool


class VoteReply(_Message, frozen=True, tag=True):
    """To either of both."""

    is_pre: bool
    granted: bool


class Append(_Message, frozen=True, tag=True):
    """Entries behind (`index`, `index_term`); none of them: a heartbeat or a probe."""

    index: int
    index_term: int
    entries: tuple[LogEntry, ...]
    commit: int


class Install(_Message, frozen=True, tag=True):
    """The follower is behind the leader's log: it begins again with this."""

    snapshot: Snapshot


class Accepted(_Message, frozen=True, tag=True):
    """The sender's log is the leader's up to `index`, on stable storage."""

    index: int


class Rejected(_Message, frozen=True, tag=True):
    """`index` of an `Append` is not in the sender's log with that term; the logs may agree at
    `hint_index` (`hint_term` there), and nowhere behind it."""

    index: int
    hint_index: int
    hint_term: int


class TimeoutNow(_Message, frozen=True, tag="Lead"):
    """The leader hands leadership over: the follower starts an election at once."""


RaftMessage = PreVote | Vote | VoteReply | Append | Install | Accepted | Rejected | TimeoutNow


class Write(msgspec.Struct, frozen=True):
    """A write that has to be on stable storage before `Raft.persisted(number)`, in the order of
    numbers.

    First comes the snapshot, if there is one. All entries up to its index go, and all entries at
    all if its entry is not among them. Then the log ends before `first_index`, and `entries`
    follow.
    """

    number: int
    term: int
    vote: int | None
    first_index: int
    entries: tuple[LogEntry, ...]
    snapshot: Snapshot | None = None


class Saved(msgspec.Struct, frozen=True):
    """The stored state of a node at its start. `snapshot` of index 0: it is new, with those
    members; or it waits to be added, where there are none."""

    snapshot: Snapshot
    term: int = 0
    vote: int | None = None
    entries: tuple[LogEntry, ...] = ()


def fresh(*voters: int) -> Saved:
    """A node that was never there before; without voters: one that waits to be added."""
    return Saved(Snapshot(0, 0, Members(tuple(sorted(voters))), b""))
