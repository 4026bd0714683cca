"""What is done beside the gateway's loop: whose turn it is, and who gives way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from penstock.core.errors import ResourceLimitError
from penstock.server.gateway.events import Events
from penstock.server.gateway.lookup_thread import QUEUED_MAX, LookupThread


class Ground:
    """`told` has what the loop was told, in order; work of "held" waits for `go`."""

    def __init__(self) -> None:
        self.events = Events()
        self.aside = LookupThread(self.events)
        self.told: list[object] = []
        self.go = threading.Event()
        self.begun = threading.Event()
        self.ask("held", self._hold)
        assert self.begun.wait(45)

    def _hold(self) -> object:
        self.begun.set()
        assert self.go.wait(45)
        return "held"

    def ask(self, who: str, work: Callable[[], object]) -> None:
        self.aside.run(who, work, self.told.append, self.told.append)

    def finish(self, count: int) -> list[object]:
        self.go.set()
        until = time.monotonic() + 45
        while len(self.told) < count and time.monotonic() < until:
            self.events.poll(0.1)
        return self.told


@pytest.fixture
def ground() -> Iterator[Ground]:
    ground = Ground()
    yield ground
    ground.go.set()
    ground.events.close()


def test_who_asks_much_waits_for_itself(ground: Ground) -> None:
    for number in range(3):
        ground.ask("hog", partial("hog {}".format, number))
    for number in range(2):
        ground.ask("calm", partial("calm {}".format, number))
    assert ground.finish(6) == ["held", "hog 0", "calm 0", "hog 1", "calm 1", "hog 2"]


def test_where_there_is_too_much_it_gives_way_who_has_the_most(ground: Ground) -> None:
    for number in range(QUEUED_MAX):
        ground.ask("hog", partial(int, number))
    ground.ask("calm", lambda: "calm")
    [refused] = ground.told
    assert isinstance(refused, ResourceLimitError)
    assert "QUEUED_MAX" in str(refused)
    ground.ask("hog", lambda: "one more")
    assert isinstance(ground.told[1], ResourceLimitError)
    done = ground.finish(2 + 1 + QUEUED_MAX)[2:]
    assert set(done) == {"held", "calm", *range(QUEUED_MAX - 1)}
    assert done.index("calm") <= 2


def test_what_fails_is_told_as_that_and_the_next_is_done(ground: Ground) -> None:
    ground.ask("one", lambda: 1 // 0)
    ground.ask("two", lambda: "fine")
    held, failed, fine = ground.finish(3)
    assert (held, fine) == ("held", "fine")
    assert isinstance(failed, ZeroDivisionError)
