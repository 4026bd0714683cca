"""How the command line writes what it reads."""

from __future__ import annotations

import pytest

from penstock.operations import values


@pytest.mark.parametrize("text", ["7d", "12h", "90s", "36h", "5m", "250ms", "1ms", "1001ms", "14d"])
def test_a_duration_is_written_as_it_was_typed(text):
    assert values.duration(values.seconds(text)) == text


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.5, 1e-6, 604_800.25, 3153600000.0])
def test_a_duration_that_is_written_reads_as_the_same_number(seconds):
    assert values.seconds(values.duration(seconds)) == pytest.approx(seconds, rel=1e-12)
