"""Who is read slowly, and that nobody else is."""

from __future__ import annotations

from penstock.server.gateway.slow_readers import BURST, PAUSE, RATE, Budget, Pacing


def flood(pacing: Pacing, *identities: bytes, now: float = 0.0) -> int:
    """Read these in turn until reading stops; how many were read."""
    for count in range(1000):
        if pacing.pause(now):
            return count
        pacing.took(identities[count % len(identities)], True, now)
    raise AssertionError("it is read for ever")


def test_a_budget_is_used_up_once_and_comes_back_by_half() -> None:
    budget = Budget(0.0)
    assert not any(budget.take(0.0, 1) for _ in range(BURST - 1))
    assert budget.take(0.0, 1)
    assert budget.is_over
    assert not budget.take(0.0, 1), "it was over before"
    half = BURST / 2 / RATE
    budget.take(half * 0.9, 0)
    assert budget.is_over
    budget.take(half * 1.1, 0)
    assert not budget.is_over


def test_what_a_connection_sends_at_the_rate_is_never_too_much() -> None:
    budget = Budget(0.0)
    assert not any(budget.take(number / RATE, 1) for number in range(3 * BURST))


def test_no_debt_gathers() -> None:
    budget = Budget(0.0)
    budget.take(0.0, 100 * BURST)
    budget.take(0.51 * BURST / RATE, 0)
    assert not budget.is_over


def test_reading_stops_when_only_floods_are_left_and_goes_on_after_a_while() -> None:
    pacing = Pacing()
    assert flood(pacing, b"a") == 3
    assert pacing.pause(0.0) == PAUSE
    assert pacing.pause(PAUSE) == 0
    assert flood(pacing, b"a", b"b", b"c", now=PAUSE) == 5, "each has its turn"


def test_reading_goes_on_while_others_have_something_to_say() -> None:
    pacing = Pacing()
    for _ in range(100):
        pacing.took(b"flood", True, 0.0)
        pacing.took(b"calm", False, 0.0)
        assert not pacing.pause(0.0)
    assert flood(pacing, b"flood") == 2


def test_a_connection_that_had_nothing_to_say_ends_the_pause_and_gets_its_turn() -> None:
    pacing = Pacing()
    flood(pacing, b"a")
    pacing.rang()
    pacing.took(b"a", True, 0.0)  # chosen before
    pacing.took(b"a", True, 0.0)
    assert not pacing.pause(0.0), "now it is the other's turn"
