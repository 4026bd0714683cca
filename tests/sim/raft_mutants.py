"""Raft with one fault each, which the world has to find: what proves that it looks."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.cluster.raft import Raft
from penstock.cluster.raft.messages import Append, PreVote, RaftMessage, Vote
from penstock.cluster.raft.roles import Leader


class AnswersBeforeStoring(Raft):
    """Votes and acceptances are told before they are on stable storage."""

    def _send_stored(self, to: int, message: RaftMessage) -> None:
        self._send(to, message)


class CountsItselfBeforeStoring(Raft):
    """The leader's part in a majority counts before it is on stable storage."""

    def _advance(self, now: float, role: Leader) -> None:
        self._stored = self.log.last_index
        super()._advance(now, role)


class CommitsOlderTerms(Raft):
    """What a majority has counts, whatever term it is of (figure 8 of the paper)."""

    def _advance(self, now: float, role: Leader) -> None:
        index = role.majority(self._stored)
        if index > self.commit:
            self._commit_to(index)


class VotesForAnybody(Raft):
    """How new the candidate's log is does not matter."""

    def _asked(self, now: float, sender: int, message: PreVote | Vote) -> None:
        super()._asked(now, sender, replace(message, last_index=1 << 40, last_term=1 << 40))


class VotesTwice(Raft):
    """In one term, for one after the other."""

    def _asked(self, now: float, sender: int, message: PreVote | Vote) -> None:
        if isinstance(message, Vote) and self.leader is None:
            self.vote = None
        super()._asked(now, sender, message)


class TakesWhatDoesNotFit(Raft):
    """Entries are appended without a look at what stands before them."""

    def _append(self, now: float, sender: int, message: Append) -> None:
        at = min(message.index, self.log.last_index)
        if message.entries and at == message.index:
            message = Append(
                message.term, at, self.log.term_at(at) or 0, message.entries, message.commit
            )
        super()._append(now, sender, message)


class ForgetsItsVote(Raft):
    """A node that comes back votes again in the term in which it voted."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.vote = None


MUTANTS: tuple[type[Raft], ...] = (
    AnswersBeforeStoring,
    CountsItselfBeforeStoring,
    VotesForAnybody,
    VotesTwice,
    TakesWhatDoesNotFit,
)
"""Found by chance. The other two need a script: `test_raft_scenarios`."""
