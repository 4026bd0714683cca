"""FastStream on Penstock: a real application, and what becomes of messages when it ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cli_runner import environment
from event_loops import run
from faststream.exceptions import FeatureNotSupportedException, IncorrectState, StopConsume
from faststream.middlewares import AckPolicy
from faststream.specification import AsyncAPI
from told_lines import ToldLines

from penstock import ConfigError, Record, Retry, TopicConfig, UnknownTopicError
from penstock.faststream import (
    PenstockBroker,
    PenstockPublisher,
    PenstockRoute,
    PenstockRouter,
    TestPenstockBroker,
)
from penstock.faststream.annotations import PenstockMessage
from penstock.testing import Broker, drain, produce, wait_until

TESTS = Path(__file__).resolve().parents[1]
NUMBERS = itertools.count()
ONE = TopicConfig(partitions=1)
SECONDS = 60.0


class Application(ToldLines):
    """One with topics of its own, and what its handlers tell."""

    def __init__(self, node: Broker, folder: Path) -> None:
        super().__init__(folder)
        self.node = node
        self.name = f"stream-{next(NUMBERS)}"
        self.env = environment(
            env={"PENSTOCK_URL": node.url, "NAME": self.name, "TOLD": str(self.file)}
        )
        with node.connect() as client, client.admin() as admin:
            for topic in ("work", "done", "orders"):
                admin.create_topic(f"{self.name}.{topic}", ONE)

    @contextmanager
    def runs(self, workers: int = 1) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "faststream", "run", "faststream_application:app"]
        process = subprocess.Popen(
            command, env={**self.env, "WORKERS": str(workers)}, cwd=TESTS, start_new_session=True
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def publish(self, topic: str, *messages: Any, **options: Any) -> None:
        async def main(broker: PenstockBroker) -> None:
            for message in messages:
                await broker.publish(message, f"{self.name}.{topic}", **options)

        self.with_broker(main)

    def with_broker(self, use: Callable[[PenstockBroker], Awaitable[None]]) -> None:
        async def main() -> None:
            async with PenstockBroker(self.node.url, topic_config=ONE) as broker:
                await asyncio.wait_for(use(broker), SECONDS)

        run(main())

    def records(self, topic: str, count: int) -> list[Record]:
        """The records of a topic, once there are so many."""
        found: list[Record] = []

        def came() -> bool:
            with suppress(UnknownTopicError):
                found[:] = drain(self.node, f"{self.name}.{topic}")
            return len(found) >= count

        wait_until(came, timeout=40.0)
        return found

    def lag(self) -> int:
        with self.node.connect() as client, client.admin() as admin:
            return admin.describe_share_group(self.name).lag


@pytest.fixture
def application(node: Broker, tmp_path: Path) -> Application:
    return Application(node, tmp_path)


@pytest.mark.over_tcp
def test_handlers_answer_publish_and_fail(application):
    application.publish("work", "one", "fails a", "rejects b", "later c")
    application.publish("orders", {"number": 1}, {"number": -1}, {"number": 0}, {"number": 2})
    produce(application.node, f"{application.name}.work", [b"\xff"])
    with application.runs(workers=2):
        done = application.records("done", 2)
        letters = {one.value: dict(one.headers) for one in application.records("work.dlq", 3)}
        orders = application.records("orders.dlq", 2)
        application.tells("order 2")
        wait_until(lambda: application.lag() == 0)
    assert sorted((one.key, one.value) for one in done) == [
        (b"later c", b"LATER C"), (b"one", b"ONE"),
    ]  # fmt: skip
    told = {
        value: (each["penstock.dlq.deliveries"], each["penstock.dlq.reason"])
        for value, each in letters.items()
    }
    assert told[b"fails a"] == (b"3", b"ValueError: fails a")
    assert told[b"rejects b"] == (b"1", b"not mine")
    assert told[b"\xff"][0] == b"3"  # no text, so its handler cannot take it
    assert [said for _, said in application.told("order")].count("order -1") == 3
    assert [said for _, said in application.told("order")].count("order 0") == 1
    assert {dict(order.headers)["penstock.dlq.reason"] for order in orders} == {
        b"ValueError: -1 is below 0", b"RejectedRecord: nothing to do",
    }  # fmt: skip


@pytest.mark.over_tcp
def test_messages_of_a_killed_application_are_handled_elsewhere(application):
    with application.runs(workers=3), application.runs(workers=3):
        application.publish("work", "long a", "long b", "long c", priority=5)
        begun = application.tells("begins long", count=3)
        victim = begun[0][0]
        theirs = {said for pid, said in begun if pid == victim}
        os.kill(victim, signal.SIGKILL)
        again = application.tells("begins long", count=3 + len(theirs))[3:]
        assert {pid for pid, _ in again}.isdisjoint({victim})
        for name in "abc":
            application.lets(f"long {name}")
        application.tells("ends long", count=3)
        wait_until(lambda: application.lag() == 0)
    assert sorted(said for _, said in application.told("ends")) == [
        "ends long a", "ends long b", "ends long c",
    ]  # fmt: skip
    assert len(application.records("done", 3)) == 3


def test_records_of_a_killed_application_come_again_in_order(application):
    """None is left out, and each process has its own in order."""
    application.publish("orders", *({"number": number} for number in range(30)))
    with application.runs():
        [(first, _), *_] = application.tells("order")
        os.kill(first, signal.SIGKILL)
    with application.runs():
        application.tells("order 29")
        application.publish("orders", {"number": 30})
        application.tells("order 30")
    told = [(pid, int(said.split()[1])) for pid, said in application.told("order")]
    assert {number for _, number in told} == set(range(31))
    for one in {pid for pid, _ in told}:
        numbers = [number for pid, number in told if pid == one]
        assert numbers == sorted(numbers)


def test_an_application_that_is_asked_to_end_finishes_what_it_has(application):
    with application.runs() as process:
        application.publish("work", "long a")
        application.tells("begins long a")
        application.publish("work", "for others")
        process.send_signal(signal.SIGTERM)
        application.lets("long a")
        process.wait(SECONDS)
    assert len(application.told("begins")) == len(application.told("ends")) > 0
    with application.runs():
        wait_until(lambda: application.lag() == 0, timeout=40.0)
    begun = sorted(said for _, said in application.told("begins"))
    assert begun == ["begins for others 1", "begins long a 1"]


@pytest.mark.parametrize("kind", ["group", "share_group"])
def test_ack_first_commits_before_the_handler(application, kind):
    """What it fails at does not come again."""
    seen: list[str] = []
    options: Any = {kind: f"{application.name}.first"}

    async def main(broker: PenstockBroker) -> None:
        both = asyncio.Event()

        @broker.subscriber(
            f"{application.name}.work", **options,
            ack_policy=AckPolicy.ACK_FIRST,
        )  # fmt: skip
        async def handle(text: str) -> None:
            seen.append(text)
            if text == "a":
                raise ValueError(text)
            both.set()

        await broker.start()
        await broker.publish_batch("a", "b", topic=f"{application.name}.work")
        await both.wait()
        await broker.stop()
        await broker.start()  # again, with what was committed
        both.clear()
        await broker.publish("c", f"{application.name}.work")
        await both.wait()

    application.with_broker(main)
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["group", "share_group"])
def test_a_handler_answers_by_itself(application, kind):
    """`MANUAL`: without an answer a record of a group is tried again; and a handler may stop."""
    seen: list[str] = []
    options: Any = {kind: f"{application.name}.hand"}
    options |= {"retry": Retry(backoff=(0.0,))} if kind == "group" else {"backoff": (0.0, 0.0)}

    async def main(broker: PenstockBroker) -> None:
        @broker.subscriber(
            f"{application.name}.work", **options,
            ack_policy=AckPolicy.MANUAL,
        )  # fmt: skip
        async def handle(text: str, message: PenstockMessage) -> None:
            seen.append(text)
            if len(seen) == 1:
                await message.nack(reason="once more")
            elif len(seen) == 2:
                await message.ack()
                await message.reject()  # too late
                raise StopConsume

        await broker.start()
        await broker.publish("a", f"{application.name}.work")
        [subscriber] = broker.subscribers
        while subscriber.running:
            await asyncio.sleep(0.01)
        await broker.stop()

    application.with_broker(main)
    assert seen == ["a", "a"]
    with suppress(UnknownTopicError):
        assert not drain(application.node, f"{application.name}.work.dlq")


def test_messages_without_handlers_and_answers_to_topics(application):
    async def main(broker: PenstockBroker) -> None:
        one = broker.subscriber(f"{application.name}.work", share_group=f"{application.name}.one")
        answers = broker.subscriber(f"{application.name}.done", group=f"{application.name}.answers")

        @broker.subscriber(f"{application.name}.orders", share_group=f"{application.name}.asked")
        async def double(number: int) -> int:
            return 2 * number

        await broker.start()
        assert await broker.ping()
        await broker.publish(
            "x", f"{application.name}.work", headers={"a": "b"}, correlation_id="i"
        )
        message = await one.get_one(timeout=20.0)
        assert message is not None
        assert (await message.decode(), message.headers["a"]) == ("x", "b")
        assert (message.correlation_id, message.record.key) == ("i", None)
        await message.ack()
        await broker.publish(4, f"{application.name}.orders", reply_to=f"{application.name}.done")
        answer = await answers.get_one(timeout=20.0)
        assert answer is not None
        assert await answer.decode() == 8
        await broker.publish(None, f"{application.name}.work", key="gone")
        assert (await anext(aiter(one))).record.value is None
        with pytest.raises(FeatureNotSupportedException, match="no requests with an answer"):
            await broker.request("x", "y")

    application.with_broker(main)


def test_routers_and_handlers_without_a_node():
    """`TestPenstockBroker`, and what AsyncAPI tells."""

    async def handle(number: int) -> int:
        return number + 1

    route = PenstockRoute(handle, "in", group="g", publishers=(PenstockPublisher("out"),))
    broker = PenstockBroker(routers=(PenstockRouter("app.", handlers=(route,)),))

    @broker.subscriber("app.out", share_group="h")
    async def show(number: int) -> None: ...

    @broker.subscriber("app.out", share_group="h")
    async def also(number: int) -> None: ...

    async def main() -> None:
        async with TestPenstockBroker(broker):
            await broker.publish(1, "app.in")
            called = show.mock.call_args_list + also.mock.call_args_list
            assert [call.args for call in called] == [(2,)]
        assert not await broker.ping()
        with pytest.raises(IncorrectState, match=r"await broker\.connect\(\) first"):
            await broker.publish(1, "app.in")

    run(main())
    schema = AsyncAPI(broker).to_specification().to_jsonable()
    assert {channel["address"] for channel in schema["channels"].values()} == {"app.in", "app.out"}


@pytest.mark.parametrize(
    ("topics", "options", "told"),
    [
        ((), {"group": "g"}, "name topics"),
        (("t",), {}, "give group= for the records of each partition in order, or share_group="),
        (("t",), {"group": "g", "share_group": "h"}, "give group="),
        (("t",), {"group": "g", "max_workers": 0}, "max_workers"),
        (("t",), {"share_group": "g", "retry": Retry(max=1)}, "retry= is for groups"),
    ],
)
def test_what_no_subscriber_can_be_is_told(topics, options, told):
    with pytest.raises(ConfigError, match=told):
        PenstockBroker().subscriber(*topics, **options)
    with pytest.raises(TypeError, match="max_deliveries"):
        PenstockBroker().subscriber("t", group="g", max_deliveries=3)  # type: ignore[call-overload]
