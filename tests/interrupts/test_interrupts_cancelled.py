"""Calls in an event loop that are cancelled wherever they wait: the same promises hold."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from event_loops import run
from interrupts import living_trial as lives
from interrupts.cancelling import Cancel, Cancels, Loop
from interrupts.consuming_trial import PARTITIONS, ConsumingTrial, commit, filled, iterate, poll
from interrupts.exact_trial import ExactTrial, abort, step
from interrupts.living_trial import LivingTrial
from interrupts.producing_trial import ProducingTrial
from interrupts.rounds import CHOSEN, at_random, line_by_line
from seeds import seed_of

from penstock import aio
from penstock.testing import Broker

pytestmark = pytest.mark.timeout(0 if CHOSEN else 240)

RECORDS = 2000
_numbers = itertools.count()


@pytest.fixture(scope="module", params=["shm", "tcp"])
def node(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(writers=2, transport=request.param) as broker:
        yield broker


@contextmanager
def connected(node: Broker) -> Iterator[tuple[Any, Loop, str]]:
    """A client of a loop, and a topic."""
    loop, topic = Loop(), f"cancelled-{next(_numbers)}"
    node.create_topic(topic, partitions=PARTITIONS)
    with loop.connect(node) as client:
        yield client, loop, topic
    loop.close()


def flush(trial: ProducingTrial) -> None:
    trial.send("struck")
    trial.producer.flush(10)


def send_and_wait(trial: ProducingTrial) -> None:
    trial.producer.send_and_wait(trial.topic, trial.value("waited"), timeout=10)


def result(trial: ProducingTrial) -> None:
    trial.send("struck").result(10)


def drain(trial: Any) -> None:
    """First: what is cancelled here puts no more into the line."""
    trial.producer.drain()
    trial.producer.send_batch(trial.topic, [trial.value("wide") * 50])


def flush_alone(trial: ProducingTrial) -> None:
    trial.producer.flush(10)


PRODUCING: dict[str, tuple[dict[str, Any], Any]] = {
    "lingering": ({}, (flush, send_and_wait, result)),
    "small": ({"batch_bytes": 1024, "buffer_bytes_max": 1024}, (drain, flush_alone)),
}


@pytest.mark.parametrize("kind", PRODUCING)
def test_a_producer_whose_waits_are_cancelled_loses_and_doubles_nothing(
    node: Broker, kind: str
) -> None:
    seed = seed_of("cancelled producers")
    options, verbs = PRODUCING[kind]
    with connected(node) as (client, _, topic):
        trial = ProducingTrial(client, topic, lambda: client.producer(**options))
        struck = {verb.__name__: line_by_line(trial, verb, seed, Cancel) for verb in verbs}
        if CHOSEN.isdigit() or not CHOSEN:
            assert at_random(trial, verbs, seed, "a producer's waits", Cancels) > 0
        trial.judge()
    # On a busy machine the receipt of a lone record may be there before anybody waits for it.
    assert sum(struck.values()) > 0, struck


def test_a_close_that_was_cancelled_is_waited_for_by_the_next(node: Broker) -> None:
    node.create_topic("left")

    async def main() -> None:
        loop, gate = asyncio.get_running_loop(), threading.Event()
        async with aio.connect(node.url) as client:
            producer = await client.producer(linger=5.0)
            await producer.send_and_wait("left", b"first")
            loop.set_default_executor(ThreadPoolExecutor(1))
            loop.run_in_executor(None, gate.wait)  # nobody leaves before it opens
            delivery = producer.send("left", b"left open")
            leaving = asyncio.create_task(producer.close(0.0))
            await asyncio.sleep(0)
            while not leaving.done():
                leaving.cancel()
                await asyncio.sleep(0)
            loop.call_later(0.05, gate.set)
            await producer.close()
            assert delivery.done()

    run(main())


def test_the_end_of_a_client_ends_a_producer_that_nobody_has_any_more(node: Broker) -> None:
    with connected(node) as (client, _, topic):
        delivery = client.producer(linger=5.0).send(topic, b"sent")
        gc.collect()
        client.close()
        assert delivery.result(0).offset == 0


CONSUMING: dict[str, Any] = {
    "at-least-once": (poll, iterate, commit),
    "at-most-once": (poll, iterate),
    "exactly-once": (poll, iterate),
}
"""By guarantee. Where records are there already, few calls wait for anything."""


@pytest.mark.parametrize("guarantee", CONSUMING)
def test_a_consumer_whose_waits_are_cancelled_brings_each_record_once(
    node: Broker, guarantee: str
) -> None:
    seed = seed_of("cancelled polls")
    verbs = CONSUMING[guarantee]
    with connected(node) as (client, _, topic):
        with node.connect() as filler:
            filled(filler, topic, RECORDS)
        trial = ConsumingTrial(client, topic, RECORDS, guarantee=guarantee, follow=False)
        struck = {verb.__name__: line_by_line(trial, verb, seed, Cancel) for verb in verbs}
        if CHOSEN.isdigit() or not CHOSEN:
            at_random(trial, verbs, seed, f"{guarantee}, waits", Cancels)
        trial.judge()
    print(struck)


def test_a_transaction_whose_waits_are_cancelled_counts_once_or_not_at_all(node: Broker) -> None:
    seed = seed_of("cancelled transactions")
    with connected(node) as (client, _, topic):
        node.create_topic(f"{topic}-result", partitions=PARTITIONS)
        trial = ExactTrial(client, topic, f"{topic}-result")
        trial.fill(20)
        struck = {verb.__name__: line_by_line(trial, verb, seed, Cancel) for verb in (step, abort)}
        if CHOSEN.isdigit() or not CHOSEN:
            at_random(trial, (step, abort), seed, "waits of transactions", Cancels)
        trial.judge()
    assert min(struck.values()) > 0, struck


VERBS = (
    lives.client, lives.producer, lives.consumer, lives.member, lives.transactional, lives.stage,
    lives.admin, lives.requests, lives.topics,
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_what_is_cancelled_while_it_is_made_or_ended_is_in_nobodys_way(
    node: Broker, verb: Any
) -> None:
    loop = Loop()
    trial = LivingTrial(lambda: loop.connect(node), f"living-{next(_numbers)}")
    struck = line_by_line(trial, verb, seed_of(f"waits of {verb.__name__}"), Cancel)
    if verb is lives.member:
        trial.group_has_all()
    trial.judge()
    loop.close()
    assert struck > 0
