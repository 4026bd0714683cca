"""One life of the coordinator over a real lane and log: what is answered and sent, and when."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from coordinator_fixture import TOPIC_ID, World, running, turns

from penstock.cluster.groups import GroupLimits, GroupMachine
from penstock.cluster.shares import KnownEnds, ShareGroups, TransactedJobs
from penstock.cluster.shares import groups as share_groups
from penstock.cluster.transactions import TransactionMachine
from penstock.core.control import ControlType, read_control
from penstock.core.errors import ErrorCode, PenstockError, TransactionError
from penstock.core.header import ATTR_CONTROL, parse
from penstock.ipc import sharing
from penstock.server.config import NodeConfig
from penstock.server.coordinator import epoch as epoch_module
from penstock.server.coordinator import lanes as lanes_module
from penstock.server.coordinator import markers as markers_module
from penstock.server.coordinator import share_requests, unsynced_markers
from penstock.server.coordinator.brokers import Suspect
from penstock.server.coordinator.epoch import Life, Machines
from penstock.server.coordinator.opening import CoordinatorOpening
from penstock.server.coordinator.producer_holders import Holders
from penstock.server.security.permits import EVERYTHING

PRODUCER = 4711
PLACE = (TOPIC_ID, 0)


@pytest.fixture
def run(tmp_path):
    """Run a coroutine function on a world of its own."""
    return running(partial(World, tmp_path))


def begun(world: World) -> Life:
    groups, shares = GroupMachine(GroupLimits()), ShareGroups(max)
    machines = Machines(groups, TransactionMachine(groups, TransactedJobs(shares)), shares)
    made = Life(
        machines, world.journal(), world.mailbox,
        clock=time.time, doubt=lambda: 0.0, pages=lambda: {TOPIC_ID: [0]},
        notify=lambda _: None, page=lambda _: world.state,
    )  # fmt: skip
    made.decide(lambda now: groups.topics_changed(now, {}))
    return made


def markers(world: World) -> list[tuple[ControlType, int]]:
    """Control batches that stand in the lane, with the epochs that they carry."""
    frames = world._receiver(world.lanes()[0]).frames(100, 1 << 20)
    heads = [(parse(frame.batch), frame.batch) for frame in frames]
    return [
        (read_control(bytes(image), 0, head).type, head.producer_epoch)
        for head, image in heads
        if head.attributes & ATTR_CONTROL
    ]


def settle(world: World) -> None:
    """The writer takes all that is there, and all of it is on the device."""
    while world.drain():
        pass
    world.sync()
    world.mailbox.look()


async def until(condition: Callable[[], bool]) -> None:
    """Within a bound."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def opened(world: World, life: Life) -> None:
    """A transaction is open in the one partition, on the device."""
    transactions = life.machines.transactions
    life.decide(lambda now: transactions.init(now, "pay", 60.0, PRODUCER))
    life.decide(lambda now: transactions.add_partitions(now, "pay", PRODUCER, 0, [PLACE]))
    settle(world)
    await turns()


async def decided(world: World) -> Life:
    """The transaction is to commit, which is on the device; its markers are not written yet."""
    life = begun(world)
    await opened(world, life)
    life.decide(lambda now: life.machines.transactions.end(now, "pay", PRODUCER, 0, True))
    settle(world)
    return life


@pytest.mark.rule(15)
@pytest.mark.parametrize("commit", [True, False])
def test_rule_15_markers_leave_when_their_decision_is_on_the_device(run, commit):
    async def scenario(world):
        life = begun(world)
        await opened(world, life)
        transactions = life.machines.transactions
        life.decide(lambda now: transactions.end(now, "pay", PRODUCER, 0, commit))
        await turns()
        assert markers(world) == []
        while world.drain():
            pass
        world.mailbox.look()
        await turns()
        assert markers(world) == [], "appended, and a power cut may still take it"
        settle(world)
        await turns()
        assert markers(world) == [(ControlType.COMMIT if commit else ControlType.ABORT, 1)]
        life.end(PenstockError("over"))

    run(scenario)


def test_a_marker_is_marked_when_it_is_on_the_device_itself(run, monkeypatch):
    monkeypatch.setattr(unsynced_markers, "EVERY", 0.01)

    async def scenario(world):
        life = await decided(world)
        transactions = life.machines.transactions
        await turns()
        while world.drain():
            pass
        world.mailbox.look()
        await turns()
        assert not transactions.is_marking("pay"), "it is written"
        assert transactions.is_open(PRODUCER, 0), "and may be taken back by a power cut"
        world.sync()
        await until(lambda: not transactions.is_open(PRODUCER, 0))
        life.end(PenstockError("over"))

    run(scenario)


def test_a_marker_that_is_refused_for_now_is_sent_again(run, monkeypatch):
    monkeypatch.setattr(markers_module, "RETRY", 0.01)

    async def scenario(world):
        life = await decided(world)
        await turns()
        assert markers(world)
        world.drain(error=int(ErrorCode.PARTITION_OFFLINE))
        world.mailbox.look()
        await turns()
        assert markers(world) == []
        await until(lambda: bool(markers(world)))
        assert markers(world) == [(ControlType.COMMIT, 1)]
        life.end(PenstockError("over"))

    run(scenario)


def test_an_answer_waits_until_its_decision_is_in_the_log(run):
    async def scenario(world):
        life = begun(world)
        groups = life.machines.groups
        deadline = time.monotonic() + 20
        asked = asyncio.ensure_future(
            life.carried_out(
                lambda now: groups.seek(now, "g", [], False), deadline, lambda answer: "done"
            )
        )
        await turns()
        assert not asked.done()
        while world.drain():
            pass
        world.mailbox.look()
        assert await asked == "done"
        life.end(PenstockError("over"))

    run(scenario)


def test_a_refusal_waits_for_what_refused_it(run):
    """Decided a moment ago, that may come to nothing: the asker would have been refused by what
    never was."""

    async def scenario(world):
        life = begun(world)
        await opened(world, life)
        transactions = life.machines.transactions
        life.decide(lambda now: transactions.init(now, "pay", 60.0, PRODUCER))
        deadline = time.monotonic() + 20
        refused = asyncio.ensure_future(
            life.carried_out(
                lambda now: transactions.add_partitions(now, "pay", PRODUCER, 0, [PLACE]),
                deadline,
                lambda answer: answer,
            )
        )
        await turns()
        assert not refused.done()
        while world.drain():
            pass
        world.mailbox.look()
        with pytest.raises(TransactionError, match="fenced"):
            await refused
        life.end(PenstockError("over"))

    run(scenario)


def test_a_refusal_by_what_came_to_nothing_is_not_told(run):
    async def scenario(world):
        life = begun(world)
        await opened(world, life)
        transactions = life.machines.transactions
        life.decide(lambda now: transactions.init(now, "pay", 60.0, PRODUCER))
        refused = asyncio.ensure_future(
            life.carried_out(
                lambda now: transactions.add_partitions(now, "pay", PRODUCER, 0, [PLACE]),
                time.monotonic() + 20,
                lambda answer: answer,
            )
        )
        await turns()
        world.drain(error=int(ErrorCode.STALE_PRODUCER_EPOCH))
        world.mailbox.look()
        with pytest.raises(PenstockError, match="ask again"):
            await refused
        life.end(PenstockError("over"))

    run(scenario)


def test_the_sweep_aborts_what_nobody_knows_and_nothing_else(run):
    async def scenario(world):
        life = begun(world)
        await opened(world, life)
        life.sweep.judge([Suspect(PRODUCER, 0, TOPIC_ID, 0)])
        assert (life.sweep.swept, markers(world)) == (0, [])
        life.sweep.judge([Suspect(PRODUCER + 1, 3, TOPIC_ID, 0)])
        assert (life.sweep.swept, markers(world)) == (1, [(ControlType.ABORT, 4)])
        life.end(PenstockError("over"))

    run(scenario)


@pytest.mark.parametrize("has_room", [True, False], ids=["room", "none at first"])
@pytest.mark.parametrize("what", [Life.take_away, Life.forget_topics])
def test_all_is_dropped_of_a_share_group_or_topic_that_is_gone(run, monkeypatch, what, has_room):
    """In as many parts as it takes."""
    monkeypatch.setattr(share_groups, "TOMBSTONES_MAX", 3)
    monkeypatch.setattr(epoch_module, "AGAIN", 0.01)

    async def scenario(world):
        life = begun(world)
        shares, ends = life.machines.shares, [KnownEnds(PLACE, 0, 100)]
        for _ in range(7):  # a snapshot, and the records behind it
            life.decide(lambda now: shares.acquire(now, "jobs", "m", 1, ends, [TOPIC_ID]))
        assert list(shares.names()) == ["jobs"]
        with monkeypatch.context() as full:
            if not has_room:
                full.setattr(lanes_module, "QUEUED_MAX", 0)
            what(life, "jobs" if what is Life.take_away else {})
        if has_room:
            assert not shares.names()
        await until(lambda: not shares.names())
        life.end(PenstockError("over"))

    run(scenario)


def test_a_share_group_is_described_by_pages_of_its_partitions(run, monkeypatch):
    monkeypatch.setattr(share_requests, "PARTITIONS_PER_PAGE", 2)

    async def scenario(world):
        life = begun(world)
        shares, ends = life.machines.shares, [KnownEnds((TOPIC_ID, at), 0, 4) for at in range(3)]
        life.decide(lambda now: shares.acquire(now, "jobs", "m", 10, ends, [TOPIC_ID]))
        settle(world)
        nothing: Any = None
        requests = share_requests.ShareRequests(
            life, nothing, {TOPIC_ID: [7]}, {TOPIC_ID: "jobs"}, nothing, time.time,
            time.monotonic() + 20,
        )  # fmt: skip
        client: Any = SimpleNamespace(permits=EVERYTHING)
        pages: list[Any] = [
            await requests.answer(client, sharing.DescribeShare("jobs", skip)) for skip in (0, 2)
        ]
        assert [[it.partition for it in page.partitions] for page in pages] == [[0, 1], [2]]
        assert [page.more for page in pages] == [True, False]
        assert [page.leased for page in pages] == [{"m": 10}] * 2, "of all partitions"
        assert sum(it.leased for page in pages for it in page.partitions) == 10
        assert [it.page for it in pages[0].partitions] == [7, share_requests.NO_PAGE]
        life.end(PenstockError("over"))

    run(scenario)


@pytest.mark.rule(19)
def test_rule_19_a_dead_processs_transactions_are_aborted_once_its_lanes_are_drained(run):
    async def scenario(world):
        class Gone:
            owner = (77, 5)

        abandoned: list[int] = []
        accepts = [True]

        def abandon(producer_id: int) -> bool:
            if accepts[0]:
                abandoned.append(producer_id)
            return accepts[0]

        holders = Holders(world.grants, abandon)
        holders.note(PRODUCER, Gone())  # type: ignore[arg-type]
        lanes = []
        for writer in (0, 1):
            lane, fd = world.book.make(writer, None, PRODUCER + 1, 77, 5)
            lanes.append((lane, fd))
        holders.process_died((77, 5))
        holders.process_died((78, 5))
        assert abandoned == [], "what is in its lanes comes first"
        for lane, _ in lanes:
            world.book.remove(lane)
            holders.lane_gone(lane)
            assert abandoned == ([PRODUCER] if lane is lanes[-1][0] else [])
        accepts[0] = False
        holders.note(PRODUCER, Gone())  # type: ignore[arg-type]
        holders.process_died((77, 5))
        accepts[0] = True
        holders.look()
        assert abandoned == [PRODUCER, PRODUCER], "not now: looked at again"

        for _, fd in lanes:
            os.close(fd)

    run(scenario)


def test_offsets_are_kept_for_as_long_as_the_node_says(tmp_path):
    config = NodeConfig(str(tmp_path), offsets_retention=123.0, stage_timeout=45.0)
    nothing: Any = None
    made = CoordinatorOpening(
        config, nothing, nothing, 1, nothing, nothing, None,
        broken=nothing, woken=nothing, leads_in=nothing,
    )  # fmt: skip
    groups, transactions, _ = made.machines()
    assert groups._limits.offsets_retention == 123.0
    assert transactions._limits.stage_timeout == 45.0
