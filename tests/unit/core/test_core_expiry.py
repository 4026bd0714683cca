"""The clock of expiry follows the wall clock at most twice as fast as time passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.expiry import PACE_MAX, STEP_MAX_US, ExpiryClock

DAY = 86_400_000_000
YEARS = 3650 * DAY


def test_it_is_the_wall_clock_while_that_is_right():
    clock = ExpiryClock(1000, 0)
    assert [clock.look(1000 + up, up) for up in (0, 5, 5, 70, DAY)] == [
        1000, 1005, 1005, 1070, 1000 + DAY,
    ]  # fmt: skip


def test_a_jump_ahead_is_followed_at_twice_the_pace():
    clock = ExpiryClock(0, 0)
    assert clock.look(YEARS, 0) == 0
    assert clock.look(YEARS + DAY, DAY) == 2 * DAY
    assert clock.look(YEARS + 3 * DAY, 3 * DAY) == 6 * DAY
    assert clock.look(4 * DAY, 4 * DAY) == 6 * DAY, "it never goes back"
    assert clock.look(7 * DAY, 7 * DAY) == 7 * DAY, "and is right again"


def test_a_lag_ends():
    clock = ExpiryClock(0, 0)
    assert clock.look(60 * DAY, 30 * DAY) == 60 * DAY
    assert clock.look(61 * DAY, 31 * DAY) == 61 * DAY


@pytest.mark.parametrize(
    ("wall", "believed"),
    [(DAY // 2, DAY // 2), (YEARS, STEP_MAX_US), (-YEARS, 0)],
    ids=["off for half a day", "ahead", "back"],
)
def test_a_boot_is_believed_one_step(wall, believed):
    assert ExpiryClock.after_boot(0, wall, 77).look(wall, 77) == believed


MOMENTS = st.lists(st.tuples(st.integers(-YEARS, YEARS), st.integers(0, DAY)), min_size=1)


@given(MOMENTS)
def test_whatever_the_wall_clock_says(moments):
    """It never goes back, and never faster than twice the time that passes."""
    clock, up, before = ExpiryClock(0, 0), 0, 0
    for wall, passed in moments:
        up += passed
        now = clock.look(wall, up)
        assert before <= now <= before + PACE_MAX * passed
        assert now <= max(before, wall)
        before = now
