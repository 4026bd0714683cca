"""Token buckets: the rate holds over any stretch of time, and who is not named is not held."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.quotas import (
    CONSUME,
    PRODUCE,
    Bucket,
    Quota,
    Quotas,
    QuotaTable,
    check_quota,
)
from penstock.core.errors import ConfigError


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 30_000)), min_size=1, max_size=40),
)
def test_who_waits_as_told_never_passes_the_rate_and_its_burst(rate, steps):
    """Bytes passed up to any moment, but for the last batch: rate * time + one second's worth."""
    now, passed, bucket = 100.0, 0, Bucket(100.0, rate)
    for pause, amount in steps:
        now += max(pause, bucket.delay(now))
        assert passed <= rate * (now - 100.0) + rate + 1e-3
        delay = bucket.take(now, amount)
        passed += amount
        assert delay == bucket.delay(now)
        assert copy(bucket).delay(now + delay + 1e-6) == 0.0


def test_what_was_not_used_is_saved_up_for_one_second():
    bucket = Bucket(0.0, 1000)
    assert bucket.take(50.0, 1000) == 0.0
    assert bucket.take(50.0, 500) == pytest.approx(0.5)


def test_another_rate_keeps_the_debt():
    bucket = Bucket(0.0, 100)
    bucket.take(0.0, 1100)
    bucket.set_rate(0.0, 1000)
    assert bucket.delay(0.0) == pytest.approx(1.0)


def quotas(*which, **options):
    return Quotas(QuotaTable(which), **options)


def test_the_nearest_quota_holds_and_both_levels_do():
    found = quotas(
        Quota("*", produce_bytes=100),
        Quota("ann", produce_bytes=1000),
        Quota("ann", "etl", produce_bytes=10),
    )
    assert found.charge(0.0, PRODUCE, "bob", "x", 200) == pytest.approx(1.0)
    assert found.charge(0.0, PRODUCE, "ann", "x", 200) == 0.0
    assert found.charge(0.0, PRODUCE, "ann", "etl", 20) == pytest.approx(1.0)
    assert found.charge(0.0, PRODUCE, "ann", "x", 0) == 0.0
    assert found.charge(0.0, CONSUME, "bob", "x", 10**9) == 0.0
    assert found.charge(0.0, PRODUCE, "cy", "x", 100) == 0.0  # not bob's bucket


def test_all_clients_of_a_principal_share_its_quota():
    found = quotas(Quota("ann", consume_bytes=100))
    found.charge(0.0, CONSUME, "ann", "a", 100)
    assert found.charge(0.0, CONSUME, "ann", "b", 100) == pytest.approx(1.0)


def test_inventing_client_ids_loses_no_debt_and_takes_no_room():
    found = quotas(
        Quota("ann", produce_bytes=100), Quota("*", "*", produce_bytes=50), buckets_max=8
    )
    for number in range(1000):
        found.charge(0.0, PRODUCE, "ann", f"c{number}", 10)
    assert found.count <= 8
    assert found.charge(0.0, PRODUCE, "ann", "fresh", 0) == pytest.approx(99.0)


def test_other_quotas_hold_at_once():
    found = quotas(Quota("ann", produce_bytes=100))
    found.charge(0.0, PRODUCE, "ann", "", 1100)
    found.set_table(0.0, QuotaTable([Quota("ann", produce_bytes=10_000)]))
    assert found.charge(0.0, PRODUCE, "ann", "", 0) == pytest.approx(0.1)
    found.set_table(0.0, QuotaTable())
    assert found.charge(0.0, PRODUCE, "ann", "", 0) == 0.0
    assert found.count == 0


@pytest.mark.parametrize(
    "quota",
    [
        Quota("user:1", produce_bytes=1),
        Quota("ann", produce_bytes=0),
        Quota("ann", "", produce_bytes=1),
        Quota("ann", "etl", connections_max=1),
    ],
)
def test_quotas_that_mean_nothing_are_refused(quota):
    with pytest.raises(ConfigError):
        check_quota(quota)
