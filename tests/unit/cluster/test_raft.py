"""Raft where time counts: who stands when. Scripted steps: `test_raft_scenarios`."""

from __future__ import annotations

from raft_fixture import CONFIG, Group

from penstock.cluster.raft.messages import (
    PreVote,
    Vote,
)
from penstock.cluster.raft.roles import Candidate


def test_who_hears_the_leader_votes_for_nobody_else():
    group = Group(3)
    group.elect(1)
    group.isolate(3)
    for _ in range(15):
        group.pass_time(0.2)
        group.deliver()
    assert isinstance(group.nodes[3].role, Candidate)
    term = group.nodes[3].term
    assert term == group.nodes[1].term  # it only asked whether it would be elected
    group.do(2, group.nodes[2].receive(group.now, 3, PreVote(term + 1, 99, 99)))
    group.do(2, group.nodes[2].receive(group.now, 3, Vote(term + 1, 99, 99, forced=False)))
    assert not group.wire
    assert group.nodes[2].term == term
    assert group.nodes[1].is_leader


def test_those_whose_leader_is_gone_stand_in_turn():
    """Both see it at the same moment, and do not split the votes."""
    for chance in (0.0, 0.5, 1.0):
        group = Group(3)
        group.elect(1)
        group.isolate(1)
        for number in (2, 3):
            group.nodes[number]._chance = lambda: chance  # noqa: B023 - of this round
            group.do(number, group.nodes[number].gone(group.now, 1))
        group.pass_time(CONFIG.heartbeat, 2, 3)
        group.deliver()
        assert group.nodes[2].is_leader
        assert group.nodes[2].term == group.nodes[1].term + 1


def test_who_stands_in_vain_after_a_leader_that_is_gone_stands_soon_again():
    """The other one has not seen it yet, and hears no requests for votes; or the votes get lost."""
    group = Group(3)
    group.elect(1)
    group.isolate(1)
    group.do(2, group.nodes[2].gone(group.now, 1))
    begun = group.now
    group.pass_time(CONFIG.heartbeat, 2)
    group.deliver()
    assert isinstance(group.nodes[2].role, Candidate)
    group.do(3, group.nodes[3].gone(group.now, 1))
    while not group.nodes[2].is_leader:
        group.pass_time(CONFIG.heartbeat / 2, 2)
        group.deliver()
    assert group.now - begun < 6 * CONFIG.heartbeat


def test_who_stands_in_vain_ever_again_gives_disks_their_time():
    """Votes that take long to be stored are waited for, in the end as long as ever."""
    group = Group(3)
    group.elect(1)
    group.isolate(1)
    for number in (2, 3):
        group.do(number, group.nodes[number].gone(group.now, 1))
    waits = []
    group.stores -= {2, 3}
    for _ in range(6):
        waits.append(group.nodes[2].deadline - group.now)
        group.pass_time(waits[-1], 2)
        group.deliver(lambda item: False)
    assert waits[-1] >= CONFIG.election_timeout > waits[1]


def test_times_are_those_of_the_configuration():
    group = Group(3)
    for node in group.nodes.values():
        assert CONFIG.election_timeout <= node.deadline < 2 * CONFIG.election_timeout
    leader = group.elect(1)
    assert leader.deadline <= group.now + CONFIG.heartbeat
