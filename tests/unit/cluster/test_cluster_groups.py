"""The group machine, call by call: what moves, what is refused, what is counted, what expires."""

from __future__ import annotations

import pytest
from group_machine_fixture import PROCESS, Shell, catalogue, topic_id

from penstock.cluster.groups import (
    Claim,
    ClientIdentity,
    GroupLimits,
    GroupMachine,
    OffsetCommit,
    OffsetSeek,
)
from penstock.core.errors import (
    ConfigError,
    GroupError,
    ResourceLimitError,
    StaleGenerationError,
    UnknownMemberError,
    UnknownTopicError,
)

T = topic_id("t")


def commits(told, offset: int) -> list[OffsetCommit]:
    return [OffsetCommit(o.topic_id, o.partition, o.grant, offset) for o in told.partitions]


# --- how a partition moves ----------------------------------------------------------------------
def test_a_partition_moves_only_after_its_owner_let_go():
    shell = Shell(t=4)
    first = shell.join()
    assert [o.partition for o in first.partitions] == [0, 1, 2, 3]
    second = shell.join()
    assert second.partitions == ()
    assert shell.told == {"m1"}
    asked = [o for o in shell.sync("m1").partitions if o.revoked]
    assert len(asked) == 2
    assert shell.describe().info.state == "moving"

    shell.sync("m1", asked[0])
    assert shell.told == {"m2"}
    [given] = shell.sync("m2").partitions
    assert (given.partition, given.revoked) == (asked[0].partition, False)
    assert given.grant > asked[0].grant
    shell.sync("m1", asked[1])
    assert shell.describe().info.state == "stable"


def test_what_stays_keeps_its_grant_when_others_come_and_go():
    shell = Shell(t=6)
    shell.join()
    shell.join()
    shell.settle()
    before = {o.partition: o.grant for o in shell.sync("m1").partitions}
    shell.join()
    shell.settle()
    after = {o.partition: o.grant for o in shell.sync("m1").partitions}
    assert len(after) == 2
    assert after.items() <= before.items()


def test_a_revocation_is_taken_back_when_the_new_member_leaves_before_it_got_anything():
    shell = Shell(t=2)
    first = shell.join()
    shell.join()
    assert any(o.revoked for o in shell.sync("m1").partitions)
    shell.take(shell.machine.leave(shell.now, "g", "m2"))
    assert shell.sync("m1").partitions == first.partitions


def test_a_member_that_is_fenced_loses_everything_at_once():
    shell = Shell(t=4)
    shell.join()
    shell.join()
    shell.settle()
    held = shell.sync("m1")
    shell.take(shell.machine.fence(shell.now, "g", "m1", "died"))
    assert shell.told == {"m1", "m2"}
    assert set(shell.owners().values()) == {"m2"}
    with pytest.raises(UnknownMemberError, match="m1"):
        shell.machine.commit(shell.now, "g", "m1", commits(held, 5))
    assert shell.describe().counts["died"] == 1


def test_members_without_a_partition_wait_and_take_over():
    shell = Shell(t=1)
    shell.join()
    assert shell.join().partitions == ()
    shell.take(shell.machine.died(shell.now, "g", "m1"))
    assert len(shell.sync("m2").partitions) == 1


def test_a_member_that_lets_go_unasked_begins_anew_at_what_is_committed():
    shell = Shell(t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 9)))
    [again] = shell.sync("m1", *told.partitions).partitions
    assert again.grant > told.partitions[0].grant
    assert again.offset == 9


def test_nobody_lets_go_of_what_is_not_his():
    shell = Shell(t=1)
    first = shell.join()
    shell.take(shell.machine.fence(shell.now, "g", "m1", "stalled"))
    second, third = shell.join(), shell.join()
    owner = {one.member_id: one.partitions for one in (second, third)}[shell.owners()["t", 0]]
    other = third.member_id if owner is second.partitions else second.member_id
    before = shell.describe().partitions
    for late in (first.partitions, owner):
        told = shell.sync(other, *late)
        assert not told.partitions
        assert shell.describe().partitions == before
    mine = shell.owners()["t", 0]
    assert shell.sync(mine, *first.partitions).partitions == owner, "under an older grant"
    assert shell.describe().partitions == before


def test_offsets_stay_while_a_group_has_members_however_old_they_are():
    shell = Shell(GroupLimits(offsets_retention=100.0), t=1, u=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 5)))
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    shell.tick(60.0)
    shell.join()
    shell.tick(1000.0)
    assert shell.offsets() == {("t", 0): 5}
    shell.reload()
    shell.machine.connected(shell.now, "g", "m2")
    shell.tick(1000.0)
    assert shell.offsets() == {("t", 0): 5}


@pytest.mark.rule(18)
def test_rule_18_a_claim_is_durable_and_only_the_owners():
    shell = Shell(t=1)
    told = shell.join(guarantee="at-most-once")
    claim = Claim(T, 0, told.partitions[0].grant, 0, 10)
    decision = shell.machine.claim(shell.now, "g", "m1", 1, [claim], 3)
    assert decision.durable, "it is answered once it is on the device"
    assert shell.take(decision).granted == [True]
    again = shell.machine.claim(shell.now, "g", "m1", 1, [claim], 3)
    assert again.durable
    assert shell.take(again).granted == [True]
    assert shell.describe().skipped == 3, "counted once a claim"
    shell.take(shell.machine.fence(shell.now, "g", "m1", "stalled"))
    shell.join(guarantee="at-most-once")
    stale = Claim(T, 0, claim.grant, 10, 20)
    assert shell.take(shell.machine.claim(shell.now, "g", "m2", 1, [stale], 0)).granted == [False]
    assert shell.offsets() == {("t", 0): 10}


def test_fifty_members_share_two_hundred_partitions_four_each():
    shell = Shell(t=200)
    for _ in range(50):
        shell.join()
    shell.settle()
    assert {member.partitions for member in shell.describe().members} == {4}
    shell.take(shell.machine.died(shell.now, "g", "m7"))
    assert shell.describe().info.state == "stable", "what is free is handed out, nobody else moves"
    assert sorted({member.partitions for member in shell.describe().members}) == [4, 5]


# --- subscriptions ------------------------------------------------------------------------------
def test_patterns_and_names_pick_up_what_comes_later():
    shell = Shell(orders=1)
    shell.join(topics=["orders", "later"])
    shell.join(topics=[], pattern="ord.*")
    shell.change_topics(orders=2, later=1, orders2=1)
    shell.settle()
    owners = shell.owners()
    assert owners["later", 0] == "m1"
    assert owners["orders2", 0] == "m2"
    assert {owners["orders", 0], owners["orders", 1]} == {"m1", "m2"}


def test_a_topic_that_is_deleted_takes_its_offsets_along():
    shell = Shell(t=1, u=1)
    told = shell.join(topics=["t", "u"])
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 3)))
    shell.change_topics(u=1)
    assert shell.owners() == {("u", 0): "m1"}
    assert shell.offsets() == {("u", 0): 3}


def test_a_topic_made_again_under_another_id_begins_at_its_beginning():
    shell = Shell(t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 3)))
    other = {"t": (b"another id......", 1)}
    shell.take(shell.machine.topics_changed(shell.now, other))
    [owned] = shell.sync("m1").partitions
    assert (owned.topic_id, owned.offset) == (b"another id......", 0)


def test_patterns_never_match_the_nodes_own_topics():
    shell = Shell(__coordinator=1, t=1)
    assert [o.topic for o in shell.join(topics=[], pattern=".*").partitions] == ["t"]


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+", "(a|b*)*c", "(a{1,9}){1,9}", ".*.*.*.*.*x", "|".join("ab" * 10), "(", "",
        "(a|a)*b", "(a|aa)+b", "((?:a|aa)b?)*", "((a|aa)){1,99}b", "(|a)" * 5,
        "(?x)(a+) +b", "(?i-x:a)(?ix: (a+) + )b", "(a+)(?#c)+b",
        ".*.*.*.*[bc]", ".*.*.*(|a)(|a)(|a)[bc]", "a?a?a?a?a?b",
    ],
)  # fmt: skip
def test_patterns_that_could_hold_the_node_up_are_refused(pattern):
    with pytest.raises(ConfigError, match="pattern"):
        Shell(t=1).join(topics=[], pattern=pattern)


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("orders-.*", {"orders-eu"}),
        ("(?:orders|clicks)-(eu|us)", {"orders-eu", "clicks-us"}),
        (r"[a-z]+-us", {"clicks-us"}),
        (r"a\.b[*+?]?", {"a.b"}),
        ("orders(-eu|-us)?", {"orders-eu"}),
        ("(?:orders|clicks).*-.*u.*", {"orders-eu", "clicks-us"}),
        ("o?r?d?ers-e*?u+?", {"orders-eu"}),
        ("(?:orders|(?P<x>c[lx])icks)-(eu|us)", {"orders-eu", "clicks-us"}),
    ],
)
def test_patterns_that_users_write_are_allowed(pattern, matching):
    names = ("orders-eu", "clicks-us", "a.b", "axb")
    shell = Shell(None, **dict.fromkeys(names, 1))
    told = shell.join(topics=[], pattern=pattern)
    assert {o.topic for o in told.partitions} == matching


# --- coming back --------------------------------------------------------------------------------
def test_a_member_that_comes_back_has_what_it_had():
    shell = Shell(t=2)
    first = shell.join()
    shell.reload()
    assert shell.join(member_id="m1") == first
    stranger = ClientIdentity(100, 5001, "boot")
    with pytest.raises(UnknownMemberError, match="join again"):
        shell.join(member_id="m1", client=stranger)


def test_a_static_member_takes_its_predecessors_partitions_over_at_once():
    shell = Shell(t=4)
    shell.join(instance_id="one")
    shell.join(instance_id="two")
    shell.settle()
    before = shell.sync("m1")
    generation = shell.describe().info.generation
    shell.take(shell.machine.died(shell.now, "g", "m1"))
    assert shell.describe().info.generation == generation, "its place is kept"
    after = shell.join(instance_id="one")
    assert after.member_id == "m3"
    assert [o.partition for o in after.partitions] == [o.partition for o in before.partitions]
    assert min(o.grant for o in after.partitions) > max(o.grant for o in before.partitions)
    assert shell.told == {"m1"}
    with pytest.raises(UnknownMemberError):
        shell.sync("m1")


def test_a_static_member_whose_successor_does_not_come_is_fenced_in_the_end():
    shell = Shell(t=1)
    shell.join(instance_id="one", session_timeout=10.0)
    shell.take(shell.machine.died(shell.now, "g", "m1"))
    shell.tick(9.0)
    assert shell.describe().info.members == 1
    shell.tick(2.0)
    assert shell.describe().info.state == "empty"


# --- time ---------------------------------------------------------------------------------------
def test_a_member_that_is_away_longer_than_its_session_timeout_is_fenced():
    shell = Shell(t=1)
    shell.join(session_timeout=10.0)
    shell.machine.disconnected(shell.now, "g", "m1")
    shell.tick(9.0)
    shell.machine.connected(shell.now, "g", "m1")
    shell.tick(100.0)
    shell.machine.disconnected(shell.now, "g", "m1")
    shell.tick(10.0)
    assert shell.describe().info.state == "empty"
    assert shell.describe().counts["session_timeout"] == 1


def test_long_processing_evicts_nobody_unless_asked_for():
    shell = Shell(t=2)
    shell.join()
    shell.join(processing_timeout=60.0)
    shell.tick(59.0)
    shell.sync("m2")
    shell.tick(59.0)
    assert shell.describe().info.members == 2
    shell.tick(2.0)
    assert [member.member_id for member in shell.describe().members] == ["m1"]
    shell.tick(86_400.0)
    assert shell.describe().info.members == 1


def test_after_a_reload_every_member_has_its_whole_session_timeout_to_come_back():
    shell = Shell(t=1)
    shell.join(session_timeout=10.0)
    shell.machine.disconnected(shell.now, "g", "m1")
    shell.tick(9.0)
    shell.reload()
    assert list(shell.machine.members()) == [("g", "m1", PROCESS)]
    shell.tick()
    shell.tick(9.0)
    assert shell.describe().info.members == 1
    shell.tick(1.0)
    assert shell.describe().info.members == 0


def test_offsets_of_an_empty_group_expire_and_the_group_with_the_last():
    shell = Shell(GroupLimits(offsets_retention=100.0), t=2)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 5)))
    shell.tick(500.0)
    assert len(shell.offsets()) == 2, "a group with members keeps its offsets"
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    shell.tick(50.0)
    shell.take(shell.machine.seek(shell.now, "g", [OffsetSeek(T, 1, 8)], False))
    shell.tick(50.0)
    assert shell.offsets() == {("t", 1): 8}
    shell.tick(50.0)
    assert shell.machine.list_groups("").groups == []
    assert shell.machine.deadline() is None


def test_offsets_stay_longer_while_the_clock_is_in_doubt():
    shell = Shell(GroupLimits(offsets_retention=100.0), t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 5)))
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    shell.now += 1e9
    shell.machine.doubt = 1e9
    shell.change_topics(t=1, other=2)
    assert shell.offsets() == {("t", 0): 5}
    assert shell.machine.deadline() == pytest.approx(shell.now + 100.0)
    shell.tick(99.0)
    assert shell.offsets() == {("t", 0): 5}
    shell.tick(2.0)
    assert shell.machine.list_groups("").groups == []
    assert shell.machine.deadline() is None


def test_offsets_expire_by_the_bounds_of_now():
    shell = Shell(GroupLimits(offsets_retention=100.0), t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 5)))
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    shell.machine.limit(shell.now, GroupLimits(offsets_retention=1000.0))
    shell.tick(999.0)
    assert shell.offsets() == {("t", 0): 5}
    shell.machine.limit(shell.now, GroupLimits(offsets_retention=10.0))
    assert shell.machine.deadline() is not None
    shell.tick(0.0)
    assert shell.machine.list_groups("").groups == []


def test_offsets_of_an_at_most_once_group_never_expire():
    shell = Shell(GroupLimits(offsets_retention=100.0), t=1)
    told = shell.join(guarantee="at-most-once")
    claims = [Claim(T, 0, told.partitions[0].grant, 0, 10)]
    shell.take(shell.machine.claim(shell.now, "g", "m1", 1, claims, 0))
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    shell.tick(1e6)
    assert shell.offsets() == {("t", 0): 10}


# --- offsets ------------------------------------------------------------------------------------
def test_a_stale_commit_is_listed_counted_and_changes_nothing():
    shell = Shell(t=2)
    old = shell.join()
    shell.join()
    shell.obey("m1")
    stale = shell.take(shell.machine.commit(shell.now, "g", "m1", commits(old, 5)))
    assert len(stale) == 1
    assert list(shell.offsets().values()) == [5]
    assert shell.describe().counts["stale_commits"] == 1
    other = shell.sync("m2").partitions[0]
    forged = [OffsetCommit(T, other.partition, other.grant, 5), OffsetCommit(T, 77, 1, 5)]
    assert shell.take(shell.machine.commit(shell.now, "g", "m1", forged)) == [0, 1]


def test_a_commit_that_changes_nothing_writes_nothing():
    shell = Shell(t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 5)))
    assert shell.machine.commit(shell.now, "g", "m1", commits(told, 5)).records == ()


def test_offsets_of_a_transaction_are_refused_whole_when_one_grant_is_stale():
    shell = Shell(t=2)
    told = shell.join(guarantee="exactly-once")
    shell.machine.check_offsets("g", "m1", commits(told, 5))
    for record in shell.machine.offset_records(shell.now, "g", commits(told, 5)):
        shell.machine.replay(record)
    assert set(shell.offsets().values()) == {5}
    shell.take(shell.machine.seek(shell.now, "g", [OffsetSeek(T, 1, 0)], False))
    with pytest.raises(StaleGenerationError, match="t-1"):
        shell.machine.check_offsets("g", "m1", commits(told, 6))


def test_seek_under_a_live_member_makes_what_it_did_stale():
    shell = Shell(t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 50)))
    shell.take(shell.machine.seek(shell.now, "g", [OffsetSeek(T, 0, 10, 3)], False))
    assert shell.told == {"m1"}
    assert shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 60))) == [0]
    [owned] = shell.sync("m1").partitions
    assert (owned.offset, owned.leader_epoch) == (10, 3)


def test_seek_makes_a_group_and_needs_a_partition_that_there_is():
    shell = Shell(t=1)
    with pytest.raises(UnknownTopicError, match="partition 1 of t"):
        shell.machine.seek(shell.now, "new", [OffsetSeek(T, 1, 10)], False)
    shell.take(shell.machine.seek(shell.now, "new", [OffsetSeek(T, 0, 10)], False))
    assert shell.describe("new").info.state == "empty"
    assert shell.join("new").partitions[0].offset == 10


def test_a_report_is_taken_while_a_group_has_no_members():
    shell = Shell(t=1)
    there = [OffsetSeek(T, 0, 10)]
    shell.take(shell.machine.seek(shell.now, "g", there, False, is_report=True))
    assert set(shell.offsets().values()) == {10}
    shell.join()
    with pytest.raises(GroupError, match="1 members, who say so themselves"):
        shell.machine.seek(shell.now, "g", [OffsetSeek(T, 0, 5)], False, is_report=True)
    with pytest.raises(GroupError, match="it has 1 members; stop them first"):
        shell.machine.seek(shell.now, "g", [OffsetSeek(T, 0, 5)], False, only_empty=True)
    assert set(shell.offsets().values()) == {10}


def test_deleting_offsets_is_refused_under_an_owner_and_deleting_a_group_under_members():
    shell = Shell(t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 5)))
    with pytest.raises(GroupError, match="owns t-0"):
        shell.machine.delete(shell.now, "g", [(T, 0)])
    with pytest.raises(GroupError, match="1 members"):
        shell.machine.delete(shell.now, "g", ())
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    shell.take(shell.machine.delete(shell.now, "g", [(T, 0)]))
    assert shell.offsets() == {}
    with pytest.raises(GroupError, match="no group 'h'"):
        shell.machine.delete(shell.now, "h", ())


# --- guarantees ---------------------------------------------------------------------------------
def test_members_of_a_group_share_one_guarantee_and_manual_mixes_with_at_least_once():
    shell = Shell(t=1)
    shell.join(guarantee="at-least-once")
    shell.join(guarantee="manual")
    for other in ("at-most-once", "exactly-once"):
        with pytest.raises(GroupError, match="another group"):
            shell.join(guarantee=other)
    for member in ("m1", "m2"):
        shell.take(shell.machine.leave(shell.now, "g", member))
    shell.join(guarantee="exactly-once")


def test_an_at_most_once_group_is_one_until_it_is_deleted():
    shell = Shell(t=1)
    shell.join(guarantee="at-most-once")
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    with pytest.raises(GroupError, match="until it is deleted"):
        shell.join(guarantee="manual")
    shell.take(shell.machine.delete(shell.now, "g", ()))
    shell.join(guarantee="manual")


@pytest.mark.rule(18)
def test_rule_18_a_claim_is_granted_where_the_group_stands_once_and_again_by_its_id():
    shell = Shell(t=1)
    [owned] = shell.join(guarantee="at-most-once").partitions
    first = Claim(T, 0, owned.grant, 40, 50)

    def ask(claim_id, claim):
        decision = shell.machine.claim(shell.now, "g", "m1", claim_id, [claim], 0)
        assert decision.durable
        return shell.take(decision)

    assert ask(1, first).granted == [True], "nothing committed: any start"
    assert ask(1, first).granted == [True], "repeated: the same answer"
    assert ask(2, first).granted == [False], "another claim on the same records"
    assert ask(3, Claim(T, 0, owned.grant, 51, 60)) == ask(4, Claim(T, 0, owned.grant, 45, 60))
    assert ask(5, Claim(T, 0, owned.grant, 50, 60)).committed == [60]
    assert ask(1, first).granted == [False], "late, after others"
    assert ask(6, Claim(T, 0, owned.grant + 1, 60, 61)).granted == [False], "another grant"
    counts = shell.describe().counts
    granted, refused = counts["claims_granted"], counts["claims_refused"]
    assert (granted, counts["claims_repeated"], refused) == (2, 1, 5)


@pytest.mark.rule(18)
def test_rule_18_a_claim_outlives_a_reload():
    shell = Shell(t=1)
    [owned] = shell.join(guarantee="at-most-once").partitions
    claim = [Claim(T, 0, owned.grant, 0, 10)]
    shell.take(shell.machine.claim(shell.now, "g", "m1", 1, claim, 0))
    shell.reload()
    again = shell.machine.claim(shell.now, "g", "m1", 1, claim, 0)
    assert (again.records, again.answer.granted, again.durable) == ((), [True], True)


@pytest.mark.rule(18)
def test_rule_18_nothing_goes_back_in_an_at_most_once_group_unless_redelivery_is_allowed():
    shell = Shell(t=1)
    told = shell.join(guarantee="at-most-once")
    shell.take(shell.machine.commit(shell.now, "g", "m1", commits(told, 50)))
    with pytest.raises(GroupError, match="is at 50"):
        shell.machine.commit(shell.now, "g", "m1", commits(told, 49))
    with pytest.raises(GroupError, match="--allow-redelivery"):
        shell.machine.seek(shell.now, "g", [OffsetSeek(T, 0, 49)], False)
    with pytest.raises(GroupError, match="at-most-once"):
        shell.machine.check_offsets("g", "m1", commits(told, 60))
    shell.take(shell.machine.seek(shell.now, "g", [OffsetSeek(T, 0, 60)], False))
    shell.take(shell.machine.seek(shell.now, "g", [OffsetSeek(T, 0, 20)], True))
    shell.take(shell.machine.leave(shell.now, "g", "m1"))
    with pytest.raises(GroupError, match="delete the whole group"):
        shell.machine.delete(shell.now, "g", [(T, 0)])
    assert shell.offsets() == {("t", 0): 20}


def test_skipped_records_are_added_once_for_each_claim():
    shell = Shell(t=1)
    [owned] = shell.join(guarantee="at-most-once").partitions
    for claim_id, skipped in ((1, 7), (1, 7), (2, 0), (3, 5), (2, 9)):
        claims = [Claim(T, 0, owned.grant, 0, 10)]
        shell.take(shell.machine.claim(shell.now, "g", "m1", claim_id, claims, skipped))
        shell.reload()
    assert shell.describe().skipped == 12


def test_only_at_most_once_groups_claim():
    shell = Shell(t=1)
    [owned] = shell.join().partitions
    with pytest.raises(GroupError, match="only an at-most-once group"):
        shell.machine.claim(shell.now, "g", "m1", 1, [Claim(T, 0, owned.grant, 0, 1)], 0)


# --- bounds -------------------------------------------------------------------------------------
def test_every_bound_is_named_by_its_refusal():
    shell = Shell(GroupLimits(groups_max=1, members_max=1, member_topics_max=2), t=1)
    with pytest.raises(ResourceLimitError, match="member_topics_max"):
        shell.join(topics=["a", "b", "c"])
    shell.join()
    with pytest.raises(ResourceLimitError, match="members_max"):
        shell.join()
    with pytest.raises(ResourceLimitError, match="groups_max"):
        shell.join("another")
    with pytest.raises(ResourceLimitError, match="groups_max"):
        shell.machine.seek(shell.now, "another", [OffsetSeek(T, 0, 1)], False)
    with pytest.raises(ResourceLimitError, match="PLACES_MAX"):
        shell.machine.commit(shell.now, "g", "m1", [OffsetCommit(T, 0, 1, 1)] * 1001)


@pytest.mark.parametrize(
    ("group", "options"),
    [
        ("", {}),
        ("g" * 201, {}),
        ("g\n", {}),
        ("g", {"topics": []}),
        ("g", {"topics": ["t" * 201]}),
        ("g", {"guarantee": "best-effort"}),
        ("g", {"session_timeout": 0.0}),
        ("g", {"session_timeout": float("nan")}),
        ("g", {"processing_timeout": 1e9}),
        ("g", {"instance_id": ""}),
    ],
)
def test_what_no_member_may_say_is_refused(group, options):
    shell = Shell(t=1)
    with pytest.raises(ConfigError):
        shell.join(group, **options)
    assert shell.machine.list_groups("").groups == []


def test_partitions_over_a_members_bound_are_nobodys_until_another_comes():
    shell = Shell(GroupLimits(member_partitions_max=3), t=5)
    assert len(shell.join().partitions) == 3
    assert list(shell.owners().values()).count("") == 2
    assert len(shell.join().partitions) == 2


def test_lists_and_descriptions_come_in_pages():
    shell = Shell(t=5)
    for n in range(205):
        shell.take(shell.machine.seek(shell.now, f"g{n:03}", [OffsetSeek(T, 0, 1)], False))
    first = shell.machine.list_groups("")
    second = shell.machine.list_groups(first.groups[-1].group)
    assert (len(first.groups), first.more) == (200, True)
    assert ([info.group for info in second.groups][-1], second.more) == ("g204", False)

    shell.join("g000")
    pages = [shell.machine.describe("g000", skip, 2) for skip in (0, 2, 4)]
    assert [[p.partition for p in page.partitions] for page in pages] == [[0, 1], [2, 3], [4]]
    assert [page.more for page in pages] == [True, True, False]
    assert [len(page.members) for page in pages] == [1, 0, 0]


def test_work_on_many_groups_is_spread_over_ticks():
    shell = Shell(t=1, u=60)
    places = [OffsetSeek(topic_id("u"), partition, 1) for partition in range(60)]
    for n in range(50):
        shell.take(shell.machine.seek(shell.now, f"g{n}", places, False))
    left = catalogue(t=1)
    decisions = [shell.machine.topics_changed(shell.now, left)]
    shell.take(decisions[0])
    assert shell.machine.deadline() == 0.0
    shell.tick()
    assert len(decisions[0].records) < 2200
    assert not any(shell.offsets(f"g{n}") for n in range(50))


# --- partitions that are new ----------------------------------------------------------------------
def begins(shell: Shell, member_id: str) -> dict[tuple[str, int], int]:
    return {(o.topic, o.partition): o.offset for o in shell.sync(member_id).partitions}


def test_what_was_there_when_a_group_began_is_not_said_to_begin_anywhere():
    shell = Shell(t=2, u=1)
    member = shell.join(topics=["t"]).member_id
    assert begins(shell, member) == {("t", 0): -1, ("t", 1): -1}
    shell.join(topics=["t", "u"], member_id=member)
    assert begins(shell, member)["u", 0] == -1  # it was not wanted before


def test_partitions_and_topics_that_come_to_be_under_a_groups_eyes_begin_at_their_beginning():
    shell = Shell(t=1)
    member = shell.join(topics=["t", "named"], pattern="a.*").member_id
    shell.change_topics(t=3, named=1, also=1, other=1)
    found = begins(shell, member)
    assert found == {("t", 0): -1, ("t", 1): 0, ("t", 2): 0, ("named", 0): 0, ("also", 0): 0}
    shell.reload()
    assert begins(shell, member) == found


def test_what_came_to_be_while_nobody_decided_is_seen_by_what_the_group_knew():
    shell = Shell(t=1)
    member = shell.join().member_id
    shell.topics = catalogue(t=2)
    shell.reload()
    assert begins(shell, member) == {("t", 0): -1, ("t", 1): 0}


def test_what_was_sought_or_committed_before_a_partition_came_stays_so():
    shell = Shell(t=1)
    told = shell.join()
    shell.take(shell.machine.commit(shell.now, "g", told.member_id, commits(told, 7)))
    shell.change_topics(t=2)
    assert begins(shell, told.member_id) == {("t", 0): 7, ("t", 1): 0}
    shell.take(shell.machine.leave(shell.now, "g", told.member_id))
    assert begins(shell, shell.join().member_id) == {("t", 0): 7, ("t", 1): 0}


def test_where_too_many_partitions_come_at_once_their_group_follows_all_the_same():
    shell = Shell(SMALL, t=1)
    member = shell.join().member_id
    shell.change_topics(t=500)
    assert set(begins(shell, member).values()) == {-1}


SMALL = GroupLimits(decision_bytes=2000, offsets_retention=10.0)


def bytes_of(decision) -> int:
    return sum(len(key) + len(value or b"") for key, value in decision.records)


def test_a_new_topic_reaches_every_group_by_decisions_that_fit_into_a_batch():
    shell = Shell(SMALL, t=1)
    for n in range(40):
        shell.join(f"g{n}", pattern=".*")
    before = len(shell.log)
    shell.change_topics(t=1, u=200)
    assert len(shell.log) - before >= 80
    assert all(len(shell.owners(f"g{n}")) == 201 for n in range(40))


def test_members_whose_time_is_up_at_once_go_by_decisions_that_fit_into_a_batch():
    shell, stays = Shell(SMALL, t=100), {}
    for n in range(40):
        goes, stays[f"g{n}"] = (shell.join(f"g{n}").member_id for _ in range(2))
        shell.settle(f"g{n}")
        shell.machine.disconnected(shell.now, f"g{n}", goes)
    shell.now += 1000
    sizes = []
    while (at := shell.machine.deadline()) is not None and at <= shell.now:
        decision = shell.machine.tick(shell.now)
        sizes.append(bytes_of(decision))
        shell.take(decision)
    assert 5 < len(sizes) < 60
    assert max(sizes) <= SMALL.decision_bytes
    for group, member_id in stays.items():
        assert set(shell.owners(group).values()) == {member_id}
        assert shell.describe(group).counts["session_timeout"] == 1


def test_what_one_group_needs_is_one_decision_however_large_it_is():
    shell = Shell(GroupLimits(decision_bytes=1), t=100)
    shell.machine.disconnected(shell.now, "g", shell.join().member_id)
    shell.tick(1000)
    assert shell.owners() == {}


@pytest.mark.parametrize("ends", ["expire", "lose their topic"])
def test_offsets_that_go_by_themselves_do_so_a_few_at_a_time(ends):
    shell = Shell(SMALL, t=1, u=250)
    places = [OffsetSeek(topic_id("u"), partition, 1) for partition in range(250)]
    shell.take(shell.machine.seek(shell.now, "g", places, False))
    if ends == "expire":
        decision = shell.machine.tick(shell.now + 10)
    else:
        decision = shell.machine.topics_changed(shell.now, catalogue(t=1))
    assert len(decision.records) == 100
    shell.take(decision)
    assert len(shell.offsets("g")) == 150
    if ends == "lose their topic":
        shell.tick()
        assert shell.offsets("g") == {}
    shell.tick(10)
    assert shell.machine.list_groups("").groups == []


def test_the_world_has_to_be_told_before_anything_is_decided():
    shell = Shell(t=1)
    shell.machine = GroupMachine()
    with pytest.raises(RuntimeError, match="topics_changed"):
        shell.join()
