"""Places in a log, from whatever users write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consumer.offsets import Offset
from penstock.core.errors import ConfigError

MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123457, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given_", "place"),
    [
        ("earliest", Offset("earliest")),
        ("start", Offset("earliest")),
        ("latest", Offset("latest")),
        ("end", Offset("latest")),
        (0, Offset("exact", 0)),
        (1 << 40, Offset("exact", 1 << 40)),
        (Offset.relative(-3), Offset("relative", -3)),
        (Offset.from_start(3), Offset("from_start", 3)),
        (Offset.from_end(3), Offset("from_end", 3)),
        (MOMENT, Offset("time", 1_709_209_815_123_457)),
    ],
    ids=str,
)
def test_what_users_write(given_, place):
    assert Offset.of(given_) == place
    assert Offset.of(place) is place


@pytest.mark.parametrize(
    "given_", ["newest", "", "0", None, 1.5, True, b"earliest", -1, ["earliest"]], ids=repr
)
def test_what_is_no_place_is_refused_by_a_message_that_helps(given_):
    with pytest.raises(ConfigError, match=r"earliest|from_end\(\)"):
        Offset.of(given_)


@settings(derandomize=True, max_examples=300)
@given(
    st.integers(-(10**15), 4 * 10**15),
    st.integers(-12 * 60, 12 * 60),
)
def test_a_datetime_is_its_very_microsecond_in_any_zone(microseconds, minutes_east):
    zone = timezone(timedelta(minutes=minutes_east))
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert Offset.at(moment.astimezone(zone)) == Offset("time", microseconds)


@pytest.mark.parametrize(("seconds", "microseconds"), [(0, 0), (1.5, 1_500_000), (-0.25, -250_000)])
def test_a_number_is_seconds_since_the_epoch(seconds, microseconds):
    assert Offset.at(seconds) == Offset("time", microseconds)
