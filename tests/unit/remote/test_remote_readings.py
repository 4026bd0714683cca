"""Cursors of a remote consumer that go from broker to broker: each goes on where it was, by the one
it is at alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.remote.fetch import FetchCursors
from penstock.cluster.frames import messages as fr

PAGE, CURSOR = 7, 3


class Branch:
    """A broker's end: what it is sent."""

    def __init__(self, broker: int) -> None:
        self.broker = self.number = broker
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Far:
    """The consumer's end: the errors that come for it."""

    def __init__(self) -> None:
        self.failures: list[Any] = []

    def fail(self, cursor: int, message: fr.CursorFailed) -> None:
        self.failures.append(message)


class Ways:
    """Who leads, as the test says; `None`: no branch yet."""

    def __init__(self) -> None:
        self.leads = 1
        self.branches = {1: Branch(1), 2: Branch(2)}
        self.doubted: list[int] = []

    def settled(self, page: int, now: float, waited: float = 0.0) -> int:
        return self.leads

    def leader(self, page: int) -> int:
        return self.leads

    def trust(self, page: int) -> None: ...

    def doubt(self, page: int, broker: int, now: float) -> None:
        self.doubted.append(broker)
        self.leads = fr.NOBODY

    def reach(self, broker: int) -> Branch | None:
        return self.branches.get(broker)


class World:
    def __init__(self) -> None:
        self.far, self.ways = Far(), Ways()
        far: Any = self.far
        ways: Any = self.ways
        self.readings = FetchCursors(far, ways, ways.reach)
        self.readings.take(fr.Fetch(9, CURSOR, PAGE, b"t" * 16, 0, 100, 4, False, 1000), 0.0)

    def asked(self, broker: int) -> fr.Fetch:
        found: fr.Fetch = [m for m in self.ways.branches[broker].sent if isinstance(m, fr.Fetch)][
            -1
        ]
        return found

    def fetched(
        self, broker: int, start: int, end: int, payload: bytes = b"batch", epoch: int = 4
    ) -> bool:
        number = self.asked(broker).cursor
        message = fr.Fetched(broker, number, start, end, 0, leader_epoch=epoch)
        found = self.readings.fetched(self.ways.branches[broker], message, len(payload))  # type: ignore[arg-type]
        assert found in (CURSOR, None)
        return found is not None


@pytest.fixture
def world() -> World:
    return World()


def test_a_cursor_goes_on_at_another_broker_where_it_was(world: World) -> None:
    first = world.asked(1)
    assert (first.page, first.offset, first.leader_epoch, first.credit) == (PAGE, 100, 4, 1000)
    assert world.fetched(1, 100, 150, epoch=5)
    world.ways.leads = 2
    world.readings.led_otherwise(1.0)
    world.readings.pump(1.0)
    assert isinstance(world.ways.branches[1].sent[-1], fr.Drop)
    second = world.asked(2)
    assert (second.offset, second.leader_epoch) == (150, 5)
    assert second.credit == 1000 - len(b"batch"), "what is not consumed is not given again"
    assert second.cursor != first.cursor
    assert world.fetched(2, 150, 160)


def test_what_the_broker_before_sent_late_is_not_handed_on(world: World) -> None:
    assert world.fetched(1, 100, 150)
    world.ways.leads = 2
    world.readings.led_otherwise(1.0)
    world.readings.pump(1.0)
    assert not world.fetched(1, 150, 170)
    late = fr.Fetched(1, world.asked(2).cursor, 150, 170, 0)
    assert world.readings.fetched(world.ways.branches[1], late, 1) is None  # type: ignore[arg-type]
    gone = fr.CursorFailed(1, world.asked(2).cursor, 150, "CorruptBatchError", "late")
    assert not world.readings.failed(world.ways.branches[1], gone, 1.0)  # type: ignore[arg-type]
    assert world.far.failures == []
    assert world.fetched(2, 150, 160)


def test_who_is_told_that_another_leads_asks_there_and_tells_nobody(world: World) -> None:
    failed = fr.CursorFailed(1, world.asked(1).cursor, 100, "NotLeaderError", "not here")
    assert not world.readings.failed(world.ways.branches[1], failed, 1.0)  # type: ignore[arg-type]
    assert world.ways.doubted == [1]
    assert world.readings.are_waiting
    world.ways.leads = 2
    world.readings.pump(2.0)
    assert world.asked(2).offset == 100
    assert world.far.failures == []
    damaged = fr.CursorFailed(2, world.asked(2).cursor, 100, "CorruptBatchError", "damaged")
    assert world.readings.failed(world.ways.branches[2], damaged, 2.0)  # type: ignore[arg-type]
    assert [told.error for told in world.far.failures] == ["CorruptBatchError"]


def test_credit_reaches_the_broker_that_it_is_at(world: World) -> None:
    world.readings.take(fr.More(9, CURSOR, 50), 1.0)
    number = world.asked(1).cursor
    assert world.ways.branches[1].sent[-1] == fr.More(1, number, 50)
    world.readings.take(fr.Drop(9, CURSOR), 2.0)
    assert world.ways.branches[1].sent[-1] == fr.Drop(1, number)
    assert not world.fetched(1, 100, 150)
