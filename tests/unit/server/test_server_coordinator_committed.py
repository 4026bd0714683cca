"""The coordinator's log where it is replicated: acknowledged means committed, in one leader epoch.

Who leads and what is committed is in the test's hand; log, lanes, tables and doorbells are real.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from coordinator_fixture import (
    BrokerWorld,
    running,
    some,
    turns,
    waiting,
)

from penstock.core.errors import ErrorCode, NotLeaderError, ResourceLimitError
from penstock.ipc import layout as lo
from penstock.server.coordinator import lanes as mailbox_module
from penstock.server.coordinator.replay import fence


@pytest.fixture
def run(tmp_path):
    """Run a coroutine function on a world of its own."""
    return running(partial(BrokerWorld, tmp_path))


def test_an_answer_waits_until_the_hw_has_passed_it(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(2), durable=False)
        journal.append(some(3), durable=False)
        answer = waiting(journal)
        world.drain()
        world.mailbox.look()
        await turns()
        assert not answer.done()
        world.commit(4)  # the first decision and two records of the second
        world.mailbox.look()
        await turns()
        assert not answer.done()
        assert world.mailbox.in_flight == 1
        world.commit()
        await answer
        assert world.mailbox.in_flight == 0

    run(scenario)


def test_the_writer_rings_when_the_hw_moves(run, monkeypatch):
    monkeypatch.setattr(mailbox_module, "BACKOFF_LAST", 30.0)  # no belt

    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        world.drain()
        await turns()
        while world.woken < 1:  # the answer of the writer is taken in
            await asyncio.sleep(0)
        world.commit()
        await asyncio.wait_for(answer, 45)

    run(scenario)


def test_a_durable_answer_waits_for_fsync_and_for_the_others(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=True)
        answer = waiting(journal, durable=True)
        world.drain()
        world.sync()
        world.mailbox.look()
        await turns()
        assert not answer.done()
        world.commit()
        await answer

        journal.append(some(1), durable=True)
        answer = waiting(journal, durable=True)
        world.drain()
        world.commit()
        world.mailbox.look()
        await turns()
        assert not answer.done()
        world.sync()
        await answer

    run(scenario)


@pytest.mark.parametrize("end", ["follows", "another epoch", "refused"])
def test_what_is_not_committed_when_the_leader_epoch_ends_is_asked_again_elsewhere(run, end):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        world.drain()
        world.commit()
        world.mailbox.look()
        journal.append(some(1), durable=False)
        journal.append(some(1), durable=True)
        answers = [waiting(journal), waiting(journal, durable=True)]
        if end == "refused":
            world.drain(error=ErrorCode.NOT_LEADER)
        else:
            world.drain()
            (world.follow if end == "follows" else world.lead)(2)
            world.commit()  # too late: another leader may have put something else there
        for answer in answers:
            with pytest.raises(NotLeaderError, match="ask again"):
                await answer
        assert len(world.broken) == 1
        with pytest.raises(NotLeaderError):
            journal.append(some(1), durable=False)

    run(scenario)


def test_an_idle_epoch_ends_with_its_leader_epoch_too(run):
    """Or a coordinator that was deposed would go on answering what it need not write down."""

    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        world.drain()
        world.commit()
        world.mailbox.look()
        await journal.settled(durable=False, timeout=1.0)
        world.follow(2)
        with pytest.raises(NotLeaderError):
            await journal.settled(durable=False, timeout=1.0)
        assert world.broken

    run(scenario)


def test_a_batch_that_came_in_before_another_epoch_is_not_taken_for_one_of_it(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        world.drain()  # in epoch 1, and nobody looks before epoch 3 has begun
        world.follow(2)
        world.lead(3)
        world.commit()
        with pytest.raises(NotLeaderError):
            await answer

    run(scenario)


def test_a_full_disk_is_no_change_of_leaders(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        world.drain()
        world.state.publish_status(lo.STATUS_FULL)
        world.commit()
        await answer

    run(scenario)


@pytest.mark.rule(17)
def test_rule_17_the_fence_has_to_be_committed(run):
    async def scenario(world):
        journal = world.journal()
        task = asyncio.ensure_future(fence(journal, "boot", 1))
        await turns()
        world.drain()
        world.mailbox.look()
        await turns()
        assert not task.done()
        world.commit()
        assert await task == 0
        assert journal.leader_epoch == 1

    run(scenario)


def test_what_nobody_commits_is_bounded(run, monkeypatch):
    monkeypatch.setattr(mailbox_module, "QUEUED_MAX", 3)

    async def scenario(world):
        journal = world.journal()
        for _ in range(3):
            world.mailbox.check_room()
            journal.append(some(1), durable=False)
            world.end_turn()
        world.drain()
        world.mailbox.look()
        with pytest.raises(ResourceLimitError, match="wait to be committed"):
            world.mailbox.check_room()
        world.commit()
        world.mailbox.look()
        world.mailbox.check_room()

    run(scenario)
