"""After a test failed, all fixtures are made anew: its second try, and its module's next test, meet
a node without what the first try left (decision 0075)."""

from __future__ import annotations

from collections.abc import Generator

import pytest

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if item.stash.get(_FAILED, False):
        del item.stash[_FAILED]
        item.session._setupstate.teardown_exact(None)
