"""Raft step by step: elections, replication, storing as an event, members, snapshots.

Figures are those of Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm."""

from __future__ import annotations

import pytest
from raft_group import CONFIG, Group, logged
from sim.raft_mutants import CommitsOlderTerms, ForgetsItsVote
from sim.raft_world import replayed

from penstock.cluster.raft import Members, Raft, RaftConfig, Saved, fresh
from penstock.cluster.raft.messages import (
    Accepted,
    Append,
    Install,
    PreVote,
    Rejected,
    Vote,
    VoteReply,
)
from penstock.cluster.raft.roles import Candidate, Follower, Leader
from penstock.core.errors import ConfigError, NotLeaderError, ResourceLimitError


# --- elections ------------------------------------------------------------------------------------
def test_one_node_alone_leads_as_soon_as_its_vote_is_stored():
    group = Group(1)
    group.stores.clear()
    group.pass_time(0.0)
    assert isinstance(group.nodes[1].role, Candidate)
    group.store(1)
    assert group.nodes[1].is_leader
    assert not group.nodes[1].is_ready  # its first entry is not stored
    group.store(1)
    assert group.nodes[1].is_ready
    group.propose(1, b"x")
    assert group.data(1) == []
    group.store(1)
    assert group.data(1) == [b"x"]


def test_three_elect_one_and_agree():
    group = Group(3)
    group.elect(1)
    assert {n.leader for n in group.nodes.values()} == {1}
    group.propose(1, b"x")
    group.deliver()
    group.pass_time(0.2, 1)
    group.deliver()
    assert [group.data(n) for n in (1, 2, 3)] == [[b"x"]] * 3


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


def test_a_leader_that_is_gone_for_certain_is_not_waited_for():
    group = Group(3)
    group.elect(1)
    group.isolate(1)
    for number in (2, 3):
        group.do(number, group.nodes[number].gone(group.now, 1))
        assert group.nodes[number].leader is None
    group.pass_time(1.5 * CONFIG.heartbeat, 2)
    group.deliver()
    assert group.nodes[2].is_leader
    assert group.now - 2 * CONFIG.election_timeout < CONFIG.election_timeout


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


def test_a_leader_that_is_said_to_be_gone_and_speaks_is_followed():
    group = Group(3)
    group.elect(1)
    term = group.nodes[1].term
    for said in (1, 3):
        group.do(2, group.nodes[2].gone(group.now, said))
    assert group.nodes[2].leader is None
    group.pass_time(2 * CONFIG.heartbeat, 2)
    group.deliver()  # it asks who would vote for it, and the others hear the leader
    assert group.nodes[1].is_leader
    group.pass_time(CONFIG.heartbeat, 1)
    group.deliver()
    assert {node.leader for node in group.nodes.values()} == {1}
    assert {node.term for node in group.nodes.values()} == {term}


def test_a_vote_is_told_when_it_is_stored():
    group = Group(3)
    group.stores.discard(2)
    group.do(2, group.nodes[2].receive(0.0, 3, Vote(1, 0, 0, forced=False)))
    assert not group.wire
    group.store(2)
    assert group.wire.popleft() == (2, 3, VoteReply(1, is_pre=False, granted=True))
    assert group.written[2][0].vote == 3
    group.do(2, group.nodes[2].receive(0.0, 1, Vote(1, 0, 0, forced=False)))
    assert group.wire.popleft() == (2, 1, VoteReply(1, is_pre=False, granted=False))


def votes_over_a_restart(machine: type[Raft]) -> list[bool]:
    group = Group(3, machine)
    answers = []
    for candidate in (1, 3):
        group.do(2, group.nodes[2].receive(0.0, candidate, Vote(1, 0, 0, forced=False)))
        _, _, reply = group.wire.popleft()
        assert isinstance(reply, VoteReply)
        answers.append(reply.granted)
        last = group.written[2][-1]
        saved = Saved(group.saved[2].snapshot, last.term, last.vote)
        group.nodes[2] = group._start(2, saved)
    return answers


def test_a_node_that_comes_back_does_not_vote_twice():
    assert votes_over_a_restart(Raft) == [True, False]
    assert votes_over_a_restart(ForgetsItsVote) == [True, True]


def test_only_a_log_as_new_as_a_majoritys_is_elected():
    logs = {1: logged([1, 1], 3), 2: logged([1, 1, 1], 3), 3: logged([1, 2], 3)}
    group = Group(logs)
    group.pass_time(2.0, 1)
    group.deliver()
    assert not group.nodes[1].is_leader
    group.elect(3)


def test_without_a_majority_the_leader_gives_up():
    group = Group(3)
    leader = group.elect(1)
    group.isolate(1)
    for _ in range(6):
        group.pass_time(0.2, 1)
        group.wire.clear()
    assert isinstance(leader.role, Follower)
    with pytest.raises(NotLeaderError, match="no leader is known"):
        leader.propose(group.now, b"x")


def test_a_leader_of_an_older_term_learns_of_the_new_one():
    group = Group(3)
    group.elect(1)
    group.isolate(1)
    group.elect(2)
    group.cut.clear()
    group.propose(1, b"of the past")
    group.deliver()
    assert not group.nodes[1].is_leader
    group.propose(2, b"of today")
    for _ in range(2):
        group.pass_time(0.2, 2)
        group.deliver()
    assert group.data(1) == group.data(2) == [b"of today"]


# --- the log --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "terms",
    [
        [1, 1, 1, 4, 4, 5, 5, 6, 6],  # a: one is missing
        [1, 1, 1, 4],  # b: many are
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],  # c: one too many
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],  # d: of a term without an end
        [1, 1, 1, 4, 4, 4, 4],  # e: other ones
        [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],  # f: of two terms that nobody else has
    ],
)
def test_figure_7_every_log_becomes_the_leaders(terms):
    lead = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    group = Group({1: logged(lead, 3, 7), 2: logged(terms, 3, 7), 3: logged(lead, 3, 7)})
    group.isolate(2)
    group.elect(1)
    group.cut.clear()
    rejections = 0

    def count(item):
        nonlocal rejections
        rejections += isinstance(item[2], Rejected)
        return True

    group.pass_time(0.2, 1)
    group.deliver(count)
    assert group.terms(2) == [*lead, 8]
    assert rejections <= 3  # a term at a time, not an entry


def figure_8(machine: type[Raft]) -> list[bytes]:
    """What node 1 says is committed when it has put an entry of term 2 on a majority in term 4,
    while its own first entry is nowhere else."""
    logs = {1: logged([1, 2], 5, 3), 2: logged([1, 2], 5, 3), 3: logged([1], 5, 3)}
    logs |= {4: logged([1], 5, 3), 5: logged([1, 3], 5, 3)}
    group = Group(logs, machine)
    group.isolate(5)

    def without_the_first(item):
        message = item[2]
        return not isinstance(message, Append) or all(e.term < 4 for e in message.entries)

    group.pass_time(2.0, 1)
    group.deliver(without_the_first)
    leader = group.nodes[1]
    assert leader.is_leader
    append = Append(4, 1, 1, leader.log.entries(2, 3), 0)
    for number in (2, 3):
        group.do(number, group.nodes[number].receive(group.now, 1, append))
    group.deliver(without_the_first)
    assert isinstance(leader.role, Leader)
    assert leader.role.progress[3].match == 2
    return group.data(1)


def test_figure_8_an_entry_of_an_older_term_counts_only_with_one_of_the_leaders_own():
    assert figure_8(Raft) == []
    assert figure_8(CommitsOlderTerms) == [b"1", b"2"]


def test_entries_are_accepted_when_they_are_stored():
    group = Group(3)
    group.elect(1)
    group.stores.discard(2)
    group.stores.discard(3)
    group.propose(1, b"x")
    group.deliver()
    assert group.data(1) == []
    group.store(2)
    group.deliver()
    assert group.data(1) == [b"x"]


def test_the_leader_counts_itself_only_when_it_has_stored():
    group = Group(3)
    group.elect(1)
    group.stores.discard(1)
    group.cut = {(1, 3)}
    group.propose(1, b"x")
    group.deliver()
    assert group.data(1) == []  # 2 has it; that is one of three
    group.store(1)
    assert group.data(1) == [b"x"]


def test_what_gets_lost_is_sent_again():
    group = Group(3)
    group.elect(1)
    for number in range(20):
        group.propose(1, b"%d" % number)
        group.deliver(lambda item: not (isinstance(item[2], Append) and item[1] == 2))
    for _ in range(3):
        group.pass_time(0.2, 1)
        group.deliver()
    assert group.data(2) == [b"%d" % number for number in range(20)]


def test_too_much_that_waits_for_a_majority_is_refused():
    group = Group(3, config=RaftConfig(election_timeout=1.0, uncommitted_max=3))
    group.elect(1)
    group.isolate(1)
    for _ in range(3):
        group.propose(1, b"x")
    with pytest.raises(ResourceLimitError, match="uncommitted_max"):
        group.propose(1, b"x")


# --- members --------------------------------------------------------------------------------------
def test_members_change_one_voter_at_a_time():
    group = Group(3)
    leader = group.elect(1)
    with pytest.raises(ConfigError, match="one voter"):
        leader.change_members(group.now, Members((1, 2, 3, 4, 5)))
    with pytest.raises(ConfigError, match="one voter"):
        leader.change_members(group.now, Members(()))
    group.do(1, leader.change_members(group.now, Members((1, 2)))[1])
    with pytest.raises(ConfigError, match="not committed"):
        leader.change_members(group.now, Members((1,)))
    group.deliver()
    group.do(1, leader.change_members(group.now, Members((1,)))[1])
    assert leader.members == Members((1,))


def test_a_leader_waits_for_its_first_entry_before_members_change():
    group = Group(3)
    group.pass_time(2.0, 1)
    group.deliver(lambda item: not isinstance(item[2], Accepted))
    with pytest.raises(ConfigError, match="first entry"):
        group.nodes[1].change_members(group.now, Members((1, 2)))


def test_a_new_node_learns_first_and_votes_then():
    group = Group({1: fresh(1), 2: fresh()})
    leader = group.elect(1)
    group.propose(1, b"x")
    group.pass_time(5.0, 2)
    assert isinstance(group.nodes[2].role, Follower)  # nobody knows it: it does not stand
    group.do(1, leader.change_members(group.now, Members((1,), (2,)))[1])
    group.deliver()
    assert group.data(1) == [b"x"] or len(group.committed[1]) == 3
    assert group.nodes[2].log.last_index == leader.log.last_index
    group.do(1, leader.change_members(group.now, Members((1, 2)))[1])
    group.deliver()
    assert group.nodes[2].members == Members((1, 2))
    group.cut = {(1, 2), (2, 1)}
    before = len(group.committed[1])
    group.propose(1, b"y")
    assert len(group.committed[1]) == before  # both are needed now


@pytest.mark.parametrize("kept", [0, 4])
def test_a_node_without_a_vote_whose_disk_is_another_gets_the_log_again(kept):
    """A new one, or an older copy: it misses what it said to have, and nobody counted on that."""
    group = Group({1: fresh(1), 2: fresh()})
    leader = group.elect(1)
    group.do(1, leader.change_members(group.now, Members((1,), (2,)))[1])
    group.deliver()
    for number in range(6):
        group.propose(1, b"%d" % number)
        group.deliver()
    group.deliver()
    assert group.nodes[2].log.last_index == leader.log.last_index
    saved = replayed(group.written[2], fresh())
    older = Saved(saved.snapshot, saved.term, saved.vote, saved.entries[:kept])
    group.nodes[2] = group._start(2, older)
    group.committed[2].clear()
    for _ in range(3):
        group.pass_time(0.2, 1)
        group.deliver()
    assert group.data(2)[-6:] == [b"%d" % number for number in range(6)]
    group.propose(1, b"y")
    group.deliver()
    assert group.nodes[2].log.last_index == leader.log.last_index


def test_a_rejection_that_comes_late_costs_messages_alone():
    group = Group(3)
    leader = group.elect(1)
    for _ in range(3):
        group.propose(1, b"x")
        group.deliver()
    assert isinstance(leader.role, Leader)
    progress = leader.role.progress[2]
    known = progress.match
    group.do(1, leader.receive(group.now, 2, Rejected(leader.term, known, 0, 0)))
    assert (progress.match, leader.commit) == (0, known)
    group.deliver()
    assert (progress.match, leader.commit) == (known, known)
    group.propose(1, b"y")
    group.deliver()
    assert leader.commit == known + 1


def test_a_leader_that_is_removed_leaves_when_that_is_committed():
    group = Group(3)
    leader = group.elect(1)
    group.do(1, leader.change_members(group.now, Members((2, 3)))[1])
    assert leader.is_leader
    group.deliver()
    assert not leader.is_leader
    group.pass_time(9.0, 1)
    assert isinstance(leader.role, Follower)


def test_a_change_that_is_cut_off_is_undone():
    group = Group(3)
    leader = group.elect(1)
    group.isolate(1)
    group.do(1, leader.change_members(group.now, Members((1, 2)))[1])
    group.wire.clear()
    assert leader.members == Members((1, 2))
    group.pass_time(2.0, 2)
    group.deliver()
    group.cut.clear()
    group.pass_time(0.2, 2)
    group.deliver()
    assert group.nodes[2].is_leader
    assert leader.members == Members((1, 2, 3))


def test_the_place_is_given_to_one_that_has_everything():
    group = Group(3)
    leader = group.elect(1)
    group.propose(1, b"x")
    group.do(1, leader.transfer(group.now, 3))
    with pytest.raises(NotLeaderError, match="3 leads"):
        leader.propose(group.now, b"y")
    group.deliver()
    assert group.nodes[3].is_leader
    with pytest.raises(ConfigError, match="no vote"):
        group.nodes[3].transfer(group.now, 9)


# --- snapshots ------------------------------------------------------------------------------------
def test_who_is_too_far_behind_gets_the_snapshot():
    group = Group(3)
    leader = group.elect(1)
    group.isolate(3)
    for number in range(5):
        group.propose(1, b"%d" % number)
        group.deliver()
    group.do(1, leader.compacted(b"up to 4", 4))
    assert leader.log.first_index == 5
    group.cut.clear()
    restored = []

    def watch(item):
        if isinstance(item[2], Install):
            restored.append(item[2].snapshot.data)
        return True

    for _ in range(2):
        group.pass_time(0.2, 1)
        group.deliver(watch)
    assert restored == [b"up to 4"]
    assert group.nodes[3].log.last_index == leader.log.last_index
    assert group.nodes[3].commit == leader.commit
    assert group.written[3][-2].snapshot or any(w.snapshot for w in group.written[3])


def test_a_snapshot_that_gets_lost_is_sent_again():
    group = Group(3, config=RaftConfig(election_timeout=1.0, heartbeat=0.2, snapshot_timeout=0.5))
    leader = group.elect(1)
    group.isolate(3)
    for _ in range(5):
        group.propose(1, b"x")
        group.deliver()
    group.do(1, leader.compacted(b"", leader.commit))
    group.cut.clear()
    for _ in range(2):
        group.pass_time(0.2, 1)
        group.deliver(lambda item: not isinstance(item[2], Install))
    assert group.nodes[3].commit < leader.commit
    for _ in range(5):
        group.pass_time(0.2, 1)
        group.deliver()
    assert group.nodes[3].commit == leader.commit


def test_times_are_those_of_the_configuration():
    group = Group(3)
    for node in group.nodes.values():
        assert CONFIG.election_timeout <= node.deadline < 2 * CONFIG.election_timeout
    leader = group.elect(1)
    assert leader.deadline <= group.now + CONFIG.heartbeat
