"""The coordinator's lane and log: what is waited for, what is woken, what a refusal ends (rule 17).

The writer is in the test's hand; log, lanes and doorbells are real.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

import pytest
from coordinator_fixture import (
    World,
    running,
    some,
    turns,
    waiting,
)

from penstock.cluster.decisions import Record
from penstock.core.errors import ErrorCode, PenstockError, PenstockTimeout, ResourceLimitError
from penstock.server.coordinator import lanes as mailbox_module
from penstock.server.coordinator.replay import FENCE_KEY, fence, replay


@pytest.fixture
def run(tmp_path):
    """Run a coroutine function on a world of its own."""
    return running(partial(World, tmp_path))


def test_an_answer_waits_for_everything_that_was_decided_before_it(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(2), durable=False)
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        assert world.drain(1) == 1
        world.mailbox.look()
        await turns()
        assert not answer.done()
        assert world.drain() == 1
        await answer
        assert world.log.log_end == 3

    run(scenario)


@pytest.mark.rule(15)
def test_rule_15_a_durable_answer_waits_for_fsync(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=True)
        journal.append(some(1), durable=False)
        answer, other = waiting(journal, durable=True), waiting(journal)
        world.drain()
        await other
        assert not answer.done()
        assert journal.is_waited
        world.sync()
        await answer
        assert not journal.is_waited

    run(scenario)


def test_what_has_to_be_durable_is_said_in_the_frame(run):
    async def scenario(world):
        journal = world.journal()
        for durable in ([False], [True], [False, False], [False, True, False], [False]):
            for each in durable:
                journal.append(some(1), durable=each)
            world.end_turn()
        frames = world._receiver(world.lanes()[0]).frames(10, 1 << 20)
        assert [frame.flags for frame in frames] == [0, 1, 0, 1, 0]

    run(scenario)


@pytest.mark.rule(17)
def test_decisions_of_one_turn_are_one_batch_and_one_answer(run):
    async def scenario(world):
        journal = world.journal()
        end = await opened(world, journal)
        answers = []
        for number in range(10):
            journal.append(some(1, number), durable=False)
            answer = journal.settling(durable=False, timeout=10.0)
            assert answer is not None, "nothing is in the log yet"
            answers.append(answer)
        await turns()
        assert not any(answer.done() for answer in answers)
        assert world.drain() == 1
        for answer in answers:
            await answer
        assert world.log.log_end == end + 11
        found = await replayed(world, world.log.log_end)
        assert found[1:] == [record for number in range(10) for record in some(1, number)]

    run(scenario)


@pytest.mark.rule(15)
def test_rule_15_of_one_turn_only_durable_answers_wait_for_fsync(run):
    async def scenario(world):
        journal = world.journal()
        await opened(world, journal)
        world.sync()
        plain, durable = [], []
        for _ in range(3):
            journal.append(some(1), durable=False)
            plain.append(waiting(journal))
            journal.append(some(1), durable=True)
            durable.append(waiting(journal, durable=True))
        await turns()
        assert world.drain() == 1
        for answer in plain:
            await answer
        assert not any(answer.done() for answer in durable)
        world.sync()
        for answer in durable:
            await answer

    run(scenario)


@pytest.mark.rule(17)
def test_a_refused_batch_is_told_to_all_whose_decisions_are_in_it(run):
    async def scenario(world):
        journal = world.journal()
        await opened(world, journal)
        answers = []
        for _ in range(3):
            journal.append(some(1), durable=True)
            answers.append(waiting(journal, durable=True))
        await turns()
        world.drain(error=ErrorCode.POISONED)
        for answer in answers:
            with pytest.raises(PenstockTimeout, match="ask again"):
                await answer

    run(scenario)


def test_many_decisions_of_one_turn_are_several_batches_in_order(run):
    async def scenario(world):
        journal = world.journal()
        end = await opened(world, journal)
        sizes = [3000, 3000, 3000, 12_000, 10, 3000]  # half a frame is the bound, which is 8 KiB
        sent = [Record(b"\x92\xa1k%c" % number, bytes(size)) for number, size in enumerate(sizes)]
        for record in sent:
            journal.append([record], durable=False)
        answer = waiting(journal)
        await turns()
        assert world.drain() == 4
        await answer
        assert world.log.log_end == end + 1 + len(sent)
        assert (await replayed(world, world.log.log_end))[1:] == sent

    run(scenario)


def test_nothing_that_was_gathered_is_sent_after_the_end_of_its_epoch(run):
    async def scenario(world):
        journal = world.journal()
        end = await opened(world, journal)
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        await turns(1)  # the answer is waited for
        journal.append(some(1), durable=False)
        journal.fail("the test says so")
        world.end_turn()
        world.drain()
        with pytest.raises(PenstockTimeout, match="the test says so"):
            await answer
        assert world.log.log_end <= end + 2

    run(scenario)


def test_a_batch_that_cannot_be_made_is_told_to_all_who_wait_and_ends_the_epoch(run, monkeypatch):
    """The answer to the next one would else tell them that theirs is in the log."""

    async def scenario(world):
        journal = world.journal()
        await opened(world, journal)
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        monkeypatch.setattr(journal, "_encoded", lambda records: 1 // 0)
        await turns()
        monkeypatch.undo()
        with pytest.raises(PenstockTimeout, match="ZeroDivisionError"):
            await answer
        with pytest.raises(PenstockTimeout):
            journal.append(some(1), durable=False)

    run(scenario)


def test_decisions_of_one_turn_are_one_wake(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        world._receiver(world.lanes()[0]).publish_sleeping(5)
        for _ in range(10):
            journal.append(some(1), durable=False)
        await turns()
        assert os.eventfd_read(world.seats.doorbell.fileno()) == 1

    run(scenario)


def test_what_finds_no_room_goes_later_and_in_order(run):
    async def scenario(world):
        journal = world.journal()
        big = [Record(b"\x92\xa1k1", bytes(10_000))]
        for _ in range(30):
            journal.append(big, durable=False)
        assert world.mailbox.in_flight == 30
        answer = waiting(journal)
        while not answer.done():
            world.drain(2)
            await turns()
        await answer
        assert world.log.log_end == 30
        assert world.mailbox.in_flight == 0

    run(scenario)


def test_too_many_waiting_decisions_are_refused_before_they_are_decided(run, monkeypatch):
    monkeypatch.setattr(mailbox_module, "QUEUED_MAX", 3)

    async def scenario(world):
        journal = world.journal()
        big = [Record(b"\x92\xa1k1", bytes(10_000))]
        while world.mailbox.in_flight < 9:  # more than the lane has room for
            world.mailbox.check_room()
            journal.append(big, durable=False)
        with pytest.raises(ResourceLimitError, match="QUEUED_MAX=3"):
            world.mailbox.check_room()
        world.drain()
        await turns()
        world.mailbox.look()
        world.mailbox.check_room()

    run(scenario)


def test_a_decision_that_fits_no_batch_is_refused_and_the_next_one_counts(run):
    async def scenario(world):
        journal = world.journal()
        with pytest.raises(ResourceLimitError, match="lane_capacity"):
            journal.append([Record(b"\x92\xa1k1", bytes(20_000))], durable=False)
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        world.drain()
        await answer

    run(scenario)


@pytest.mark.rule(17)
def test_rule_17_a_refusal_ends_the_epoch_for_everybody_who_waits(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        journal.append(some(1), durable=True)
        waits = [waiting(journal), waiting(journal, durable=True)]
        world.drain(error=ErrorCode.POISONED)
        for wait in waits:
            with pytest.raises(PenstockTimeout, match=r"POISONED.*ask again"):
                await wait
        assert len(world.broken) == 1
        with pytest.raises(PenstockError):
            journal.append(some(1), durable=False)

    run(scenario)


def test_a_wait_has_a_bound_and_what_was_waited_for_may_still_come(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=True)
        with pytest.raises(PenstockTimeout, match="ask again"):
            await journal.settled(durable=True, timeout=0.01)
        world.drain()
        world.sync()
        await journal.settled(durable=True, timeout=10.0)

    run(scenario)


def test_a_ring_that_was_missed_is_made_good_by_the_belt(run):
    async def scenario(world):
        journal = world.journal()
        journal.append(some(1), durable=False)
        answer = waiting(journal)
        world._receiver(world.lanes()[0]).rung = world.mailbox._ticket  # as if it had rung for it
        world.drain()
        await answer

    run(scenario)


def test_a_dropped_lane_is_told_and_the_next_batch_has_another(run):
    async def scenario(world):
        from penstock.ipc import messages as ms

        journal = world.journal()
        journal.append(some(1), durable=False)
        [before] = world.lanes()
        world.grants.dropped(ms.LaneDropped(before, "garbage"))
        assert "garbage" in world.lost[0]
        journal = world.journal(2)
        journal.append(some(1), durable=False)
        assert world.lanes() != [before]
        answer = waiting(journal)
        world.drain()
        await answer

    run(scenario)


# --- the fence, and what stands below it ---------------------------------------------------------
async def opened(world, journal):
    """The fence of that epoch, drained."""
    task = asyncio.ensure_future(fence(journal, "boot", 1))
    while not task.done():
        await turns()
        world.drain()
    return await task


async def replayed(world, end):
    found: list[Record] = []
    await replay(world.folder, world.state, end, found.append)
    return found


@pytest.mark.rule(17)
def test_rule_17_what_an_older_epoch_left_in_a_lane_is_refused_behind_the_fence(run):
    async def scenario(world):
        old = world.journal(1)
        await opened(world, old)
        old.append(some(1, 1), durable=False)
        world.drain()
        await turns()
        old.append(some(1, 2), durable=False)  # nobody drains this one yet
        [left] = world.lanes()
        new = world.journal(2, world.new_mailbox())
        end = await opened(world, new)
        assert world.drain(lane=left) == 1, "the older lane is drained behind the fence"
        world.mailbox.look()
        assert "STALE_PRODUCER_EPOCH" in str(world.broken[0])
        found = await replayed(world, end)
        assert [record.key for record in found] == [FENCE_KEY, some(1, 1)[0].key]
        new.append(some(1, 3), durable=False)
        answer = waiting(new)
        world.drain()
        await answer
        assert world.log.log_end == end + 2

    run(scenario)


def test_a_replay_gives_everything_below_the_fence_in_order_over_segments(run):
    async def scenario(world):
        journal = world.journal()
        await opened(world, journal)
        sent = [Record(FENCE_KEY, None)]
        for number in range(200):
            value = None if number % 7 == 0 else bytes(500)
            decision = [Record(b"\x92\xa1a%c" % (number % 250), value), Record(b"\x91\xa1b", b"")]
            journal.append(decision, durable=False)
            sent += decision
            world.drain()
            world.mailbox.look()
        assert len([name for name in os.listdir(world.folder) if name.endswith(".log")]) > 3
        end = await opened(world, world.journal(2))
        found = await replayed(world, end)
        assert [record.key for record in found] == [record.key for record in sent]
        assert found[1:] == sent[1:]

    run(scenario)
