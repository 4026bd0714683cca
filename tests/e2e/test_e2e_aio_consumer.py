"""The consumer of `penstock.aio` in a loop with others, against real nodes that also go away."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

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
from penstock.core.errors import (
    ClosedError,
    ConfigError,
    ForkedClientError,
    NotConnectedError,
    PenstockTimeout,
    UnknownTopicError,
)
from penstock.testing import Broker, produce, wait_until

pytestmark = pytest.mark.over_tcp


@pytest.fixture
def topic(node: Broker) -> str:
    return node.create_topic()


@pytest.fixture
def own_node() -> Iterator[Broker]:
    """A node that a test may do anything to."""
    with Broker(writers=1) as broker:
        yield broker


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_a_poll_waits_while_the_loop_goes_on_and_ends_by_a_record(node: Broker, topic: str):
    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.consumer(topic) as consumer,
            client.producer() as producer,
            Ticker() as ticker,
        ):
            assert not await consumer.poll()
            assert not await consumer.poll(timeout=0.01)
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            await ticker.more(20)
            assert not waiting.done()
            await producer.send_and_wait(topic, b"come")
            batch = await asyncio.wait_for(waiting, WITHIN)
            assert batch.values.to_list() == [b"come"]
            assert consumer.position(topic, 0) == 1
            assert consumer.lag() == {(topic, 0): 0}

    run(main())


@pytest.mark.rule(10)
def test_rule_10_polls_live_through_kill_9_and_restart_of_the_node_and_the_loop_goes_on(
    own_node: Broker,
):
    topic = own_node.create_topic()
    produce(own_node, topic, numbers(10))

    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.consumer(topic) as consumer,
            Ticker() as ticker,
        ):
            got: list[bytes | None] = []

            async def reading() -> None:
                async for record in consumer:
                    got.append(record.value)

            reader = asyncio.create_task(reading())
            await eventually(lambda: len(got) == 10, "the first records")
            for round_number in (1, 2):
                await asyncio.to_thread(own_node.kill)
                await ticker.more(100)
                await asyncio.to_thread(own_node.start)
                sending = numbers(10, round_number * 10)
                await asyncio.to_thread(produce, own_node, topic, sending)
                wanted = numbers((round_number + 1) * 10)
                await eventually(lambda: got == wanted, "those after it")  # noqa: B023
                await eventually(
                    lambda: consumer.metrics()["reconnects"] == round_number,  # noqa: B023
                    "the consumer is back at its node",
                )
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    run(main())


def test_a_node_that_stands_still_holds_requests_up_but_not_the_loop(own_node: Broker):
    for name in ("a", "b"):
        own_node.create_topic(name)
        produce(own_node, name, [name.encode()])

    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.consumer(timeout=0.5) as consumer,
            Ticker() as ticker,
        ):
            await consumer.assign([("a", 0)])
            os.kill(own_node.pid, signal.SIGSTOP)
            try:
                making = asyncio.create_task(Making(client, "a").done())
                assigning = asyncio.create_task(consumer.assign([("b", 0)]))
                await ticker.more(20)
                assert not assigning.done()
                with pytest.raises(PenstockTimeout):
                    await assigning
                given_up = asyncio.create_task(consumer.assign([("b", 0)]))
                await ticker.more(20)
                given_up.cancel()
                making.cancel()
                for task in (given_up, making):
                    with pytest.raises(asyncio.CancelledError):
                        await task
                # What is assigned is read from memory, whatever the node does.
                assert (await consumer.poll(timeout=WITHIN)).values.to_list() == [b"a"]
            finally:
                os.kill(own_node.pid, signal.SIGCONT)
            await asyncio.sleep(0)
            await assigned(consumer, ("b", 0))
            assert (await consumer.poll(timeout=WITHIN)).values.to_list() == [b"b"]

    run(main())


class Making:
    """A consumer that is made while its node stands still."""

    def __init__(self, client: aio.Client, topic: str) -> None:
        self._opening = client.consumer(topic, timeout=WITHIN)

    async def done(self) -> None:
        await (await self._opening).close()


async def assigned(consumer: aio.Consumer, *partitions: tuple[str, int]) -> None:
    """Assign, whose answer may come after half a second once the node has all the rest to do."""
    async with asyncio.timeout(WITHIN):
        while consumer.assignment() != list(partitions):
            with suppress(PenstockTimeout):
                await consumer.assign(partitions)


def test_what_is_cancelled_at_any_moment_has_brought_nothing_and_loses_nothing(
    node: Broker, topic: str
):
    seed = seed_of("cancelled consumers")
    rng = random.Random(seed)
    total = 1000

    def send() -> None:
        with node.connect() as client, client.producer(linger=0) as producer:
            for number in range(total):
                producer.send_and_wait(topic, b"%d" % number, timeout=WITHIN)

    async def main() -> list[bytes | None]:
        got: list[bytes | None] = []
        async with aio.connect(node.url) as client, client.consumer(topic) as consumer:

            async def iterate() -> None:
                async for record in consumer:
                    got.append(record.value)
                    if rng.random() < 0.01:
                        await asyncio.sleep(0)

            async def poll() -> None:
                while True:
                    batch = await consumer.poll(rng.choice([None, 3]), timeout=None)
                    got.extend(batch.values)

            thread = threading.Thread(target=send)
            thread.start()
            while len(got) < total:
                task = asyncio.create_task(rng.choice([iterate, poll])())
                await asyncio.sleep(rng.random() * 0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            thread.join()
        return got

    assert run(main()) == numbers(total), f"seed {seed}"


def test_a_backlog_leaves_others_their_turns(node: Broker, topic: str):
    produce(node, topic, numbers(40_000))

    async def main() -> tuple[int, int]:
        seen = 0
        async with (
            aio.connect(node.url) as client,
            client.consumer(topic, follow=False) as consumer,
            Ticker() as ticker,
        ):
            before = ticker.count
            async for record in consumer:
                assert record.offset == seen
                seen += 1
                sum(range(1000))  # what it is read for, without an await
            return seen, ticker.count - before

    seen, ticks = run(main())
    assert seen == 40_000
    assert ticks >= 5


def test_many_consumers_share_a_loop_and_each_gets_all_in_order(node: Broker):
    topic = node.create_topic(partitions=3)

    async def main() -> None:
        async with aio.connect(node.url) as client, client.producer() as producer:
            async with asyncio.TaskGroup() as group:
                reading = [group.create_task(read(client)) for _ in range(20)]
                for number in range(300):
                    await producer.send(topic, b"%d" % number, partition=number % 3)
                    if number % 50 == 0:
                        await producer.flush(WITHIN)
            for task in reading:
                for partition, values in enumerate(task.result()):
                    assert values == list(range(partition, 300, 3))

    async def read(client: aio.Client) -> list[list[int]]:
        got: list[list[int]] = [[], [], []]
        async with client.consumer(topic) as consumer:
            async for record in consumer:
                got[record.partition].append(int(record.value or b""))
                if sum(map(len, got)) == 300:
                    return got
        raise AssertionError("iteration ended")

    run(main())


def test_seek_and_resume_end_a_sleep(node: Broker, topic: str):
    produce(node, topic, numbers(5))

    async def main() -> None:
        async with aio.connect(node.url) as client, client.consumer(topic) as consumer:
            assert len(await consumer.poll(timeout=WITHIN)) == 5
            waiting = asyncio.create_task(consumer.poll(2, timeout=None))
            await asyncio.sleep(0)
            assert consumer.seek(topic, 0, 1) == 1
            assert (await waiting).values.to_list() == [b"1", b"2"]
            consumer.pause()
            waiting = asyncio.create_task(consumer.poll(2, timeout=None))
            await asyncio.sleep(0)
            consumer.resume((topic, 0))
            assert (await waiting).values.to_list() == [b"3", b"4"]
            assert consumer.seek_all("latest") == {(topic, 0): 5} == consumer.end_offsets()
            assert consumer.beginning_offsets() == {(topic, 0): 0}

    run(main())


def test_a_second_task_that_would_wait_is_told_and_the_first_goes_on(node: Broker, topic: str):
    async def main() -> None:
        async with aio.connect(node.url) as client, client.consumer(topic) as consumer:
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            await asyncio.sleep(0)
            for call in (consumer.poll(timeout=1.0), consumer.assign([(topic, 0)])):
                with pytest.raises(RuntimeError, match="another task waits on this consumer"):
                    await call
            await asyncio.to_thread(produce, node, topic, [b"x"])
            assert len(await waiting) == 1

    run(main())


def test_closing_ends_what_waits_and_leaves_nothing_behind(node: Broker, topic: str):
    async def one_life() -> None:
        async with aio.connect(node.url) as client:
            consumer = await client.consumer(topic)
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            await asyncio.sleep(0.01)
            await consumer.close()
            with pytest.raises(ClosedError, match="this consumer is closed"):
                await waiting
            with pytest.raises(ClosedError):
                await consumer.poll()
            await consumer.close()
            left = await client.consumer(topic)  # the client closes what is left
        with pytest.raises(ClosedError):
            await left.poll()
        with pytest.raises(ClosedError, match="this client is closed"):
            await client.consumer(topic)
        with pytest.raises(UnknownTopicError):
            async with aio.connect(node.url) as client, client.consumer("no-such-topic"):
                raise AssertionError("it is not there")

    run(one_life())
    before = held()
    for _ in range(5):
        run(one_life())
    wait_until(lambda: no_more_than(before), what=lambda: f"{held()}, where {before} was")


def test_iteration_without_follow_ends_where_the_topic_ended_when_it_began(
    node: Broker, topic: str
):
    produce(node, topic, numbers(7))

    async def main() -> None:
        async with aio.connect(node.url) as client:
            async with client.consumer(topic, follow=False, start=2) as consumer:
                assert [record.offset async for record in consumer] == [2, 3, 4, 5, 6]
            async with client.consumer(topic) as consumer:
                sizes = [len(batch) async for batch in consumer.batches(3, timeout=0.05)]
                assert sizes == [3, 3, 1]
                consumer.seek_all("earliest")
                batch = await consumer.poll()
                assert [record.value for record in consumer.unpack(batch)] == numbers(7)

    run(main())


def test_no_node_is_an_error_within_the_timeout_and_options_are_checked(tmp_path, node: Broker):
    async def main() -> None:
        async with Ticker() as ticker:
            begun = ticker.count
            with pytest.raises(NotConnectedError, match="no node answers"):
                await aio.connect(f"shm://{tmp_path}", timeout=1.0)
            assert ticker.count - begun >= 5
        async with aio.connect(node.url) as client:
            with pytest.raises(ConfigError, match="spin keeps a whole thread busy"):
                await client.consumer(spin=0.01)
            with pytest.raises(ConfigError, match="prefetch_bytes"):
                await client.consumer(prefetch_bytes=1)

    run(main())


@pytest.mark.rule(7)
def test_rule_7_a_child_is_told_and_its_parent_reads_on(node: Broker, topic: str):
    async def main() -> None:
        async with aio.connect(node.url) as client, client.consumer(topic) as consumer:
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            await asyncio.sleep(0.01)
            assert in_child(lambda: asyncio.run(told(consumer))) == 0
            await asyncio.to_thread(produce, node, topic, [b"x"])
            assert len(await waiting) == 1

    async def told(consumer: aio.Consumer) -> int:
        # The parent's task still stands in this copy of it, and is nobody's here.
        with pytest.raises((ForkedClientError, RuntimeError)):
            await consumer.poll()
        return 0

    run(main())


def in_child(work: Callable[[], int]) -> int:
    """What `work` returns in a forked child, 1 if it raises."""
    pid = os.fork()
    if not pid:
        status = 1
        with suppress(BaseException):
            status = work()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
