"""The number of members that a lag target needs, from two looks at a group."""

from __future__ import annotations

from dataclasses import replace

from penstock.client.admin.scaling import GroupLook, GroupScale, estimate

BEFORE = GroupLook(at=100.0, members=2, lag=60_000, done=0, came=0, useful_max=12)


def scaled(before: GroupLook = BEFORE, lag_seconds: float = 60.0, **now: int) -> GroupScale:
    return estimate("g", before, replace(before, at=before.at + 10, **now), lag_seconds, 600.0)


def test_members_for_what_comes_and_for_what_is_to_be_drained():
    found = scaled(done=2000, came=4000, lag=62_000)  # 400/s come, a member does 100/s
    assert (found.rate, found.member_rate) == (400.0, 100.0)
    assert found.members == 5  # 400/s, and (62,000 - 24,000) in 600 s
    assert found.reason == "400 records/s come, 62000 wait, and a member does 100/s"
    assert scaled(done=2000, came=4000, lag=62_000, lag_seconds=1000.0).members == 4


def test_partitions_bound_it():
    found = scaled(done=200, came=4000, lag=62_000)
    assert (found.members, found.is_bound) == (12, True)
    assert "it has 12 partitions, and more members would wait" in found.reason
    share = scaled(replace(BEFORE, useful_max=None), done=200, came=4000, lag=62_000)
    assert (share.members, share.is_bound) == (47, False)


def test_members_that_wait_for_records_are_not_told_to_be_more():
    found = scaled(done=4000, came=4000, lag=10)
    assert found.members == 2
    assert "does 200/s or more" in found.reason


def test_where_it_cannot_be_known():
    assert scaled(done=0, came=4000, lag=62_000).members is None
    nobody = scaled(replace(BEFORE, members=0), done=0, came=0, lag=5)
    assert nobody.members is None
    assert nobody.reason.startswith("it has no members")
    quiet = scaled(done=0, came=0, lag=0)
    assert (quiet.members, quiet.reason) == (1, "nothing comes, and nothing is left")
