"""A second try does not meet what the first one left."""

from __future__ import annotations

from pathlib import Path

import fresh_fixtures
import pytest

pytest_plugins = ["pytester"]


def test_a_second_try_has_fixtures_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(Path(fresh_fixtures.__file__).read_text())
    pytester.makepyfile("""
        import pytest

        made = []

        @pytest.fixture(scope="module")
        def shelf():
            made.append([])
            yield made[-1]
            made[-1].append("closed")

        def test_first(shelf):
            shelf.append("first")

        def test_second(shelf):
            shelf.append("second")
            assert len(made) == 2, "the first try fails"
            assert made == [["first", "second", "closed"], ["second"]]

        def test_third(shelf):
            assert shelf == ["second"]
    """)
    result = pytester.runpytest_subprocess("--reruns", "1", "-p", "no:xdist")
    result.assert_outcomes(passed=3)
    assert "1 rerun" in result.stdout.str()
