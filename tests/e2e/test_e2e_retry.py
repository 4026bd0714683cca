"""`consumer.run(handler, retry=Retry(...))`: a record whose handler fails holds up no other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from node_helpers import environment

from penstock import (
    ConfigError,
    GroupConsumer,
    ProduceError,
    Record,
    Retry,
    UnknownTopicError,
    aio,
)
from penstock.testing import Broker, drain, produce, wait_until

FAST = (0.0, 0.02, 0.05)


@pytest.fixture
def topic(node: Broker) -> str:
    return node.create_topic(partitions=3)


def run_until(
    node: Broker,
    topic: str,
    handler: Callable[[Any], object],
    retry: Retry,
    is_done: Callable[[], bool],
    **options: Any,
) -> dict[str, int]:
    """Let a new member of the topic's group run until then; its counters."""
    options.setdefault("group", topic)
    consumer: GroupConsumer
    with node.connect() as client, client.consumer(topic, **options) as consumer:
        with stopped(consumer.stop, is_done):
            consumer.run(handler, retry=retry)
        return consumer.metrics()


@contextmanager
def stopped(stop: Callable[[], object], is_done: Callable[[], bool]) -> Any:
    def wait() -> None:
        try:
            wait_until(is_done)
        finally:
            stop()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def committed(node: Broker, group: str) -> Counter[str]:
    found: Counter[str] = Counter()
    with node.connect() as client, client.admin() as admin:
        for part in admin.describe_group(group).partitions:
            found[part.topic] += part.committed or 0
    return found


def values(node: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in drain(node, topic)]


def read_committed(node: Broker, topic: str) -> list[bytes]:
    with (
        node.connect() as client,
        client.consumer(topic, follow=False, isolation="read_committed") as reader,
    ):
        return [record.value or b"" for record in reader]


def fail() -> None:
    raise RuntimeError("no such customer")


def refuse(record: Record) -> None:
    fail()


@pytest.mark.over_tcp
def test_one_bad_record_among_a_thousand_holds_up_none_and_becomes_a_dead_letter(
    node: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "penstock.consumer")
    produce(node, topic, [(b"%d" % (n % 9), b"%d" % n) for n in range(1000)])
    order: list[int] = []

    def handle(number: int) -> None:
        order.append(number)
        if number == 3:
            fail()

    counts = run_until(node, topic, handle, Retry(max=3, backoff=FAST), lambda: order.count(3) == 4)
    assert Counter(order) == Counter({**dict.fromkeys(range(1000), 1), 3: 4})
    assert (counts["handled"], counts["retried"], counts["dead_letters"]) == (999, 3, 1)
    [letter] = drain(node, f"{topic}.dlq")
    assert (letter.key, letter.value) == (b"3", b"3")
    told = {name: value or b"" for name, value in letter.headers}
    assert told["penstock.dlq.topic"] == told["penstock.dlq.group"] == topic.encode()
    assert told["penstock.dlq.deliveries"] == b"4"
    assert told["penstock.dlq.reason"] == b"RuntimeError: no such customer"
    assert len(json.loads(told["penstock.dlq.history"])) == 4
    [first] = [one for one in drain(node, topic) if one.value == b"3"]
    where = [int(told[f"penstock.dlq.{name}"]) for name in ("partition", "offset", "timestamp")]
    assert where == [first.partition, first.offset, first.timestamp]
    done = committed(node, topic)
    assert done == {topic: 1000, **{f"{topic}.retry.{topic}.{level}": 1 for level in (1, 2, 3)}}
    said = [each.getMessage() for each in caplog.records]
    assert sum("try 1 of 4, and again in 0 s: RuntimeError" in each for each in said) == 1
    assert sum(f"try 4, a dead letter in {topic}.dlq now" in each for each in said) == 1


def test_a_retry_gives_the_record_as_it_was_and_tells_which_try_it_is(
    node: Broker, topic: str
) -> None:
    headers = [(f"h{n}", b"%d" % n) for n in range(64)]  # as many as a record may have
    with node.connect() as client, client.admin() as admin:
        admin.alter_topic(topic, retention=3600)
    with node.connect() as client, client.producer() as producer:
        producer.send(topic, None, key=b"gone", headers=headers, partition=2, priority=7, delay=9)
    [sent] = drain(node, topic)
    seen: list[Record] = []

    def handle(record: Record) -> None:
        seen.append(record)
        if len(seen) < 3:
            fail()

    run_until(node, topic, handle, Retry(backoff=FAST), lambda: len(seen) == 3)
    assert seen[0] == sent
    for number, record in enumerate(seen[1:], 2):
        assert record.headers == (*sent.headers, ("penstock.retry.deliveries", b"%d" % number))
        assert (record.topic, record.partition, record.offset) == (topic, 2, 0)
        assert (record.key, record.value, record.timestamp) == (b"gone", None, sent.timestamp)
        assert record.work == sent.work
    with node.connect() as client, client.admin() as admin:
        made = admin.describe_topic(f"{topic}.retry.{topic}.2")
    assert (len(made.partitions), made.settings["retention"]) == (3, 3600.02)
    for level in (1, 2):
        [copy] = drain(node, f"{topic}.retry.{topic}.{level}")
        assert (copy.partition, copy.key) == (2, b"gone")


def test_what_no_retry_would_mend_is_a_dead_letter_at_once(node: Broker, topic: str) -> None:
    produce(node, topic, [b"1", b"poison", b"2"])

    def handle(number: int) -> None:
        if number == 2:
            raise KeyError("gone")

    retry = Retry(fatal=(LookupError,), dead_letters="graveyard-{topic}")
    node.create_topic(f"graveyard-{topic}")
    counts = run_until(
        node, topic, handle, retry, lambda: len(values(node, f"graveyard-{topic}")) == 2
    )
    assert counts["retried"] == 0
    letters = {one.value: dict(one.headers) for one in drain(node, f"graveyard-{topic}")}
    assert letters.keys() == {b"poison", b"2"}
    assert (letters[b"poison"]["penstock.dlq.reason"] or b"").startswith(b"DecodeError: ")
    assert letters[b"2"]["penstock.dlq.deliveries"] == b"1"


def test_without_a_topic_for_dead_letters_nothing_is_kept(node: Broker, topic: str) -> None:
    produce(node, topic, [b"1"])
    tries: list[int] = []

    def handle(number: int) -> None:
        tries.append(number)
        fail()

    retry = Retry(max=1, backoff=(0.0,), dead_letters=None)
    counts = run_until(node, topic, handle, retry, lambda: len(tries) == 2)
    assert counts["dead_letters"] == 1
    with node.connect() as client, client.admin() as admin:
        assert f"{topic}.dlq" not in admin.list_topics()


def test_groups_that_share_retry_topics_leave_each_others_records(node: Broker, topic: str) -> None:
    produce(node, topic, [b"1"])
    retry = Retry(max=1, backoff=(0.0,), topics="{topic}.again.{level}")
    node.create_topic(f"{topic}.dlq")
    run_until(node, topic, refuse, retry, lambda: bool(values(node, f"{topic}.dlq")))
    seen: list[Record] = []

    def handle(record: Record) -> None:
        seen.append(record)
        if len(seen) == 1:
            fail()

    counts = run_until(node, topic, handle, retry, lambda: len(seen) >= 2, group=f"{topic}-other")
    assert (counts["handled"], counts["foreign_retries"]) == (1, 1)
    assert len(values(node, f"{topic}.dlq")) == 1


def test_levels_that_an_earlier_policy_had_are_read_and_latest_skips_no_retry(
    node: Broker, topic: str
) -> None:
    produce(node, topic, [b"1"])
    counts = Counter[str]()

    def handle(number: int) -> None:
        counts["tries"] += 1
        if counts["tries"] < 4:
            fail()

    level = f"{topic}.retry.{topic}.3"
    retry = Retry(backoff=(0.0, 0.001, 60.0))
    node.create_topic(level)
    run_until(
        node, topic, handle, retry, lambda: counts["tries"] == 3 and bool(values(node, level))
    )
    with node.connect() as client, client.admin() as admin:
        admin.delete_group(topic)
    less = Retry(max=2, backoff=(0.0, 0.001))
    run_until(node, topic, handle, less, lambda: counts["tries"] >= 6, start="latest")
    assert counts["tries"] == 6  # a copy in each of three levels, and not the record


def test_a_retry_comes_when_it_is_due_and_its_partition_waits(node: Broker, topic: str) -> None:
    produce(node, topic, [b"1"])
    tries: list[float] = []

    def handle(number: int) -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            fail()

    counts = run_until(node, topic, handle, Retry(backoff=(0.3,)), lambda: len(tries) == 2)
    assert tries[1] - tries[0] > 0.29
    assert counts["retry_pauses"] <= 1  # none where the machine took so long


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "known"])
def test_a_copy_that_cannot_be_written_ends_the_run_and_the_record_comes_again(
    node: Broker, is_known: bool
) -> None:
    """`is_known`: copies were written there before, so that nobody notices when it is sent."""
    topic = node.create_topic()
    produce(node, topic, [b"0", b"1", b"2"])
    retry = Retry(max=1, backoff=(60.0,))
    seen: list[bytes] = []

    def handle(value: bytes) -> None:
        seen.append(value)
        if value == b"0" and is_known:
            fail()
        if value == b"2":
            if is_known:
                wait_until(lambda: values(node, f"{topic}.retry.{topic}.1"))
            with node.connect() as client, client.admin() as admin:
                admin.delete_topic(f"{topic}.retry.{topic}.1")
            fail()

    def note(value: bytes) -> None:
        seen.append(value)

    with pytest.raises((ProduceError, UnknownTopicError), match="retry"):
        run_until(node, topic, handle, retry, lambda: b"2" in seen)
    assert seen == [b"0", b"1", b"2"]
    run_until(node, topic, note, retry, lambda: seen[3:].count(b"2") == 1)


def test_a_handler_that_stops_its_run_leaves_no_record_in_between(node: Broker, topic: str) -> None:
    produce(node, topic, [b"%d" % n for n in range(30)])
    seen: list[int] = []
    with node.connect() as client:
        for _ in range(3):
            with client.consumer(topic, group=topic) as consumer:

                def handle(number: int, consumer: GroupConsumer = consumer) -> None:
                    seen.append(number)
                    if len(seen) % 10 == 0:
                        consumer.stop()
                    if number == 7:
                        fail()

                consumer.run(handle, retry=Retry(backoff=(60.0,)))
    assert Counter(seen) == Counter(range(30))
    assert values(node, f"{topic}.retry.{topic}.1") == [b"7"]


def test_the_record_in_hand_comes_again_where_something_else_ends_the_run(
    node: Broker, topic: str
) -> None:
    produce(node, topic, [b"0", b"1", b"2"])
    seen: list[int] = []
    with node.connect() as client, client.consumer(topic, group=topic, follow=False) as consumer:

        def handle(number: int) -> None:
            seen.append(number)
            if len(seen) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            consumer.run(handle, retry=Retry())
        consumer.run(handle, retry=Retry())
    assert Counter(seen) == {0: 1, 1: 1, 2: 1} | {seen[1]: 2}
    assert committed(node, topic)[topic] == 3


@pytest.mark.over_tcp
def test_exactly_once_what_a_failed_handler_sent_does_not_count(node: Broker, topic: str) -> None:
    target = node.create_topic()
    produce(node, topic, [b"%d" % n for n in range(200)])
    tries: Counter[int] = Counter()
    with (
        node.connect() as client,
        client.producer(transactional_id=topic) as producer,
        client.consumer(topic, group=topic, guarantee="exactly-once") as consumer,
    ):

        def handle(number: int) -> None:
            producer.send(target, b"%d" % number)
            tries[number] += 1
            if number == 50 or (number == 60 and tries[60] < 3):
                fail()

        def is_done() -> bool:
            there = len(read_committed(node, target)), len(read_committed(node, f"{topic}.dlq"))
            return there == (199, 1)

        with client.admin() as admin:
            admin.create_topic(f"{topic}.dlq")
        with stopped(consumer.stop, is_done):
            consumer.run(handle, retry=Retry(max=3, backoff=FAST), producer=producer)
    assert sorted(map(int, read_committed(node, target))) == sorted({*range(200)} - {50})
    assert read_committed(node, f"{topic}.dlq") == [b"50"]
    assert committed(node, topic)[topic] >= 200  # and markers


@pytest.mark.over_tcp
def test_in_an_event_loop_coroutines_handle_records(node: Broker, topic: str) -> None:
    produce(node, topic, [b"%d" % n for n in range(100)])
    seen: Counter[int] = Counter()

    async def main() -> dict[str, int]:
        async with (
            aio.connect(node.url) as client,
            client.producer() as producer,
            client.consumer(topic, group=topic) as consumer,
        ):

            async def handle(number: int) -> None:
                await asyncio.sleep(0)
                seen[number] += 1
                if number == 5:
                    if seen[5] == 4:
                        consumer.stop()
                    fail()

            await consumer.run(handle, retry=Retry(max=3, backoff=FAST), producer=producer)
            return consumer.metrics()

    counts = asyncio.run(asyncio.wait_for(main(), 60))
    assert seen == {**dict.fromkeys(range(100), 1), 5: 4}
    assert (counts["handled"], counts["retried"], counts["dead_letters"]) == (99, 3, 1)
    assert values(node, f"{topic}.dlq") == [b"5"]
    assert committed(node, topic)[topic] == 100


def test_in_an_event_loop_a_run_may_be_exactly_once_or_cancelled(node: Broker, topic: str) -> None:
    target = node.create_topic()
    produce(node, topic, [b"1", b"2", b"3"])
    tries: Counter[int] = Counter()

    async def main() -> None:
        async with (
            aio.connect(node.url) as client,
            client.producer(transactional_id=topic) as producer,
            client.consumer(topic, group=topic, guarantee="exactly-once") as consumer,
        ):

            async def handle(number: int) -> None:
                tries[number] += 1
                producer.send(target, b"%d" % number)
                if number == 2:
                    if tries[2] < 2:
                        fail()
                    if tries[2] == 2:
                        await asyncio.Event().wait()

            run = consumer.run(handle, retry=Retry(backoff=(0.0,)), producer=producer)
            task = asyncio.create_task(run)
            while tries[2] < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            task = asyncio.create_task(
                consumer.run(handle, retry=Retry(backoff=(0.0,)), producer=producer)
            )
            while tries[2] < 3 or tries[3] < 1 or tries[1] < 1:
                await asyncio.sleep(0.01)
            consumer.stop()
            await task

    asyncio.run(asyncio.wait_for(main(), 60))
    assert sorted(read_committed(node, target)) == [b"1", b"2", b"3"]


# --- processes that end -------------------------------------------------------------------------
PROGRAM = """
import sys
import penstock

url, topic, target = sys.argv[1:]
tries = {}

with penstock.connect(url) as client, client.producer(acks="all") as producer:
    consumer = client.consumer(topic, group=topic, commit_interval=0.02, session_timeout=1.0)

    def handle(record):
        number = int(record.value)
        if number % 10 == 3 and not dict(record.headers).get("penstock.retry.deliveries"):
            raise RuntimeError("not yet")
        if number % 100 == 7:
            raise ValueError("never")
        producer.send(target, record.value)

    with consumer:
        print("begins", flush=True)
        consumer.run(
            handle,
            retry=penstock.Retry(max=2, backoff=(0.0, 0.01), fatal=ValueError),
            producer=producer,
        )
    print("ended", flush=True)
"""


def start(folder: Path, node: Broker, topic: str, target: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, os.fspath(folder / "program.py"), node.url, topic, target],
        stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    return process


def outcomes(node: Broker, topic: str, target: str) -> tuple[set[int], set[int]]:
    done, dead = (drain(node, name) for name in (target, f"{topic}.dlq"))
    return {int(one.value or b"") for one in done}, {int(one.value or b"") for one in dead}


@pytest.mark.over_tcp
def test_a_process_that_is_killed_loses_no_record_and_no_retry(
    node: Broker, topic: str, tmp_path: Path
) -> None:
    count = 500
    target = node.create_topic(partitions=2)
    dead = set(range(7, count, 100))
    produce(node, topic, [b"%d" % n for n in range(count)])
    with node.connect() as client, client.admin() as admin:
        admin.create_topic(f"{topic}.dlq")
    process = start(tmp_path, node, topic, target)
    wait_until(lambda: drain(node, target), timeout=60)
    process.kill()
    process.wait()
    process = start(tmp_path, node, topic, target)
    wanted_now = ({*range(count)} - dead, dead)
    wait_until(lambda: outcomes(node, topic, target) == wanted_now, timeout=60)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert (said, process.returncode) == ("ended\n", 0)
    assert committed(node, topic)[topic] == count


# --- what is refused ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"guarantee": "at-most-once"}, "a retry would handle a record again"),
        ({"guarantee": "manual"}, "commits by itself"),
        ({"pattern": "orders.*"}, "name them"),
        ({"latest_only": "key"}, "would be passed over"),
        ({"guarantee": "exactly-once"}, "give by producer= the transactional producer"),
    ],
)
def test_consumers_that_cannot_retry_are_refused(
    node: Broker, topic: str, options: dict[str, Any], says: str
) -> None:
    with node.connect() as client, client.consumer(topic, group=topic, **options) as consumer:
        consumer.stop()  # at once, should it run
        with pytest.raises(ConfigError, match=says):
            consumer.run(refuse, retry=Retry())
        with client.admin() as admin:
            assert not [name for name in admin.list_topics() if ".retry." in name and topic in name]


async def later(record: Record) -> None: ...


def test_handlers_and_policies_that_cannot_be_are_refused(node: Broker, topic: str) -> None:
    with node.connect() as client, client.consumer(topic, group=topic) as consumer:
        with pytest.raises(ConfigError, match=r"use penstock\.aio for coroutines"):
            consumer.run(later, retry=Retry())
        with pytest.raises(TypeError, match=r"must be a penstock\.Retry, not int"):
            consumer.run(refuse, retry=5)  # type: ignore[arg-type]
        with (
            client.producer(transactional_id=topic) as producer,
            pytest.raises(ConfigError, match="without a transactional_id"),
        ):
            consumer.run(refuse, retry=Retry(), producer=producer)
        with pytest.raises(Exception, match="1 to 200 characters"):
            consumer.run(refuse, retry=Retry(topics="x" * 200 + "{topic}{level}"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"cleanup": "compact"}, "cleanup='compact'"), ({"retention": 5.0}, "keep them longer")],
)
def test_a_retry_topic_that_would_lose_records_is_refused(
    node: Broker, topic: str, settings: dict[str, Any], says: str
) -> None:
    node.create_topic(f"{topic}.retry.{topic}.2", **settings)
    with node.connect() as client, client.consumer(topic, group=topic) as consumer:
        consumer.stop()  # at once, should it run
        with pytest.raises(ConfigError, match=says):
            consumer.run(refuse, retry=Retry())
