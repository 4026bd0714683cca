"""The gateway's events: descriptors, clocks, and calls that wait, in one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.ipc.doorbell import Doorbell
from penstock.ipc.waits import Wait, Waits
from penstock.server.gateway.events import CANCELLED_KEPT, Events


@pytest.fixture
def events() -> Iterator[Events]:
    events = Events()
    yield events
    events.close()


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    bell = Doorbell()
    yield bell
    bell.close()


def waiting_for(bell: Doorbell, seconds: float) -> Waits[str]:
    yield Wait(seconds, bell)
    return "rung" if bell.clear() else "late"


def test_a_call_goes_on_when_its_descriptor_is_readable(events: Events, bell: Doorbell) -> None:
    done: list[Any] = []
    events.spawn(waiting_for(bell, 30), done.append, done.append)
    events.poll(0)
    assert done == []
    bell.ring()
    events.poll(1)
    assert done == ["rung"]


def test_a_call_goes_on_when_its_time_is_up(events: Events, bell: Doorbell) -> None:
    done: list[Any] = []
    events.spawn(waiting_for(bell, 0.01), done.append, done.append)
    while not done:
        events.poll(1)
    assert done == ["late"]


def test_a_call_that_raises_tells_so_and_one_that_ends_at_once_too(events: Events) -> None:
    told: list[Any] = []

    def failing() -> Waits[None]:
        raise KeyError("x")
        yield

    def ending() -> Waits[int]:
        return 7
        yield

    events.spawn(failing(), told.append, told.append)
    events.spawn(ending(), told.append, told.append)
    assert isinstance(told[0], KeyError)
    assert told[1:] == [7]


def test_a_cancelled_call_lets_go_and_nobody_is_told(events: Events, bell: Doorbell) -> None:
    told: list[Any] = []

    def holding() -> Waits[None]:
        try:
            yield Wait(30, bell)
        finally:
            told.append("let go")

    task = events.spawn(holding(), told.append, told.append)
    task.cancel()
    task.cancel()
    bell.ring()
    events.poll(0.01)
    assert told == ["let go"]


def test_what_fails_in_one_event_holds_no_other_up(
    events: Events, bell: Doorbell, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    events.later(0, lambda: told.append("before"))
    events.later(0, lambda: os.close(-1))
    events.later(0, lambda: told.append("after"))
    events.watch(bell.fileno(), lambda: os.close(-1))
    bell.ring()
    events.poll(1)
    assert told == ["before", "after"]
    assert [record.message for record in caplog.records] == ["an event failed in the gateway"] * 2


def test_timers_that_were_cancelled_are_forgotten_before_their_time(events: Events) -> None:
    kept = events.later(3600, lambda: None)
    for _ in range(5 * CANCELLED_KEPT):
        events.later(3600, lambda: None).cancel()
    assert len(events._timers) <= 2 * CANCELLED_KEPT
    kept.cancel()


def test_a_descriptor_that_was_closed_and_given_again_is_watched_anew(events: Events) -> None:
    told: list[str] = []
    first = os.eventfd(1)
    events.watch(first, lambda: told.append("first"))
    os.close(first)
    second = os.eventfd(1)
    assert second == first
    events.watch(second, lambda: told.append("second"))
    events.poll(1)
    events.unwatch(second)
    os.close(second)
    assert told == ["second"]
