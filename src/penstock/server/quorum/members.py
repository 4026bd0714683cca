"""The members of the quorum: learners that join without a vote, voters, and brokers that leave.

A broker that connects and is no member becomes a learner: it gets the log. One of
`controller_quorum` that is a learner, because it was taken out before, gets its vote back once it
has the log. The leader decides all of this, a change at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

from penstock.cluster.raft import Members
from penstock.cluster.raft.roles import Leader
from penstock.core.errors import ConfigError, NotLeaderError
from penstock.server.quorum.active_controller import Active
from penstock.server.quorum.controller_requests import RemoveMember
from penstock.server.quorum.links import Links
from penstock.server.quorum.raft_node import RaftNode

logger = logging.getLogger("penstock.quorum")

CAUGHT_UP: Final = 100
"""Entries that a learner may miss and still get its vote."""
LEARNERS_MAX: Final = 1_000


class QuorumMembers:
    def __init__(self, consensus: RaftNode, links: Links, voters: Collection[int]) -> None:
        self._consensus = consensus
        self._links = links
        self._voters = frozenset(voters)

    def look(self) -> None:
        """Take one more in, if somebody waits for it."""
        raft = self._consensus.raft
        if raft is None or not self._consensus.is_ready or raft.commit < raft.log.members_index:
            return
        members = raft.members
        here = self._links.nodes()
        wanted = self._promoted(members) or self._joined(members, here)
        if wanted is None:
            return
        try:
            self._consensus.change_members(wanted)
        except (ConfigError, NotLeaderError) as error:
            logger.debug("not now: %s", error)

    def _joined(self, members: Members, here: set[int]) -> Members | None:
        strangers = sorted(node for node in here if node not in members)
        room = LEARNERS_MAX - len(members.learners)
        if not strangers or room < 1:
            return None
        learners = tuple(sorted({*members.learners, *strangers[:room]}))
        return Members(members.voters, learners)

    def _promoted(self, members: Members) -> Members | None:
        raft = self._consensus.raft
        assert raft is not None
        role = raft.role
        if not isinstance(role, Leader):
            return None
        for node in members.learners:
            progress = role.progress.get(node)
            is_close = progress is not None and progress.match + CAUGHT_UP >= raft.log.last_index
            if node in self._voters and is_close and progress is not None and progress.match:
                learners = tuple(other for other in members.learners if other != node)
                return Members(tuple(sorted((*members.voters, node))), learners)
        return None

    # --- what is asked of the leader ---
    def remove(self, request: RemoveMember) -> tuple[int, None]:
        """Take a node out; it gets nothing of the log any more. Raises `ConfigError`,
        `NotLeaderError`."""
        node, members = request.node, self._consensus.members
        if node not in members:
            raft = self._consensus.raft
            assert raft is not None
            return raft.log.last_index, None  # asked again, or by two
        if node in self._links.nodes() or node == self._consensus.node:
            raise ConfigError(
                f"broker {node} is up, and would join again: stop it before it is removed"
            )
        index = self._consensus.change_members(
            Members(
                tuple(other for other in members.voters if other != node),
                tuple(other for other in members.learners if other != node),
            )
        )
        return index, None

    def describe(self, active: Active) -> dict[str, Any]:
        """Returns this broker's view of the quorum; only the leader knows the others' logs."""
        consensus, raft = self._consensus, self._consensus.raft
        if raft is None:
            return {"node": consensus.node, "leader": None, "members": []}
        role, here = raft.role, self._links.nodes()
        progress = role.progress if isinstance(role, Leader) else {}
        members = []
        for node in raft.members.everybody():
            is_self = node == consensus.node
            known = progress.get(node)
            log_end = raft.log.last_index if is_self else known.match if known else None
            members.append(
                {
                    "node": node,
                    "is_voter": node in raft.members.voters,
                    "role": self._role(node),
                    "is_connected": is_self or node in here,
                    "log_end": log_end,
                    "lag": None if log_end is None else max(0, raft.log.last_index - log_end),
                    "trouble": "" if is_self or node in here else self._links.trouble(node),
                }
            )
        return {
            "node": consensus.node,
            "leader": consensus.leader,
            "term": raft.term,
            "log_start": raft.log.first_index,
            "log_end": raft.log.last_index,
            "committed": raft.commit,
            "applied": consensus.applied,
            "is_active": active.controller is not None,
            "members": members,
        }

    def _role(self, node: int) -> str:
        if node == self._consensus.leader:
            return "leader"
        return "follower" if node in self._consensus.members.voters else "learner"
