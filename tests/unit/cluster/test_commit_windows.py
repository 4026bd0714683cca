"""The last commits of a partition of a group tell whether it moves on, falls behind or stopped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.groups.windows import (
    COMMITS_MAX,
    OK,
    REWIND,
    SEVERITY,
    SPACING,
    STOP,
    STOP_AFTER,
    WARN,
    CommitWindow,
    PartitionOwner,
    judge,
    places,
)

SECOND = 1_000_000


def window(*offsets: int, every: int = 5) -> list[int]:
    """Commits of these offsets, `every` seconds apart from 0 on."""
    kept = CommitWindow()
    for nth, offset in enumerate(offsets):
        kept.note(nth * every * SECOND, offset)
    return kept.pairs()


def test_a_group_that_read_everything_is_ok_however_long_ago():
    assert judge(window(1, 5, 9), 1e6, 0, {}).status == OK


def test_a_stop_is_told_once_a_record_waits_longer_than_the_window_spans():
    commits = window(10, 20, 30)
    long = 10 + STOP_AFTER
    appended = {30: 8.0}
    assert judge(commits, long - 1, 5, appended).status == OK
    verdict = judge(commits, long + 1, 5, appended, PartitionOwner("m1", 2.0, 5))
    assert verdict.status == STOP
    assert verdict.reason == "5 records wait, and nothing was committed for 31 s: m1 has 5 " \
        "records in hand"  # fmt: skip
    slow = window(10, 20, every=600)
    assert judge(slow, 600 + 590, 5, {20: 0.0}).status == OK
    assert judge(slow, 600 + 610, 5, {20: 0.0}).status == STOP


def test_a_record_that_just_came_is_no_stop_of_a_group_that_was_idle():
    assert judge(window(10, 20), 86_400.0, 1, {20: 86_399.0}).status == OK
    assert judge(window(10, 20), 86_400.0, 1, {20: 86_400.0 - 2 * STOP_AFTER}).status == STOP


def test_a_stop_says_who_is_the_cause():
    def why(owner: PartitionOwner | None) -> str:
        return judge(window(1), 100.0, 1, {}, owner).reason.partition(": ")[2]

    assert why(None) == ""
    assert why(PartitionOwner()) == "no member has the partition"
    assert why(PartitionOwner("m1", 99.0, 3)) == "m1 has not polled for 99 s"
    assert why(PartitionOwner("m1", 1.0, 1)) == "m1 has 1 record in hand"
    assert why(PartitionOwner("m1")) == "m1 has it"


def test_a_group_that_went_back_is_told_until_it_is_where_it_was():
    commits = window(10, 50, 5, 8)
    verdict = judge(commits, 16.0, 92, {})
    assert verdict.status == REWIND
    assert verdict.reason == "it went back from 50 to 5 6 s ago"
    assert judge(window(10, 50, 5, 51), 16.0, 92, {}).status == OK


def test_a_seek_right_after_a_commit_is_not_overwritten():
    kept = CommitWindow()
    for at, offset in ((0, 4), (SPACING // 10, 8), (SPACING // 5, 0)):
        kept.note(at, offset)
    assert "from 8 to 0" in judge(kept.pairs(), 1.0, 8, {}).reason


def test_a_group_that_falls_behind_is_warned_of_and_a_slow_one_is_not():
    commits = window(10, 20, 30, 40)
    assert places(commits) == (10, 30, 40)
    grows = {10: 0.0, 30: 8.0, 40: 10.0}  # 0, 2 and 5 s behind
    verdict = judge(commits, 16.0, 9, grows)
    assert verdict.status == WARN
    assert verdict.reason == "it falls behind: 5.0 s at its last commit, 0.0 s 15 s before"
    steady = {10: -9.0, 30: 1.0, 40: 6.0}  # 9 s behind at each commit
    assert judge(commits, 16.0, 9, steady).status == OK
    catches_up = {10: -9.0, 30: 9.0, 40: 14.5}
    assert judge(commits, 16.0, 9, catches_up).status == OK
    assert judge(commits, 16.0, 9, {10: 0.0, 40: 10.0}).status == OK  # not known in the middle
    assert judge(window(1, 2), 16.0, 9, {1: 0.0, 2: 0.0}).status == OK  # too few


@given(st.lists(st.tuples(st.integers(0, 3 * SPACING), st.integers(0, 100)), min_size=1))
def test_a_window_is_bounded_in_order_and_ends_with_the_newest_commit(steps):
    kept, at = CommitWindow(), 0
    for step, offset in steps:
        at += step
        kept.note(at, offset)
        kept.note(at - 1, offset)  # a clock that went back
    pairs = kept.pairs()
    times, offsets = pairs[::2], pairs[1::2]
    assert len(times) <= COMMITS_MAX
    assert times == sorted(set(times))
    assert offsets[-1] == steps[-1][1]
    assert judge(pairs, at / 1e6, 1, dict.fromkeys(places(pairs), 0.0)).status in SEVERITY
