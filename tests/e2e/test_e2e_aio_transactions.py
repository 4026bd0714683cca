"""Transactions and stages in a loop: what counts, what never does, and a loop that goes on."""

# ruff: noqa: PT012 - what stands in a transaction is what fails it

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from event_loops import (
    WITHIN,
    Ticker,
    held,
    no_more_than,
    run,
)

import penstock
from penstock import aio
from penstock.core.errors import (
    BufferFullError,
    ConfigError,
    ForkedClientError,
    NotConnectedError,
    PenstockTimeout,
    ProducerFencedError,
    StageDecidedError,
    StaleGenerationError,
    TransactionError,
    UnknownTopicError,
)
from penstock.testing import Broker, produce, wait_until

EXACTLY_ONCE: dict[str, Any] = {"guarantee": "exactly-once", "start": "earliest"}


@pytest.fixture
def own_node() -> Iterator[Broker]:
    """A node that a test may do anything to. Its one topic: t."""
    with Broker(writers=1) as broker:
        broker.create_topic("t")
        yield broker


async def committed(client: aio.Client, *topics: str) -> list[bytes | None]:
    """What readers of committed records see, once every decision has reached its partitions."""
    async with client.admin() as admin, asyncio.timeout(WITHIN):
        while any(each.state != "ready" for each in await admin.list_transactions()):
            await asyncio.sleep(0.005)
    async with client.consumer(*topics, isolation="read_committed", follow=False) as consumer:
        return sorted([record.value async for record in consumer], key=lambda value: value or b"")


@asynccontextmanager
async def standing_writers(client: aio.Client) -> AsyncIterator[Callable[[], None]]:
    """The node's writers are stopped meanwhile, or until what this gives is called: nothing is
    acknowledged, and nothing decided."""
    async with client.admin() as admin:
        pids = [info.pid for info in (await admin.describe_node()).writers if info.pid]

    def go_on() -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


async def cancelled(call: Coroutine[Any, Any, Any], ticker: Ticker) -> None:
    """Let a call wait for a while in a loop that goes on, and cancel it there."""
    waiting = asyncio.create_task(call)
    await ticker.more(10)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# --- reading, transforming, writing --------------------------------------------------------------
def test_what_is_read_and_written_in_a_loop_counts_once(node: Broker):
    source, target = node.create_topic(partitions=2), node.create_topic()
    produce(node, source, [(b"%d" % number, b"%d" % number) for number in range(30)])

    async def main() -> None:
        async with aio.connect(node.url) as client, Ticker() as ticker:
            before = ticker.count
            for leaves in (True, False):
                rounds = 0
                async with (
                    client.producer(transactional_id=target) as producer,
                    client.consumer(source, group=target, follow=False, **EXACTLY_ONCE) as consumer,
                ):
                    async for batch in consumer.batches(4):
                        rounds += 1
                        with suppress(KeyError):  # then the batch comes again
                            async with producer.transaction(consumed=batch):
                                for record in batch:
                                    producer.send(target, b"did %s" % record.value)
                                if rounds % 3 == 2:
                                    raise KeyError
                        if leaves and rounds == 5:
                            break
                    aborted = producer.metrics()["transactions_aborted"]
                    assert aborted == (rounds + 1) // 3
            assert ticker.count > before
            assert await committed(client, target) == sorted(b"did %d" % n for n in range(30))

    run(main())


def test_a_consumer_may_be_what_is_consumed_and_comes_again_after_an_abort(node: Broker):
    source, target = node.create_topic(), node.create_topic()
    produce(node, source, [b"%d" % number for number in range(6)])

    async def main() -> None:
        async with aio.connect(node.url) as client:
            async with (
                client.producer(transactional_id=target) as producer,
                client.consumer(source, group=target, **EXACTLY_ONCE) as consumer,
            ):
                first = await consumer.poll(2, timeout=WITHIN)
                with pytest.raises(KeyError):
                    async with producer.transaction(consumed=consumer):
                        raise KeyError
                assert consumer.position(source, 0) == 0
                for _ in range(2):
                    batch = await consumer.poll(2, timeout=WITHIN)
                    await producer.begin_transaction()
                    producer.send(target, batch.values[0])
                    await producer.commit_transaction(consumed=[consumer])
                await consumer.poll(2, timeout=WITHIN)
                await producer.begin_transaction()
                await producer.abort_transaction(consumed=consumer)
                assert consumer.position(source, 0) == 4
                with pytest.raises(ConfigError, match="group"):
                    async with producer.transaction(consumed=node):  # type: ignore[arg-type]
                        pass
                with pytest.raises(ConfigError, match="group"):
                    await producer.commit_transaction(consumed=consumer.blocking)  # type: ignore[arg-type]
            with pytest.raises(StaleGenerationError):
                async with (
                    client.producer(transactional_id=target) as producer,
                    producer.transaction(consumed=first),
                ):
                    producer.send(target, b"never")
            assert await committed(client, target) == [b"0", b"2"]

    run(main())


def test_several_batches_that_are_aborted_all_come_again(node: Broker):
    source, target = node.create_topic(), node.create_topic()
    produce(node, source, [b"%d" % number for number in range(6)])

    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.producer(transactional_id=target) as producer,
            client.consumer(source, group=target, **EXACTLY_ONCE) as consumer,
        ):
            for _ in range(2):
                batches = [await consumer.poll(2, timeout=WITHIN) for _ in range(2)]
                assert [record.offset for batch in batches for record in batch] == [0, 1, 2, 3]
                with pytest.raises(KeyError):
                    async with producer.transaction(consumed=batches):
                        raise KeyError

    run(main())


# --- lines ---------------------------------------------------------------------------------------
def test_a_record_that_is_refused_in_line_fails_its_transaction(node: Broker):
    topic, other = node.create_topic(), node.create_topic()

    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.producer(transactional_id=topic) as producer,
        ):
            await producer.begin_transaction()
            known = producer.send(topic, b"lost with it")
            unknown = producer.send("no-such-topic", b"x")
            with pytest.raises(TransactionError, match="no-such-topic"):
                await producer.commit_transaction()
            with pytest.raises(UnknownTopicError):
                await unknown
            assert known.done()
            with pytest.raises(TransactionError, match="no transaction is open"):
                producer.send(topic, b"outside")
            with pytest.raises(TransactionError, match="no transaction is open"):
                producer.send("not looked up yet", b"outside")
            with pytest.raises(TransactionError, match="no-such-topic"):
                async with producer.transaction():
                    with pytest.raises(UnknownTopicError):
                        await producer.send("no-such-topic", b"somebody has looked at it")
                    producer.send(topic, b"never")
            async with producer.transaction():
                producer.send(topic, b"good")
                waits = asyncio.create_task(producer.send_and_wait(other, b"in line"))
                await asyncio.sleep(0)
            assert (await waits).topic == other
            metrics = producer.metrics()
            assert (metrics["transactions_committed"], metrics["transactions_aborted"]) == (1, 2)
            assert await committed(client, topic, other) == [b"good", b"in line"]

    run(main())


def test_what_waits_in_line_for_room_is_committed_or_aborted_with_the_rest(own_node: Broker):
    small: dict[str, Any] = {"batch_bytes": 1024, "buffer_bytes_max": 4096, "linger": 0.001}

    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.producer(transactional_id="t", **small) as producer,
            Ticker() as ticker,
        ):
            async with producer.transaction():
                await producer.send("t", b"first")
            await producer.begin_transaction()
            async with standing_writers(client) as go_on:
                lost: list[aio.Delivery] = []
                with pytest.raises(BufferFullError):
                    while True:
                        lost.append(producer.send("t", b"never" * 40))
                aborting = asyncio.create_task(producer.abort_transaction())
                await ticker.more(5)
                assert all(delivery.done() for delivery in lost[-5:]), "those in line fail at once"
                go_on()
                await aborting
            for delivery in lost[-5:]:
                with pytest.raises(TransactionError, match="aborted before this was sent"):
                    await delivery
            kept = [b"%04d" % n * 50 for n in range(100)]
            async with producer.transaction():
                for value in kept:
                    producer.send("t", value)
                    await producer.drain()
                producer.send("t", b"last")
            assert await committed(client, "t") == sorted([b"first", *kept, b"last"])

    run(main())


# --- cancellation --------------------------------------------------------------------------------
def test_a_block_that_is_cancelled_is_aborted_and_what_it_consumed_comes_again(node: Broker):
    source, target = node.create_topic(), node.create_topic()
    produce(node, source, [b"%d" % number for number in range(4)])

    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.producer(transactional_id=target) as producer,
            client.consumer(source, group=target, **EXACTLY_ONCE) as consumer,
        ):
            batch = await consumer.poll(2, timeout=WITHIN)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), producer.transaction(consumed=batch):
                    await producer.send(target, b"never")
                    await asyncio.Event().wait()
            again = await consumer.poll(2, timeout=WITHIN)
            assert again.offsets.tolist() == [0, 1]
            async with producer.transaction(consumed=again):
                producer.send(target, b"good")
            assert producer.metrics()["transactions_aborted"] == 1
            assert await committed(client, target) == [b"good"]

    run(main())


def test_a_commit_that_is_cancelled_before_all_is_acknowledged_has_decided_nothing(
    own_node: Broker,
):
    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.producer(transactional_id="t") as producer,
            Ticker() as ticker,
        ):
            async with producer.transaction():
                await producer.send("t", b"first")
            await producer.begin_transaction()
            async with standing_writers(client):
                producer.send("t", b"second")
                for _ in range(2):
                    await cancelled(producer.commit_transaction(), ticker)
                with pytest.raises(TransactionError, match="being committed"):
                    producer.send("t", b"too late")
                with pytest.raises(TransactionError, match="being committed"):
                    await producer.begin_transaction()
            await producer.commit_transaction()

            await producer.begin_transaction()
            async with standing_writers(client):
                producer.send("t", b"never")
                await cancelled(producer.commit_transaction(), ticker)
            await producer.abort_transaction()

            async def within() -> None:
                async with producer.transaction():
                    producer.send("t", b"never")

            async with standing_writers(client) as go_on:
                leaving = asyncio.create_task(within())
                await ticker.more(10)
                leaving.cancel()
                await ticker.more(10)  # it is being aborted now
                go_on()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
            assert await committed(client, "t") == [b"first", b"second"]

    run(main())


def test_a_commit_that_is_cancelled_while_it_is_decided_goes_on_and_is_learnt(own_node: Broker):
    async def main() -> None:
        async with aio.connect(own_node.url) as client, Ticker() as ticker:
            producer = await client.producer(transactional_id="t")
            async with client.consumer("t", group="g", **EXACTLY_ONCE) as consumer:
                for number in range(2):
                    await producer.begin_transaction()
                    await producer.send("t", b"%d" % number)
                    async with standing_writers(client):
                        await cancelled(producer.commit_transaction(), ticker)
                        for call in (producer.begin_transaction, producer.abort_transaction):
                            with pytest.raises(TransactionError, match="call commit_transaction"):
                                await call()
                        await cancelled(producer.commit_transaction(), ticker)
                    await producer.commit_transaction()  # learns what came of it

                async def within(batch: penstock.GroupBatch) -> None:
                    async with producer.transaction(consumed=batch):
                        await producer.send("t", b"2")
                        await gate.wait()

                gate = asyncio.Event()
                batch = await consumer.poll(2, timeout=WITHIN)
                leaving = asyncio.create_task(within(batch))
                await ticker.more(5)
                async with asyncio.timeout(WITHIN):
                    while producer.metrics()["acknowledged"] < 3:
                        await ticker.more(1)
                async with standing_writers(client):
                    gate.set()
                    await ticker.more(10)
                    leaving.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await leaving
                await producer.commit_transaction()
                async with client.admin() as admin:
                    [place] = (await admin.describe_group("g")).partitions
                assert place.committed == batch.consumed.offsets[0].offset

            await producer.begin_transaction()
            await producer.send("t", b"3")
            async with standing_writers(client) as go_on:
                await cancelled(producer.commit_transaction(), ticker)
                closing = asyncio.create_task(producer.close())
                await ticker.more(5)
                go_on()
                await closing  # waits for it
            assert await committed(client, "t") == [b"0", b"1", b"2", b"3"]

    run(main())


def test_an_abort_that_is_cancelled_goes_on_and_the_next_transaction_waits(own_node: Broker):
    async def main() -> None:
        produce(own_node, "t", [b"0", b"1"])
        async with (
            aio.connect(own_node.url) as client,
            client.producer(transactional_id="t") as producer,
            client.consumer("t", group="g", **EXACTLY_ONCE) as consumer,
            Ticker() as ticker,
        ):
            batch = await consumer.poll(2, timeout=WITHIN)
            await producer.begin_transaction()
            await producer.send("t", b"never")
            async with standing_writers(client) as go_on:
                await cancelled(producer.abort_transaction(consumed=batch), ticker)
                assert consumer.position("t", 0) == 0, "it is aborted for certain"
                await cancelled(producer.abort_transaction(), ticker)
                beginning = asyncio.create_task(producer.begin_transaction())
                await ticker.more(5)
                assert not beginning.done()
                go_on()
                assert len(await consumer.poll(1, timeout=WITHIN)) == 1
                await beginning
            assert consumer.position("t", 0) == 1, "it came again once"
            producer.send("t", b"2")
            await producer.commit_transaction()
            assert await committed(client, "t") == [b"0", b"1", b"2"]

    run(main())


# --- fencing, and no answer ----------------------------------------------------------------------
@pytest.mark.rule(19)
def test_rule_19_a_second_producer_with_the_id_fences_the_first(node: Broker):
    topic = node.create_topic()

    async def main() -> None:
        async with aio.connect(node.url) as client:
            async with client.producer(transactional_id=topic) as first:
                await first.begin_transaction()
                await first.send(topic, b"never")
                async with client.producer(transactional_id=topic) as second:
                    assert second.epoch > first.epoch
                    async with second.transaction():
                        second.send(topic, b"good")
                    with pytest.raises(ProducerFencedError):
                        await first.commit_transaction()
                    with pytest.raises(ProducerFencedError):
                        first.send(topic, b"never")
                    with pytest.raises(ProducerFencedError):
                        await first.begin_transaction()
            third = await client.producer(transactional_id=topic)
            await third.begin_transaction()
            third.send(topic, b"left open")
            await third.close()
            assert await committed(client, topic) == [b"good"]

    run(main())


def test_a_commit_without_an_answer_is_asked_for_again_by_the_loop(own_node: Broker):
    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.producer(transactional_id="t", delivery_timeout=2.0) as producer,
            Ticker() as ticker,
        ):
            await producer.begin_transaction()
            await producer.send("t", b"once")
            own_node.kill()
            before = ticker.count
            with pytest.raises((PenstockTimeout, NotConnectedError), match="outcome is not known"):
                await producer.commit_transaction()
            assert ticker.count > before + 10
            with pytest.raises(TransactionError, match="commit_transaction"):
                await producer.begin_transaction()
            await asyncio.to_thread(own_node.start)
            async with asyncio.timeout(WITHIN):
                while True:
                    with suppress(PenstockTimeout, NotConnectedError):
                        await producer.commit_transaction()
                        break
            async with producer.transaction():
                producer.send("t", b"twice")
            assert await committed(client, "t") == [b"once", b"twice"]

    run(main())


@pytest.mark.parametrize("what", ["batch", "consumer"])
def test_an_abort_without_an_answer_is_asked_for_by_the_next_begin_of_the_loop(
    own_node: Broker, what: str
):
    async def main() -> None:
        produce(own_node, "t", [b"0", b"1"])
        async with (
            aio.connect(own_node.url) as client,
            client.producer(transactional_id="t", delivery_timeout=2.0) as producer,
            client.consumer("t", group="g", **EXACTLY_ONCE) as consumer,
        ):
            batch = await consumer.poll(2, timeout=WITHIN)
            with pytest.raises(KeyError):
                async with producer.transaction(consumed=batch if what == "batch" else consumer):
                    await producer.send("t", b"never")
                    own_node.kill()
                    raise KeyError
            if what == "batch":  # of a consumer the node has to say where it is to go on
                assert consumer.position("t", 0) == 0
            with pytest.raises((PenstockTimeout, NotConnectedError)):
                await producer.begin_transaction()
            await asyncio.to_thread(own_node.start)
            again = await consumer.poll(2, timeout=WITHIN)
            async with asyncio.timeout(WITHIN):
                while True:
                    with suppress(PenstockTimeout, NotConnectedError):
                        await producer.begin_transaction()
                        break
            assert (again.offsets.tolist(), consumer.position("t", 0)) == ([0, 1], 2)
            producer.send("t", b"good")
            await producer.commit_transaction(consumed=again)
            assert await committed(client, "t") == [b"0", b"1", b"good"]

    run(main())


@pytest.mark.rule(7)
def test_rule_7_a_fork_leaves_the_transaction_of_a_loop_to_the_parent(node: Broker):
    topic = node.create_topic()

    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.producer(transactional_id=topic) as producer,
        ):
            async with producer.transaction():
                await producer.send(topic, b"before")
                child = os.fork()
                if not child:
                    said = 1
                    try:
                        producer.send(topic, b"from the child")
                    except ForkedClientError:
                        said = 0
                    finally:
                        os._exit(said)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                producer.send(topic, b"after")
            assert await committed(client, topic) == [b"after", b"before"]

    run(main())


# --- stages --------------------------------------------------------------------------------------
@pytest.mark.rule(20)
def test_rule_20_stages_of_a_loop_count_when_they_are_listed(node: Broker):
    topic = node.create_topic()

    async def main() -> None:
        async with aio.connect(node.url) as client:
            names = []
            for number in range(3):
                async with client.stage(topic, 1) as stage:
                    stage.send(topic, b"%d" % number)
                    assert (stage.transactional_id, stage.epoch) == (topic, 1)
                    with pytest.raises(TransactionError, match="close it first"):
                        _ = stage.name
                names.append(stage.name)
            with pytest.raises(KeyError):
                async with client.stage(topic, 1) as left:
                    await left.send(topic, b"never")
                    waits = left.send(node.create_topic(), b"never")
                    raise KeyError
            with pytest.raises(TransactionError, match=r"epoch 1\) was given up"):
                await waits
            with pytest.raises(TransactionError, match="given up"):
                _ = left.name
            with pytest.raises(TransactionError, match="no-such-topic"):
                async with client.stage(topic, 1) as lost:
                    with pytest.raises(UnknownTopicError):
                        await lost.send("no-such-topic", b"x")
            with pytest.raises(TransactionError):
                _ = lost.name
            decided = await client.commit_transaction(topic, 1, names[:2])
            assert decided == penstock.StagesOutcome(True, 1)
            assert (await client.commit_transaction(topic, 1, [], commit=False)).committed
            with pytest.raises(StageDecidedError):
                await client.stage(topic, 1)
            assert await committed(client, topic) == [b"0", b"1"]

    run(main())


def test_transactions_leave_no_thread_and_no_descriptor(node: Broker):
    topic = node.create_topic()

    async def one_life(epoch: int) -> None:
        async with aio.connect(node.url) as client:
            producer = await client.producer(transactional_id=topic)
            async with producer.transaction():
                producer.send(topic, b"x")
            await producer.close()
            async with client.stage(f"{topic}-staged", epoch) as stage:
                stage.send(topic, b"x")

    run(one_life(1))
    before = held()
    for epoch in (2, 3):
        run(one_life(epoch))
    wait_until(lambda: no_more_than(before), what=lambda: f"{held()}, where {before} was")
