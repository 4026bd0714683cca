"""Cleaning orders in a writer: one at a time, in turn for each page, tried again for a while."""

from __future__ import annotations

import time
from typing import Any, cast

from penstock.core.errors import LogOfflineError, StorageError
from penstock.ipc.cleaning import TRY_FOR, Cleaning
from penstock.ipc.freed import Freed
from penstock.ipc.messages import LogCleaned, TrimLog


class Role:
    """A partition whose trims fail as often as the test says."""

    def __init__(self, failures: list[StorageError]) -> None:
        self.name = "t-0"
        self.failures = failures
        self.trims: list[int] = []

    def trim(self, before: int, now_us: int) -> Freed:
        if self.failures:
            raise self.failures.pop(0)
        self.trims.append(before)
        return Freed(before, 1, 100)


def cleaning(**failures: list[StorageError]) -> tuple[Cleaning, list[Role], list[LogCleaned]]:
    """Orders for two pages."""
    told: list[LogCleaned] = []
    roles = [Role(failures.get("first", [])), Role(failures.get("second", []))]
    return Cleaning(cast(Any, dict(enumerate(roles))), told.append), roles, told


def busy() -> StorageError:
    return StorageError("a sync is under way", retriable=True)


def test_one_order_is_done_at_a_time():
    work, roles, told = cleaning()
    for ticket in range(3):
        work.take(TrimLog(0, ticket, ticket * 10))
    assert [work.work(0.0) for _ in range(4)] == [True, True, False, False]
    assert roles[0].trims == [0, 10, 20]
    assert [(report.ticket, report.log_start, report.error) for report in told] == [
        (0, 0, ""), (1, 10, ""), (2, 20, ""),
    ]  # fmt: skip


def test_an_order_that_must_wait_holds_up_its_page_alone_and_keeps_its_turn():
    work, roles, told = cleaning(first=[busy()])
    work.take(TrimLog(0, 1, 10))
    work.take(TrimLog(0, 2, 20))
    work.take(TrimLog(1, 3, 30))
    while work.work(0.0):
        pass
    assert (roles[0].trims, roles[1].trims) == ([], [30])
    while work.work(0.0):
        pass
    assert roles[0].trims == [10, 20]
    assert [report.ticket for report in told] == [3, 1, 2]


def test_an_order_is_refused_when_it_had_to_wait_too_long():
    work, _, told = cleaning(first=[busy()])
    work.take(TrimLog(0, 1, 10))
    work.work(time.monotonic() + TRY_FOR + 1)
    assert [(report.error, report.message) for report in told] == [
        ("StorageError", "a sync is under way")
    ]


def test_what_can_never_be_done_is_refused_at_once():
    work, _, told = cleaning(first=[LogOfflineError("it is offline")])
    work.take(TrimLog(0, 1, 10))
    work.take(TrimLog(7, 2, 10))
    while work.work(0.0):
        pass
    assert [report.error for report in told] == ["LogOfflineError", "UnknownTopicError"]
