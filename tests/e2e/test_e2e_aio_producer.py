"""The producer and the admin of `penstock.aio`, against real nodes that stand still and go away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
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

from penstock import aio
from penstock.client.admin.admin import TopicConfig
from penstock.core.errors import (
    BufferFullError,
    ClosedError,
    DeliveryError,
    DroppedError,
    ForkedClientError,
    PenstockTimeout,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.testing import Broker, assert_records, wait_until

pytestmark = pytest.mark.over_tcp

SMALL: dict[str, Any] = {"batch_bytes": 1024, "buffer_bytes_max": 4096, "linger": 0.001}


@pytest.fixture
def topic(node: Broker) -> str:
    return node.create_topic()


@pytest.fixture
def own_node() -> Iterator[Broker]:
    """A node that a test may do anything to. Its one topic: t."""
    with Broker(writers=1) as broker:
        broker.create_topic("t")
        yield broker


@asynccontextmanager
async def standing_writer(client: aio.Client) -> AsyncIterator[None]:
    """The node's writers are stopped meanwhile: what is sent stays unacknowledged."""
    async with client.admin() as admin:
        pids = [info.pid for info in (await admin.describe_node()).writers if info.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_thousand_tasks_await_what_they_send_and_it_stands_in_the_order_of_the_calls(
    node: Broker, topic: str
):
    calls = 0

    async def main() -> None:
        nonlocal calls
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe

        def counted(*args: object, **options: object) -> asyncio.Handle:
            nonlocal calls
            calls += 1
            return real(*args, **options)  # type: ignore[arg-type]

        async with aio.connect(node.url) as client, client.producer() as producer:
            await producer.send_and_wait(topic, b"first", timeout=WITHIN)
            loop.call_soon_threadsafe = counted  # type: ignore[method-assign]

            async def send(number: int) -> int | None:
                return (await producer.send(topic, b"%d" % number)).offset

            offsets = await asyncio.gather(*map(send, range(1000)))
            assert offsets == list(range(1, 1001))
            metrics = producer.metrics()
            assert (metrics["acknowledged"], metrics["failed"]) == (1001, 0)

    run(main())
    assert calls < 200, "bursts of deliveries reach the loop together"
    assert_records(node, topic, [b"first", *(b"%d" % number for number in range(1000))])


def test_every_verb_gives_its_receipt(node: Broker):
    topic = node.create_topic(partitions=2)

    async def main() -> None:
        async with aio.connect(node.url) as client, client.producer(linger=0.05) as producer:
            delivery = producer.send(topic, b"1", key=b"k", headers={"a": b"b"}, partition=1)
            with pytest.raises(asyncio.InvalidStateError):
                delivery.result()
            receipt = await delivery
            assert (receipt.partition, receipt.offset) == (1, 0)
            assert delivery.done()
            assert delivery.result() == await delivery == receipt
            second = producer.send(topic, b"2", partition=1)
            first, again = await asyncio.gather(second, second)
            assert first == again
            assert first.offset == 1
            [run_of] = await producer.send_batch(
                topic, [b"3", b"4"], keys=[b"x", None], partition=1
            )
            assert (run_of.base_offset, run_of.count) == (2, 2)
            assert await producer.send_batch(topic, []) == []
            last = await producer.send_and_wait(topic, b"5", partition=1, timeout=WITHIN)
            assert last.offset == 4
            assert producer.producer_id > 0
            with pytest.raises(TypeError, match="a record's value is bytes"):
                producer.send(topic, "text")  # type: ignore[arg-type]
        assert_records(node, topic, [b"1", b"2", b"3", b"4", b"5"])
        with pytest.raises(ClosedError):
            producer.send(topic, b"late")
        with pytest.raises(ClosedError):
            await producer.flush()
        await producer.close()

    run(main())


def test_a_topic_is_looked_up_while_its_records_wait_in_line(node: Broker):
    async def main() -> None:
        async with aio.connect(node.url) as client:
            async with client.producer() as producer:
                lost = producer.send("no-such-topic", b"x")
                with pytest.raises(TypeError):
                    producer.send("no-such-topic", 1)  # type: ignore[arg-type]
                with pytest.raises(UnknownTopicError):
                    await lost
                with pytest.raises(UnknownTopicError):
                    await producer.send_and_wait("no-such-topic", b"x")
                await producer.flush(WITHIN)
            producer = await client.producer()
            producer.send("no-such-topic", b"nobody looks at it")
            producer.send_batch("no-such-topic", [b"nor", b"at these"])
            with pytest.raises(DeliveryError, match="3 records were not delivered") as raised:
                await producer.close()
            assert [entry[0] for entry in raised.value.failed] == ["no-such-topic"] * 2

    run(main())


def test_a_full_buffer_makes_records_wait_in_line_in_order_and_never_the_loop(own_node: Broker):
    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.producer(**SMALL) as producer,
            Ticker() as ticker,
        ):
            await producer.send_and_wait("t", b"%04d" % 0 * 16)
            async with standing_writer(client):
                deliveries = [producer.send("t", b"%04d" % number * 16) for number in range(1, 50)]
                draining = asyncio.create_task(producer.drain())
                flushing = asyncio.create_task(producer.flush())
                await ticker.more(20)
                assert not draining.done()
                assert not flushing.done()
                assert "in line" in repr(deliveries[-1])
                with pytest.raises(PenstockTimeout, match="flush"):
                    await producer.flush(0.05)
                with pytest.raises(PenstockTimeout, match="no acknowledgement for 't'"):
                    await producer.send_and_wait("t", b"%04d" % 50 * 16, timeout=0.05)
            receipts = await asyncio.gather(*deliveries)
            await asyncio.gather(draining, flushing)
            assert [receipt.offset for receipt in receipts] == list(range(1, 50))

    run(main())
    assert_records(own_node, "t", [b"%04d" % number * 16 for number in range(51)])


def test_what_waits_in_line_is_bounded_in_bytes_and_in_time(own_node: Broker):
    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.producer(block_timeout=0.2, **SMALL) as producer,
        ):
            await producer.send_and_wait("t", b"first")
            async with standing_writer(client):
                deliveries: list[aio.Delivery] = []

                def fill() -> None:
                    while len(deliveries) < 1000:
                        deliveries.append(producer.send("t", bytes(256)))

                with pytest.raises(BufferFullError, match="wait in line"):
                    fill()
                with pytest.raises(BufferFullError, match="bytes are unacknowledged"):
                    await deliveries[-1]
            outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
            refused = [isinstance(outcome, BufferFullError) for outcome in outcomes]
            assert 0 < sum(refused) < len(deliveries)
            assert refused == sorted(refused), "the last ones are refused"

    run(main())


@pytest.mark.parametrize(
    ("on_full", "error"), [("error", BufferFullError), ("drop_newest", DroppedError)]
)
def test_other_policies_are_those_of_the_blocking_producer(
    own_node: Broker, on_full: Any, error: type[Exception]
):
    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.producer(on_full=on_full, **SMALL) as producer,
        ):
            await producer.send_and_wait("t", b"first")
            async with standing_writer(client):
                with pytest.raises(error):
                    await fill(producer)

    async def fill(producer: aio.Producer) -> None:
        for _ in range(1000):
            delivery = producer.send("t", bytes(256))
            if delivery.done():
                await delivery

    run(main())


def test_giving_up_an_await_takes_nothing_back(own_node: Broker):
    async def main() -> None:
        async with aio.connect(own_node.url) as client, client.producer() as producer:
            await producer.send_and_wait("t", b"0")
            async with standing_writer(client):
                sent = producer.send("t", b"1")
                for call in (
                    lambda: wait_for(sent),
                    lambda: producer.send_and_wait("t", b"2"),
                    producer.flush,
                    lambda: wait_for(producer.send_batch("t", [b"3", b"4"])),
                ):
                    task = asyncio.create_task(call())
                    await asyncio.sleep(0.01)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            assert (await sent).offset == 1
            await producer.flush(WITHIN)
            leaving = asyncio.create_task(client.producer().__aenter__())
            await asyncio.sleep(0)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving

    async def wait_for(delivery: aio.Delivery | aio.BatchDelivery) -> None:
        await delivery

    run(main())
    assert_records(own_node, "t", [b"0", b"1", b"2", b"3", b"4"])


@pytest.mark.rule(10)
def test_rule_10_sends_live_through_kill_9_and_restart_of_the_node_and_the_loop_goes_on(
    own_node: Broker,
):
    async def main() -> None:
        async with (
            aio.connect(own_node.url) as client,
            client.producer() as producer,
            Ticker() as ticker,
        ):
            deliveries = [producer.send("t", b"%d" % number) for number in range(100)]
            await deliveries[0]
            await asyncio.to_thread(own_node.kill)
            deliveries += [producer.send("t", b"%d" % number) for number in range(100, 200)]
            unknown = producer.send("other", b"looked up at the next node")
            await ticker.more(50)
            await asyncio.to_thread(own_node.start)
            receipts = await asyncio.gather(*deliveries)
            assert [receipt.offset for receipt in receipts] == list(range(200))
            with pytest.raises(UnknownTopicError):
                await unknown

    run(main())
    assert_records(own_node, "t", [b"%d" % number for number in range(200)])


def test_producers_and_admins_leave_no_thread_and_no_descriptor(node: Broker, topic: str):
    async def one_life() -> None:
        async with aio.connect(node.url) as client:
            async with client.producer() as producer:
                await asyncio.gather(*[producer.send(topic, b"x") for _ in range(10)])
            left = await client.producer()
            left.send(topic, b"closing the client sends it")
            async with client.admin() as admin:
                assert topic in await admin.list_topics()

    run(one_life())
    before = held()
    for _ in range(5):
        run(one_life())
    wait_until(lambda: no_more_than(before), what=lambda: f"{held()}, where {before} was")


def test_a_failed_body_is_not_hidden_by_what_leaving_finds(own_node: Broker):
    async def main() -> None:
        async with aio.connect(own_node.url) as client:
            with pytest.raises(ZeroDivisionError):
                await failing(client)
            async with client.producer() as producer:
                await producer.send_and_wait("t", b"1")

    async def failing(client: aio.Client) -> None:
        async with client.producer() as producer:
            producer.send("no-such-topic", b"x")
            raise ZeroDivisionError

    run(main())


@pytest.mark.rule(7)
def test_rule_7_a_child_may_not_send_for_its_parent(node: Broker, topic: str):
    async def main() -> None:
        async with aio.connect(node.url) as client, client.producer() as producer:
            await producer.send_and_wait(topic, b"before")
            pid = os.fork()
            if not pid:
                told = 1
                try:
                    producer.send(topic, b"from the child")
                except ForkedClientError:
                    told = 0
                finally:
                    os._exit(told)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            await producer.send_and_wait(topic, b"after")

    run(main())
    assert_records(node, topic, [b"before", b"after"])


def test_the_admin_has_the_verbs_of_the_blocking_one(node: Broker):
    async def main() -> None:
        async with aio.connect(node.url) as client, client.admin() as admin, Ticker() as ticker:
            begun = ticker.count
            await admin.create_topic("made", TopicConfig(partitions=2))
            assert ticker.count > begun
            with pytest.raises(TopicExistsError):
                await admin.create_topic("made")
            await admin.alter_topic("made", segment_bytes=1 << 20)
            await admin.add_partitions("made", 3)
            described, info = await asyncio.gather(
                admin.describe_topic("made"), admin.describe_node()
            )
            assert len(described.partitions) == 3
            assert described.settings["segment_bytes"] == 1 << 20
            assert info.writers
            async with client.producer() as producer:
                await producer.send_and_wait("made", b"gone", partition=0)
            [trimmed] = await admin.trim("made", 0, before="latest")
            assert trimmed.records == 1
            given_up = asyncio.create_task(admin.delete_topic("made"))
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert "made" not in await admin.list_topics(), "done all the same, and before this"

    run(main())


def test_it_runs_in_uvloop_too(node: Broker, topic: str):
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.producer() as producer,
            client.consumer(topic) as consumer,
        ):
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            await asyncio.sleep(0)
            await asyncio.gather(*[producer.send(topic, b"%d" % number) for number in range(500)])
            got = [record.value for record in await waiting]
            producer.send(topic, b"500")
            async for record in consumer:
                got.append(record.value)
                if len(got) == 501:
                    break
            assert got == [b"%d" % number for number in range(501)]
            cancelled = asyncio.create_task(consumer.poll(timeout=None))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
