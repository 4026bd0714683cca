"""Consumers of groups in a loop: the same guarantees, and a loop that goes on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from event_loops import (
    WITHIN,
    Ticker,
    eventually,
    held,
    no_more_than,
    run,
)
from seeds import seed_of

from penstock import aio
from penstock.core.errors import ClosedError, ConfigError, GroupError, UnknownTopicError
from penstock.testing import Broker, produce, wait_until

pytestmark = pytest.mark.over_tcp


@pytest.fixture
def own_node() -> Iterator[Broker]:
    with Broker(writers=1) as broker:
        yield broker


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_two_members_share_the_partitions_and_one_takes_over_what_the_other_gave_back(node: Broker):
    topic = node.create_topic(partitions=4)

    async def main() -> None:
        async with aio.connect(node.url) as client, Ticker() as ticker:
            got: list[bytes | None] = []

            async def read(consumer: aio.GroupConsumer) -> None:
                async for record in consumer:
                    got.append(record.value)

            first = await client.consumer(topic, group="sharing", commit_interval=0.01)
            second = await client.consumer(topic, group="sharing", commit_interval=0.01)
            reading = [asyncio.create_task(read(member)) for member in (first, second)]
            await asyncio.to_thread(produce, node, topic, [(value, value) for value in numbers(50)])
            await eventually(lambda: len(got) == 50, "the first records")
            async with asyncio.timeout(WITHIN):
                while first.metrics()["assigned"] + second.metrics()["assigned"] < 4:
                    await ticker.more(1)
            reading[0].cancel()
            await asyncio.gather(reading[0], return_exceptions=True)
            await first.close()
            with pytest.raises(ClosedError):
                await first.poll()
            await asyncio.to_thread(
                produce, node, topic, [(value, value) for value in numbers(50, 50)]
            )
            await eventually(lambda: set(got) == set(numbers(100)), "all of them")
            assert first.member_id != second.member_id
            await second.close()
            with pytest.raises(ClosedError):
                await reading[1]

    run(main())


def test_manual_commits_are_awaited_and_a_successor_goes_on_there(node: Broker):
    topic = node.create_topic()
    produce(node, topic, numbers(10))

    async def main() -> None:
        options: dict[str, Any] = {"group": "by-hand", "guarantee": "manual"}
        async with aio.connect(node.url) as client:
            async with client.consumer(topic, **options) as consumer:
                batch = await consumer.poll(4, timeout=WITHIN)
                await consumer.commit(batch)
                assert consumer.committed() == {(topic, 0): 4}
                assert (await consumer.poll(3, timeout=WITHIN)).offsets.tolist() == [4, 5, 6]
                await consumer.rewind()
                assert consumer.position(topic, 0) == 4
            async with client.consumer(topic, follow=False, **options) as consumer:
                assert await consumer.assignment() == [(topic, 0)]
                sizes = [len(batch) async for batch in consumer.batches(4)]
                assert sizes == [4, 2]
                assert await consumer.seek(topic, 0, 2) == 2
                assert consumer.lag() == {(topic, 0): 8}

    run(main())


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_cancelled_calls_keep_the_guarantee(node: Broker, guarantee: str):
    topic = node.create_topic(partitions=2)
    total = 2000
    produce(node, topic, [(value, value) for value in numbers(total)])
    seed = seed_of("cancelled members")
    rng = random.Random(seed)

    async def main() -> Counter[bytes | None]:
        got: Counter[bytes | None] = Counter()
        async with (
            aio.connect(node.url) as client,
            client.consumer(
                topic, group=f"cancelled-{guarantee}", guarantee=guarantee, commit_interval=0.001
            ) as consumer,  # type: ignore[call-overload]
        ):

            async def iterate() -> None:
                async for record in consumer:
                    got[record.value] += 1
                    if rng.random() < 0.02:
                        await asyncio.sleep(0)

            async def poll() -> None:
                while True:
                    got.update(batch.values if (batch := await consumer.poll(7, None)) else ())

            patience = 0.02
            async with asyncio.timeout(WITHIN):
                while len(got) < total and sum(got.values()) < 10 * total:
                    before = len(got)
                    task = asyncio.create_task(rng.choice([iterate, poll])())
                    await asyncio.sleep(rng.random() * patience)
                    # A commit or a claim that is always given up too soon is no progress.
                    patience = 0.02 if len(got) > before else min(patience * 2, 1.0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            if guarantee == "at-most-once":
                assert max(got.values()) == 1
        return got

    assert set(run(main())) == set(numbers(total)), f"seed {seed}"


def test_a_loop_given_up_between_two_runs_gets_the_rest_of_its_batch_again(own_node: Broker):
    topic = own_node.create_topic()
    produce(own_node, topic, numbers(1000))

    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.consumer(topic, group="given-up", commit_interval=0.001) as consumer,
            Ticker() as ticker,
        ):
            got: list[bytes | None] = []

            async def read() -> None:
                async for record in consumer:
                    if not got:
                        os.kill(own_node.pid, signal.SIGSTOP)
                    got.append(record.value)
                    time.sleep(0.002)  # so that a commit is due after each run

            reading = asyncio.create_task(read())
            try:
                await eventually(lambda: got, "a record")
                await ticker.more(20)  # the commit is not answered
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            finally:
                os.kill(own_node.pid, signal.SIGCONT)
            assert len(got) < 1000
            while len(got) < 1000:
                batch = await consumer.poll(timeout=WITHIN)
                assert batch
                got.extend(batch.values)
            assert got == numbers(1000)

    run(main())


def test_members_live_through_kill_9_and_restart_of_the_node_and_the_loop_goes_on(own_node: Broker):
    topic = own_node.create_topic()
    produce(own_node, topic, numbers(10))

    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.consumer(topic, group="restarted", commit_interval=0.01) as consumer,
            Ticker() as ticker,
        ):
            got: list[bytes | None] = []

            async def read() -> None:
                async for record in consumer:
                    got.append(record.value)

            reading = asyncio.create_task(read())
            await eventually(lambda: len(got) == 10, "the first records")
            await asyncio.to_thread(own_node.kill)
            await ticker.more(100)
            await asyncio.to_thread(own_node.start)
            await asyncio.to_thread(produce, own_node, topic, numbers(10, 10))
            await eventually(lambda: set(got) == set(numbers(20)), "those after it")
            await eventually(lambda: consumer.committed()[topic, 0] in (19, 20), "a commit")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    run(main())


def test_what_cannot_be_joined_leaves_nothing_behind(node: Broker):
    async def one_life() -> None:
        async with aio.connect(node.url) as client:
            with pytest.raises(UnknownTopicError):
                await client.consumer("no-such-topic", group="g")
            with pytest.raises(ConfigError, match="name topics"):
                await client.consumer(group="g")
            joining = asyncio.ensure_future(
                client.consumer("no-such-topic", group="g").__aenter__()
            )
            await asyncio.sleep(0)
            joining.cancel()
            # The node may have answered before the first look for it.
            with pytest.raises((asyncio.CancelledError, UnknownTopicError)):
                await joining

    run(one_life())
    before = held()
    for _ in range(3):
        run(one_life())
    wait_until(lambda: no_more_than(before), what=lambda: f"{held()}, where {before} was")


def test_the_admin_of_a_loop_sees_and_moves_groups(node: Broker):
    topic = node.create_topic()
    produce(node, topic, numbers(10))

    async def main() -> None:
        async with aio.connect(node.url) as client, client.admin() as admin, Ticker() as ticker:
            async with client.consumer(topic, group="seen", guarantee="manual") as consumer:
                await consumer.commit(await consumer.poll(4, timeout=WITHIN))
                assert "seen" in [each.group for each in await admin.list_groups()]
                sampling = asyncio.create_task(admin.describe_group("seen", sample=0.05))
                await ticker.more(5)
                described = await sampling
                assert (described.lag, len(described.members)) == (6, 1)
                with pytest.raises(GroupError):
                    await admin.delete_group("seen")
            [foreseen] = await admin.reset_offsets("seen", topic, to="earliest", dry_run=True)
            assert (foreseen.before, foreseen.after, foreseen.redelivers) == (4, 0, 4)
            [done] = await admin.reset_offsets("seen", topic, to=7, partitions=0)
            assert (done.before, done.after) == (4, 7)
            await admin.delete_group("seen", topic=topic)
            assert all(
                one.committed is None for one in (await admin.describe_group("seen")).partitions
            )
            await admin.delete_group("seen")
            assert "seen" not in [each.group for each in await admin.list_groups()]
            assert isinstance(await admin.list_transactions(), list)

    run(main())
